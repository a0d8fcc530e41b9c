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
from hcl.learn.plus.sharing import DIRECTIONS, KEPT, Sharing, leading, shares_of
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
    assert len(asked.sharing.labels) == 32  # of the second task alone
    for name, learner in (("asked", asked), ("stopped", stopped)):
        write_model(tmp_path / name, {}, learner.state())
    assert (tmp_path / "asked").read_bytes() == (tmp_path / "stopped").read_bytes()


def test_a_class_without_any_label_gets_no_share():
    generator = torch.Generator().manual_seed(0)
    sharing = Sharing(1.0, 3, torch.zeros(3))
    moments = Moments(3, torch.device("cpu"))
    moments.add_classes(2)
    near = torch.randn(20, 3, generator=generator)
    sharing.add(near + 4, torch.tensor([0, 0] + [-1] * 18))
    sharing.into(moments, slice(0, 2))
    assert moments.counts.tolist() == [0, 0]
    sharing.add(near - 4, torch.tensor([1, 1] + [-1] * 18))
    sharing.settle(moments, slice(0, 2))
    assert moments.counts.tolist() == pytest.approx([18, 18], abs=1)
    assert not len(sharing.waiting)


def two_classes(count: int, size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes lie apart along the tenth of ten wide directions; the others are narrow."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 2
    z = 0.2 * torch.randn(count, size, generator=generator)
    z[:, :9] *= 10
    z[:, 9] = 2.5 * z[:, 9] + 3 * (y - 0.5)
    return z, y


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_with_fewer_samples_than_features_the_shares_are_right(seed):
    z, y = two_classes(240, 1000, seed)
    shares = shares_of(z[12:], z[:12], y[:12], 2)
    assert (shares.argmax(1) == y[12:]).double().mean() > 0.95
    assert shares.sum(1).mean() > 0.6
    alone = torch.stack([z[:12][y[:12] == label].mean(0) for label in (0, 1)])
    nearest = torch.cdist(z[12:], alone).argmin(1)
    assert (nearest == y[12:]).double().mean() < 0.8


def test_shares_are_small_where_labels_are_told_no_better_than_by_guessing():
    z, _ = two_classes(240, 30, 0)
    y = torch.randint(2, (20,), generator=torch.Generator().manual_seed(1))
    assert float(shares_of(z[20:], z[:20], y, 2).sum(1).mean()) < 0.1


def test_one_label_of_a_class_is_no_test_and_two_are():
    z, y = two_classes(240, 30, 0)
    wrong = torch.tensor([0, 0, 1, 1])  # classes are 0, 1, 0, 1
    assert shares_of(z[2:], z[:2], y[:2], 2).sum(1).tolist() == pytest.approx([1.0] * 238)
    assert float(shares_of(z[4:], z[:4], wrong, 2).sum(1).mean()) < 0.1


def test_directions_are_those_of_the_largest_spread_and_few():
    z, _ = two_classes(240, 1000, 0)
    u = leading(z)
    assert u.shape == (240, 24)
    spread = torch.linalg.svdvals((z - z.mean(0)).double())
    assert torch.allclose(u.norm(dim=0), spread[:24])
    assert leading(z[:, :5]).shape == (240, 5)
    assert leading(two_classes(900, 60, 0)[0]).shape == (900, DIRECTIONS)


def test_labelled_samples_are_kept_up_to_a_bound_and_for_their_task_alone():
    sharing = Sharing(1.0, 3, torch.zeros(5))
    y = torch.arange(KEPT + 40) % 2
    sharing.add(torch.arange(KEPT + 40.0)[:, None].expand(-1, 5), y)
    assert sharing.labelled[:, 0].tolist() == list(range(40, KEPT + 40))
    assert sharing.labels.tolist() == y[40:].tolist()
    sharing.end_task()
    assert not len(sharing.labelled)
    assert not len(sharing.labels)


def test_a_detector_that_goes_by_labels_is_not_shown_samples_without_one():
    with pytest.raises(HCLError, match=r"unlabelled: is 1, but the detector .* goes by labels"):
        accuracy(PlusMethod(projections=0, detection=CalibratedSettings(), unlabelled=1.0), 0.5)
    accuracy(PlusMethod(projections=0, detection=CalibratedSettings()), 0.5)


@pytest.mark.parametrize("labelled", [0.02, 0.2])
def test_what_never_reads_them_is_not_shown_them(labelled):
    assert accuracy(StreamingLDAMethod(), labelled, epochs=1) > 0.6
    assert accuracy(FlowMethod(memory=BufferSettings(size=20)), labelled, epochs=1) > 0.4
