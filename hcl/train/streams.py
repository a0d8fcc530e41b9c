"""The stream: batches of a benchmark, one segment after the other, in an order that a seed fixes.

A learner is handed a ``Batch``; only one that is told its tasks gets a ``TaskBatch``.

Paper: batches of 32. Here: an epoch over n samples is cut into round(n / 32) batches whose sizes
differ by one at most, because a last batch of a few samples would be a noisy gradient, and a
statistic unlike those in the detector's window. Every sample is shown once an epoch, unless the
benchmark says otherwise (``hcl.records.tasks.Shown``): labels may come at other frequencies, a
segment may begin with samples of the one before it, and features may be disturbed. A blurred batch
counts as one of the task that most of its samples are of.
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
from hcl.learn.contract import UNLABELLED, MixedBatch, TaskBatch, TaskBatches
from hcl.records.embeddings import Embeddings
from hcl.records.tasks import Benchmark, Drift, Part, Tails, Task

SHUFFLE = 1  # keeps the generator of the order apart from others of the same seed
BLUR, TAILS, DRIFT, LABELLED = 5, 6, 7, 8  # and these from it: see also ``hcl.train.loop``
SCALE_SAMPLES = 4096  # from which a feature's standard deviation is taken


def batch_bounds(samples: int, batch_size: int) -> NDArray[np.int64]:
    """Where batches begin and end: round(samples / batch_size) of them, as equal as can be."""
    batches = max(1, round(samples / batch_size))
    return np.arange(batches + 1) * samples // batches


def labels_of(benchmark: Benchmark, task: Task) -> Sequence[int]:
    """The labels of a task's classes."""
    return task.classes if benchmark.shown.labels == "own" else range(len(task.classes))


def shown_of_each(benchmark: Benchmark, segment: int) -> NDArray[np.int64] | None:
    """Samples of each label in an epoch of the segment, as its frequencies say.

    As many as there can be without showing one twice; ``None`` where all are shown.
    """
    frequencies = benchmark.shown.frequencies
    weights = None if frequencies is None else frequencies[segment]
    if weights is None:
        return None
    task = benchmark.tasks[benchmark.stream[segment].task]
    share = np.array(weights) / sum(weights)
    there = [np.sum(task.train.y == label) for label in labels_of(benchmark, task)]
    total = min(n / s for n, s in zip(there, share, strict=True) if s > 0)
    return np.floor(total * share + 1e-9).astype(np.int64)


def epoch_bounds(benchmark: Benchmark, segment: int, batch_size: int) -> NDArray[np.int64]:
    """Where the batches of one epoch of a segment begin and end."""
    each = shown_of_each(benchmark, segment)
    rows = benchmark.tasks[benchmark.stream[segment].task].train.rows
    return batch_bounds(len(rows) if each is None else int(each.sum()), batch_size)


def segment_batches(
    benchmark: Benchmark, segment: int, batch_size: int, epochs: int | None = None
) -> int:
    """Batches that a segment shows in all; ``epochs`` limits them to so many passes."""
    per_epoch = len(epoch_bounds(benchmark, segment, batch_size)) - 1
    batches = benchmark.shown.batches
    if batches is None:
        return per_epoch * (benchmark.stream[segment].epochs if epochs is None else epochs)
    return batches if epochs is None else min(batches, epochs * per_epoch)


