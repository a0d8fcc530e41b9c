"""From labels to tasks: the settings of a stream, and the split that makes a benchmark of it.

A task takes some classes of one data set and labels them 0…K−1; all tasks of a benchmark have the
same number of classes K (domain-incremental learning, Section 2 of the paper). With the data set's
own labels, tasks bring new classes instead (class-incremental learning).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from hcl.errors import HCLError
from hcl.files import canonical_json
from hcl.records.embeddings import TEST, TRAIN, Embeddings
from hcl.records.tasks import (
    Batches,
    Benchmark,
    Blur,
    Drift,
    IntArray,
    Labels,
    Part,
    Segment,
    Share,
    Shown,
    Source,
    Tails,
    Task,
    Weights,
)
from hcl.settings import Name, Range, Seed, check_limits

Label = Annotated[int, Range(0, 1_000_000)]
TaskNumber = Annotated[int, Range(1, 1_000_000)]
Epochs = Annotated[int, Range(1, 1_000_000)]
PerClass = Annotated[int, Range(1, 1_000_000_000)]


@dataclass(frozen=True)
class TaskSettings:
    """One task: classes of a data set, by name or number; the k-th of them is label k."""

    dataset: Name
    classes: tuple[Label | str, ...] | None = None  # all classes of the data set

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True)
class EqualTasks:
    """Tasks of equal size: the classes of a data set in their own order, so many at a time."""

    dataset: Name
    classes_per_task: Annotated[int, Range(2, 1_000_000)]

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True)
class SegmentSettings:
    """One segment of the stream: a task (counted from 1, as in the paper) and its epochs.

    ``frequencies`` stand in place of the stream's.
    """

    task: TaskNumber
    epochs: Epochs
    frequencies: Weights | None = None

    def __post_init__(self) -> None:
        check_limits(self)
        check_frequencies(self.frequencies)


def check_frequencies(values: tuple[float, ...] | None) -> None:
    """Weights of labels: one of them above 0."""
    if values is not None and not sum(values) > 0:
        raise ValueError(
            f"frequencies: is {list(values)}; expected a weight of 0 or more for each label, one "
            "of them above 0."
        )


@dataclass(frozen=True)
class StreamSettings:
    """What a learner is shown.

    Attributes:
        tasks: the distinct tasks.
        order: task numbers, counted from 1, in the order in which they are shown; repeats are
            allowed. ``None`` shows each task once.
        epochs: passes over a task's training part each time that it is shown; 1 is single-pass.
        validation: the fraction of each class's training samples that is held out for tuning.
        seed: of the draw that picks the validation samples, and those of a cut.
        samples_per_class: training samples of each class that are shown; ``None``: all that are not
            held out for validation, which is cut by nothing.
        test_per_class: test samples of each class that are answered; ``None``: all.
        blur: batches at the beginning of a segment over which its share of a batch rises steadily
            from 0 to all; the rest is of the segment before it. At most the whole segment.
        batches: that each segment has, instead of its ``epochs``: fewer than an epoch's, or more.
        frequencies: a weight for each label of a task, how often it comes: [1, 0.02] makes the
            second rare. ``None`` shows all samples; a segment in ``order`` may have its own.
        disturb: what is done to the features: ``kind: tails`` or ``kind: drift``.
        labels: ``task`` numbers the classes of each task from 0, ``own`` keeps the data set's
            labels: tasks then bring new classes.
        labelled: the share of each class's training samples that come with their label, at least
            one of them; always the same ones. Below 1 learning is semi-supervised.
    """

    tasks: tuple[TaskSettings, ...] | EqualTasks
    order: tuple[TaskNumber | SegmentSettings, ...] | None = None
    epochs: Epochs = 1
    validation: Annotated[float, Range(0, 0.5)] = 0.1
    seed: Seed = 0
    samples_per_class: PerClass | None = None
    test_per_class: PerClass | None = None
    blur: Blur = 0
    batches: Batches | None = None
    frequencies: Weights | None = None
    disturb: Tails | Drift | None = None
    labels: Labels = "task"
    labelled: Share = 1.0

    def __post_init__(self) -> None:
        self._check_order()
        check_limits(self)
        check_frequencies(self.frequencies)
        if self.labelled < 1 and self.labels == "own":
            raise ValueError(
                f"labelled: is {self.labelled:g}, but with labels: own the classes of a task are "
                "known by their labels alone; expected 1, or labels: task."
            )
        if self.order is not None and not self.order:
            raise ValueError("order: is empty; name at least one task, or leave it out.")
        if isinstance(self.tasks, tuple) and not self.tasks:
            raise ValueError("tasks: is empty; name at least one task.")

    def _check_order(self) -> None:
        """What can be said of the order before the data are there."""
        numbers = [s.task if isinstance(s, SegmentSettings) else s for s in self.order or ()]
        count = len(self.tasks) if isinstance(self.tasks, tuple) else None
        for index, number in enumerate(numbers):
            if number < 1 or (count is not None and number > count):
                upto = "" if count is None else f" to {count}"
                raise ValueError(
                    f"order[{index}]: there is no task {number}; tasks are counted from 1{upto}."
                )
        missing = set(range(1, (count or 0) + 1)) - set(numbers) if numbers else set()
        if missing:
            raise ValueError(
                f"order: task {min(missing)} is never shown; add it, or take it out of the tasks."
            )

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets that the tasks are made of, each once."""
        tasks = self.tasks if isinstance(self.tasks, tuple) else (self.tasks,)
        return tuple(dict.fromkeys(task.dataset for task in tasks))

    @property
    def counts_batches(self) -> bool:
        """Whether what is shown depends on how many batches there are."""
        return Shown(self.blur, self.batches, disturb=self.disturb).counts_batches


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
        _make_task(d.dataset, classes, embeddings[d.dataset], settings, generator)
        for d, classes in declared
    )
    sizes = [len(task.classes) for task in tasks]
    if settings.labels == "own" and len(settings.datasets) > 1:
        raise HCLError(
            f"{where}.labels: is own, but the tasks are of {', '.join(settings.datasets)}, whose "
            "labels mean different things; take one data set, or labels: task."
        )
    if len(set(sizes)) != 1:
        raise HCLError(
            f"{where}.tasks: the tasks have {', '.join(map(str, sizes))} classes; "
            "all tasks of a benchmark must have the same number."
        )
    stream = _make_stream(settings, len(tasks), where)
    shown = _make_shown(settings, tasks, stream, where)
    if settings.disturb is not None:
        _check_features(settings.datasets, embeddings, where)
    sources = tuple(
        Source(dataset, str(embeddings[dataset].attributes["content_sha256"]))
        for dataset in settings.datasets
    )
    return Benchmark(name, tasks, stream, sources, as_json(settings), shown)


