"""From labels to tasks: index arrays over embedding files, and the stream that shows them.

A benchmark is a list of tasks and the order in which they are shown. A task takes some classes of
one data set and labels them 0…K−1; all tasks of a benchmark have the same number of classes K
(domain-incremental learning, Section 2 of the paper). A task may be shown more than once.

The tasks file (HDF5, ``hcl-tasks/1``) holds, for task i, the group ``task-i`` with the attributes
``dataset`` and ``classes`` and, for each of ``train``, ``validation`` and ``test``, the rows of the
embedding file and their labels within the task; ``stream`` lists (task, epochs). Its attribute
``sources`` names each embedding file by the digest of its content, so that rows are never read
from a file other than the one that they were made for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from hcl.embeddings import TEST, TRAIN, Embeddings
from hcl.errors import HCLError
from hcl.files import canonical_json, fingerprint, replacing

FORMAT = "hcl-tasks/1"
PARTS = ("train", "validation", "test")

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class TaskSettings:
    """One task: classes of a data set, by name or number; the k-th of them is label k."""

    dataset: str
    classes: tuple[int | str, ...] | None = None  # all classes of the data set


@dataclass(frozen=True)
class EqualTasks:
    """Tasks of equal size: the classes of a data set in their own order, so many at a time."""

    dataset: str
    classes_per_task: int

    def __post_init__(self) -> None:
        if self.classes_per_task < 2:
            raise ValueError(
                f"classes_per_task: is {self.classes_per_task}; a task needs at least 2 classes."
            )


@dataclass(frozen=True)
class SegmentSettings:
    """One segment of the stream: a task (counted from 1, as in the paper) and its epochs."""

    task: int
    epochs: int


@dataclass(frozen=True)
class StreamSettings:
    """What a learner is shown.

    Attributes:
        tasks: the distinct tasks.
        order: task numbers, counted from 1, in the order in which they are shown; repeats are
            allowed. ``None`` shows each task once.
        epochs: passes over a task's training part each time that it is shown; 1 is single-pass.
        validation: the fraction of each class's training samples that is held out for tuning.
        seed: of the draw that picks the validation samples.
    """

    tasks: tuple[TaskSettings, ...] | EqualTasks
    order: tuple[int | SegmentSettings, ...] | None = None
    epochs: int = 1
    validation: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.validation <= 0.5:
            raise ValueError(
                f"validation: is {self.validation}; expected a fraction from 0 to 0.5."
            )
        if self.order is not None and not self.order:
            raise ValueError("order: is empty; name at least one task, or leave it out.")
        for segment in (SegmentSettings(1, self.epochs), *(self.order or ())):
            epochs = segment.epochs if isinstance(segment, SegmentSettings) else self.epochs
            if epochs < 1:
                raise ValueError(f"epochs: is {epochs}; expected 1 or more.")
        if isinstance(self.tasks, tuple) and not self.tasks:
            raise ValueError("tasks: is empty; name at least one task.")
        if self.seed < 0:
            raise ValueError(f"seed: is {self.seed}; expected 0 or more.")

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets that the tasks are made of, each once."""
        tasks = self.tasks if isinstance(self.tasks, tuple) else (self.tasks,)
        return tuple(dict.fromkeys(task.dataset for task in tasks))


@dataclass(frozen=True)
class Part:
    """Rows of an embedding file, and their labels 0…K−1 within the task."""

    rows: IntArray
    y: IntArray


@dataclass(frozen=True)
class Task:
    """One task: ``classes[k]`` is the data set's own label of the task's label k."""

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

    @property
    def num_classes(self) -> int:
        """K, the same for every task."""
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
            }
        )


