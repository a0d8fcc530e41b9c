"""The measured Gaussians: what is kept of a pair, their densities and draws."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from hcl.learn.moments import Moments
from hcl.learn.plus import gaussians
from hcl.learn.plus.gaussians import Densities, Spreads

SIZE, PAIRS = 6, 3
CPU = torch.device("cpu")


def blobs(count: int, seed: int = 0, size: int = SIZE) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples of pairs that lie apart, each stretched along a direction of its own."""
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.arange(count) % PAIRS
    z = torch.randn(count, size, generator=generator)
    for pair in range(PAIRS):
        z[pairs == pair, pair] *= 4
        z[pairs == pair, 1 + pair] += 3
    return z, pairs


def taught(count: int = 90, rank: int = SIZE, batch: int = 10) -> tuple[Moments, Spreads]:
    moments, spreads = Moments(SIZE, CPU), Spreads(SIZE, rank, CPU)
    for kept in (moments, spreads):
        kept.add_classes(PAIRS)
    z, pairs = blobs(count)
    for part, of in zip(z.split(batch), pairs.split(batch), strict=True):
        moments.add(part, of)
        spreads.add(part, of.tolist(), moments)
    return moments, spreads


def covariance(moments: Moments, spreads: Spreads, shrinkage: float, blend: float) -> torch.Tensor:
    """Σ_c of each pair as the module's docstring has it, from all samples at once."""
    z, pairs = blobs(90)
    shared = moments.covariance(shrinkage)
    whiten = torch.linalg.inv(torch.linalg.cholesky(shared))
    found = []
    for pair in range(PAIRS):
        u = (z[pairs == pair].double() - z[pairs == pair].double().mean(0)) @ whiten.T
        values, vectors = torch.linalg.eigh(u.T @ u)
        rank = spreads.rank
        least = values[-rank] if rank < SIZE else 0.0
        e = blend * (values[-rank:] - least) / len(u)
        own = torch.eye(SIZE).double() + vectors[:, -rank:] * e @ vectors[:, -rank:].T
        back = torch.linalg.inv(whiten)
        found.append(back @ own @ back.T)
    return torch.stack(found)