LATER = (
    "blur",
    "batches",
    "frequencies",
    "disturb",
    "labels",
    "labelled",
)  # left out where they are not used


def as_json(settings: StreamSettings) -> dict[str, Any]:
    """What was asked for, as a tasks file keeps it: the same for equal streams."""
    values: dict[str, Any] = json.loads(canonical_json(dataclasses.asdict(settings)))
    plain = {field.name: field.default for field in dataclasses.fields(StreamSettings)}
    for name in LATER:
        if values[name] == plain[name]:
            del values[name]
    for segment in values["order"] or ():
        if isinstance(segment, dict) and segment["frequencies"] is None:
            del segment["frequencies"]
    return values


def first_difference(benchmark: Benchmark, asked: StreamSettings) -> str | None:
    """Where the stream that a benchmark was made for differs from what is asked for, in words.

    ``None`` where it differs nowhere, or is not known.
    """
    if benchmark.settings is None:
        return None
    asked_for = as_json(asked)
    for key in dict.fromkeys((*asked_for, *benchmark.settings)):
        found, wanted = benchmark.settings.get(key), asked_for.get(key)
        if found != wanted:
            return f"its {key} is {json.dumps(found)}, asked for is {json.dumps(wanted)}"
    return None


def _declared_tasks(
    settings: StreamSettings, embeddings: Mapping[str, Embeddings], where: str
) -> list[tuple[TaskSettings, tuple[int, ...]]]:
    """Each task with the labels of its classes."""
    if isinstance(settings.tasks, EqualTasks):
        equal = settings.tasks
        _check_labelled(equal.dataset, embeddings, f"{where}.tasks")
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
        _check_labelled(task.dataset, embeddings, f"{where}.tasks[{index}]")
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


