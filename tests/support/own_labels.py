"""Blobs whose tasks bring new classes: the labels are the data set's own."""

from __future__ import annotations

import dataclasses

from hcl.records.embeddings import Embeddings
from hcl.records.tasks import Benchmark, Part, Shown, Task
from tests.support.blobs import benchmark, blobs_in_64_dimensions


def own_labels(
    tasks: int = 3, train: int = 640, test: int = 100, epochs: int = 2, **shown: int
) -> tuple[dict[str, Embeddings], Benchmark]:
    """Tasks of two classes, labelled 0, 1; 2, 3; 4, 5."""
    embeddings, made = benchmark(blobs_in_64_dimensions(tasks, train, test), epochs=epochs)
    relabelled = tuple(_own(task) for task in made.tasks)
    return embeddings, dataclasses.replace(
        made, tasks=relabelled, shown=Shown(labels="own", **shown)
    )


def _own(task: Task) -> Task:
    def part(part: Part) -> Part:
        return Part(part.rows, part.y + task.classes[0])

    parts = {name: part(getattr(task, name)) for name in ("train", "validation", "test")}
    return dataclasses.replace(task, **parts)
