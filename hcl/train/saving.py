"""What a run leaves for later use: its learner in a model file, with all that the learner saw.

``About`` is the part of the file that JSON can say. With it and the learner's state alone, and the
backbone that it names, new samples are classified and learning goes on: see ``hcl.use``.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hcl.errors import HCLError
from hcl.learn.contract import Learner, MixedBatch, Start, TaskBatches
from hcl.learn.kinds import AnyMethod
from hcl.learn.settings import Method, TrainingSettings
from hcl.model.model_file import UNFIT, Content, read_model, write_model
from hcl.model.settings import FlowSettings
from hcl.records.embeddings import Embeddings
from hcl.records.runs import RECURRING, SAME, Run
from hcl.records.tasks import Benchmark
from hcl.settings import build
from hcl.train.loop import CLOSED_FORM_BATCH, Job, versions
from hcl.train.machine import pick_device
from hcl.train.streams import epoch_bounds, labels_of, segment_batches

LEARNER = "learner"  # what kind of model file this is

Counts = dict[str, int]  # samples learned, by the name of their class


class Change(NamedTuple):
    """A change of task that the learner noticed: at which batch, of what kind, to which task."""

    batch: int
    verdict: Literal["new", "recurring"]
    task: int


@dataclass(frozen=True)
class Input:
    """What samples are: a backbone's embeddings, ready-made ones, or pixels.

    Attributes:
        backbone: timm's tagged name, or a text that begins with "none".
        weights: where they came from.
        weights_sha256: of their file.
        transform: from an image to the backbone's input, or to pixels.
        pixels: [C, H, W] of bytes that are images; ``None`` for embeddings.
    """

    backbone: str
    weights: str
    weights_sha256: str
    transform: dict[str, Any]
    pixels: tuple[int, ...] | None

    @classmethod
    def of(cls, attributes: Mapping[str, str]) -> Input:
        """From the attributes of an embedding file."""
        pixels = attributes.get("pixels")
        return cls(
            attributes.get("backbone", "none"),
            attributes.get("weights", "none"),
            attributes.get("weights_sha256", "none"),
            json.loads(attributes.get("transform", "{}")),
            None if pixels is None else tuple(json.loads(pixels)),
        )


@dataclass(frozen=True)
class About:
    """What a learner is, and what it saw.

    Attributes:
        name: of the method.
        method: its settings.
        flow: the flow's size.
        training: how it was trained, and is trained on.
        seed: of the run.
        benchmark: the stream that it began with.
        shape: of one sample as the learner takes it.
        num_classes: K.
        only_seen: whether tasks bring new classes; see ``hcl.learn.contract.Start``.
        partly_labelled: whether samples came without their label.
        input: what samples are.
        names: by task and class, what was learned under which name; of a learner that knows no
            tasks, as if all were one.
        given: the tasks' numbers, in the order of the learner's tasks, where it is told them.
        samples: shown so far, each time that they were.
        batches: so far, as ``changes`` counts them; of a learner that is told its tasks, since it
            was first saved.
        changes: that the learner noticed.
    """

    name: str
    method: Method
    flow: FlowSettings
    training: TrainingSettings
    seed: int
    benchmark: str
    shape: tuple[int, ...]
    num_classes: int
    only_seen: bool
    partly_labelled: bool
    input: Input
    names: tuple[tuple[Counts, ...], ...]
    given: tuple[int, ...] | None
    samples: int
    batches: int
    changes: tuple[Change, ...]

    def as_json(self) -> dict[str, Any]:
        """For the file."""
        return {
            "kind": LEARNER,
            "name": self.name,
            "settings": {
                "method": dataclasses.asdict(self.method),  # type: ignore[call-overload]
                "flow": dataclasses.asdict(self.flow),
                "training": dataclasses.asdict(self.training),
            },
            "seed": self.seed,
            "benchmark": self.benchmark,
            "shape": self.shape,
            "num_classes": self.num_classes,
            "only_seen": self.only_seen,
            "partly_labelled": self.partly_labelled,
            "input": dataclasses.asdict(self.input),
            "names": self.names,
            "given": self.given,
            "samples": self.samples,
            "batches": self.batches,
            "changes": [list(change) for change in self.changes],
            "versions": versions(),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], path: str | Path) -> About:
        """From a file; whatever does not fit is an error that names the file."""
        if values.get("kind") != LEARNER:
            raise HCLError(
                f"{path}: holds a {values.get('kind')} that was saved from Python, not the learner "
                "of a run; hcl.load(path) reads it."
            )
        try:
            settings = values["settings"]
            given = values["given"]
            seen = values["input"]
            about = cls(
                name=str(values["name"]),
                method=build(AnyMethod, settings["method"], path, "settings.method"),  # type: ignore[arg-type]
                flow=build(FlowSettings, settings["flow"], path, "settings.flow"),
                training=build(TrainingSettings, settings["training"], path, "settings.training"),
                seed=int(values["seed"]),
                benchmark=str(values["benchmark"]),
                shape=tuple(map(int, values["shape"])),
                num_classes=int(values["num_classes"]),
                only_seen=bool(values["only_seen"]),
                partly_labelled=bool(values["partly_labelled"]),
                input=Input(**{**seen, "pixels": seen["pixels"] and tuple(seen["pixels"])}),
                names=tuple(
                    tuple({str(n): int(c) for n, c in counts.items()} for counts in task)
                    for task in values["names"]
                ),
                given=None if given is None else tuple(map(int, given)),
                samples=int(values["samples"]),
                batches=int(values["batches"]),
                changes=tuple(Change(*change) for change in values["changes"]),
            )
            about._check()
        except UNFIT as error:
            raise HCLError(f"{path}: its header is not whole ({error!r}).") from error
        return about

    def _check(self) -> None:
        """Sizes by which a learner is built can be those of one."""
        if len(self.shape) not in (1, 3) or min(self.shape) < 1:
            raise ValueError(f"a sample of shape {list(self.shape)}")
        if any(len(task) != self.num_classes for task in self.names):
            raise ValueError(f"{self.num_classes} classes, and names of another number")


def about_run(job: Job, run: Run, learner: Learner) -> About:
    """What the learner of a finished run is, and what it saw."""
    benchmark = job.benchmark
    first = job.embeddings[benchmark.sources[0].dataset]
    told = job.method.detection is None
    shown = [segment.task for segment in benchmark.stream]
    given = tuple(dict.fromkeys(shown)) if told else None
    names: tuple[tuple[Counts, ...], ...]
    if not learner.num_tasks:
        names = (_together([_counts(benchmark, job.embeddings, task) for task in set(shown)]),)
    elif given is not None:
        names = tuple(_counts(benchmark, job.embeddings, task) for task in given)
    else:
        names = _found(job, run, learner.num_tasks)
    return About(
        name=job.name,
        method=job.method,
        flow=job.flow,
        training=job.training,
        seed=job.seed,
        benchmark=benchmark.name,
        shape=first.pixels if job.method.takes_images and first.pixels else first.x.shape[1:],
        num_classes=benchmark.num_classes,
        only_seen=benchmark.shown.labels == "own",
        partly_labelled=benchmark.shown.labelled < 1,
        input=Input.of(first.attributes),
        names=names,
        given=given,
        samples=_samples(job),
        batches=0 if run.trace is None else len(run.trace.verdict),
        changes=() if run.trace is None else tuple(_changes(run)),
    )


def _found(job: Job, run: Run, tasks: int) -> tuple[tuple[Counts, ...], ...]:
    """For tasks that a learner found itself, what was shown while it took it for each of them."""
    assert run.trace is not None
    names: list[tuple[Counts, ...]] = [
        tuple({} for _ in range(job.benchmark.num_classes)) for _ in range(tasks)
    ]
    pairs = np.stack((run.trace.learner_task, run.trace.true_task), axis=1)
    for (found, true), batches in zip(*np.unique(pairs, axis=0, return_counts=True), strict=True):
        share = batches / (run.trace.true_task == true).sum()
        for counts, shown in zip(
            names[found], _counts(job.benchmark, job.embeddings, true), strict=True
        ):
            for name, count in shown.items():
                counts[name] = counts.get(name, 0) + max(1, round(share * count))
    return tuple(names)


def _changes(run: Run) -> list[Change]:
    assert run.trace is not None
    return [
        noticed(batch, verdict, task)
        for batch, (verdict, task) in enumerate(
            zip(run.trace.verdict.tolist(), run.trace.learner_task.tolist(), strict=True)
        )
        if verdict != SAME
    ]


def noticed(batch: int, verdict: int, task: int) -> Change:
    """A verdict in words."""
    return Change(batch, "recurring" if verdict == RECURRING else "new", task)


def _samples(job: Job) -> int:
    """How many samples the stream has shown in all."""
    size = CLOSED_FORM_BATCH if job.method.closed_form else job.training.batch_size
    epochs = 1 if job.method.sees_once else None
    total = 0
    for segment in range(len(job.benchmark.stream)):
        bounds = epoch_bounds(job.benchmark, segment, size)
        batches = segment_batches(job.benchmark, segment, size, epochs)
        whole, rest = divmod(batches, len(bounds) - 1)
        total += int(whole * bounds[-1] + bounds[rest])
    return total


def _counts(
    benchmark: Benchmark, embeddings: Mapping[str, Embeddings], task: int
) -> tuple[Counts, ...]:
    """By label, the name of a task's class and its number of training samples."""
    found = benchmark.tasks[task]
    names = _names(embeddings[found.dataset])
    counts: tuple[Counts, ...] = tuple({} for _ in range(benchmark.num_classes))
    for label, own in zip(labels_of(benchmark, found), found.classes, strict=True):
        counts[label][names(own)] = int((found.train.y == label).sum())
    return counts


