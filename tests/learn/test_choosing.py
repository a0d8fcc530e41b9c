"""What the measured Gaussians choose by themselves, from samples that they have not learned."""

from __future__ import annotations

import pytest
import torch

from hcl.evaluate.metrics import expected_calibration_error
from hcl.learn.moments import Moments
from hcl.learn.plus.choosing import Choice, Chosen, Grid, log_posteriors
from hcl.learn.plus.measured import Measured, grid
from hcl.learn.plus.settings import GaussiansRule

CPU = torch.device("cpu")
SIZE, PAIRS = 8, 4


def stream(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Overlapping blobs."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.randn(PAIRS, SIZE, generator=torch.Generator().manual_seed(9))
    pairs = torch.randint(PAIRS, (count,), generator=generator)
    return 0.7 * places[pairs] + torch.randn(count, SIZE, generator=generator), pairs


def taught(z: torch.Tensor, pairs: torch.Tensor, **settings) -> tuple[Measured, Moments]:
    measured = Measured(GaussiansRule(**{"rank": 2, **settings}), z.shape[1], CPU)
    moments = Moments(z.shape[1], CPU)
    for kept in (measured, moments):
        kept.add_classes(PAIRS)
    for part, of in zip(z.split(32), pairs.split(32), strict=True):
        moments.add(part, of)
        measured.add(part, of, moments)
    return measured, moments


def test_the_mean_log_posterior_is_that_of_the_softmax():
    generator = torch.Generator().manual_seed(0)
    likely, ridge = torch.randn(5, 3, generator=generator), torch.randn(5, 3, generator=generator)
    pairs = torch.tensor([0, 2, 1, 1, 0])
    tried = Grid(temperature=(1.0, 4.0), weight=(0.0, 3.0))
    found = log_posteriors(likely, ridge, pairs, tried)
    expected = torch.nn.functional.cross_entropy(likely / 4 + 3 * ridge, pairs)
    assert found.shape == (2, 2)
    assert found[1, 1].item() == pytest.approx(-expected.item(), rel=1e-6)


def test_moments_without_a_block_are_those_before_it():
    z, pairs = stream(300)
    whole, before = Moments(SIZE, CPU), Moments(SIZE, CPU)
    for kept, count in ((whole, 300), (before, 250)):
        kept.add_classes(PAIRS)
        kept.add(z[:count], pairs[:count])
    less = whole.without(z[250:], pairs[250:])
    assert less.samples == 250
    assert torch.equal(less.counts, before.counts)
    torch.testing.assert_close(less.means(), before.means())
    torch.testing.assert_close(less.covariance(0.1), before.covariance(0.1), rtol=1e-4, atol=1e-4)
    assert whole.samples == 300  # as it was


def test_what_is_given_is_not_chosen():
    given = GaussiansRule(shrinkage=0.2, blend=0.1, temperature=3.0, regression=0.0)
    assert grid(given) == Grid((0.2,), (0.1,), (3.0,), (0.0,))
    choice = Choice(grid(given), SIZE, CPU)
    assert not choice.is_due(10**6, is_over=True)
    assert choice.best() == Chosen(0.2, 0.1, 3.0, 0.0)
    assert grid(GaussiansRule(rank=0)).blend == (0.0,)


def test_probabilities_are_calibrated_by_the_stream_where_samples_are_few_for_the_features():
    def among_noise(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        z, pairs = stream(count, seed)
        noise = torch.randn(count, 150, generator=torch.Generator().manual_seed(seed + 7))
        return torch.cat((z, noise), 1), pairs

    x, true = among_noise(2000, seed=1)
    measured, moments = taught(*among_noise(640, seed=0), regression=0.0)
    assert measured.choice.trials >= 3
    rule = measured.rule(moments)
    logits = rule(x)
    assert rule.chosen.temperature > 1

    def error(logits: torch.Tensor) -> float:
        confidence, answer = logits.softmax(1).max(1)
        right = (answer == true).numpy()
        return expected_calibration_error(confidence.numpy(), right)

    assert error(logits) < 0.08 < error(logits * rule.chosen.temperature)


def test_gaussians_that_fit_need_no_temperature():
    measured, _ = taught(*stream(3000), regression=0.0)
    assert measured.choice.best().temperature <= 1.5


def test_a_second_epoch_is_no_news():
    z, pairs = stream(320)
    measured, moments = taught(z, pairs)
    counts, trials = list(measured.spreads.counts), measured.choice.trials
    order = torch.randperm(320, generator=torch.Generator().manual_seed(0))
    for part in order.split(32):
        moments.add(z[part], pairs[part])
        measured.add(z[part], pairs[part], moments)
    waiting = sum(len(of) for _, of in measured.waiting)
    assert sum(counts) <= sum(measured.spreads.counts) <= 320
    assert measured.choice.trials <= trials + 1  # what waited when the second began
    assert waiting < 256
    assert sum(measured.spreads.counts) == len(measured.seen.state().unique()) == 320
    measured.end_task(moments)
    _, once = taught(z, pairs)
    assert moments.samples == 320
    assert torch.equal(moments.counts, once.counts)
    torch.testing.assert_close(moments.covariance(0.1), once.covariance(0.1), rtol=0, atol=1e-5)


def test_a_block_of_pairs_that_are_hardly_known_is_no_test():
    z, pairs = stream(1024)
    old = pairs < 2
    measured, moments = taught(z[old], pairs[old])
    measured.end_task(moments)
    trials = measured.choice.trials
    assert trials > 0
    measured.choice.tried = 0  # another is due
    block = (z[~old][:64], pairs[~old][:64])
    moments.add(*block)
    measured.add(*block, moments)
    assert measured.choice.trials == trials


def test_the_last_samples_of_a_task_are_a_test_whatever_is_known_of_other_pairs():
    z, pairs = stream(1024)
    old = pairs < 2
    measured, moments = taught(z[old], pairs[old])
    measured.end_task(moments)
    trials, sums = measured.choice.trials, measured.choice.sums.clone()
    for part, of in zip(z[~old][:192].split(32), pairs[~old][:192].split(32), strict=True):
        moments.add(part, of)
        measured.add(part, of, moments)
    assert measured.choice.trials == trials  # young beside the others
    waiting = sum(len(of) for _, of in measured.waiting)
    counts = list(measured.spreads.counts)
    measured.end_task(moments)
    assert measured.choice.trials == trials + 1
    assert measured.choice.tried == sum(counts)
    assert waiting > 0
    assert not measured.waiting
    assert sum(measured.spreads.counts) == sum(counts) + waiting
    assert (measured.choice.sums < sums).all()  # logarithms of probabilities were added


def test_a_task_that_ends_at_once_is_no_test():
    z, pairs = stream(400)
    old = pairs < 2
    measured, moments = taught(z[old], pairs[old])
    measured.end_task(moments)
    trials = measured.choice.trials
    moments.add(z[~old][:40], pairs[~old][:40])
    measured.add(z[~old][:40], pairs[~old][:40], moments)
    measured.choice.tried = 0  # another is due
    measured.end_task(moments)
    assert measured.choice.trials == trials  # none of its pairs was known before
    assert measured.choice.sums.isfinite().all()


def test_samples_of_which_nothing_is_learned_yet_are_left_out_of_a_trial(monkeypatch):
    z, pairs = stream(640)
    found = []

    def noted(self, before, lifted, of):
        found.append((before, self.spreads.counts.copy()))

    monkeypatch.setattr(Measured, "_try", noted)
    taught(z, pairs)
    for before, counts in found:
        assert before.counts.tolist() == counts
    assert found


def test_what_waits_is_in_the_rule_and_stays_waiting():
    z, pairs = stream(300)
    measured, moments = taught(z[:290], pairs[:290])
    waiting = sum(len(of) for _, of in measured.waiting)
    assert waiting > 0
    rule = measured.rule(moments)
    assert rule.densities.counts.sum() == 290
    assert sum(len(of) for _, of in measured.waiting) == waiting
    assert sum(measured.spreads.counts) == 290 - waiting


def test_a_state_that_is_restored_goes_on_as_it_was():
    z, pairs = stream(600)
    measured, moments = taught(z[:450], pairs[:450])
    other = Measured(measured.settings, SIZE, CPU)
    other.restore(measured.state())
    moments.add(z[450:], pairs[450:])
    for one in (measured, other):
        one.add(z[450:], pairs[450:], moments)
    assert torch.equal(measured.choice.sums, other.choice.sums)
    assert measured.choice.best() == other.choice.best()
    x, _ = stream(10, seed=2)
    assert torch.equal(measured.rule(moments)(x), other.rule(moments)(x))
