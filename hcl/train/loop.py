"""The training loop: a learner, a stream, and a checkpoint from which a stopped run goes on.

``train_seed`` is the loop, the same for every method.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcl import __version__
from hcl.detect.verdict import Watched
from hcl.errors import HCLError
from hcl.files import fingerprint
from hcl.learn.contract import (
    Batch,
    Learner,
    Observation,
    Prediction,
    Sampler,
    Start,
    TaskBatch,
)
from hcl.learn.settings import Method, TrainingSettings, used_settings
from hcl.model import looking
from hcl.model.hybrid import NonFiniteError
from hcl.model.model_file import FORMAT
from hcl.model.settings import FlowSettings
from hcl.progress import bar
from hcl.records.embeddings import Embeddings
from hcl.records.runs import Run, Trace
from hcl.records.tasks import Benchmark
from hcl.train import store
from hcl.train.machine import full_precision, pick_device
from hcl.train.nearness import nearest
from hcl.train.streams import Stream

LOOK_EVERY = 50  # steps on a GPU, where a look at a loss makes it wait
PICTURES = 4  # keeps the generator of the samples in a run file apart: see Start.generator
DRAWN = 4  # samples of each class and task that a run on pixels keeps after each segment
CLOSED_FORM_BATCH = 1024  # sums do not depend on it; larger products are faster


@dataclass(frozen=True)
class Job:
    """One run: everything that determines its result, and where its checkpoint lives."""

    benchmark: Benchmark
    embeddings: Mapping[str, Embeddings]
    name: str  # of the method
    method: Method  # as it is on this benchmark
    flow: FlowSettings
    training: TrainingSettings
    seed: int

    def settings(self) -> dict[str, Any]:
        """What a run file says of its settings."""
        in_batches = self.benchmark.shown.counts_batches
        used = used_settings(self.method, self.flow, self.training, in_batches)
        if "checkpoint_every" in used.get("training", {}):
            del used["training"]["checkpoint_every"]  # no influence on the result
            used["training"]["device"] = self.device.type  # the one that "auto" found
        return used

    def fingerprint(self) -> str:
        """The key of the run in the store."""
        return fingerprint(
            {
                "benchmark": self.benchmark.name,
                "tasks": self.benchmark.digest(),
                "method": self.name,
                "settings": self.settings(),
                "seed": self.seed,
                "device": self.device.type,
                "model": FORMAT if self.training.save_model else None,
                "versions": versions(),
                "source": store.source_digest("hcl.train.loop", self.method.learner),
            }
        )

    @property
    def device(self) -> torch.device:
        """Where the flow is trained; closed forms stay on the CPU."""
        return torch.device("cpu") if self.method.closed_form else pick_device(self.training.device)


def versions() -> dict[str, str]:
    """The libraries that a result depends on."""
    return {"hcl": __version__, "numpy": np.__version__, "torch": str(torch.__version__)}


@dataclass
class Progress:
    """How far a run has come, and what it has left behind: all but the learner itself."""

    segment: int = 0
    batch: int = 0  # within the segment
    predictions: list[Prediction] = field(default_factory=list)
    added_in: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    pending: list[Tensor] = field(default_factory=list)  # losses not looked at yet
    places: list[tuple[int, ...]] = field(default_factory=list)  # a row a batch: see _finish
    watched: dict[str, list[Watched]] = field(default_factory=dict)  # a row a batch, by name
    drawn: list[NDArray[np.uint8]] = field(default_factory=list)  # after each segment: see _draw

    def settle(self) -> None:
        """Look at the losses of the last steps."""
        for loss in torch.stack(self.pending).tolist() if self.pending else ():
            if not np.isfinite(loss):
                raise NonFiniteError(f"the loss is {loss}.")
            self.losses.append(loss)
        self.pending.clear()


def start_of(job: Job, stream: Stream) -> Start:
    """What the job's learner is built from."""
    return Start(
        shape=stream.shape,
        num_classes=job.benchmark.num_classes,
        first=lambda count: stream.first_samples(count).x,
        flow=job.flow,
        training=job.training,
        seed=job.seed,
        device=job.device,
        archive=stream,
        only_seen=job.benchmark.shown.labels == "own",
        partly_labelled=job.benchmark.shown.labelled < 1,
    )


def build_learner(job: Job, stream: Stream) -> Learner:
    """The learner of the job's method, by the module of its kind."""
    module = importlib.import_module(job.method.learner)
    try:
        learner: Learner = module.build(job.method, start_of(job, stream))
    except HCLError as error:
        raise HCLError(f"{job.benchmark.name}: {error}") from error
    return learner


