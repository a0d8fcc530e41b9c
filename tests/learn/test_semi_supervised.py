"""Samples without a label: their likelihood is summed over classes, and it helps."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from hcl.detect.settings import CalibratedSettings
from hcl.errors import HCLError
from hcl.learn.closed_form.settings import StreamingLDAMethod
from hcl.learn.flow.settings import BufferSettings, FlowMethod, FunctionalSettings
from hcl.learn.moments import Moments
from hcl.learn.plus.settings import GaussianRule, PlusMethod, RidgeRule
from hcl.learn.plus.sharing import Sharing, shares_of
from hcl.learn.settings import TrainingSettings
from hcl.model.latent import LatentMixture
from hcl.model.model_file import write_model
from hcl.model.settings import FlowSettings
from hcl.records.tasks import Shown, Tails
from hcl.train.loop import Job, build_learner, train_seed
from hcl.train.streams import Stream
from tests.support.blobs import benchmark, blobs_in_64_dimensions

FLOW = FlowSettings(couplings=4, hidden_layers=1, hidden=32)
FUNCTIONAL = FunctionalSettings(alpha=10)


def accuracy(
    method, labelled: float, seed: int = 0, epochs: int = 4, noise: Tails | None = None
) -> float:
    embeddings, tasks = benchmark(blobs_in_64_dimensions(2, 640, 200), epochs=epochs)
    tasks = dataclasses.replace(tasks, shown=Shown(labelled=labelled, disturb=noise))
    training = TrainingSettings(32, learning_rate=3e-3)
    run, _ = train_seed(Job(tasks, embeddings, "m", method, FLOW, training, seed))
    y = np.concatenate([task.test.y for task in tasks.tasks])
    return float((run.predicted_class[-1] == y).mean())


def test_without_a_label_the_likelihood_is_summed_over_classes():
    generator = torch.Generator().manual_seed(0)
    latent = LatentMixture(3, 4).double()
    for _ in range(2):
        latent.add_task(generator)
    z = torch.randn(6, 4, dtype=torch.float64, generator=generator)
    y = torch.tensor([0, -1, 2, -1, 1, -1])
    for t in (1, torch.tensor([0, 0, 1, 1, 0, 1])):
        found = latent.log_prob_of_any(z, y, t)
        each = torch.stack([latent.log_prob(z, torch.full((6,), k), t) for k in range(3)], 1)
        expected = each.logsumexp(1) - math.log(3)
        expected[y >= 0] = each[y >= 0, y[y >= 0]]
        assert torch.allclose(found, expected)


def test_the_unlabelled_help():
    use = FlowMethod(memory=FUNCTIONAL)
    ignore = FlowMethod(memory=FUNCTIONAL, unlabelled=0.0)
    gains = [accuracy(use, 0.03, seed) - accuracy(ignore, 0.03, seed) for seed in (1, 2)]
    assert np.mean(gains) > 0.02, gains


@pytest.mark.parametrize("rule", [RidgeRule(), GaussianRule(shrinkage=0.1)])
def test_the_unlabelled_help_the_moments(rule):
    noise = Tails(degrees=30, scale=2.5)
    use, ignore = (
        accuracy(
            PlusMethod(power=1.0, projections=0, rule=rule, unlabelled=weight),
            labelled=0.01,
            epochs=1,
            noise=noise,
        )
        for weight in (1.0, 0.0)
    )
    assert use > ignore + 0.05


def test_moments_are_shared_out_by_responsibilities():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(300, 5, generator=generator)
    r = torch.rand(300, 2, generator=generator)
    moments = Moments(5, torch.device("cpu"))
    moments.add_classes(3)
    moments.share(z, 1, r)
    assert torch.allclose(moments.counts, torch.cat((torch.zeros(1), r.sum(0))).double())
    assert torch.allclose(moments.sums[1:], (r.T @ z).double(), atol=1e-4)
    moments._settle()
    assert torch.allclose(moments.gram, (z * r.sum(1, keepdim=True)).T @ z, atol=1e-3)


def test_a_learner_goes_on_with_what_waits_and_a_question_changes_nothing(tmp_path):
    embeddings, tasks = benchmark(blobs_in_64_dimensions(2, 640, 200), epochs=1)
    tasks = dataclasses.replace(tasks, shown=Shown(labelled=0.05))
    method = PlusMethod(projections=20, unlabelled=1.0)
    made = Job(tasks, embeddings, "m", method, FLOW, TrainingSettings(32), 0)
    stream = Stream(tasks, embeddings, batch_size=32, seed=0, device=torch.device("cpu"))
    asked, stopped = build_learner(made, stream), build_learner(made, stream)
    for segment in (0, 1):
        for index, batch in enumerate(stream.batches(segment)):
            asked.observe(batch)
            asked.predict(batch.x)
            stopped.observe(batch)
            if index == 7:
                assert len(stopped.sharing.waiting) > 200
                again = build_learner(made, stream)
                again.restore(stopped.state())
                stopped = again
    for name, learner in (("asked", asked), ("stopped", stopped)):
        write_model(tmp_path / name, {}, learner.state())
    assert (tmp_path / "asked").read_bytes() == (tmp_path / "stopped").read_bytes()


def test_a_class_without_any_label_gets_no_share():
    sharing = Sharing(1.0, 3, torch.zeros(3))
    sharing.add(torch.randn(20, 3, generator=torch.Generator().manual_seed(0)))
    moments = Moments(3, torch.device("cpu"))
    moments.add_classes(2)
    moments.add(torch.ones(2, 3), torch.tensor([0, 0]))
    sharing.into(moments, slice(0, 2), 1.0)
    assert moments.counts.tolist() == [2, 0]
    moments.add(-torch.ones(2, 3), torch.tensor([1, 1]))
    sharing.settle(moments, slice(0, 2), 1.0)
    assert 4 < moments.counts.sum() <= 24
    assert not len(sharing.waiting)


def test_what_lies_between_classes_has_no_share():
    moments = Moments(2, torch.device("cpu"))
    moments.add_classes(2)
    near = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    for pair, centre in enumerate((-4.0, 4.0)):
        moments.add(near + torch.tensor([centre, 0.0]), torch.full((50,), pair))
    middle = moments.means().mean(0)
    z = torch.stack((middle.float(), moments.means()[1].float()))
    found = shares_of(z, moments, slice(0, 2), 1.0)
    assert found[0].abs().max() < 1e-3
    assert found[1].tolist() == pytest.approx([0, 1], abs=1e-3)
    warm = shares_of(z, moments, slice(0, 2), 50.0)
    assert 0.05 < warm[1].sum() < 0.9


def test_a_detector_that_goes_by_labels_is_not_shown_samples_without_one():
    with pytest.raises(HCLError, match=r"unlabelled: is 1, but the detector .* goes by labels"):
        accuracy(PlusMethod(projections=0, detection=CalibratedSettings(), unlabelled=1.0), 0.5)
    accuracy(PlusMethod(projections=0, detection=CalibratedSettings()), 0.5)


@pytest.mark.parametrize("labelled", [0.02, 0.2])
def test_what_never_reads_them_is_not_shown_them(labelled):
    assert accuracy(StreamingLDAMethod(), labelled, epochs=1) > 0.6
    assert accuracy(FlowMethod(memory=BufferSettings(size=20)), labelled, epochs=1) > 0.4
