"""The training loop: a learner, a stream, and a checkpoint from which a stopped run goes on.

``train_seed`` is the loop, the same for every method; ``train`` runs it for several seeds side by
side and keeps what is finished, so that an added seed trains only itself.

What is fitted once, on the first task alone: the scaling of the inputs. Paper: silent. Here: the
flow's own first layer (``hcl.model.flows``), set from up to 4,096 training samples of the first
task and never changed, because whatever moves later moves all old tasks' latents.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import joblib
import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

from hcl import __version__
from hcl.errors import HCLError
from hcl.files import fingerprint, replacing
from hcl.learn.closed_form import ClosedForm, NearestMean, RandomProjectionRidge, StreamingLDA
from hcl.learn.contract import Observation, Prediction
from hcl.learn.learners import (
    ClosedFormLearner,
    FlowLearner,
    Learner,
    MethodSettings,
    VAELearner,
)
from hcl.learn.plus import PlusLearner, tukey
from hcl.learn.vae import SupervisedCURL
from hcl.model.flows import FlowSettings
from hcl.model.hybrid import NonFiniteError, build_model
from hcl.model.model_file import save_model
from hcl.model.realnvp import RealNVP
from hcl.progress import bar
from hcl.records.embeddings import Embeddings
from hcl.records.runs import Run, Trace, write_run
from hcl.records.tasks import Benchmark
from hcl.train import store
from hcl.train.streams import Stream, check_sources

FITTING_SAMPLES = 4096  # of the first task, for the scaling
LOOK_AT_LOSS_EVERY = 50  # steps on a GPU, where a look makes it wait
RUN_FILES = ("seed-*.h5", "seed-*.safetensors")  # what ``train`` writes
CLOSED_FORM_BATCH = 1024  # sums do not depend on it; larger products are faster


@dataclass(frozen=True)
class TrainingSettings:
    """How a benchmark is trained, whatever the method.

    Attributes:
        batch_size: samples a step; also replay samples for each old task.
        learning_rate: of Adam. Paper: silent.
        weight_decay: of Adam, as an L2 term.
        scaling: of the inputs, fitted on the first task: ``global`` subtracts each feature's mean
            and divides by one number; ``standard`` divides by each feature's standard deviation,
            at least a tenth of the root mean square of them all; ``none`` leaves them alone.
        mean_scale: standard deviation of each entry of a random mean μ_{y,t}.
        device: ``auto`` takes a GPU if there is one.
        image_shape: (C, H, W) of samples that are flattened images, for a flow on images.
        save_model: whether the last model of each run is kept beside it.
        checkpoint_every: steps between checkpoints; one is also written after each segment.
    """

    batch_size: int = 32
    learning_rate: float = 1e-4
    weight_decay: float = 1e-4
    scaling: Literal["global", "standard", "none"] = "global"
    mean_scale: float = 1.0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    image_shape: tuple[int, ...] | None = None
    save_model: bool = False
    checkpoint_every: int = 1000

    def __post_init__(self) -> None:
        for name in ("batch_size", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: is {getattr(self, name)}; expected 1 or more.")
        for name in ("learning_rate", "mean_scale"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: is {getattr(self, name)}; expected a number above 0.")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay: is {self.weight_decay}; expected 0 or more.")


@dataclass(frozen=True)
class Job:
    """One run: everything that determines its result, and where its checkpoint lives."""

    benchmark: Benchmark
    embeddings: Mapping[str, Embeddings]
    name: str  # of the method
    method: MethodSettings  # with the benchmark's changes made
    flow: FlowSettings
    training: TrainingSettings
    seed: int

    def settings(self) -> dict[str, Any]:
        """What a run file says of its settings."""
        training = dataclasses.asdict(self.training)
        del training["checkpoint_every"]  # no influence on the result
        training["device"] = self.device.type  # the one that "auto" found
        method = dataclasses.asdict(self.method)
        del method["benchmarks"]
        return {"method": method, "flow": dataclasses.asdict(self.flow), "training": training}

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
                "versions": versions(),
                "source": store.source_digest("hcl.train.loop"),
            }
        )

    @property
    def device(self) -> torch.device:
        """Where the flow is trained; closed forms stay on the CPU."""
        return (
            torch.device("cpu") if self.method.is_closed_form else pick_device(self.training.device)
        )


def versions() -> dict[str, str]:
    """The libraries that a result depends on."""
    return {"hcl": __version__, "numpy": np.__version__, "torch": str(torch.__version__)}


def pick_device(name: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """The device of that name; ``cuda`` without one is an error."""
    if name == "cuda" and not torch.cuda.is_available():
        raise HCLError("device is cuda, but torch finds no GPU. Take device: auto or cpu.")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def train(
    benchmark: Benchmark,
    embeddings: Mapping[str, Embeddings],
    name: str,
    method: MethodSettings,
    flow: FlowSettings,
    training: TrainingSettings,
    seeds: Sequence[int],
    out: Path,
    kept: Path = store.STORE,
) -> None:
    """Train a method with several seeds side by side, and write ``seed-<s>.h5`` into ``out``.

    Runs that are finished already are taken from the store, stopped ones go on from there.

    Args:
        benchmark: what is learned.
        embeddings: of the benchmark's sources.
        name: of the method.
        method: its settings.
        flow: the flow's size.
        training: how it is trained.
        seeds: one run each.
        out: folder for the run files.
        kept: the store.
    """
    check_sources(benchmark, embeddings)
    method = method.for_benchmark(benchmark.name)
    jobs = [Job(benchmark, embeddings, name, method, flow, training, seed) for seed in seeds]
    entries = run_jobs(jobs, kept)
    with replacing(out) as partial:
        partial.mkdir(parents=True)
        for job, entry in zip(jobs, entries, strict=True):
            entry.deliver(partial, f"seed-{job.seed}")


def run_jobs(
    jobs: Sequence[Job], kept: Path = store.STORE, may_diverge: bool = False
) -> list[store.Entry]:
    """Train side by side what is not finished in the store, and return the place of each run.

    A loss that is not finite is an error or, where runs ``may_diverge``, leaves this one run
    unfinished and the others alone.
    """
    entries = [store.Entry(kept / job.fingerprint()) for job in jobs]
    waiting = [(j, e) for j, e in zip(jobs, entries, strict=True) if not e.is_finished]
    workers = max(min(len(waiting), available_cores()), 1)
    # Forked processes are there at once and share what is imported; a GPU does not survive a fork.
    backend = "loky" if any(j.device.type == "cuda" for j, _ in waiting) else "multiprocessing"
    work = _train_unless_it_diverges if may_diverge else _train_into
    joblib.Parallel(n_jobs=workers, backend=backend)(
        joblib.delayed(work)(job, entry.folder, position % workers)
        for position, (job, entry) in enumerate(waiting)
    )
    return entries


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _train_into(job: Job, folder: Path, position: int = 0) -> None:
    """Train one run in this process and leave it in the store."""
    entry = store.Entry(folder)
    with one_thread():  # to the end: a fork that computes on several threads may wait forever
        run, learner = train_seed(job, entry.checkpoint, position)
        if job.training.save_model and isinstance(learner, FlowLearner):
            about = {"benchmark": job.benchmark.name, "method": job.name, "seed": job.seed}
            save_model(entry.model, learner.model, about)
    write_run(entry.run, run)
    entry.clean()


def _train_unless_it_diverges(job: Job, folder: Path, position: int = 0) -> None:
    with contextlib.suppress(NonFiniteError):
        _train_into(job, folder, position)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread, and no denormals: the same result alone or beside other runs, and faster.

    A step at batch 32 is bound by memory, so that runs side by side do more than threads within
    one; Adam's moments of old tasks decay into denormal numbers, which are slow.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)


@dataclass
class Progress:
    """How far a run has come, and what it has left behind: all but the learner itself."""

    segment: int = 0
    batch: int = 0  # within the segment
    predictions: list[Prediction] = field(default_factory=list)
    added_in: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    pending: list[Tensor] = field(default_factory=list)  # losses not looked at yet
    trace: list[tuple[float, ...]] = field(default_factory=list)  # a row a batch: see _finish

    def settle(self) -> None:
        """Look at the losses of the last steps."""
        for loss in torch.stack(self.pending).tolist() if self.pending else ():
            if not np.isfinite(loss):
                raise NonFiniteError(f"the loss is {loss}.")
            self.losses.append(loss)
        self.pending.clear()


def train_seed(job: Job, checkpoint: Path | None = None, position: int = 0) -> tuple[Run, Learner]:
    """Train one run from top to bottom, or from its checkpoint on."""
    stream = Stream(
        job.benchmark,
        job.embeddings,
        batch_size=CLOSED_FORM_BATCH if job.method.is_closed_form else job.training.batch_size,
        seed=job.seed,
        device=job.device,
        shape=job.training.image_shape if job.method.kind == "flow" else None,
    )
    learner = build_learner(job, stream)
    epochs = 1 if job.method.sees_once else None
    segments = range(len(job.benchmark.stream))
    total = sum(stream.num_batches(j, epochs) for j in segments)
    progress = Progress()
    if checkpoint is not None and checkpoint.exists():
        progress = _load(checkpoint, learner)
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
            told = batch if job.method.tasks == "given" else batch.without_task()
            try:
                _note(progress, learner.observe(told), batch.task, learner)
            except NonFiniteError as error:
                raise _diverged(job, progress, batch.task, str(error)) from error
            progress.batch += 1
            steps.update()
            done += 1
            if checkpoint is not None and done % job.training.checkpoint_every == 0:
                progress.settle()
                _save(checkpoint, progress, learner)
        progress.settle()
        progress.predictions.append(_predict(learner, stream))
        progress.segment, progress.batch = segment + 1, 0
        if checkpoint is not None:
            _save(checkpoint, progress, learner)
    steps.close()
    return _finish(job, progress), learner


def build_learner(job: Job, stream: Stream) -> Learner:
    """The learner of a method, with its inputs' scaling fitted on the first task."""
    method, training = job.method, job.training
    classes = job.benchmark.num_classes
    if method.is_closed_form:
        return ClosedFormLearner(_closed_form(method, stream.size, job.seed), classes)
    weights, draws = (_generator(job.seed, purpose, job.device) for purpose in (2, 3))
    options: dict[str, Any] = {
        "batch_size": training.batch_size,
        "learning_rate": method.learning_rate or training.learning_rate,
        "weight_decay": (
            training.weight_decay if method.weight_decay is None else method.weight_decay
        ),
        "generator": draws,
    }
    first = stream.first_samples(FITTING_SAMPLES).x
    if method.kind == "plus":
        first = tukey(first, method.plus.power)
    if method.kind == "vae":
        vae = SupervisedCURL(method.vae, stream.size, classes, weights).to(job.device)
        vae.set_scaling(*scaling_of(first, training.scaling))
        return VAELearner(vae, method, **options)
    shape = training.image_shape or (stream.size,)
    flow = job.flow
    if method.kind == "plus":  # its moments are those of the embeddings, until the flow learns
        flow = dataclasses.replace(flow, spread=0.0)
        if method.plus.flow == "never":  # the identity, whatever its size: the smallest is quickest
            flow = dataclasses.replace(flow, couplings=1, hidden_layers=1, hidden=1)
    try:
        model = build_model(flow, shape, classes, weights, training.mean_scale)
    except ValueError as error:
        raise HCLError(
            f"{job.benchmark.name}: flow.kind {job.flow.kind} does not fit samples of shape "
            f"{shape} ({error}). Flattened images need training.image_shape: [C, H, W]."
        ) from error
    model.to(job.device)
    if isinstance(model.flow, RealNVP):
        model.flow.set_scaling(*scaling_of(first, training.scaling))
    else:
        model.flow.initialise(first)
    if method.kind == "plus":
        rates = {key: options[key] for key in ("learning_rate", "weight_decay", "generator")}
        detects = method.tasks == "detected"
        return PlusLearner(model, method.plus, alpha=method.alpha, detects=detects, **rates)
    archive = stream if method.memory == "all" else None
    return FlowLearner(model, method, archive=archive, **options)


