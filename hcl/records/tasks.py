"""From labels to tasks: index arrays over embedding files, and the stream that shows them.

A benchmark is a list of tasks and the order in which they are shown. A task takes some classes of
one data set and labels them 0…K−1; all tasks of a benchmark have the same number of classes K
(domain-incremental learning, Section 2 of the paper). A task may be shown more than once. Where
``Shown.labels`` is ``own``, labels are the data set's: tasks then bring new classes.

The tasks file (HDF5, ``hcl-tasks/1``) holds, for task i, the group ``task-i`` with the attributes
``dataset`` and ``classes`` and, for each of ``train``, ``validation`` and ``test``, the rows of the
embedding file and their labels within the task; ``stream`` lists (task, epochs). Its attribute
``sources`` names each embedding file by the digest of its content, so that rows are never read
from a file other than the one that they were made for; ``settings`` says what was asked for. Where
the stream is not simply one task after the other, the attribute ``shown`` says how it is shown.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from hcl.errors import HCLError
from hcl.files import canonical_json, fingerprint, replacing
from hcl.settings import build

FORMAT = "hcl-tasks/1"
PARTS = ("train", "validation", "test")

IntArray = NDArray[np.int64]
Labels = Literal["task", "own"]


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
    degrees: float = 3.0
    scale: float = 0.5

    def __post_init__(self) -> None:
        for name in ("degrees", "scale"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: is {getattr(self, name):g}; expected above 0.")


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
    rate: float = 0.01

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise ValueError(f"rate: is {self.rate:g}; expected above 0.")


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

    blur: int = 0
    batches: int | None = None
    frequencies: tuple[tuple[float, ...] | None, ...] | None = None
    disturb: Tails | Drift | None = None
    labels: Labels = "task"
    labelled: float = 1.0
    seed: int = 0

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
    with replacing(path) as partial, h5py.File(partial, "w") as file:
        file.attrs["format"] = FORMAT
        file.attrs["benchmark"] = benchmark.name
        file.attrs["sources"] = canonical_json(
            [[s.dataset, s.content_sha256] for s in benchmark.sources]
        )
        if benchmark.settings is not None:
            file.attrs["settings"] = canonical_json(benchmark.settings)
        if shown := benchmark.shown.said():
            file.attrs["shown"] = canonical_json(shown)
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
    again = "`hcl split` makes it"
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
            settings = json.loads(file.attrs.get("settings", "null"))
            shown = build(Shown, json.loads(file.attrs.get("shown", "{}")), path, "shown")
            name = str(file.attrs["benchmark"])
            return Benchmark(name, tasks, stream, sources, settings, shown)
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise HCLError(f"{path}: not a whole tasks file ({error}); {again}.") from error
