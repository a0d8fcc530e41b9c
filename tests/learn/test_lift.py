"""The lift of HCL+: a kernel's features, and landmarks that are not samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.covariance import oas as reference

from hcl.learn.plus.lift import JITTER, KernelLift, RandomLift, landmarks, oas

SIZE = 6


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def skewed(count: int) -> torch.Tensor:
    """Samples whose features are neither centred nor independent."""
    mix = torch.randn(SIZE, SIZE, generator=seeded(1))
    return torch.randn(count, SIZE, generator=seeded(2)) @ mix + 3


def test_products_of_features_are_the_kernel_at_the_landmarks():
    marks = skewed(12)
    lift = KernelLift(marks.T.contiguous())
    features = lift(marks).double()
    expected = torch.exp(-torch.cdist(marks.double(), marks.double()).square() / (2 * SIZE))
    torch.testing.assert_close(features @ features.T / SIZE, expected, atol=3 * JITTER, rtol=0)


def test_between_landmarks_the_kernel_is_met_the_better_the_more_there_are():
    z = skewed(40)
    expected = torch.exp(-torch.cdist(z, z).square() / (2 * SIZE))
    errors = []
    for count in (10, 100, 1000):
        features = KernelLift(landmarks(z, count, seeded()))(z)
        errors.append(float((features @ features.T / SIZE - expected).abs().mean()))
    assert errors[0] > 2 * errors[1] > 4 * errors[2]
    assert errors[2] < 0.01


def test_a_regression_on_the_kernel_tells_a_ball_from_the_shell_around_it():
    z = torch.randn(2000, SIZE, generator=seeded(3))
    inside = z.norm(dim=1) < z.norm(dim=1).median()
    target = inside.double() * 2 - 1
    right = {}
    for name, features in {
        "z": z,
        "kernel": KernelLift(landmarks(z[:1000], 100, seeded()))(z),
    }.items():
        known, asked = features[:1000].double(), features[1000:].double()
        gram = known.T @ known + 1e-3 * torch.eye(known.shape[1], dtype=torch.float64)
        answer = asked @ torch.linalg.solve(gram, known.T @ target[:1000])
        right[name] = float(((answer > 0) == inside[1000:]).double().mean())
    assert right["z"] < 0.6
    assert right["kernel"] > 0.9


def test_landmarks_have_the_samples_moments_and_are_none_of_them():
    z = skewed(500)
    marks = landmarks(z, 20_000, seeded()).T
    spread = torch.cov(z.T, correction=0)
    assert (marks.mean(0) - z.mean(0)).abs().max() < 0.05 * spread.diagonal().max().sqrt()
    shrunk, _ = reference(z.double().numpy())
    torch.testing.assert_close(
        torch.cov(marks.T).double(), torch.from_numpy(shrunk), atol=0.5, rtol=0.05
    )
    assert torch.cdist(marks[:2000], z).min() > 0.01


@pytest.mark.parametrize(("count", "size"), [(5, 40), (40, 5), (200, 40)])
def test_the_shrinkage_is_scikit_learns(count: int, size: int):
    x = torch.randn(count, size, generator=seeded(4)) * torch.linspace(0.1, 3, size)
    centred = x - x.mean(0)
    shrinkage, variance = oas(centred)
    assert shrinkage == pytest.approx(reference(centred.double().numpy(), assume_centered=True)[1])
    assert variance == pytest.approx(float(centred.square().mean()), rel=1e-6)


def test_one_sample_has_landmarks_at_itself_and_the_kernel_stands_it():
    lift = KernelLift(landmarks(torch.ones(1, SIZE), 7, seeded()))
    assert lift(torch.ones(1, SIZE)).isfinite().all()


def test_a_kernel_of_far_samples_is_zero_and_not_more():
    lift = KernelLift(landmarks(skewed(50), 20, seeded()))
    assert lift(torch.full((1, SIZE), 1e6)).abs().max() == 0
    close = lift.kernel(lift.weights.T)
    assert close.max() <= 1
    assert math.isclose(float(close.diagonal().mean()), 1, abs_tol=1e-5)


def test_a_lift_follows_a_flow_in_double_precision():
    z = skewed(5)
    for lift in (RandomLift(torch.randn(SIZE, 9)), KernelLift(landmarks(z, 9, seeded()))):
        found = lift(z.double())
        assert found.dtype == torch.float64
        np.testing.assert_allclose(found.numpy(), lift(z).numpy(), atol=1e-3)