def _names(embeddings: Embeddings) -> Callable[[int], str]:
    """The names of a data set's own labels; a label that has none is its number."""
    known = embeddings.classes if "classes" in embeddings.attributes else []
    return lambda label: known[label] if label < len(known) else str(label)


def _together(tasks: Sequence[tuple[Counts, ...]]) -> tuple[Counts, ...]:
    """The names of each class over all tasks."""
    return tuple(
        {name: count for counts in of_class for name, count in counts.items()}
        for of_class in zip(*tasks, strict=True)
    )


def write_learner(path: str | Path, about: About, learner: Learner, waiting: Any = ()) -> None:
    """Write a learner, and the samples that wait for a whole batch."""
    write_model(path, about.as_json(), {"learner": learner.state(), "waiting": waiting})


def read_learner(path: str | Path) -> tuple[About, Learner, Any]:
    """What a model file says, its learner, ready to go on, and the samples that wait."""
    content = read_model(path)
    about = About.from_json(content.about, path)
    device = torch.device("cpu")
    if not about.method.closed_form:
        device = pick_device(about.training.device)
    if device.type != "cpu":
        content = read_model(path, device)
    learner = _rebuilt(about, content, device, path)
    return about, learner, content.state["waiting"]


def _rebuilt(about: About, content: Content, device: torch.device, path: str | Path) -> Learner:
    """The learner as its module builds it, then in the state of the file."""

    def first(count: int) -> Tensor:
        """Stands for what a scaling was fitted on: the state brings the scaling itself."""
        kind = torch.uint8 if len(about.shape) == 3 else torch.float32
        return torch.zeros(min(count, 2), *about.shape, dtype=kind, device=device)

    start = Start(
        shape=about.shape,
        num_classes=about.num_classes,
        first=first,
        flow=about.flow,
        training=about.training,
        seed=about.seed,
        device=device,
        archive=NoArchive(about),
        only_seen=about.only_seen,
        partly_labelled=about.partly_labelled,
    )
    try:
        learner: Learner = importlib.import_module(about.method.learner).build(about.method, start)
        learner.restore(content.state["learner"])
    except UNFIT as error:
        reason = " ".join(str(error).split())[:200]
        raise HCLError(f"{path}: its state doesn't fit its settings ({reason}).") from error
    return learner


def looks_back(method: Method) -> bool:
    """Whether a method learns from all data of old tasks, which no model file holds."""
    return method.kind == "joint" or getattr(getattr(method, "memory", None), "kind", "") == "all"


class NoArchive:
    """In place of all tasks' training samples, of which a model file knows the number of tasks."""

    def __init__(self, about: About) -> None:
        self.name = about.name
        self.num_tasks = len(about.given or ())

    def refusal(self) -> HCLError:
        """Why learning can't go on."""
        return HCLError(
            f"{self.name} looks at all data of old tasks again, which a model file does not hold: "
            "it can't go on learning. Take another method."
        )

    def draw(self, tasks: Sequence[int], count: int, generator: torch.Generator) -> TaskBatches:
        raise self.refusal()

    def num_mixed(self, count: int) -> int:
        raise self.refusal()

    def mixed(self, count: int, generator: torch.Generator) -> Iterator[MixedBatch]:
        raise self.refusal()
