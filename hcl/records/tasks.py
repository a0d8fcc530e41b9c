"""From labels to tasks: index arrays over embedding files, and the stream that shows them.

A benchmark is a list of tasks and the order in which they are shown. A task takes some classes of
one data set and labels them 0…K−1; all tasks of a benchmark have the same number of classes K
(domain-incremental learning, Section 2 of the paper). A task may be shown more than once.

The tasks file (HDF5, ``hcl-tasks/2``) holds, for task i, the group ``task-i`` with the attributes
``dataset`` and ``classes`` and, for each of ``train``, ``validation`` and ``test``, the rows of the
embedding file and their labels within the task; ``stream`` lists (task, epochs). Its attribute
``sources`` names each embedding file by the digest of its content, so that rows are never read
from a file other than the one that they were made for; ``settings`` says what was asked for;
``content_sha256`` is over all of it, so that a changed row or label is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcl.files import canonical_json, fingerprint
from hcl.records.hdf5 import Format, Reader, Writer, reading, writing

FORMAT = "hcl-tasks/2"
TASKS = Format("tasks file", (FORMAT,), "hcl split")
PARTS = ("train", "validation", "test")

IntArray = NDArray[np.int64]


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
    settings: Mapping[str, Any] | None = None  # of the stream that was asked for

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


def write_benchmark(path: str | Path, benchmark: Benchmark) -> None:
    """Write the tasks file, whole or not at all."""
    with writing(path) as (file, _):
        writer = Writer(file)
        writer.text("format", FORMAT)
        writer.text("benchmark", benchmark.name)
        sources = [[s.dataset, s.content_sha256] for s in benchmark.sources]
        writer.text("sources", canonical_json(sources))
        writer.text("settings", canonical_json(benchmark.settings))
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
        tasks = tuple(_read_task(file, index) for index in range(count))
        sources = file.json("sources")
        found = Benchmark(
            name=file.text("benchmark"),
            tasks=tasks,
            stream=tuple(Segment(int(task), int(epochs)) for task, epochs in stream),
            sources=tuple(Source(str(dataset), str(digest)) for dataset, digest in sources),
            settings=file.json("settings"),
        )
        file.check_digest()
    return found


def _read_task(file: Reader, index: int) -> Task:
    group = f"task-{index}"
    classes = tuple(int(one) for one in file.json("classes", group))
    parts = []
    for name in PARTS:
        rows, y = (file.array(f"{group}/{name}/{what}", "int64", 1) for what in ("rows", "y"))
        if len(rows) != len(y):
            raise file.broken(f"{group}/{name} has {len(rows)} rows and {len(y)} labels")
        if len(rows) and (rows.min() < 0 or y.min() < 0 or y.max() >= len(classes)):
            raise file.broken(f"{group}/{name} holds a row or a label that can't be")
        parts.append(Part(rows, y))
    return Task(file.text("dataset", group), classes, *parts)
