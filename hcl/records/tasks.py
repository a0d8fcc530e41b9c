"""From labels to tasks: index arrays over embedding files, and the stream that shows them.

A benchmark is a list of tasks and the order in which they are shown. A task takes some classes of
one data set and labels them 0…K−1; all tasks of a benchmark have the same number of classes K
(domain-incremental learning, Section 2 of the paper). A task may be shown more than once. Where
``Shown.labels`` is ``own``, labels are the data set's: tasks then bring new classes.

The tasks file (HDF5, ``hcl-tasks/2``) holds, for task i, the group ``task-i`` with the attributes
``dataset`` and ``classes`` and, for each of ``train``, ``validation`` and ``test``, the rows of the
embedding file and their labels within the task; ``stream`` lists (task, epochs). Its attribute
``sources`` names each embedding file by the digest of its content, so that rows are never read
from a file other than the one that they were made for; ``settings`` says what was asked for, and
``shown``, where the stream is not simply one task after the other, how it is shown;
``content_sha256`` is over all of it, so that a changed row or label is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from hcl.files import canonical_json, fingerprint
from hcl.records.hdf5 import Format, Reader, Writer, reading, writing
from hcl.settings import Range, Seed, build, check_limits

FORMAT = "hcl-tasks/2"
TASKS = Format("tasks file", (FORMAT,), "hcl split")
PARTS = ("train", "validation", "test")

IntArray = NDArray[np.int64]
Labels = Literal["task", "own"]
Blur = Annotated[int, Range(0, 1_000_000_000)]  # batches
Batches = Annotated[int, Range(1, 1_000_000_000)]
Weights = tuple[Annotated[float, Range(0, 1_000_000_000)], ...]
Share = Annotated[float, Range(0, 1, above=True)]


@dataclass(frozen=True)
class Part:
    """Rows of an embedding file, and their labels 0…K−1 within the task, or the data set's own."""

    rows: IntArray
    y: IntArray


@dataclass(frozen=True)
class Task:
    """One task: ``classes[k]`` is the data set's own label of the task's k-th class."""

    dataset: str
    classes: tuple[int, ...]
    train: Part
    validation: Part
    test: Part


@dataclass(frozen=True)
class Segment:
    """One segment of the stream: the task with this index (from 0), for so many epochs."""

    task: int
    epochs: int


@dataclass(frozen=True)
class Tails:
    """Heavy-tailed features: each sample x becomes x + scale · s ∘ u, the same u each time.

    s has each feature's standard deviation in the first task, u is Student's t. Test samples have
    tails, too.

    Attributes:
        kind: ``tails``.
        degrees: of freedom of u; the fewer, the heavier. With 2 or less there is no variance.
        scale: of the noise, in standard deviations of the feature.
    """

    kind: Literal["tails"] = "tails"
    degrees: Annotated[float, Range(0, 1_000_000, above=True)] = 3.0
    scale: Annotated[float, Range(0, 1_000_000, above=True)] = 0.5

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True)
class Drift:
    """Slow drift within a task: batch b of B is moved by (b − (B − 1)/2) · rate · s ∘ v.

    v is one random direction of unit length, s as for ``Tails``. A segment drifts around its own
    task: test samples, which stay where they are, lie in the middle of what was shown.

    Attributes:
        kind: ``drift``.
        rate: standard deviations a batch.
    """

    kind: Literal["drift"] = "drift"
    rate: Annotated[float, Range(0, 1_000_000, above=True)] = 0.01

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True)
class Shown:
    """How segments are shown, where it is not each for its epochs, as it is, one after the other.

    Attributes:
        blur: batches of a segment over which its share rises from the task before it to its own.
        batches: that a segment has, whatever the epochs; ``None``: as its epochs have.
        frequencies: for each segment, how often each label of its task comes; ``None``: as it is.
        disturb: what is done to the features.
        labels: ``task``, 0…K−1 in every task, or ``own``, the data set's (class-incremental).
        labelled: the share of each class's training samples that come with their label; others
            have −1 in its place.
        seed: of the noise or the direction, and of who is labelled.
    """

    blur: Blur = 0
    batches: Batches | None = None
    frequencies: tuple[Weights | None, ...] | None = None
    disturb: Tails | Drift | None = None
    labels: Labels = "task"
    labelled: Share = 1.0
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_limits(self)

    @property
    def counts_batches(self) -> bool:
        """Whether what is shown depends on how many batches there are."""
        return self.blur > 0 or self.batches is not None or isinstance(self.disturb, Drift)

    def said(self) -> dict[str, Any]:
        """What differs from the default, as JSON can say it; nothing for a plain stream."""
        values = json.loads(canonical_json(dataclasses.asdict(self)))
        plain = json.loads(canonical_json(dataclasses.asdict(Shown())))
        return {name: value for name, value in values.items() if value != plain[name]}


