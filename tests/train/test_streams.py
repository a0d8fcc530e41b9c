"""The stream: every sample once an epoch, one order for one seed, no task for the blind."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from hcl.errors import HCLError
from hcl.learn.contract import Batch
from hcl.records.tasks import Source
from hcl.train.streams import Stream, batch_bounds
from tests.support.blobs import benchmark, blobs_in_64_dimensions


def make_stream(seed: int = 0, train: int = 100, order=(0, 1, 0), epochs: int = 2) -> Stream:
    embeddings, tasks = benchmark(blobs_in_64_dimensions(3, train, 10), order, epochs)
    return Stream(tasks, embeddings, batch_size=32, seed=seed, device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("samples", "sizes"),
    [(64, [32, 32]), (100, [33, 33, 34]), (265, [33] * 7 + [34]), (40, [40]), (3, [3])],
)
def test_an_epoch_is_cut_into_nearly_equal_batches(samples, sizes):
    assert sorted(np.diff(batch_bounds(samples, 32)).tolist()) == sizes


def test_every_sample_is_shown_once_an_epoch():
    stream = make_stream()
    shown = torch.cat([batch.x for batch in stream.batches(0)])
    per_epoch = shown.view(2, 100, 64)
    rows = stream.benchmark.tasks[0].train.rows
    expected = torch.from_numpy(stream._embeddings["blobs"].x[rows])
    for epoch in per_epoch:
        assert torch.equal(epoch[:, 0].sort().values, expected[:, 0].sort().values)
    assert not torch.equal(per_epoch[0], per_epoch[1])


def test_labels_stay_with_their_samples():
    stream = make_stream()
    task = stream.benchmark.tasks[1]
    x = stream._embeddings["blobs"].x
    label_of = {x[row].tobytes(): y for row, y in zip(task.train.rows, task.train.y, strict=True)}
    for batch in stream.batches(1):
        for sample, y in zip(batch.x, batch.y, strict=True):
            assert label_of[sample.numpy().tobytes()] == y


def test_a_segment_can_be_taken_up_at_any_batch():
    stream = make_stream()
    whole = [batch.x for batch in stream.batches(1)]
    assert len(whole) == stream.num_batches(1) == 6
    for first in (1, 3, 5):
        rest = [batch.x for batch in stream.batches(1, first)]
        assert len(rest) == 6 - first
        assert all(torch.equal(a, b) for a, b in zip(rest, whole[first:], strict=True))


def test_the_order_depends_on_seed_and_segment():
    def first(seed: int, segment: int) -> torch.Tensor:
        return next(make_stream(seed).batches(segment)).x

    assert torch.equal(first(0, 0), first(0, 0))
    assert not torch.equal(first(0, 0), first(1, 0))
    assert not torch.equal(first(0, 0), first(0, 2))  # the same task, shown again


def test_the_blind_learner_is_handed_no_task():
    batch = next(make_stream().batches(1))
    assert batch.task == 1
    blind = batch.without_task()
    assert type(blind) is Batch
    assert blind._fields == ("x", "y")
    assert torch.equal(blind.x, batch.x)
    assert torch.equal(blind.y, batch.y)


def test_test_samples_stand_task_after_task():
    stream = make_stream()
    parts = list(stream.test_samples(at_once=7))
    assert [len(p) for p in parts] == [7, 3] * 3
    rows = np.concatenate([task.test.rows for task in stream.benchmark.tasks])
    np.testing.assert_array_equal(torch.cat(parts).numpy(), stream._embeddings["blobs"].x[rows])


def test_draw_gives_so_many_of_each_task():
    stream = make_stream()
    drawn = stream.draw([2, 0], 50, torch.Generator().manual_seed(0))
    x = stream._embeddings["blobs"].x
    for part, number in ((drawn.x[:50], 2), (drawn.x[50:], 0)):
        known = {x[row].tobytes() for row in stream.benchmark.tasks[number].train.rows}
        assert {sample.numpy().tobytes() for sample in part} <= known
    assert len({sample.numpy().tobytes() for sample in drawn.x[:50]}) > 20


def test_all_samples_are_mixed_once_with_their_labels_and_tasks():
    stream = make_stream()
    found = list(stream.mixed(64, torch.Generator().manual_seed(0)))
    assert len(found) == stream.num_mixed(64)
    x, y, t = (torch.cat(column).numpy() for column in zip(*found, strict=True))
    shown = {x[i].tobytes(): (int(y[i]), int(t[i])) for i in range(len(x))}
    there = {
        stream._embeddings["blobs"].x[row].tobytes(): (int(label), number)
        for number, task in enumerate(stream.benchmark.tasks)
        for row, label in zip(task.train.rows, task.train.y, strict=True)
    }
    assert len(x) == len(shown)
    assert shown == there
    assert all(len(batch.t.unique()) == stream.num_tasks for batch in found)
    other = next(stream.mixed(64, torch.Generator().manual_seed(1)))
    assert not torch.equal(found[0].x, other.x)


def test_first_samples_are_of_the_first_task_shown():
    embeddings, tasks = benchmark(blobs_in_64_dimensions(3, 100, 10), (2, 0, 1))
    stream = Stream(tasks, embeddings, batch_size=32, seed=0, device=torch.device("cpu"))
    first = stream.first_samples(40)
    assert first.task == 2
    known = {embeddings["blobs"].x[row].tobytes() for row in tasks.tasks[2].train.rows}
    assert len(first.x) == 40
    assert {sample.numpy().tobytes() for sample in first.x} <= known


def test_other_embeddings_than_the_tasks_were_made_for_are_refused():
    embeddings, tasks = benchmark(blobs_in_64_dimensions(2, 20, 10))
    other = dataclasses.replace(tasks, sources=(Source("blobs", "0" * 64),))
    with pytest.raises(HCLError, match="Rerun split"):
        Stream(other, embeddings, batch_size=32, seed=0, device=torch.device("cpu"))
    with pytest.raises(HCLError, match="no embeddings of blobs"):
        Stream(tasks, {}, batch_size=32, seed=0, device=torch.device("cpu"))


def test_embeddings_of_different_sizes_are_refused():
    embeddings, tasks = benchmark(blobs_in_64_dimensions(2, 20, 10))
    narrow = dataclasses.replace(embeddings["blobs"], x=embeddings["blobs"].x[:, :8])
    both = dataclasses.replace(
        tasks, sources=(*tasks.sources, Source("narrow", tasks.sources[0].content_sha256))
    )
    with pytest.raises(HCLError, match="blobs 64, narrow 8"):
        Stream(
            both,
            {**embeddings, "narrow": narrow},
            batch_size=32,
            seed=0,
            device=torch.device("cpu"),
        )


class Recorded:
    """Embeddings that remember which rows were read, and in which order."""

    def __init__(self, x):
        self.x, self.shape, self.dtype, self.read = x, x.shape, x.dtype, []

    def __getitem__(self, rows):
        self.read.append(rows)
        return self.x[rows]


def test_rows_of_a_batch_are_read_in_the_order_of_the_file():
    plain = make_stream()
    x = Recorded(plain._embeddings["blobs"].x)
    stream = make_stream()
    stream._embeddings = {"blobs": dataclasses.replace(plain._embeddings["blobs"], x=x)}
    for batch, expected in zip(stream.batches(0), plain.batches(0), strict=True):
        assert torch.equal(batch.x, expected.x)
        assert torch.equal(batch.y, expected.y)
    assert len(x.read) == 6
    for rows in x.read:
        assert (np.diff(rows) > 0).all()
    generator = torch.Generator().manual_seed(0)
    drawn = stream.draw([0, 1], 200, generator)  # with replacement: rows come twice
    again = plain.draw([0, 1], 200, generator.manual_seed(0))
    assert torch.equal(drawn.x, again.x)
