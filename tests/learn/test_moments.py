"""Streamed moments against those of all samples at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from hcl.learn import moments as module
from hcl.learn.moments import BLOCK, FadingMoments, Moments


def samples(count: int = 900, size: int = 5, classes: int = 3):
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, count)
    mixing = rng.normal(size=(size, size))
    z = rng.normal(size=(count, size)) @ mixing + 3.0 * rng.normal(size=(classes, size))[y]
    return torch.from_numpy(z).float(), torch.from_numpy(y)


def streamed(z, y, cuts, classes: int = 3) -> Moments:
    moments = Moments(z.shape[1], torch.device("cpu"))
    moments.add_classes(classes)
    for part_z, part_y in zip(z.tensor_split(cuts), y.tensor_split(cuts), strict=True):
        moments.add(part_z, part_y)
    return moments


@pytest.mark.parametrize("cuts", [[], [1, 2, 40, 300], list(range(32, 900, 32)), [BLOCK, 700]])
def test_moments_do_not_depend_on_the_batches(cuts):
    z, y = samples()
    moments = streamed(z, y, cuts)
    means = torch.stack([z[y == c].mean(0) for c in range(3)])
    residual = (z - means[y]).double()
    expected = residual.T @ residual / len(z)
    torch.testing.assert_close(moments.means().float(), means, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(moments.covariance(0.0), expected, atol=1e-4, rtol=1e-4)


def test_a_long_stream_of_classes_that_lie_far_apart_keeps_its_covariance():
    """In single precision alone, G is off by more than the covariance within after this long."""
    rng = np.random.default_rng(0)
    z, y = torch.from_numpy(rng.normal(size=(BLOCK, 4))).float(), torch.arange(BLOCK) % 2
    z += torch.tensor([[30.0], [-37.0]])[y]
    moments = streamed(z, y, [], 2)
    for _ in range(4_000):  # a million samples
        moments.add(z, y)
    expected = streamed(z, y, [], 2).covariance(0.0)
    torch.testing.assert_close(moments.covariance(0.0), expected, atol=0.1, rtol=0.0)


def test_a_long_stream_goes_on_from_its_state_with_the_same_bytes(monkeypatch):
    monkeypatch.setattr(module, "LARGEST_SUM", 2 * BLOCK)
    z, y = samples(12 * BLOCK + 7)
    cuts = list(range(100, len(z), 100))
    whole, first = streamed(z, y, cuts), streamed(z[:1500], y[:1500], cuts[:14])
    then = Moments(z.shape[1], torch.device("cpu"))
    then.restore(first.state())
    for start in range(1500, len(z), 100):
        then.add(z[start : start + 100], y[start : start + 100])
    assert set(whole.state()) == {"counts", "sums", "gram", "waiting", "summed", "far"}
    for name, value in whole.state().items():
        assert torch.equal(value, then.state()[name]), name
    expected = (z.double().T @ z.double())[:2, :2]
    for found in (whole._whole(2), whole.copy(2)._whole()):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-2)
    before = whole.without(z[-50:], y[-50:])
    torch.testing.assert_close(
        before._whole(), z[:-50].double().T @ z[:-50].double(), rtol=1e-5, atol=1e-2
    )


def test_shrinkage_moves_towards_the_mean_variance():
    moments = streamed(*samples(), [])
    free, bound = moments.covariance(0.0), moments.covariance(1.0)
    variance = free.diagonal().mean()
    near = {"rtol": 1e-5, "atol": 1e-5}  # without shrinkage the rounding of the sums is added
    torch.testing.assert_close(bound, variance * torch.eye(5, dtype=torch.float64), **near)
    torch.testing.assert_close(moments.covariance(0.25), 0.75 * free + 0.25 * bound, **near)


def test_the_first_features_alone():
    z, y = samples()
    both, first = streamed(z, y, []), streamed(z[:, :2].contiguous(), y, [])
    torch.testing.assert_close(both.means(2), first.means())
    torch.testing.assert_close(both.covariance(0.1, 2), first.covariance(0.1))


def test_the_rule_is_linear_discriminant_analysis():
    z, y = samples()
    scores = streamed(z, y, [100]).gaussian_scores(1e-9)(z)
    lda = LinearDiscriminantAnalysis(solver="lsqr").fit(z.numpy(), y.numpy())
    scores += torch.bincount(y).log()  # scikit-learn takes the classes' shares for their priors
    expected = lda.predict_log_proba(z.numpy())
    np.testing.assert_allclose(scores.log_softmax(1).numpy(), expected, atol=2e-3, rtol=1e-3)


def test_a_class_without_samples_never_wins():
    z, y = samples(classes=2)
    scores = streamed(z, y, [], classes=3).gaussian_scores(1e-2)(z)
    assert torch.isneginf(scores[:, 2]).all()
    assert scores[:, :2].isfinite().all()


def test_a_restored_copy_goes_on_with_the_same_bytes():
    z, y = samples()
    whole = streamed(z, y, [40, 300])
    half = streamed(z[:300], y[:300], [40])
    again = Moments(5, torch.device("cpu"))
    again.restore({name: value.clone() for name, value in half.state().items()})
    again.add(z[300:], y[300:])
    assert torch.equal(again.covariance(0.1), whole.covariance(0.1))
    assert torch.equal(again.means(), whole.means())


def test_fading_moments_weigh_batches_by_their_age():
    z, y = samples()
    z = z.double()
    fading = FadingMoments(4, 5, horizon=10, like=z)  # the fourth class never comes
    weights = []
    for part_z, part_y in zip(z.split(90), y.split(90), strict=True):
        fading.add(part_z, part_y)
        weights = [0.9 * w for w in weights] + [1.0] * len(part_y)
    weight = torch.tensor(weights, dtype=torch.float64)
    means, factor = fading.gaussian(shrinkage=1e-9)
    assert means[3].isnan().all()
    for c in range(3):
        mine = weight * (y == c)
        torch.testing.assert_close(means[c], mine @ z / mine.sum())
    residual = z - means[y]
    expected = (residual.T * weight) @ residual / weight.sum()
    torch.testing.assert_close(factor @ factor.T, expected, rtol=1e-5, atol=1e-5)
