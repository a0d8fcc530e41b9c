from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal

from hcl.model.latent import LatentMixture


def make_latent(
    tasks: int = 3, num_classes: int = 4, size: int = 6, mean_scale: float = 1.0
) -> LatentMixture:
    latent = LatentMixture(num_classes, size, mean_scale).double()
    generator = torch.Generator().manual_seed(0)
    for index in range(tasks):
        assert latent.add_task(generator) == index
    return latent


def normal(generator_seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(generator_seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def test_log_prob_is_that_of_torch_distributions() -> None:
    latent, z = make_latent(), 2 * normal(1, 5, 6)
    y, t = torch.tensor([0, 1, 2, 3, 0]), torch.tensor([2, 1, 0, 0, 2])
    for i in range(5):
        expected = Independent(Normal(latent.means[t[i], y[i]], 1.0), 1).log_prob(z[i])
        torch.testing.assert_close(latent.log_prob(z, y, t)[i], expected)
    torch.testing.assert_close(latent.log_prob(z, y, 1), latent.log_prob(z, y, torch.full((5,), 1)))


def test_log_probs_hold_every_class_of_every_task() -> None:
    latent, z = make_latent(), 2 * normal(1, 5, 6)
    everything = latent.log_probs(z)
    assert everything.shape == (5, 3, 4)
    for t in range(3):
        for y in range(4):
            expected = latent.log_prob(z, torch.full((5,), y), t)
            torch.testing.assert_close(everything[:, t, y], expected)


def test_scores_differ_from_log_probs_by_a_term_of_z_alone() -> None:
    latent, z = make_latent(), 2 * normal(1, 5, 6)
    difference = (latent.log_probs(z) - latent.scores(z)).flatten(1)
    torch.testing.assert_close(difference, difference[:, :1].expand_as(difference))


@pytest.mark.parametrize("offset", [0.0, 30.0])
@pytest.mark.parametrize("far", [1.0, 30.0])
def test_float32_tells_classes_apart_in_1280_dimensions(offset: float, far: float) -> None:
    """Scores in float32 are within 0.02 nats of float64's, also far away and off the origin."""
    exact = make_latent(tasks=5, num_classes=10, size=1280)
    exact.means += offset
    z = exact.means[2, :7] + far * normal(1, 7, 1280)  # (7, D): about the classes of a task
    rounded = LatentMixture(10, 1280)
    rounded.means = exact.means.float()
    expected, found = exact.scores(z), rounded.scores(z.float()).double()
    assert (found - expected).abs().max() < 0.02
    ratio = exact.log_probs(z) / rounded.log_probs(z.float()).double()
    torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=3e-6, rtol=0)


def test_means_are_drawn_anew_for_each_task_and_stay() -> None:
    latent = make_latent(tasks=1, num_classes=10, size=2000, mean_scale=3.0)
    before = latent.means.clone()
    latent.add_task(torch.Generator().manual_seed(5))
    assert torch.equal(latent.means[:1], before)
    assert not torch.equal(latent.means[0], latent.means[1])
    assert latent.means.std().item() == pytest.approx(3.0, rel=0.05)
    assert latent.means.mean().item() == pytest.approx(0.0, abs=0.1)
    assert latent.num_tasks == 2
    assert list(latent.parameters()) == []


def test_the_same_generator_gives_the_same_means_in_any_precision() -> None:
    def means(dtype: torch.dtype) -> Tensor:
        latent = LatentMixture(2, 3).to(dtype)
        latent.add_task(torch.Generator().manual_seed(0))
        return latent.means

    assert means(torch.float64).dtype == torch.float64
    assert torch.equal(means(torch.float64).float(), means(torch.float32))


def test_samples_have_the_mean_and_covariance_of_their_gaussian() -> None:
    latent = make_latent(size=3)
    y, t = torch.full((40_000,), 2), torch.full((40_000,), 1)
    z = latent.sample(y, t, torch.Generator().manual_seed(0))
    torch.testing.assert_close(z.mean(0), latent.means[1, 2], atol=0.02, rtol=0)
    torch.testing.assert_close(z.T.cov(), torch.eye(3, dtype=torch.float64), atol=0.03, rtol=0)
    again = latent.sample(y, 1, torch.Generator().manual_seed(0))
    assert torch.equal(again, z)


def test_means_can_be_set() -> None:
    latent = make_latent()
    latent.means[1] = 7.0
    y = torch.zeros(1, dtype=torch.long)
    at_the_mean = latent.log_prob(torch.full((1, 6), 7.0, dtype=torch.float64), y, 1)
    assert at_the_mean.item() == pytest.approx(-3 * torch.log(torch.tensor(2 * torch.pi)).item())