@pytest.mark.parametrize("batch", [1, 7, 90])
def test_the_rows_hold_the_scatter_around_the_mean_whatever_the_batches(batch):
    moments, spreads = Moments(SIZE, CPU), Spreads(SIZE, 90, CPU)
    spreads.rank = 90  # no row is dropped
    for kept in (moments, spreads):
        kept.add_classes(PAIRS)
    z, pairs = blobs(90)
    for part, of in zip(z.split(batch), pairs.split(batch), strict=True):
        moments.add(part, of)
        spreads.add(part, of.tolist(), moments)
    for pair in range(PAIRS):
        mine = z[pairs == pair] - z[pairs == pair].mean(0)
        rows = spreads.rows[pair]
        torch.testing.assert_close(rows.T @ rows, mine.T @ mine, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(spreads.means[pair].float(), z[pairs == pair].mean(0))
        assert spreads.counts[pair] == 30


@pytest.mark.parametrize("rank", [2, 4, SIZE])
def test_the_density_is_that_of_the_covariance_written_out(rank):
    moments, _ = taught()
    spreads = Spreads(SIZE, rank, CPU)
    spreads.add_classes(PAIRS)
    z, pairs = blobs(90)
    waiting = (z, pairs.tolist())  # nothing is dropped before the densities are solved
    densities = Densities(moments, spreads, waiting, 0.05)
    written = covariance(moments, spreads, 0.05, 0.3)
    x = blobs(20, seed=1)[0].double()
    expected = torch.stack(
        [
            MultivariateNormal(mean, one).log_prob(x)
            for mean, one in zip(moments.means(), written, strict=True)
        ],
        1,
    )
    torch.testing.assert_close(densities.log_prob(x, 0.3), expected, rtol=1e-4, atol=1e-3)
    alone = torch.cat([densities.log_prob(one[None], 0.3) for one in x])
    torch.testing.assert_close(alone, densities.log_prob(x, 0.3), rtol=1e-9, atol=1e-9)


def test_rows_that_are_dropped_leave_the_directions_in_which_a_pair_spreads_most():
    moments, spreads = taught(900, rank=2)
    assert all(len(rows) <= 4 for rows in spreads.rows)
    densities = Densities(moments, spreads, None, 0.01)
    for pair in range(PAIRS):  # feature `pair` is stretched four times
        first = (densities.factor @ densities.directions[pair].T)[:, 0]
        assert first.abs().argmax() == pair
    e = densities.excess(1.0)[:, 0]
    assert (e > 0.5).all()  # Σ has a third of a pair's extra spread, and the pair the rest


def test_with_one_covariance_for_all_it_is_lda():
    moments, spreads = taught(rank=0)
    densities = Densities(moments, spreads, None, 0.05)
    x = blobs(20, seed=1)[0]
    scores = moments.gaussian_scores(0.05)(x)
    found = densities.log_prob(x, 0.4)
    torch.testing.assert_close(found - found[:, :1], scores - scores[:, :1], rtol=1e-3, atol=1e-3)


def test_draws_have_the_mean_and_the_covariance():
    moments, spreads = taught()
    densities = Densities(moments, spreads, None, 0.05)
    generator = torch.Generator().manual_seed(0)
    drawn = densities.sample(torch.full((40_000,), 1), 0.5, generator).double()
    written = covariance(moments, spreads, 0.05, 0.5)[1]
    torch.testing.assert_close(drawn.mean(0), moments.means()[1], atol=0.08, rtol=0)
    torch.testing.assert_close(drawn.T.cov(), written, atol=0.25, rtol=0.05)


def test_a_pair_without_samples_is_never_likely_and_two_samples_are_enough():
    moments, spreads = Moments(SIZE, CPU), Spreads(SIZE, 4, CPU)
    for kept in (moments, spreads):
        kept.add_classes(PAIRS)
    z, pairs = blobs(4)
    pairs = pairs % 2  # two of each of two pairs, none of the third
    moments.add(z, pairs)
    found = Densities(moments, spreads, (z, pairs.tolist()), 0.1).log_prob(z, 0.2)
    assert (found[:, 2] == -math.inf).all()
    assert found[:, :2].isfinite().all()
    assert (found.argmax(1) == pairs).all()


def test_it_is_sound_after_a_hundred_tasks():
    """Means thirty deviations from the origin, G in single precision."""
    size, generator = 40, torch.Generator().manual_seed(0)
    moments, spreads = Moments(size, CPU), Spreads(size, 4, CPU)
    places = 5 * torch.randn(200, size, generator=generator) + 30
    for task in range(100):
        for kept in (moments, spreads):
            kept.add_classes(2)
        for _ in range(3):
            pairs = 2 * task + torch.arange(20) % 2
            z = places[pairs] + torch.randn(20, size, generator=generator)
            moments.add(z, pairs)
            spreads.add(z, pairs.tolist(), moments)
    densities = Densities(moments, spreads, None, 0.05)
    pairs = torch.arange(200)
    x = places + torch.randn(200, size, generator=generator)
    found = densities.log_prob(x.double(), 0.1)
    assert found.isfinite().all()
    assert (found.argmax(1) == pairs).double().mean() > 0.98
    z = densities.sample(pairs, 0.1, generator)
    assert ((z - places).square().mean(1).sqrt() < 3).all()


def test_a_state_that_is_restored_goes_on_as_it_was():
    moments, spreads = taught(rank=2)
    other = Spreads(SIZE, 2, CPU)
    other.restore(spreads.state())
    z, pairs = blobs(30, seed=3)
    for one in (spreads, other):
        one.add(z, pairs.tolist(), moments)
    assert one.counts == other.counts == [40] * PAIRS
    for mine, theirs in zip(spreads.rows, other.rows, strict=True):
        assert torch.equal(mine, theirs)


def test_many_pairs_have_the_same_densities_where_they_are_near(monkeypatch):
    moments, spreads = taught(rank=2)
    densities = Densities(moments, spreads, None, 0.05)
    x = blobs(50, seed=1)[0]
    exact = densities.log_prob(x, 0.3)
    monkeypatch.setattr(gaussians, "MANY", 2)
    monkeypatch.setattr(gaussians, "NEAREST", 2)
    found = densities.log_prob(x, 0.3)
    order = densities.distances(x)[0].argsort(1)
    near, far = order[:, :2], order[:, 2:]
    torch.testing.assert_close(found.gather(1, near), exact.gather(1, near), rtol=1e-4, atol=1e-3)
    assert (found.gather(1, far) <= exact.gather(1, far) + 1e-3).all()
    assert (found.gather(1, far) < exact.gather(1, far) - 0.1).any()