def first_difference(found: Benchmark, asked: Benchmark) -> str | None:
    """Where a benchmark first differs from what is asked for, in words; ``None`` if nowhere."""
    order, other = ([s.task + 1 for s in b.stream] for b in (found, asked))
    if order != other:
        return f"its order is {order}, asked for is {other}"
    epochs, others = ([s.epochs for s in b.stream] for b in (found, asked))
    if epochs != others:
        return f"its epochs are {epochs}, asked for are {others}"
    for number, (a, b) in enumerate(zip(found.tasks, asked.tasks, strict=True), start=1):
        if (a.dataset, a.classes) != (b.dataset, b.classes):
            mine, yours = (f"{list(task.classes)} of {task.dataset}" for task in (a, b))
            return f"its task {number} has the classes {mine}, asked for are {yours}"
        for name in PARTS:
            here, there = getattr(a, name), getattr(b, name)
            if len(here.y) != len(there.y):
                counts = f"{len(here.y)} {name} samples, asked for are {len(there.y)}"
                return f"its task {number} has {counts}"
            if not (np.array_equal(here.rows, there.rows) and np.array_equal(here.y, there.y)):
                return f"its task {number} has other {name} samples"
    return None if found.sources == asked.sources else "it was made from other embeddings"


def make_benchmark(
    name: str, settings: StreamSettings, embeddings: Mapping[str, Embeddings], where: str
) -> Benchmark:
    """Split embeddings into the tasks of a benchmark.

    Args:
        name: the benchmark's name.
        settings: its tasks and their order.
        embeddings: for each of ``settings.datasets``.
        where: the parameter file and key of ``settings``, for messages.
    """
    generator = np.random.default_rng(settings.seed)
    declared = _declared_tasks(settings, embeddings, where)
    tasks = tuple(
        _make_task(d.dataset, classes, embeddings[d.dataset], settings.validation, generator)
        for d, classes in declared
    )
    sizes = [len(task.classes) for task in tasks]
    if len(set(sizes)) != 1:
        raise HCLError(
            f"{where}.tasks: the tasks have {', '.join(map(str, sizes))} classes; "
            "all tasks of a benchmark must have the same number."
        )
    stream = _make_stream(settings, len(tasks), where)
    sources = tuple(
        Source(dataset, str(embeddings[dataset].attributes["content_sha256"]))
        for dataset in settings.datasets
    )
    return Benchmark(name, tasks, stream, sources)


def _declared_tasks(
    settings: StreamSettings, embeddings: Mapping[str, Embeddings], where: str
) -> list[tuple[TaskSettings, tuple[int, ...]]]:
    """Each task with the labels of its classes."""
    if isinstance(settings.tasks, EqualTasks):
        equal = settings.tasks
        names = embeddings[equal.dataset].classes
        size = equal.classes_per_task
        if len(names) % size:
            raise HCLError(
                f"{where}.tasks.classes_per_task: {equal.dataset} has {len(names)} classes, "
                f"which tasks of {size} do not divide; choose a divisor, or list the tasks."
            )
        return [
            (TaskSettings(equal.dataset), tuple(range(first, first + size)))
            for first in range(0, len(names), size)
        ]
    declared = []
    for index, task in enumerate(settings.tasks):
        names = embeddings[task.dataset].classes
        chosen = range(len(names)) if task.classes is None else task.classes
        key = f"{where}.tasks[{index}].classes"
        classes = tuple(_label_of(choice, names, task.dataset, key) for choice in chosen)
        if len(set(classes)) != len(classes):
            raise HCLError(f"{key}: a class stands twice in {list(chosen)}.")
        if len(classes) < 2:
            raise HCLError(f"{key}: a task needs at least 2 classes, here: {list(chosen)}.")
        declared.append((task, classes))
    return declared


def _label_of(choice: int | str, names: list[str], dataset: str, key: str) -> int:
    if isinstance(choice, str) and choice in names:
        return names.index(choice)
    if isinstance(choice, int) and 0 <= choice < len(names):
        return choice
    raise HCLError(
        f"{key}: {dataset} has no class {choice!r}. Its classes, by number from 0 or by name: "
        f"{', '.join(names[:20])}{', …' if len(names) > 20 else ''}."
    )


