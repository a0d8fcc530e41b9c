"""Mixed batches: whose sample it is, is inferred, and it helps."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from hcl.errors import HCLError
from hcl.learn.belonging import Belonging
from hcl.learn.flow.detection import DetectionSettings
from hcl.learn.flow.settings import FlowMethod, FunctionalSettings
from hcl.learn.moments import Moments
from hcl.learn.plus.settings import GaussiansRule, PlusMethod, RidgeRule
from hcl.learn.plus.whose import Whose
from hcl.learn.settings import TrainingSettings
from hcl.model.settings import FlowSettings
from hcl.records.tasks import Shown
from hcl.train.loop import Job, build_learner, train_seed
from hcl.train.streams import Stream
from tests.support.blobs import benchmark, blobs_in_64_dimensions, blobs_in_the_plane

FLOW = FlowSettings(couplings=4, hidden_layers=1, hidden=32)


def known() -> Belonging:
    belonging = Belonging()
    generator = torch.Generator().manual_seed(0)
    for task, mean in enumerate((-10.0, -20.0)):
        own = mean + 2 * torch.randn(400, generator=generator)
        belonging.learned(own, torch.full((400,), task))
    return belonging


def test_a_sample_is_of_its_likeliest_task_if_it_is_typical_there():
    likely = torch.tensor(
        [
            [-11.0, -90.0, -99.0],  # the first task's own
            [-60.0, -21.0, -99.0],  # the second's
            [-30.0, -60.0, -99.0],  # strange to both: the current one's, however unlikely there
            [-11.0, -90.0, -9.0],  # likelier in the current one
            [-15.0, -21.0, -99.0],  # likeliest in the first, but typical only in the second
        ]
    )
    assert known().task_of(likely, 2).tolist() == [0, 1, 2, 2, 1]


def test_the_current_task_needs_no_level():
    assert Belonging().task_of(torch.tensor([[-1.0], [-5.0]]), 0).tolist() == [0, 0]


def test_levels_follow_a_task_and_are_part_of_a_checkpoint():
    belonging = known()
    mean, std = belonging.level(1)
    assert float(mean) == pytest.approx(-20, abs=0.3)
    assert float(std) == pytest.approx(2, abs=0.3)
    for _ in range(500):
        belonging.learned(torch.full((32,), -5.0), torch.ones(32, dtype=torch.int64))
    assert float(belonging.level(1)[0]) == pytest.approx(-5, abs=0.3)
    again = Belonging()
    again.restore(belonging.state())
    assert torch.equal(again.levels[1], belonging.levels[1])


def job(belongs: str, seed: int = 0, detection: DetectionSettings | None = None) -> Job:
    embeddings, tasks = benchmark(blobs_in_64_dimensions(3, 640, 200), epochs=3)
    tasks = dataclasses.replace(tasks, shown=Shown(blur=60))  # the whole segment
    method = FlowMethod(memory=FunctionalSettings(alpha=10), belongs=belongs, detection=detection)
    return Job(tasks, embeddings, "m", method, FLOW, TrainingSettings(32, 3e-3), seed)


def overall(made: Job) -> float:
    run, _ = train_seed(made)
    tasks = made.benchmark.tasks
    y = np.concatenate([task.test.y for task in tasks])
    task = np.repeat(np.arange(len(tasks)), [len(t.test.y) for t in tasks])
    assert run.added_in.tolist() == list(range(len(tasks)))
    return float(((run.pair_class[-1] == y) & (run.predicted_task[-1] == task)).mean())


def test_inferring_whose_a_sample_is_helps():
    mixed, whole = overall(job("sample")), overall(job("batch"))
    assert mixed > whole + 0.05, (mixed, whole)
    assert mixed > 0.8


def measured(rule: GaussiansRule | RidgeRule, belongs: str, seed: int) -> float:
    """On two tasks in the plane, where the one's classes stand the other way round in the other."""
    embeddings, tasks = benchmark(blobs_in_the_plane(640, 200), epochs=1)
    tasks = dataclasses.replace(tasks, shown=Shown(blur=60))
    method = PlusMethod(power=1.0, projections=0, rule=rule, belongs=belongs)
    made = Job(tasks, embeddings, "m", method, FLOW, TrainingSettings(32), seed)
    return overall(made)