def _closed_form(method: MethodSettings, size: int, seed: int) -> ClosedForm:
    if method.kind == "ncm":
        return NearestMean(size)
    if method.kind == "slda":
        return StreamingLDA(size, method.shrinkage)
    generator = np.random.default_rng([seed, 2])
    return RandomProjectionRidge(size, method.projections, method.ridge, generator)


def _generator(seed: int, purpose: int, device: torch.device) -> torch.Generator:
    """A generator of its own for each purpose: methods of one seed start from the same weights."""
    state = np.random.SeedSequence([seed, purpose]).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(state >> np.uint64(1)))


def scaling_of(x: Tensor, kind: Literal["global", "standard", "none"]) -> tuple[Tensor, Tensor]:
    """Shift and scale of the inputs, fitted on ``x``."""
    if kind == "none":
        return torch.zeros(x.shape[1]), torch.ones(x.shape[1])
    shift = x.mean(0)
    variance = (x - shift).square().mean(0)
    overall = variance.mean().sqrt()
    if not overall > 0:  # equal samples say nothing of the scale
        overall = torch.ones_like(overall)
    if kind == "global":
        return shift, overall.expand(x.shape[1])
    return shift, variance.sqrt().clamp(min=0.1 * overall)


def _note(progress: Progress, seen: Observation, true_task: int, learner: Learner) -> None:
    """Keep what one batch left behind; a loss that is not finite ends the run."""
    while len(progress.added_in) < learner.num_tasks:
        progress.added_in.append(progress.segment)
    if seen.loss is not None:
        progress.pending.append(seen.loss)
        if len(progress.pending) >= (1 if seen.loss.device.type == "cpu" else LOOK_AT_LOSS_EVERY):
            progress.settle()
    if seen.evidence is not None:
        evidence = seen.evidence
        numbers = (*evidence.statistics, *evidence.mean, *evidence.std)
        progress.trace.append(
            (progress.segment, true_task, learner.task, *numbers, evidence.verdict)
        )