def _make_task(
    dataset: str,
    classes: tuple[int, ...],
    embeddings: Embeddings,
    validation: float,
    generator: np.random.Generator,
) -> Task:
    train, held_out, test = [], [], []
    for label in classes:
        of_class = embeddings.y == label
        rows = np.flatnonzero(of_class & (embeddings.split == TRAIN))
        test.append(np.flatnonzero(of_class & (embeddings.split == TEST)))
        count = round(validation * len(rows))
        picked = np.zeros(len(rows), bool)
        picked[generator.permutation(len(rows))[:count]] = True
        train.append(rows[~picked])
        held_out.append(rows[picked])
        for part, found in (("train", train[-1]), ("test", test[-1])):
            if not len(found):
                raise HCLError(
                    f"{dataset}: class {label} has no {part} samples for a task"
                    f"{' once validation is held out' if part == 'train' else ''}; "
                    "add samples, or leave the class out."
                )
    return Task(dataset, classes, _part(train), _part(held_out), _part(test))


def _part(rows_by_label: list[IntArray]) -> Part:
    """The rows of all labels in the order of the file, which no reader then has to sort."""
    rows = np.concatenate(rows_by_label)
    y = np.repeat(np.arange(len(rows_by_label)), [len(r) for r in rows_by_label])
    order = np.argsort(rows, kind="stable")
    return Part(rows[order].astype(np.int64), y[order].astype(np.int64))


def _make_stream(settings: StreamSettings, num_tasks: int, where: str) -> tuple[Segment, ...]:
    order = settings.order or tuple(range(1, num_tasks + 1))
    stream = []
    for index, entry in enumerate(order):
        segment = (
            entry if isinstance(entry, SegmentSettings) else SegmentSettings(entry, settings.epochs)
        )
        if not 1 <= segment.task <= num_tasks:
            raise HCLError(
                f"{where}.order[{index}]: there is no task {segment.task}; "
                f"tasks are counted from 1 to {num_tasks}."
            )
        stream.append(Segment(segment.task - 1, segment.epochs))
    missing = set(range(num_tasks)) - {segment.task for segment in stream}
    if missing:
        raise HCLError(
            f"{where}.order: task {min(missing) + 1} is never shown; "
            "add it, or take it out of the tasks."
        )
    return tuple(stream)


def write_benchmark(path: str | Path, benchmark: Benchmark) -> None:
    """Write the tasks file, whole or not at all."""
    with replacing(path) as partial, h5py.File(partial, "w") as file:
        file.attrs["format"] = FORMAT
        file.attrs["benchmark"] = benchmark.name
        file.attrs["sources"] = canonical_json(
            [[s.dataset, s.content_sha256] for s in benchmark.sources]
        )
        file["stream"] = np.array([[s.task, s.epochs] for s in benchmark.stream], np.int64)
        for index, task in enumerate(benchmark.tasks):
            group = file.create_group(f"task-{index}")
            group.attrs["dataset"] = task.dataset
            group.attrs["classes"] = np.array(task.classes, np.int64)
            for name in PARTS:
                part: Part = getattr(task, name)
                group[f"{name}/rows"] = part.rows
                group[f"{name}/y"] = part.y


def read_benchmark(path: str | Path) -> Benchmark:
    """Read and check a tasks file."""
    path = Path(path)
    again = "make it again with the stage split"
    if not path.exists():
        raise HCLError(f"{path}: no such tasks file; {again}.")
    try:
        with h5py.File(path) as file:
            found = file.attrs.get("format")
            if found != FORMAT:
                raise HCLError(f"{path}: format is {found!r}, expected {FORMAT!r}; {again}.")
            stream = tuple(Segment(int(t), int(e)) for t, e in file["stream"][:])
            groups = [file[f"task-{i}"] for i in range(1 + max(s.task for s in stream))]
            tasks = tuple(
                Task(
                    str(group.attrs["dataset"]),
                    tuple(map(int, group.attrs["classes"])),
                    *(Part(group[f"{part}/rows"][:], group[f"{part}/y"][:]) for part in PARTS),
                )
                for group in groups
            )
            sources = tuple(Source(*pair) for pair in json.loads(file.attrs["sources"]))
            return Benchmark(str(file.attrs["benchmark"]), tasks, stream, sources)
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise HCLError(f"{path}: not a whole tasks file ({error}); {again}.") from error