@dataclass(frozen=True)
class Source:
    """An embedding file that tasks point into, by the digest of its content."""

    dataset: str
    content_sha256: str


@dataclass(frozen=True)
class Benchmark:
    """Distinct tasks, and the stream that shows them."""

    name: str
    tasks: tuple[Task, ...]
    stream: tuple[Segment, ...]
    sources: tuple[Source, ...]
    settings: Mapping[str, Any] | None = None  # of the stream that was asked for
    shown: Shown = Shown()

    @property
    def num_classes(self) -> int:
        """K: labels are 0…K−1, in every task or, where they are the data set's own, in all."""
        if self.shown.labels == "own":
            return 1 + max(max(task.classes) for task in self.tasks)
        return len(self.tasks[0].classes)

    def digest(self) -> str:
        """SHA-256 over what a learner is shown and tested on."""
        arrays = hashlib.sha256()
        for task in self.tasks:
            for part in (task.train, task.test):
                arrays.update(part.rows.tobytes())
                arrays.update(part.y.tobytes())
        return fingerprint(
            {
                "arrays": arrays.hexdigest(),
                "sizes": [[len(task.train.y), len(task.test.y)] for task in self.tasks],
                "datasets": [task.dataset for task in self.tasks],
                "classes": [list(task.classes) for task in self.tasks],
                "stream": [[segment.task, segment.epochs] for segment in self.stream],
                "sources": [[source.dataset, source.content_sha256] for source in self.sources],
                **({"shown": shown} if (shown := self.shown.said()) else {}),
            }
        )


def write_benchmark(path: str | Path, benchmark: Benchmark) -> None:
    """Write the tasks file, whole or not at all."""
    with writing(path) as (file, _):
        writer = Writer(file)
        writer.text("format", FORMAT)
        writer.text("benchmark", benchmark.name)
        sources = [[s.dataset, s.content_sha256] for s in benchmark.sources]
        writer.text("sources", canonical_json(sources))
        writer.text("settings", canonical_json(benchmark.settings))
        if shown := benchmark.shown.said():
            writer.text("shown", canonical_json(shown))
        stream = [[s.task, s.epochs] for s in benchmark.stream]
        writer.array("stream", np.array(stream, np.int64))
        for index, task in enumerate(benchmark.tasks):
            writer.text("dataset", task.dataset, f"task-{index}")
            writer.text("classes", canonical_json(list(task.classes)), f"task-{index}")
            for name in PARTS:
                part: Part = getattr(task, name)
                writer.array(f"task-{index}/{name}/rows", np.asarray(part.rows, np.int64))
                writer.array(f"task-{index}/{name}/y", np.asarray(part.y, np.int64))
        writer.finish()


def read_benchmark(path: str | Path) -> Benchmark:
    """Read and check a tasks file."""
    with reading(path, TASKS) as file:
        stream = file.array("stream", "int64", 2)
        names = file.names("/")
        count = sum(name.startswith("task-") for name in names)
        if not len(stream) or stream.shape[1] != 2:
            raise file.broken(f"stream is {stream.shape}, expected (segments, 2)")
        if not count or stream[:, 0].min() < 0 or stream[:, 0].max() >= count:
            raise file.broken(f"its stream shows other tasks than the {count} that it holds")
        shown = Shown()
        if file.has_text("shown"):
            shown = build(Shown, file.json("shown"), path, "shown")
        own = shown.labels == "own"
        tasks = tuple(_read_task(file, index, own) for index in range(count))
        sources = file.json("sources")
        found = Benchmark(
            name=file.text("benchmark"),
            tasks=tasks,
            stream=tuple(Segment(int(task), int(epochs)) for task, epochs in stream),
            sources=tuple(Source(str(dataset), str(digest)) for dataset, digest in sources),
            settings=file.json("settings"),
            shown=shown,
        )
        file.check_digest()
    return found


def _read_task(file: Reader, index: int, own_labels: bool) -> Task:
    group = f"task-{index}"
    classes = tuple(int(one) for one in file.json("classes", group))
    parts = []
    for name in PARTS:
        rows, y = (file.array(f"{group}/{name}/{what}", "int64", 1) for what in ("rows", "y"))
        if len(rows) != len(y):
            raise file.broken(f"{group}/{name} has {len(rows)} rows and {len(y)} labels")
        labels = classes if own_labels else range(len(classes))
        if len(rows) and (rows.min() < 0 or not np.isin(y, list(labels)).all()):
            raise file.broken(f"{group}/{name} holds a row or a label that can't be")
        parts.append(Part(rows, y))
    return Task(file.text("dataset", group), classes, *parts)