@pytest.mark.parametrize(
    ("rule", "gain"), [(GaussiansRule(), -0.01), (RidgeRule(), 0.05)], ids=["gaussians", "ridge"]
)
def test_inferring_whose_a_sample_is_helps_the_moments(rule, gain):
    """The regression needs it; Gaussians of their own covariance stand the mixture as it is."""
    mixed = [measured(rule, "sample", seed) for seed in (0, 1)]
    whole = [measured(rule, "batch", seed) for seed in (0, 1)]
    assert np.mean(mixed) > np.mean(whole) + gain, (mixed, whole)
    assert min(mixed) > 0.95


def test_a_sample_that_no_measured_task_knows_is_the_current_one_s():
    generator = torch.Generator().manual_seed(0)
    moments, whose = Moments(4, torch.device("cpu")), Whose()
    moments.add_classes(2)
    y = torch.arange(100) % 2
    z = 10.0 * y[:, None] + torch.randn(100, 4, generator=generator)
    for part in range(0, 100, 20):
        some = slice(part, part + 20)
        assert whose.own(z[some], y[some], moments, 2, 0).all()
        moments.add(z[some], y[some])
    moments.add_classes(2)  # a task of which nothing is known yet
    far = z[:20] + 40.0
    assert whose.own(far, y[:20], moments, 2, 1).all()
    assert whose.own(z[:20], y[:20], moments, 2, 1).float().mean() < 0.3
    other = Whose()
    other.restore(whose.state())
    assert torch.equal(other.belonging.levels[0], whose.belonging.levels[0])
    moments.add(far, 2 + y[:20])
    assert whose.own(far, y[:20], moments, 2, 1).all()
    assert not whose.own(z[:20], y[:20], moments, 2, 1).all()


def test_with_fewer_samples_than_features_a_new_task_is_not_taken_for_an_old_one():
    """Old means are known better: along most directions that alone makes them seem nearer."""
    generator = torch.Generator().manual_seed(0)
    scale = 1 / torch.arange(1, 401).sqrt()  # a few directions hold most of the spread
    moments, whose = Moments(400, torch.device("cpu")), Whose()
    own = {}
    for task in (0, 1):
        moments.add_classes(2)
        found = []
        for _ in range(8):
            y = torch.arange(16) % 2
            z = scale * torch.randn(16, 400, generator=generator)
            z[:, 0] += 4.0 * y
            z[:, 1] += 4.0 * task
            mine = whose.own(z, y, moments, 2, task)
            moments.add(z[mine], 2 * task + y[mine])
            found.append(mine)
        own[task] = torch.cat(found).float().mean()
    assert own[0] == 1
    assert own[1] > 0.85, own


def test_samples_without_a_label_can_t_be_inferred():
    made = job("batch")
    shown = dataclasses.replace(made.benchmark.shown, labelled=0.5)
    method = PlusMethod(projections=0, unlabelled=1.0, belongs="sample")
    made = dataclasses.replace(
        made, method=method, benchmark=dataclasses.replace(made.benchmark, shown=shown)
    )
    with pytest.raises(HCLError, match="belongs: is sample, and unlabelled 1"):
        train_seed(made)


def test_most_samples_are_given_to_their_task():
    made = job("sample")
    stream = Stream(
        made.benchmark, made.embeddings, batch_size=32, seed=0, device=torch.device("cpu")
    )
    learner = build_learner(made, stream)
    x = made.embeddings["blobs"].x
    first = {x[row].tobytes() for row in made.benchmark.tasks[0].train.rows}
    right = []
    for segment in (0, 1):
        for index, batch in enumerate(stream.batches(segment)):
            learner.observe(batch._replace(task=segment))
            if segment and index >= 20:
                with torch.no_grad():
                    found = learner._task_of(learner.model.flow(batch.x)[0], batch.y)
                true = [sample.numpy().tobytes() not in first for sample in batch.x]
                right.append((found == torch.tensor(true).long()).float().mean())
    assert np.mean(right) > 0.9
