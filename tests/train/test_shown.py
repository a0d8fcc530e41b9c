"""Streams by declaration: blurred, short or long, with rare labels, heavy tails or drift."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from hcl.evaluate.scoring import score
from hcl.learn.closed_form.settings import StreamingLDAMethod
from hcl.learn.flow.detection import DetectionSettings
from hcl.learn.flow.settings import FlowMethod, FunctionalSettings
from hcl.learn.settings import TrainingSettings
from hcl.model.settings import FlowSettings
from hcl.records.tasks import Drift, Shown, Tails
from hcl.train.loop import Job, train_seed
from hcl.train.streams import Stream, shortest_segment
from tests.support.blobs import benchmark, blobs_in_64_dimensions

TASKS, TRAIN, BATCH = 2, 640, 32  # 20 batches an epoch


def make(
    shown: Shown, order=(0, 1, 0), epochs: int = 1, seed: int = 0, size: int = BATCH
) -> Stream:
    embeddings, tasks = benchmark(blobs_in_64_dimensions(TASKS, TRAIN, 10), order, epochs)
    tasks = dataclasses.replace(tasks, shown=shown)
    return Stream(tasks, embeddings, batch_size=size, seed=seed, device=torch.device("cpu"))


def of_task(stream: Stream, number: int) -> set[bytes]:
    x = stream._embeddings["blobs"].x
    return {x[row].tobytes() for row in stream.benchmark.tasks[number].train.rows}


def share(batch, known: set[bytes]) -> float:
    return float(np.mean([sample.numpy().tobytes() in known for sample in batch.x]))


EVERY = {
    "blur": Shown(blur=12),
    "batches": Shown(batches=27),
    "frequencies": Shown(frequencies=(None, (1.0, 0.1), (0.0, 1.0))),
    "tails": Shown(disturb=Tails()),
    "drift": Shown(disturb=Drift(rate=0.5)),
    "blurred drift in few": Shown(blur=5, batches=9, disturb=Drift(rate=0.5)),
}


@pytest.mark.parametrize("name", EVERY)
def test_a_batch_is_the_same_wherever_the_stream_is_taken_up(name):
    for segment in (1, 2):
        whole = list(make(EVERY[name]).batches(segment))
        for first in (1, len(whole) - 2):
            rest = list(make(EVERY[name]).batches(segment, first))
            assert len(rest) == len(whole) - first > 0
            for one, other in zip(rest, whole[first:], strict=True):
                assert torch.equal(one.x, other.x)
                assert torch.equal(one.y, other.y)
                assert one.task == other.task
    other_seed = next(make(EVERY[name], seed=1).batches(1))
    assert not torch.equal(other_seed.x, next(make(EVERY[name]).batches(1)).x)


def test_the_share_of_the_new_task_rises_steadily_and_the_majority_names_the_batch():
    stream = make(Shown(blur=16), epochs=2)
    for segment, old, new in ((1, 0, 1), (2, 1, 0)):
        batches = list(stream.batches(segment))
        shares = np.array([share(batch, of_task(stream, new)) for batch in batches])
        known = of_task(stream, old)
        assert [share(batch, known) for batch in batches] == pytest.approx(1 - shares)
        assert (shares[16:] == 1).all()
        assert len(batches) == 40
        expected = np.arange(1, 17) / 17
        assert abs(shares[:16] - expected).max() < 0.3  # three standard deviations of 32 samples
        assert abs(shares[:16].mean() - 0.5) < 0.07
        named = [batch.task == new for batch in batches]
        assert named == [value >= 0.5 for value in shares]
    assert all(share(batch, of_task(stream, 0)) == 1 for batch in stream.batches(0))


def test_labels_stay_with_their_samples_in_a_blurred_batch():
    stream = make(Shown(blur=20))
    x = stream._embeddings["blobs"].x
    label_of = {
        x[row].tobytes(): y
        for task in stream.benchmark.tasks
        for row, y in zip(task.train.rows, task.train.y, strict=True)
    }
    for batch in stream.batches(1):
        for sample, y in zip(batch.x, batch.y, strict=True):
            assert label_of[sample.numpy().tobytes()] == y


def test_a_blur_is_no_longer_than_its_segment():
    stream = make(Shown(blur=1000))
    shares = [share(batch, of_task(stream, 1)) for batch in stream.batches(1)]
    assert len(shares) == 20
    assert shares[0] < 0.3 < 0.7 < shares[-1]


@pytest.mark.parametrize("count", [7, 20, 50])
def test_a_segment_has_the_batches_that_are_asked_for(count):
    stream = make(Shown(batches=count), epochs=2)
    assert stream.num_batches(1) == len(list(stream.batches(1))) == count
    assert shortest_segment(stream.benchmark, BATCH) == count
    assert stream.num_batches(1, epochs=1) == min(count, 20)  # each sample once
    whole = [batch.x for batch in make(Shown(), epochs=3).batches(1)]
    for batch, expected in zip(stream.batches(1), whole, strict=False):
        assert torch.equal(batch.x, expected)


def test_labels_come_as_often_as_their_frequencies_say_and_no_sample_twice():
    stream = make(Shown(frequencies=(None, (1.0, 0.25), (0.0, 2.0))), epochs=2)
    counts = []
    for segment in range(3):
        epoch = list(stream.batches(segment))[: stream.num_batches(segment, epochs=1)]
        counts.append(np.bincount(torch.cat([b.y for b in epoch]), minlength=2).tolist())
        x = torch.cat([batch.x for batch in epoch])
        assert len(x.unique(dim=0)) == len(x)
    assert counts == [[320, 320], [320, 80], [0, 320]]
    assert shortest_segment(stream.benchmark, BATCH) == 2 * 10
    rare = torch.cat([batch.y for batch in stream.batches(1)])
    assert not torch.equal(rare[:400], rare[400:])  # each epoch takes others, in another order


def test_tails_are_heavy_and_belong_to_the_sample():
    plain, stream = make(Shown()), make(Shown(disturb=Tails(degrees=3, scale=1.0)))
    scale = plain._embeddings["blobs"].x[plain.benchmark.tasks[0].train.rows].std(0)
    noise = torch.cat([a.x - b.x for a, b in zip(stream.batches(0), plain.batches(0), strict=True)])
    standard = (noise / torch.from_numpy(scale)).flatten().double().numpy()
    for level, expected in ((0.9, 1.638), (0.99, 4.541), (0.999, 10.21)):  # Student's t, ν = 3
        assert np.quantile(standard, level) == pytest.approx(expected, rel=0.12)
    first = stream.first_samples(TRAIN).x
    shown = torch.cat([batch.x for batch in stream.batches(0)])
    assert torch.equal(first.sort(0).values, shown.sort(0).values)
    tested, clean = (torch.cat(list(s.test_samples(7))) for s in (stream, plain))
    assert not torch.equal(tested, clean)
    assert torch.equal(tested, torch.cat(list(stream.test_samples(5))))


def test_drift_goes_one_way_around_the_task():
    plain, stream = make(Shown()), make(Shown(disturb=Drift(rate=0.5)))
    scale = plain._embeddings["blobs"].x[plain.benchmark.tasks[0].train.rows].std(0)
    moved = torch.stack(
        [(a.x - b.x)[0] for a, b in zip(stream.batches(1), plain.batches(1), strict=True)]
    )
    steps = moved.diff(dim=0) / torch.from_numpy(scale)
    assert steps.norm(dim=1).numpy() == pytest.approx(np.full(19, 0.5), rel=1e-3)
    assert (steps - steps[0]).abs().max() < 1e-4
    assert moved.mean(0).abs().max() < 1e-4
    tested = [torch.cat(list(s.test_samples())) for s in (stream, plain)]
    assert torch.equal(*tested)


def trained(shown: Shown, method, order, epochs: int = 3, training=None):
    made = blobs_in_64_dimensions(len(set(order)), TRAIN, 20)
    embeddings, tasks = benchmark(made, order, epochs)
    tasks = dataclasses.replace(tasks, shown=shown)
    training = training or TrainingSettings(BATCH, learning_rate=2e-3)
    flow = FlowSettings(couplings=4, hidden_layers=1, hidden=32)
    job = Job(tasks, embeddings, "m", method, flow, training, seed=0)
    return job, train_seed(job)[0]


def test_the_trace_names_the_task_of_most_samples_and_the_change_is_found_in_its_segment():
    method = FlowMethod(memory=FunctionalSettings(alpha=10), detection=DetectionSettings(window=25))
    job, run = trained(Shown(blur=20), method, order=(0, 1))
    trace = run.trace
    assert trace is not None
    begins = int(np.flatnonzero(trace.segment == 1)[0])
    named = int(np.flatnonzero(trace.true_task == 1)[0])
    assert 5 < named - begins < 15  # half of the blur
    changes = score(run, job.benchmark).changes
    assert changes is not None
    assert (changes["true"], changes["found"], changes["false"]) == (1, 1, 0)
    alarm = int(np.flatnonzero(trace.verdict != 0)[0])
    assert changes["delay"] == alarm - begins  # from the first batch that holds the new task


def test_other_frequencies_alone_are_no_change_of_task():
    shown = Shown(frequencies=(None, (1.0, 0.2)))
    job, run = trained(shown, FlowMethod(detection=DetectionSettings(window=25)), order=(0, 0))
    changes = score(run, job.benchmark).changes
    assert changes is not None
    assert changes["true"] == 0


def test_a_closed_form_is_shown_the_batches_of_the_stream():
    small, large = (TrainingSettings(size) for size in (32, 64))
    jobs = {}
    for shown in (Shown(), Shown(batches=4)):
        for training in (small, large):
            job, _ = trained(shown, StreamingLDAMethod(), (0, 1), 1, training)
            jobs[shown.batches, training.batch_size] = job
    prints = {key: job.fingerprint() for key, job in jobs.items()}
    assert prints[None, 32] == prints[None, 64]
    assert len(set(prints.values())) == 3


def test_a_share_of_each_class_comes_with_its_label_always_the_same_samples():
    stream = make(Shown(labelled=0.1), epochs=2)
    batches = list(stream.batches(1))
    x, y = torch.cat([b.x for b in batches]), torch.cat([b.y for b in batches])
    given = [
        {(sample.numpy().tobytes(), int(label)) for sample, label in zip(x[e], y[e], strict=True)}
        for e in (slice(0, TRAIN), slice(TRAIN, None))
    ]
    assert given[0] == given[1]
    assert np.bincount(y[:TRAIN] + 1).tolist() == [TRAIN - 64, 32, 32]
    truth = make(Shown(), epochs=2)
    expected = torch.cat([b.y for b in truth.batches(1)])
    assert torch.equal(y[y >= 0], expected[y >= 0])
    few = make(Shown(labelled=1e-6))
    assert np.bincount(torch.cat([b.y for b in few.batches(0)]) + 1).tolist() == [TRAIN - 2, 1, 1]
    batch = batches[0]
    assert torch.equal(batch.labelled().y, batch.y[batch.y >= 0])
    assert len(batch.labelled().x) == len(batch.labelled().y)
    assert batch.labelled().task == 1