def shortest_segment(benchmark: Benchmark, batch_size: int) -> int:
    """Batches of the segment of the stream that has the fewest."""
    segments = range(len(benchmark.stream))
    return min(segment_batches(benchmark, segment, batch_size) for segment in segments)


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
        self._orders: dict[tuple[int, int], NDArray[np.int64]] = {}  # the last ones
        self._with_label: dict[int, NDArray[np.bool_]] = {}  # by task
        self._scale, self._direction = self._disturbance()

    def _disturbance(self) -> tuple[NDArray[np.float32], Tensor]:
        """Each feature's standard deviation in the first task, and where drift goes to."""
        shown = self.benchmark.shown
        if shown.disturb is None:
            return np.zeros(0, np.float32), torch.zeros(0)
        task = self.benchmark.tasks[self.benchmark.stream[0].task]
        x = self._embeddings[task.dataset].x[task.train.rows[:SCALE_SAMPLES]]
        scale = x.std(0, dtype=np.float64).astype(np.float32)
        v = np.random.default_rng([shown.seed, DRIFT]).standard_normal(self.size)
        direction = torch.from_numpy((scale * v / np.linalg.norm(v)).astype(np.float32))
        return scale, direction.to(self.device)

    def num_batches(self, segment: int, epochs: int | None = None) -> int:
        """Batches that the segment shows in all."""
        return segment_batches(self.benchmark, segment, self.batch_size, epochs)

    def batches(
        self, segment: int, first: int = 0, epochs: int | None = None
    ) -> Iterator[TaskBatch]:
        """The segment's batches from number ``first`` on.

        A batch depends on the seed, the segment and its number alone, so that a run can be taken
        up at any batch. ``epochs`` replaces the segment's own number.
        """
        number = self.benchmark.stream[segment].task
        before = self.benchmark.stream[segment - 1].task if segment else number
        total = self.num_batches(segment, epochs)
        blur = min(self.benchmark.shown.blur, total) if segment else 0
        last = self.num_batches(segment - 1, epochs) if blur else 0
        for index in range(first, total):
            x, y = self._whole_batch(segment, index, total)
            if index >= blur:
                yield TaskBatch(x, y, number)
                continue
            # The segment before this one goes on, and gives the samples that are not of this one.
            old_x, old_y = self._whole_batch(segment - 1, last + index, last)
            generator = np.random.default_rng([self.seed, BLUR, segment, index])
            new = generator.random(len(y)) < (index + 1) / (blur + 1)
            taken = torch.from_numpy(np.arange(len(y)) % len(old_y)).to(self.device)
            is_new = torch.from_numpy(new).to(self.device)
            x = torch.where(is_new.view(-1, *[1] * (x.dim() - 1)), x, old_x[taken])
            y = torch.where(is_new, y, old_y[taken])
            yield TaskBatch(x, y, number if 2 * new.sum() >= len(new) else before)

    def _whole_batch(self, segment: int, index: int, total: int) -> tuple[Tensor, Tensor]:
        """Batch ``index`` of a segment that has ``total`` of them, all of its own task."""
        task = self.benchmark.tasks[self.benchmark.stream[segment].task]
        bounds = epoch_bounds(self.benchmark, segment, self.batch_size)
        epoch, batch = divmod(index, len(bounds) - 1)
        chosen = self._order(segment, epoch)[bounds[batch] : bounds[batch + 1]]
        x, y = self._gather(task, task.train, chosen)
        disturb = self.benchmark.shown.disturb
        if isinstance(disturb, Drift):
            x = x + (index - (total - 1) / 2) * disturb.rate * self._direction
        return x, y

    def _order(self, segment: int, epoch: int) -> NDArray[np.int64]:
        """The samples of one epoch of a segment, by seed, segment and epoch alone."""
        if (segment, epoch) not in self._orders:
            if len(self._orders) > 1:  # this segment's, and that of the one before it
                del self._orders[next(iter(self._orders))]
            generator = np.random.default_rng([self.seed, SHUFFLE, segment, epoch])
            task = self.benchmark.tasks[self.benchmark.stream[segment].task]
            y = task.train.y
            order = generator.permutation(len(y))
            each = shown_of_each(self.benchmark, segment)
            if each is not None:
                labels = labels_of(self.benchmark, task)
                counts = zip(labels, each, strict=True)
                kept = [np.flatnonzero(y[order] == k)[:count] for k, count in counts]
                order = order[np.sort(np.concatenate(kept))]
            self._orders[segment, epoch] = order
        return self._orders[segment, epoch]

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
        rows = part.rows[chosen]
        found = _read_rows(self._embeddings[task.dataset].x, rows)
        tails = self.benchmark.shown.disturb
        if isinstance(tails, Tails):
            found += tails.scale * self._scale * self._noise(rows, tails.degrees)
        x = torch.from_numpy(found)
        labels = part.y[chosen]
        if part is task.train and self.benchmark.shown.labelled < 1:
            labels = np.where(self._labelled(task)[chosen], labels, UNLABELLED)
        y = torch.from_numpy(labels)
        x = sent(x.view(-1, *self.shape), self.device)
        as_they_are = self.pixels is None or self._images
        return x if as_they_are else x / 255, sent(y, self.device)

    def _labelled(self, task: Task) -> NDArray[np.bool_]:
        """Which training samples of a task come with their label: so many of each class."""
        number = next(i for i, other in enumerate(self.benchmark.tasks) if other is task)
        if number not in self._with_label:
            shown = self.benchmark.shown
            generator = np.random.default_rng([shown.seed, LABELLED, number])
            found = np.zeros(len(task.train.y), bool)
            for label in labels_of(self.benchmark, task):
                of_class = generator.permutation(np.flatnonzero(task.train.y == label))
                found[of_class[: max(1, round(shown.labelled * len(of_class)))]] = True
            self._with_label[number] = found
        return self._with_label[number]

    def _noise(self, rows: NDArray[np.int64], degrees: float) -> NDArray[np.float32]:
        """Student's t for each row of a file: the same whenever, and with whom, it is read."""
        seed = self.benchmark.shown.seed
        drawn = [
            np.random.default_rng([seed, TAILS, int(row)]).standard_t(degrees, self.size)
            for row in rows
        ]
        return np.array(drawn, np.float32).reshape(len(rows), self.size)


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