@full_precision()
def train_seed(
    job: Job,
    checkpoint: Path | None = None,
    position: int = 0,
    build: Callable[[Job, Stream], Learner] = build_learner,
) -> tuple[Run, Learner]:
    """Train one run from top to bottom, or from its checkpoint on.

    Args:
        job: the run.
        checkpoint: where it is kept; ``None`` keeps nothing.
        position: of its progress bar.
        build: makes the learner, for trials of another one.
    """
    stream = Stream(
        job.benchmark,
        job.embeddings,
        batch_size=_batch_size(job),
        seed=job.seed,
        device=job.device,
        images=job.method.takes_images,
    )
    learner = build(job, stream)
    epochs = 1 if job.method.sees_once else None
    segments = range(len(job.benchmark.stream))
    total = sum(stream.num_batches(j, epochs) for j in segments)
    progress = Progress()
    state = store.read_checkpoint(checkpoint) if checkpoint is not None else None
    if checkpoint is not None and state is not None:
        try:
            progress = _restored(state, learner)
        except Exception as error:  # a state that is whole, but of something else
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            store.set_aside(checkpoint, f"{checkpoint}: not a checkpoint of this run ({reason}).")
            learner = build(job, stream)
    done = progress.batch + sum(stream.num_batches(j, epochs) for j in range(progress.segment))
    steps = bar(
        total=total,
        initial=done,
        desc=f"{job.name} seed {job.seed}",
        unit="step",
        position=position,
        leave=False,
    )
    while progress.segment < len(segments):
        segment = progress.segment
        for batch in stream.batches(segment, progress.batch, epochs):
            told = _told(job, batch, segment)
            with _saying_where(job, progress):
                if len(told.y):
                    _note(progress, learner.observe(told), batch.task, learner)
            progress.batch += 1
            steps.update()
            done += 1
            if checkpoint is not None and done % job.training.checkpoint_every == 0:
                with _saying_where(job, progress):
                    progress.settle()
                _save(checkpoint, progress, learner)
        with _saying_where(job, progress):
            progress.settle()
        progress.predictions.append(_predict(learner, stream))
        if stream.pixels is not None and isinstance(learner, Sampler):
            progress.drawn.append(_draw(learner, job, segment, stream.pixels))
        progress.segment, progress.batch = segment + 1, 0
        if checkpoint is not None:
            _save(checkpoint, progress, learner)
    steps.close()
    near = None
    if stream.pixels is None and isinstance(learner, Sampler):
        near = nearest(learner, job, progress.added_in)
    return _finish(job, progress, near), learner


def _told(job: Job, batch: TaskBatch, segment: int) -> Batch | TaskBatch:
    """The batch as the learner may see it: with its task, and with samples without a label.

    A learner that infers whose a sample is is told the task that the segment brings, from the first
    batch that may hold it; others are told whose most samples are.
    """
    if getattr(job.method, "belongs", "batch") == "sample":
        batch = batch._replace(task=job.benchmark.stream[segment].task)
    if job.benchmark.shown.labelled < 1 and not getattr(job.method, "unlabelled", 0):
        batch = batch.labelled()
    return batch if job.method.detection is None else batch.without_task()


def _batch_size(job: Job) -> int:
    """Sums may come in larger batches, unless the stream is made of batches."""
    if job.method.closed_form and not job.benchmark.shown.counts_batches:
        return CLOSED_FORM_BATCH
    return job.training.batch_size


def _note(progress: Progress, seen: Observation, true_task: int, learner: Learner) -> None:
    """Keep what one batch left behind; a loss that is not finite ends the run."""
    while len(progress.added_in) < learner.num_tasks:
        progress.added_in.append(progress.segment)
    if seen.loss is not None:
        progress.pending.append(seen.loss)
        if len(progress.pending) >= (1 if looking.is_free(seen.loss.device) else LOOK_EVERY):
            progress.settle()
    if seen.evidence is not None:
        progress.places.append((progress.segment, true_task, learner.task, seen.evidence.verdict))
        for name, watched in seen.evidence.statistics.items():
            progress.watched.setdefault(name, []).append(watched)


@contextlib.contextmanager
def _saying_where(job: Job, progress: Progress) -> Iterator[None]:
    """An error of a loss that is not finite names the run, the step, and what to try."""
    try:
        yield
    except NonFiniteError as error:
        rate = getattr(job.method, "learning_rate", None) or job.training.learning_rate
        scaling = {"global": "standard"}.get(job.training.scaling, "global")
        task = job.benchmark.stream[progress.segment].task
        raise NonFiniteError(
            f"{job.name} on {job.benchmark.name}, seed {job.seed}, step {len(progress.losses)}, "
            f"segment {progress.segment + 1} of the stream (task {task + 1}): {error} Try a "
            f"learning_rate below {rate:g}, or scaling: {scaling}."
        ) from error


