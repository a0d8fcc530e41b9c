"""Steps on the CPU that are watched for what would make a GPU wait, and for shapes that change.

Whether a look is free is asked of ``hcl.model.looking`` alone: told that it is not, a learner does
on the CPU what it does on a GPU, backward pass included.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hcl.learn.contract import Learner, TaskBatch
from hcl.learn.flow.memory import Reservoirs
from hcl.model import looking
from hcl.model.hybrid import NonFiniteError
from hcl.train import loop
from hcl.train.loop import Job, build_learner, train_seed
from hcl.train.streams import Stream
from tests.support.every_learner import BATCHES, DETECTING, FLOWS, IMAGE_FLOWS, TOLD, job
from tests.support.looks import Looks


@pytest.fixture
def looks_cost(monkeypatch):
    monkeypatch.setattr(looking, "is_free", lambda device: False)


def started(job: Job) -> tuple[Learner, Iterator[TaskBatch]]:
    """The job's learner, and the batches of its stream."""
    images = job.method.takes_images
    stream = Stream(
        job.benchmark, job.embeddings, batch_size=32, seed=5, device=job.device, images=images
    )
    segments = range(len(job.benchmark.stream))
    return build_learner(job, stream), (b for s in segments for b in stream.batches(s))


def watched(job: Job) -> list[tuple[bool, Looks]]:
    """For each batch whether the learner went to another task, and what it looked at."""
    learner, batches = started(job)
    steps = []
    for batch in batches:
        before = learner.task
        with Looks() as looks:
            learner.observe(batch if job.method.detection is None else batch.without_task())
        steps.append((learner.task != before, looks))
    return steps


@pytest.mark.parametrize("name", [*TOLD, *IMAGE_FLOWS])
def test_a_step_of_a_learner_that_is_told_its_tasks_looks_at_nothing(name, looks_cost):
    steps = watched(job(name))
    assert len(steps) == 4 * BATCHES
    assert [looks.seen for changed, looks in steps if not changed and looks.seen] == []
    assert max(len(looks.seen) for _, looks in steps) <= 1  # measured draws, at a change


def test_measured_gaussians_look_once_for_a_block_and_more_at_a_trial(looks_cost):
    steps = watched(job("hcl-plus", epochs=6))
    counts = [len(looks.seen) for _, looks in steps]
    assert sum(count > 1 for count in counts) <= 4  # trials, ever more seldom
    assert max(counts) <= 20


@pytest.mark.parametrize("name", DETECTING)
def test_a_step_of_a_learner_that_detects_its_tasks_looks_once(name, looks_cost):
    steps = watched(job(name, epochs=10))
    # None before a metric is known, which takes two batches.
    assert {len(looks.seen) for changed, looks in steps[2:] if not changed} == {1}
    assert any(changed for changed, _ in steps[1:])
    assert max(len(looks.seen) for changed, looks in steps if changed) <= 10  # which one is it?


@pytest.mark.parametrize(
    ("name", "most"), [("hcl-plus-all", 9), ("hcl-plus-ta", 10), ("hcl-fr", 0), ("er", 0)]
)
def test_factorisations_which_are_checked_are_few(name, most, looks_cost):
    """Σ⁻¹ is taken anew when a quarter more samples are known: seldom, and more and more so."""
    steps = watched(job(name))
    assert sum(looks.checks > 0 for _, looks in steps) <= most


@pytest.mark.parametrize(
    "name", ["hcl-fr", "hcl-gr", "er", "hcl-plus", "hcl-plus-ta", "hcl-plus-all-ta"]
)
def test_a_run_that_may_not_look_learns_the_same(name, monkeypatch):
    one, _ = train_seed(job(name))
    monkeypatch.setattr(looking, "is_free", lambda device: False)
    other, _ = train_seed(job(name))
    np.testing.assert_array_equal(one.predicted_class, other.predicted_class)
    if one.loss is not None:
        np.testing.assert_allclose(one.loss, other.loss, rtol=1e-5)
    if one.trace is not None:
        assert list(one.trace.statistics) == list(other.trace.statistics)
        for statistic, rows in one.trace.statistics.items():
            found = other.trace.statistics[statistic]
            np.testing.assert_allclose(rows, found, rtol=1e-4, atol=1e-4)


