"""Synthetic streams: Gaussian blobs in the plane, and blobs embedded in 64 dimensions."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from hcl.records import embeddings as embedding_files
from hcl.records.embeddings import Embeddings
from hcl.records.tasks import Benchmark, Part, Segment, Source, Task, write_benchmark


def blobs_in_the_plane(train: int = 320, test: int = 100, seed: int = 0):
    """Two tasks of two classes: the classes stand the other way round in the second task.

    So a learner that forgets the first task for the second answers it at chance, or worse.
    """
    rng = np.random.default_rng(seed)
    means = np.array([[[-2.0, 2.0], [-2.0, -2.0]], [[2.0, -2.0], [2.0, 2.0]]])
    return _sample(rng, means, lambda n: 0.5 * rng.normal(size=(n, 2)), train, test)


def blobs_in_64_dimensions(tasks: int = 4, train: int = 320, test: int = 100, seed: int = 0):
    """Two classes a task, apart in 8 directions of 64, with noise in all of them."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(64, 8)))[0].T
    means = 3.0 * rng.normal(size=(tasks, 2, 8)) @ basis
    spread = rng.normal(size=(8, 8)) / 4 @ basis

    def noise(n: int) -> np.ndarray:
        return rng.normal(size=(n, 8)) @ spread + 0.3 * rng.normal(size=(n, 64))

    return _sample(rng, means, noise, train, test)


def _sample(rng, means, noise, train, test):
    """Embeddings of one data set, and the tasks over it: train rows, then test rows of each."""
    xs, parts = [], []
    start = 0
    for of_task in means:
        rows = []
        for count in (train, test):
            y = rng.permutation(np.arange(count) % 2)
            xs.append(of_task[y] + noise(count))
            rows.append(Part(np.arange(start, start + count), y.astype(np.int64)))
            start += count
        parts.append(rows)
    x = np.concatenate(xs).astype(np.float32)
    digest = hashlib.sha256(x.tobytes()).hexdigest()
    embeddings = Embeddings(
        x, np.zeros(len(x), np.int64), np.zeros(len(x), np.uint8), {"content_sha256": digest}
    )
    empty = Part(np.zeros(0, np.int64), np.zeros(0, np.int64))
    tasks = tuple(Task("blobs", (2 * i, 2 * i + 1), a, empty, b) for i, (a, b) in enumerate(parts))
    return {"blobs": embeddings}, tasks, (Source("blobs", digest),)


def benchmark(made, order: Sequence[int] | None = None, epochs: int = 1, name: str = "blobs"):
    """Embeddings and a benchmark that shows the tasks in ``order``."""
    embeddings, tasks, sources = made
    order = range(len(tasks)) if order is None else order
    return embeddings, Benchmark(name, tasks, tuple(Segment(t, epochs) for t in order), sources)


def with_validation(benchmark: Benchmark, count: int) -> Benchmark:
    """The benchmark with ``count`` training samples of each task held out."""
    tasks = []
    for task in benchmark.tasks:
        rows, y = task.train.rows, task.train.y
        parts = {
            "validation": Part(rows[:count], y[:count]),
            "train": Part(rows[count:], y[count:]),
        }
        tasks.append(dataclasses.replace(task, **parts))
    return dataclasses.replace(benchmark, tasks=tuple(tasks))


def write_project(
    folder: Path, embeddings: dict[str, Embeddings], tasks: Benchmark, params: dict[str, Any]
) -> None:
    """``embeddings/blobs.h5``, ``tasks.h5`` and ``params.yaml``, as earlier stages leave them."""
    made = embeddings["blobs"]
    provenance = dict.fromkeys(embedding_files.PROVENANCE[1:], "{}")
    provenance["classes"] = '["0"]'
    embedding_files.write(folder / "embeddings/blobs.h5", made.x, made.y, made.split, provenance)
    digest = embedding_files.read(folder / "embeddings/blobs.h5").attributes["content_sha256"]
    tasks = dataclasses.replace(tasks, sources=(Source("blobs", digest),))
    write_benchmark(folder / "tasks.h5", tasks)
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