def _predict(learner: Learner, stream: Stream) -> Prediction:
    parts = [learner.predict(x) for x in stream.test_samples()]
    columns: list[Any] = list(zip(*parts, strict=True))
    answers: list[Any] = [None if c[0] is None else np.concatenate(c) for c in columns]
    return Prediction(*answers)


def _draw(learner: Sampler, job: Job, segment: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Samples as bytes (T, K, DRAWN, C, H, W), by a generator that nothing else draws from."""
    state = np.random.SeedSequence([job.seed, PICTURES, segment]).generate_state(1, np.uint64)[0]
    generator = torch.Generator(job.device).manual_seed(int(state >> np.uint64(1)))
    x = learner.draw(DRAWN, generator)
    if not job.method.takes_images:
        x = 255 * x
    x = x.reshape(*x.shape[:3], *shape).nan_to_num(0).clamp(0, 255)
    drawn: NDArray[np.uint8] = x.to(torch.uint8).cpu().numpy()
    return drawn


def _all_drawn(drawn: list[NDArray[np.uint8]]) -> NDArray[np.uint8] | None:
    """(J, T, K, DRAWN, C, H, W): black where a task was not there yet."""
    if not drawn:
        return None
    tasks = max(len(part) for part in drawn)
    return np.stack([np.pad(p, [(0, tasks - len(p)), *[(0, 0)] * 5]) for p in drawn])


def _finish(job: Job, progress: Progress, near: NDArray[np.float32] | None) -> Run:
    columns: list[Any] = list(zip(*progress.predictions, strict=True))
    answers: list[Any] = [None if column[0] is None else np.stack(column) for column in columns]
    trace = None
    if job.method.detection is not None:
        segment, true_task, learner_task, verdict = np.array(progress.places).T
        trace = Trace(
            segment=segment.astype(np.int16),
            true_task=true_task.astype(np.int16),
            learner_task=learner_task.astype(np.int16),
            verdict=verdict.astype(np.int8),
            statistics={n: np.array(rows, np.float32) for n, rows in progress.watched.items()},
        )
    return Run(
        benchmark=job.benchmark.name,
        method=job.name,
        seed=job.seed,
        settings=job.settings(),
        tasks=job.benchmark.digest(),
        fingerprint=job.fingerprint(),
        versions=versions(),
        predicted_class=answers[0],
        predicted_task=answers[1],
        pair_class=answers[2],
        confidence=answers[3],
        added_in=np.array(progress.added_in, np.int16),
        loss=np.array(progress.losses, np.float32) if progress.losses else None,
        trace=trace,
        samples=_all_drawn(progress.drawn),
        nearest=near,
    )


def _save(path: Path, progress: Progress, learner: Learner) -> None:
    """Write a checkpoint, whole or not at all: the one before it stands until then."""
    state = {
        "learner": learner.state(),
        "segment": progress.segment,
        "batch": progress.batch,
        "drawn": [torch.from_numpy(part) for part in progress.drawn],
        "predictions": [
            [None if a is None else torch.from_numpy(a) for a in p] for p in progress.predictions
        ],
        "added_in": list(progress.added_in),
        "losses": torch.tensor(progress.losses, dtype=torch.float64),
        "places": torch.tensor(progress.places, dtype=torch.int64),
        "watched": {
            name: torch.tensor(rows, dtype=torch.float64) for name, rows in progress.watched.items()
        },
    }
    store.write_checkpoint(path, state)


def _answers(saved: list[Any]) -> Prediction:
    arrays: list[Any] = [None if a is None else a.numpy() for a in saved]
    return Prediction(*arrays)


def _restored(state: Mapping[str, Any], learner: Learner) -> Progress:
    """How far a run had come, and its learner as it was then."""
    learner.restore(state["learner"])
    return Progress(
        segment=state["segment"],
        batch=state["batch"],
        predictions=[_answers(p) for p in state["predictions"]],
        drawn=[part.numpy() for part in state["drawn"]],
        added_in=list(state["added_in"]),
        losses=state["losses"].tolist(),
        places=[tuple(row) for row in state["places"].tolist()],
        watched={
            name: [Watched(*row) for row in rows.tolist()]
            for name, rows in state["watched"].items()
        },
    )