class Slots(TorchFunctionMode):
    """The rows that samples are written to."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[int]] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.index_copy_:
            self.seen.append(args[2].tolist())
        return function(*args, **(kwargs or {}))


def test_a_reservoir_writes_no_row_twice_but_the_spare_one():
    """A GPU writes in no fixed order, so that of two samples for one row either might stay."""
    reservoirs, size = Reservoirs(8), 8
    generator = torch.Generator().manual_seed(0)
    with Slots() as slots:
        for _ in range(4):
            reservoirs.remember(0, torch.ones(32, 2), torch.zeros(32).long(), generator)
    rows = [[row for row in seen if row < size] for seen in slots.seen]
    assert [sorted(set(seen)) for seen in rows] == [sorted(seen) for seen in rows]
    assert sum(map(len, rows)) > 2 * size  # some samples are kept of later batches, too


def test_losses_wait_until_there_are_many_where_looks_cost(looks_cost, monkeypatch):
    monkeypatch.setattr(loop, "LOOK_EVERY", 4)
    held = []
    settle = loop.Progress.settle

    def noted(progress):
        held.append(len(progress.pending))
        settle(progress)

    monkeypatch.setattr(loop.Progress, "settle", noted)
    run, _ = train_seed(job("adam"))
    assert held == 4 * [4, 2]  # six batches a segment
    assert len(run.loss) == 4 * BATCHES


def test_a_loss_that_is_found_late_names_its_run_as_well(looks_cost):
    made = job("adam")
    x = made.embeddings["blobs"].x
    x[made.benchmark.tasks[1].train.rows] = np.nan
    where = r"adam on blobs, seed 5, step 6, segment 2 of the stream \(task 2\): .* learning_rate"
    with pytest.raises(NonFiniteError, match=where):
        train_seed(made)


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: x.tolist(),
        lambda x: x.unique(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.cpu(),
        lambda x: torch.equal(x, x),
        lambda x: x.masked_select(x > 0),
    ],
)
def test_a_look_is_noticed(read):
    with Looks() as looks:
        read(torch.arange(3))
    assert len(looks.seen) == 1


# Shapes and addresses


class Shapes(TorchDispatchMode):
    """Every operation with the shapes that it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        shapes = [tuple(v.shape) for v in tree_leaves(made) if isinstance(v, torch.Tensor)]
        self.made.append((str(function), *shapes))
        return made


@pytest.mark.parametrize("name", [*FLOWS, *IMAGE_FLOWS])
def test_steps_within_a_task_do_the_same_operations_on_the_same_shapes(name, looks_cost):
    learner, batches = started(job(name))
    last: list[tuple] = []
    same = 0
    for batch in batches:
        before = learner.task
        with Shapes() as shapes:
            learner.observe(batch)
        changed = learner.task != before
        if not changed and last:
            assert shapes.made == last
            same += 1
        last = [] if changed else shapes.made
    assert same == 4 * (BATCHES - 2)


@pytest.mark.parametrize("name", ["hcl-fr", "hcl-gr", "er"])
def test_what_a_learner_keeps_stays_where_it_is(name):
    learner, batches = started(job(name))

    def kept() -> list[int]:
        optimiser = learner.optimiser
        tensors = [*learner.model.flow.parameters(), *learner.model.flow.buffers()]
        tensors += [*optimiser.averages, *optimiser.squares, *optimiser.steps]
        if name == "er":
            tensors += learner.memory.reservoirs.x[:1]
        elif learner.memory.snapshot is not None:
            tensors += [*learner.memory.snapshot.flow.parameters()]
        return [tensor.data_ptr() for tensor in tensors]

    places = []
    for batch in batches:
        learner.observe(batch)
        places.append(kept())
    later = places[BATCHES:]  # from the second task on there is a snapshot
    assert later == [later[0]] * len(later)


@pytest.mark.skipif(not torch.backends.cudnn.is_available(), reason="this torch has no cuDNN")
def test_a_run_convolves_in_full_precision_and_leaves_the_setting_as_it_was(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    seen = []

    def build(made: Job, stream: Stream) -> Learner:
        seen.append((torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic))
        return build_learner(made, stream)

    train_seed(job("adam"), build=build)
    assert seen == [(False, True)]
    assert torch.backends.cudnn.allow_tf32 is True
