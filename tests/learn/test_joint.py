"""Joint training: all tasks at once, no answer before, and nothing that could be forgotten."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from hcl.evaluate.scoring import score
from hcl.learn.joint.learner import JointLearner, Network, cosine_rate
from hcl.learn.joint.settings import JointMethod
from hcl.learn.settings import TrainingSettings
from hcl.model.settings import FlowSettings
from hcl.records.tasks import Segment
from hcl.train.loop import Job, build_learner, train_seed
from tests.support.blobs import benchmark, blobs_in_64_dimensions

METHOD = JointMethod(hidden=32, epochs=8, batch_size=32, dropout=0.2, learning_rate=3e-3)
EMBEDDINGS, TASKS = benchmark(blobs_in_64_dimensions(3, 160, 40), (1, 0, 1, 2))


def job(seed: int = 0, order: tuple[int, ...] | None = None, epochs: int = 1, **changes) -> Job:
    tasks = TASKS
    order = order or tuple(segment.task for segment in TASKS.stream)
    tasks = dataclasses.replace(TASKS, stream=tuple(Segment(task, epochs) for task in order))
    method = dataclasses.replace(METHOD, **changes)
    training = TrainingSettings(learning_rate=1e-4)
    return Job(tasks, EMBEDDINGS, "joint", method, FlowSettings(), training, seed)


def test_all_tasks_are_learned_at_once_and_there_is_no_answer_before():
    asked = job()
    run, learner = train_seed(asked)
    for answers in (run.predicted_class, run.predicted_task, run.pair_class):
        assert (answers[:3] == -1).all()
        assert (answers[3] >= 0).all()
    assert run.added_in.tolist() == [0, 1, 3]
    assert learner.given == [1, 0, 2]
    assert run.loss.shape == (1,)
    assert not run.confidence[:3].any()
    assert (run.confidence[3] > 0.5).all()
    scores = score(run, asked.benchmark)
    assert scores.average_accuracy > 0.95
    assert scores.overall_accuracy > 0.95
    assert np.isnan(scores.accuracy[:, :3]).all()
    assert math.isnan(scores.forgetting)


def test_it_is_trained_once_whatever_the_stream_shows_again():
    first, _ = train_seed(job(order=(1, 0, 2, 1, 0), epochs=3))
    assert first.loss.shape == (1,)
    assert (first.predicted_class[:2] == -1).all()
    for later in (3, 4):
        np.testing.assert_array_equal(first.predicted_task[later], first.predicted_task[2])
    assert math.isnan(score(first, job(order=(1, 0, 2, 1, 0)).benchmark).forgetting)
    again, _ = train_seed(job(order=(1, 0, 2, 1, 0)))
    np.testing.assert_array_equal(first.predicted_task, again.predicted_task)
    other, _ = train_seed(job(order=(1, 0, 2, 1, 0), seed=1))
    assert first.loss[0] != other.loss[0]


class Recorder:
    """An archive that notes which batches were asked for."""

    def __init__(self, archive) -> None:
        self.archive = archive
        self.num_tasks = archive.num_tasks
        self.seen: list[torch.Tensor] = []

    def num_mixed(self, count):
        return self.archive.num_mixed(count)

    def mixed(self, count, generator):
        for batch in self.archive.mixed(count, generator):
            self.seen.append(batch.x)
            yield batch


def test_every_sample_is_looked_at_once_an_epoch():
    _, learner = train_seed(job())
    learner.archive = Recorder(learner.archive)
    learner._train()
    first, *batches = learner.archive.seen  # the first is for the scaling
    assert len(batches) == 8 * 15  # epochs, and 480 samples by 32
    once = torch.cat(batches[:15])
    assert len(once.unique(dim=0)) == len(first.unique(dim=0)) == 480
    assert not torch.equal(once, torch.cat(batches[15:30]))


def test_a_learner_that_was_stopped_goes_on():
    _, trained = train_seed(job())
    fresh = remade(trained)
    fresh.restore(trained.state())
    assert fresh.is_trained
    x = next(trained.archive.test_samples())
    np.testing.assert_array_equal(fresh.predict(x).pair_class, trained.predict(x).pair_class)
    begun = remade(trained)
    batches = [next(trained.archive.batches(segment)) for segment in range(4)]
    for batch in batches[:2]:
        assert begun.observe(batch).loss is None
    went_on = remade(trained)
    went_on.restore(begun.state())
    for batch in batches[2:]:
        went_on.observe(batch)
    torch.testing.assert_close(went_on.model.state_dict(), trained.model.state_dict())


def remade(learner: JointLearner) -> JointLearner:
    """The same learner before anything was shown to it."""
    made = build_learner(job(), learner.archive)
    assert isinstance(made, JointLearner)
    return made


def network(**changes) -> Network:
    settings = dataclasses.replace(JointMethod(hidden=16), **changes)
    return Network(settings, 5, 4, torch.Generator().manual_seed(0)).double()


def test_noise_and_dropout_are_of_training_alone_and_leave_the_mean():
    x = torch.rand(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2)
    dropped = network(noise=0.0, dropout=0.5)
    torch.testing.assert_close(dropped(x), dropped(x))
    many = torch.stack([dropped(x, generator) for _ in range(4000)])
    assert many.std(0).min() > 0.01
    torch.testing.assert_close(many.mean(0), dropped(x), rtol=0, atol=0.02)
    noisy = network(noise=0.3, dropout=0.0)
    noisy.set_scaling(torch.rand(50, 5).double(), "global")
    inputs: list[torch.Tensor] = []
    noisy.hidden.register_forward_hook(lambda module, given, found: inputs.append(given[0]))
    for _ in range(200):
        noisy(x, generator)
    noisy(x)
    added = torch.stack(inputs[:-1]) - inputs[-1]
    assert abs(added.mean().item()) < 0.02
    assert abs(added.std().item() - 0.3) < 0.02


def test_inputs_are_rooted_and_scaled():
    x = torch.rand(200, 5, dtype=torch.float64) * torch.tensor([1.0, 4, 9, 16, 25])
    made = network(power=0.5)
    made.set_scaling(x, "standard")
    inputs = []
    made.hidden.register_forward_hook(lambda module, given, found: inputs.append(given[0]))
    made(x)
    torch.testing.assert_close(inputs[0].mean(0), torch.zeros(5).double(), atol=1e-6, rtol=0)
    assert (inputs[0].std(0) - 1).abs().max() < 0.02
    expected = (x.sqrt() - x.sqrt().mean(0)) / x.sqrt().std(0, correction=0)
    torch.testing.assert_close(inputs[0], expected, atol=1e-5, rtol=1e-5)


def test_the_rate_falls_along_half_a_cosine():
    assert cosine_rate(2.0, 0) == 2
    assert cosine_rate(2.0, 0.5) == pytest.approx(1)
    assert cosine_rate(2.0, 1) == pytest.approx(0)


def test_the_class_is_summed_over_tasks_and_the_pair_is_the_likeliest():
    _, learner = train_seed(job(epochs=1))
    with torch.no_grad():
        learner.model.output.weight.zero_()
        # Pairs (class 0, 1) of tasks 0, 1, 2: the likeliest is (0, task 1), but class 1 has more.
        learner.model.output.bias.copy_(torch.tensor([0.05, 0.2, 0.3, 0.2, 0.05, 0.2]).log())
    found = learner.predict(torch.rand(2, 64))
    assert found.predicted_class.tolist() == [1, 1]
    assert found.pair_class.tolist() == [0, 0]
    assert found.predicted_task.tolist() == [1, 1]
    np.testing.assert_allclose(found.confidence, [0.6, 0.6], rtol=1e-6)


def test_labels_are_smoothed():
    smoothed, _ = train_seed(job(smoothing=0.5))
    sharp, _ = train_seed(job(smoothing=0.0))
    # With half of a label spread over six pairs, the entropy of what is asked for is 1.35 nats.
    assert smoothed.loss[0] > 1.35
    assert sharp.loss[0] < 0.3