def _check_labelled(dataset: str, embeddings: Mapping[str, Embeddings], key: str) -> None:
    if not embeddings[dataset].classes:
        raise HCLError(
            f"{key}.dataset: {dataset} has no labels, and tasks are made of classes. Sort its "
            "images into class folders (source: folder), or predict their classes (`hcl predict`)."
        )


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
    settings: StreamSettings,
    generator: np.random.Generator,
) -> Task:
    train, held_out, test = [], [], []
    for_test = np.random.default_rng([settings.seed, *classes])  # the other draws are the same
    for label in classes:
        of_class = embeddings.y == label
        rows = np.flatnonzero(of_class & (embeddings.split == TRAIN))
        tested = np.flatnonzero(of_class & (embeddings.split == TEST))
        test.append(np.sort(for_test.permutation(tested)[: settings.test_per_class]))
        count = round(settings.validation * len(rows))
        shuffled = generator.permutation(rows)
        held_out.append(np.sort(shuffled[:count]))
        train.append(np.sort(shuffled[count:][: settings.samples_per_class]))
        for part, found in (("train", train[-1]), ("test", test[-1])):
            if not len(found):
                raise HCLError(
                    f"{dataset}: class {label} has no {part} samples for a task"
                    f"{' once validation is held out' if part == 'train' else ''}; "
                    "add samples, or leave the class out."
                )
    labels = classes if settings.labels == "own" else range(len(classes))
    return Task(dataset, classes, *(_part(rows, labels) for rows in (train, held_out, test)))


def _part(rows_by_label: list[IntArray], labels: Sequence[int]) -> Part:
    """The rows of all labels in the order of the file, which no reader then has to sort."""
    rows = np.concatenate(rows_by_label)
    y = np.repeat(np.array(labels), [len(r) for r in rows_by_label])
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


def _make_shown(
    settings: StreamSettings, tasks: tuple[Task, ...], stream: tuple[Segment, ...], where: str
) -> Shown:
    order = settings.order or (None,) * len(stream)
    frequencies: list[tuple[float, ...] | None] = []
    for index, (entry, segment) in enumerate(zip(order, stream, strict=True)):
        own = entry.frequencies if isinstance(entry, SegmentSettings) else None
        key = f"{where}.order[{index}].frequencies" if own else f"{where}.frequencies"
        weights, classes = own or settings.frequencies, len(tasks[segment.task].classes)
        if weights is not None and len(weights) != classes:
            raise HCLError(
                f"{key}: has {len(weights)} weights, but a task has {classes} labels; "
                "give one for each."
            )
        frequencies.append(weights)
    return Shown(
        blur=settings.blur,
        batches=settings.batches,
        frequencies=tuple(frequencies) if any(frequencies) else None,
        disturb=settings.disturb,
        labels=settings.labels,
        labelled=settings.labelled,
        seed=settings.seed if settings.disturb is not None or settings.labelled < 1 else 0,
    )


def _check_features(
    datasets: tuple[str, ...], embeddings: Mapping[str, Embeddings], where: str
) -> None:
    """Pixels are bytes: noise and drift are of features."""
    for dataset in datasets:
        if embeddings[dataset].pixels is not None:
            raise HCLError(
                f"{where}.disturb: moves features, but {dataset} has pixels, which are bytes; "
                "leave it out, or take the data set's embeddings."
            )
