"""The stream: batches of a benchmark, one segment after the other, in an order that a seed fixes.

A learner is handed a ``Batch``; only one that is told its tasks gets a ``TaskBatch``.

Paper: batches of 32. Here: an epoch over n samples is cut into round(n / 32) batches whose sizes
differ by one at most, because a last batch of a few samples would be a noisy gradient, and a
statistic unlike those in the detector's window. Every sample is shown once an epoch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcl.errors import HCLError
from hcl.learn.contract import MixedBatch, TaskBatch, TaskBatches
from hcl.records.embeddings import Embeddings
from hcl.records.tasks import Benchmark, Part, Task

SHUFFLE = 1  # keeps the generator of the order apart from others of the same seed


def batch_bounds(samples: int, batch_size: int) -> NDArray[np.int64]:
    """Where batches begin and end: round(samples / batch_size) of them, as equal as can be."""
    batches = max(1, round(samples / batch_size))
    return np.arange(batches + 1) * samples // batches


def shortest_segment(benchmark: Benchmark, batch_size: int) -> int:
    """Batches of the segment of the stream that has the fewest."""
    return min(
        segment.epochs * (len(batch_bounds(len(task.train.rows), batch_size)) - 1)
        for segment in benchmark.stream
        for task in (benchmark.tasks[segment.task],)
    )


class Stream:
    """A benchmark's samples, gathered batch by batch from the embedding files.

    The files are mapped from disk: every process that trains on them shares one copy in memory.

    Args:
        benchmark: tasks and their order.
        embeddings: one for each source of the benchmark.
        batch_size: samples in a batch, give or take one.
        seed: of the order of samples within an epoch.
        device: where the batches are wanted.
        images: whether pixels are wanted as they are, bytes (C, H, W); otherwise they come as
            vectors with values from 0 to 1.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        embeddings: Mapping[str, Embeddings],
        *,
        batch_size: int,
        seed: int,
        device: torch.device,
        images: bool = True,
    ) -> None:
        check_sources(benchmark, embeddings)
        self.benchmark = benchmark
        self.batch_size = batch_size
        self.seed = seed
        self.device = device
        self._embeddings = embeddings
        first = embeddings[benchmark.sources[0].dataset]
        self.size: int = first.x.shape[1]
        self.pixels = first.pixels
        self._images = images
        self.shape = self.pixels if images and self.pixels is not None else (self.size,)

    def bounds(self, segment: int) -> NDArray[np.int64]:
        """Where the batches of one epoch of a segment begin and end."""
        task = self.benchmark.tasks[self.benchmark.stream[segment].task]
        return batch_bounds(len(task.train.rows), self.batch_size)

    def num_batches(self, segment: int, epochs: int | None = None) -> int:
        """Batches that the segment shows in all."""
        epochs = self.benchmark.stream[segment].epochs if epochs is None else epochs
        return epochs * (len(self.bounds(segment)) - 1)

    def batches(
        self, segment: int, first: int = 0, epochs: int | None = None
    ) -> Iterator[TaskBatch]:
        """The segment's batches from number ``first`` on.

        The order of an epoch depends on the seed, the segment and the epoch alone, so that a run
        can be taken up at any batch. ``epochs`` replaces the segment's own number.
        """
        number = self.benchmark.stream[segment].task
        task = self.benchmark.tasks[number]
        bounds = self.bounds(segment)
        per_epoch = len(bounds) - 1
        total = self.num_batches(segment, epochs)
        order: NDArray[np.int64] | None = None
        for index in range(first, total):
            epoch, batch = divmod(index, per_epoch)
            if order is None or batch == 0:
                generator = np.random.default_rng([self.seed, SHUFFLE, segment, epoch])
                order = generator.permutation(len(task.train.rows))
            chosen = order[bounds[batch] : bounds[batch + 1]]
            x, y = self._gather(task, task.train, chosen)
            yield TaskBatch(x, y, number)

    def first_samples(self, count: int) -> TaskBatch:
        """Up to ``count`` training samples of the first task: for what is fitted on it alone."""
        number = self.benchmark.stream[0].task
        task = self.benchmark.tasks[number]
        generator = np.random.default_rng([self.seed, SHUFFLE])
        chosen = generator.permutation(len(task.train.rows))[:count]
        return TaskBatch(*self._gather(task, task.train, chosen), number)

    def draw(self, tasks: Sequence[int], count: int, generator: torch.Generator) -> TaskBatches:
        """``count`` training samples of each task, with replacement: what MTL may look at.

        ``generator`` lives on the CPU: rows are chosen where they are gathered.
        """
        parts = []
        for number in tasks:
            task = self.benchmark.tasks[number]
            chosen = torch.randint(len(task.train.rows), (count,), generator=generator)
            parts.append(self._gather(task, task.train, chosen.numpy()))
        return TaskBatches(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]))

    @property
    def num_tasks(self) -> int:
        """Tasks that the stream has in all."""
        return len(self.benchmark.tasks)

    def num_mixed(self, count: int) -> int:
        """Batches that ``mixed`` has."""
        samples = sum(len(task.train.rows) for task in self.benchmark.tasks)
        return len(batch_bounds(samples, count)) - 1

    def mixed(self, count: int, generator: torch.Generator) -> Iterator[MixedBatch]:
        """All tasks' training samples once, in batches of about ``count``: joint training.

        ``generator`` lives on the CPU: rows are chosen where they are gathered.
        """
        sizes = [len(task.train.rows) for task in self.benchmark.tasks]
        owner = np.repeat(np.arange(len(sizes)), sizes)
        place = np.concatenate([np.arange(size) for size in sizes])
        order = torch.randperm(len(owner), generator=generator).numpy()
        bounds = batch_bounds(len(owner), count)
        for begin, end in itertools.pairwise(bounds):
            chosen = np.sort(order[begin:end])
            numbers = np.unique(owner[chosen])
            parts = []
            for number in numbers:
                task = self.benchmark.tasks[number]
                rows = place[chosen[owner[chosen] == number]]
                parts.append(self._gather(task, task.train, rows))
            t = sent(torch.from_numpy(owner[chosen]), self.device)
            yield MixedBatch(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]), t)

    def test_samples(self, at_once: int = 1024) -> Iterator[Tensor]:
        """The tasks' test samples one after the other, in the order of the tasks."""
        for task in self.benchmark.tasks:
            for start in range(0, len(task.test.rows), at_once):
                chosen = np.arange(start, min(start + at_once, len(task.test.rows)))
                yield self._gather(task, task.test, chosen)[0]

    def _gather(self, task: Task, part: Part, chosen: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        x = torch.from_numpy(_read_rows(self._embeddings[task.dataset].x, part.rows[chosen]))
        y = torch.from_numpy(part.y[chosen])
        x = sent(x.view(-1, *self.shape), self.device)
        as_they_are = self.pixels is None or self._images
        return x if as_they_are else x / 255, sent(y, self.device)


def sent(values: Tensor, device: torch.device) -> Tensor:
    """The values on ``device``; a GPU fetches them itself, while the CPU goes on."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def _read_rows(x: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """``x[rows]``, read in the order of the file: a disk then moves one way within a batch."""
    order = np.argsort(rows)
    found = np.empty((len(rows), x.shape[1]), x.dtype)
    found[order] = x[rows[order]]
    return found


def check_sources(benchmark: Benchmark, embeddings: Mapping[str, Embeddings]) -> None:
    """The tasks' rows point into these very embeddings; all are of one kind and one size."""
    sizes = {}
    for source in benchmark.sources:
        if source.dataset not in embeddings:
            raise HCLError(f"{benchmark.name}: no embeddings of {source.dataset} were given.")
        found = embeddings[source.dataset]
        if found.attributes["content_sha256"] != source.content_sha256:
            raise HCLError(
                f"{benchmark.name}: its tasks were made for other embeddings of {source.dataset} "
                "than those given (their SHA-256 differs). Rerun split."
            )
        sizes[source.dataset] = found.x.shape[1]
    shapes = {source.dataset: embeddings[source.dataset].pixels for source in benchmark.sources}
    if len(set(shapes.values())) != 1:
        listed = ", ".join(
            f"{name} {'a backbone' if shape is None else list(shape)}"
            for name, shape in shapes.items()
        )
        raise HCLError(
            f"{benchmark.name}: its data sets are not seen alike ({listed}); give all of them the "
            "same pixels: [C, H, W], or none."
        )
    if len(set(sizes.values())) != 1:
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise HCLError(
            f"{benchmark.name}: embeddings differ in their number of features ({listed}); "
            "extract all of them with one backbone."
        )