def _diverged(job: Job, progress: Progress, true_task: int, what: str) -> NonFiniteError:
    rate = job.method.learning_rate or job.training.learning_rate
    scaling = {"global": "standard"}.get(job.training.scaling, "global")
    return NonFiniteError(
        f"{job.name} on {job.benchmark.name}, seed {job.seed}, step {len(progress.losses)}, "
        f"segment {progress.segment + 1} of the stream (task {true_task + 1}): {what} Try a "
        f"learning_rate below {rate:g}, or scaling: {scaling}."
    )


def _predict(learner: Learner, stream: Stream) -> Prediction:
    parts = [learner.predict(x) for x in stream.test_samples()]
    return Prediction(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _finish(job: Job, progress: Progress) -> Run:
    answers = [np.stack(column) for column in zip(*progress.predictions, strict=True)]
    trace = None
    if job.method.tasks == "detected":
        rows: NDArray[np.float64] = np.array(progress.trace)
        trace = Trace(
            segment=rows[:, 0].astype(np.int16),
            true_task=rows[:, 1].astype(np.int16),
            learner_task=rows[:, 2].astype(np.int16),
            statistics=rows[:, 3:6].astype(np.float32),
            mean=rows[:, 6:9].astype(np.float32),
            std=rows[:, 9:12].astype(np.float32),
            verdict=rows[:, 12].astype(np.int8),
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
        added_in=np.array(progress.added_in, np.int16),
        loss=np.array(progress.losses, np.float32) if progress.losses else None,
        trace=trace,
    )


def _save(path: Path, progress: Progress, learner: Learner) -> None:
    """Write a checkpoint, whole or not at all: the one before it stands until then."""
    state = {
        "learner": learner.state(),
        "segment": progress.segment,
        "batch": progress.batch,
        "predictions": [[torch.from_numpy(a) for a in p] for p in progress.predictions],
        "added_in": list(progress.added_in),
        "losses": torch.tensor(progress.losses, dtype=torch.float64),
        "trace": torch.tensor(progress.trace, dtype=torch.float64),
    }
    with replacing(path) as partial:
        torch.save(state, partial)


def _load(path: Path, learner: Learner) -> Progress:
    state = torch.load(path, weights_only=True)
    learner.restore(state["learner"])
    return Progress(
        segment=state["segment"],
        batch=state["batch"],
        predictions=[Prediction(*(a.numpy() for a in p)) for p in state["predictions"]],
        added_in=list(state["added_in"]),
        losses=state["losses"].tolist(),
        trace=[tuple(row) for row in state["trace"].tolist()],
    )
