"""Streamed moments: the mean of each class and one covariance within classes, each sample once.

With counts n_c, sums s_c and G = Σ z zᵀ over all samples,

    m_c = s_c / n_c,   Σ = (G − Σ_c n_c m_c m_cᵀ) / Σ_c n_c

are exact after any number of batches, whatever their order: no sample is looked at twice. G is
summed up in single precision, which is fast, over at most ``LARGEST_SUM`` samples; longer sums lose
the digits in which Σ lies where classes lie far apart. What is full goes into a sum in double
precision.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 256  # samples that wait until G is updated: one larger product is faster than eight
LARGEST_SUM = 2**16  # samples that are summed up in single precision
ROUNDING = 2e-7  # of sums in single precision, relative


def _within(gram: Tensor, means: Tensor, counts: Tensor, shrinkage: float) -> Tensor:
    """(1 − ε) Σ + ε v I from the sums, with v the mean variance of a feature.

    Sums in single precision know Σ only up to their own rounding, which can make it indefinite
    where means are large beside deviations, or where a class has few samples. So what is added to
    the diagonal is at least that rounding, ``ROUNDING`` times the largest eigenvalue that G may
    have.
    """
    count = counts.sum()
    within = (gram - (means.T * counts) @ means) / count
    variance = within.diagonal().mean().clamp(min=1e-12)
    added = torch.maximum(shrinkage * variance, ROUNDING * gram.trace() / count)
    within.mul_(1 - shrinkage).diagonal().add_(added)
    return within


class LinearScores(NamedTuple):
    """A score of every class, linear in z; the highest wins."""

    weights: Tensor  # (D, C)
    bias: Tensor  # (C,)

    def __call__(self, z: Tensor) -> Tensor:
        """(n, C)."""
        return torch.addmm(self.bias.to(z), z, self.weights.to(z))


class Moments:
    """Counts and sums of classes, and G, for ``size`` features.

    Args:
        size: D.
        device: where the features are.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.samples = 0  # taken in so far, known without a look at the counts
        self.counts = torch.zeros(0, dtype=torch.float64, device=device)
        self.sums = torch.zeros(0, size, dtype=torch.float64, device=device)
        self.gram = torch.zeros(size, size, device=device)
        self._summed = 0  # samples in it, at most
        self._far: Tensor | None = None  # the rest of G, of a long stream
        self._waiting = torch.zeros(BLOCK, size, device=device)
        self._filled = 0

    def add_classes(self, count: int) -> None:
        """Room for ``count`` more classes."""
        self.counts = torch.cat((self.counts, self.counts.new_zeros(count)))
        self.sums = torch.cat((self.sums, self.sums.new_zeros(count, self.sums.shape[1])))

    def widen(self, groups: int, count: int) -> None:
        """Room for ``count`` more classes in each of ``groups`` groups of equal size."""
        for name in ("counts", "sums"):
            held = getattr(self, name)
            apart = held.unflatten(0, (groups, -1))
            more = apart.new_zeros(groups, count, *held.shape[1:])
            setattr(self, name, torch.cat((apart, more), 1).flatten(0, 1))

    def add(self, z: Tensor, classes: Tensor) -> None:
        """Take in samples (n, D) of ``classes`` (n,)."""
        self.samples += len(classes)
        self.counts.index_add_(0, classes, self.counts.new_ones(len(classes)))
        self.sums.index_add_(0, classes, z.double())
        self._wait(z)

    def _wait(self, z: Tensor) -> None:
        """Samples that G takes in with their block."""
        for part in z.split(BLOCK):
            if self._filled + len(part) > BLOCK:
                self._settle()
            self._waiting[self._filled : self._filled + len(part)] = part
            self._filled += len(part)

    def share(self, z: Tensor, first: int, responsibilities: Tensor) -> None:
        """Take in samples (n, D) that are of several classes in part, (n, C) from ``first`` on.

        Row sums of ``responsibilities`` are the samples' weights. ``samples`` does not count them.
        """
        within = slice(first, first + responsibilities.shape[1])
        shares = responsibilities.double()
        self.counts[within] += shares.sum(0)
        self.sums[within] += shares.T @ z.double()
        self._wait(z * responsibilities.sum(1, keepdim=True).sqrt())

    def _settle(self) -> None:
        if not self._filled:
            return
        if self._summed + self._filled > LARGEST_SUM:
            self._far = self.gram.double() if self._far is None else self._far + self.gram
            self.gram.zero_()
            self._summed = 0
        waiting = self._waiting[: self._filled]
        self.gram.addmm_(waiting.T, waiting)
        self._summed += self._filled
        self._filled = 0

    def remove(self, z: Tensor, classes: Tensor) -> None:
        """Take back samples (n, D) of ``classes`` that were taken in by ``add``."""
        self._settle()
        self.samples -= len(classes)
        self.counts.index_add_(0, classes, -self.counts.new_ones(len(classes)))
        self.sums.index_add_(0, classes, -z.double())
        self.gram.addmm_(z.T, z, alpha=-1)

    def copy(self, size: int | None = None) -> Moments:
        """The same moments, of the first ``size`` features, to try something with."""
        other = Moments(0, self.gram.device)
        other.samples, other.counts = self.samples, self.counts.clone()
        other.sums = self.sums[:, :size].clone()
        other.gram = self._near(size).clone()
        other._summed = self._summed
        other._far = None if self._far is None else self._far[:size, :size]
        other._waiting = self._waiting[:, :size].clone()
        return other

    def without(self, z: Tensor, classes: Tensor) -> Moments:
        """The moments as they were before samples (n, D) of ``classes``, taken in by ``add``."""
        self._settle()
        less = Moments(0, self.gram.device)
        less.counts = self.counts.index_add(0, classes, -self.counts.new_ones(len(classes)))
        less.sums = self.sums.index_add(0, classes, -z.double())
        less.gram, less._far = torch.addmm(self.gram, z.T, z, alpha=-1), self._far
        less.samples = self.samples - len(classes)
        return less

    def _near(self, size: int | None = None) -> Tensor:
        """The sum in single precision with the samples that wait, which go on waiting."""
        gram, waiting = self.gram[:size, :size], self._waiting[: self._filled, :size]
        return torch.addmm(gram, waiting.T, waiting) if self._filled else gram

    def _whole(self, size: int | None = None) -> Tensor:
        """G in double precision; a question changes no later sum."""
        near = self._near(size).double()
        return near if self._far is None else near.add_(self._far[:size, :size])

    def means(self, size: int | None = None) -> Tensor:
        """m_c, (C, D), in double precision; zero for a class without samples.

        ``size`` takes the first features alone, here and below.
        """
        return self.sums[:, :size] / self.counts.clamp(min=1)[:, None]

    def covariance(self, shrinkage: float, size: int | None = None) -> Tensor:
        """(1 − ε) Σ + ε v I, in double precision, where v is the mean variance of a feature."""
        gram = self._whole(size)
        return _within(gram, self.means(size), self.counts, shrinkage)

    def gaussian_scores(self, shrinkage: float, size: int | None = None) -> LinearScores:
        """log N(z; m_c, Σ) up to a term that depends on z alone; −∞ for a class without samples."""
        means = self.means(size)
        factor = torch.linalg.cholesky(self.covariance(shrinkage, size))
        weights = torch.cholesky_solve(means.T, factor)
        bias = -0.5 * (weights * means.T).sum(0)
        bias = bias.masked_fill(self.counts == 0, -torch.inf)
        return LinearScores(weights.float(), bias.float())

    def ridge_scores(self, ridge: float) -> LinearScores:
        """The ridge regression of class indicators on z, with penalty ρ times G's mean diagonal."""
        gram = self._whole()
        gram.diagonal().add_(ridge * gram.diagonal().mean().clamp(min=1e-12))
        weights = torch.cholesky_solve(self.sums.T, torch.linalg.cholesky(gram))
        bias = torch.zeros_like(self.counts).masked_fill(self.counts == 0, -torch.inf)
        return LinearScores(weights.float(), bias.float())

    def state(self) -> dict[str, Tensor]:
        """The sums and the block that waits, for a checkpoint: rounding follows the blocks."""
        waiting = self._waiting[: self._filled].clone()
        state = {"counts": self.counts, "sums": self.sums, "gram": self.gram, "waiting": waiting}
        state["summed"] = torch.tensor(self._summed)
        if self._far is not None:
            state["far"] = self._far
        return state

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from ``state``."""
        self.counts, self.sums = state["counts"].clone(), state["sums"].clone()
        self.samples = int(self.counts.sum())
        self.gram.copy_(state["gram"])
        self._far = state["far"].clone() if "far" in state else None
        self._filled = len(state["waiting"])
        # Files from before there was a sum in double precision have all samples in one.
        self._summed = int(state.get("summed", self.samples))
        self._waiting[: self._filled] = state["waiting"]


class FadingMoments:
    """Means of classes and one covariance within them of latents that move while a flow learns.

    Each batch fades what came before by 1 − 1/``horizon``, so that what is held is of the flow as
    it is now, not as it was when the task began.

    Args:
        classes: K.
        size: D.
        horizon: batches after which a batch weighs 1/e.
        like: a tensor of the latents' type, where they live.
    """

    def __init__(self, classes: int, size: int, horizon: int, like: Tensor) -> None:
        self.keep = 1 - 1 / horizon
        self.counts = like.new_zeros(classes)
        self.sums = like.new_zeros(classes, size)
        self.gram = like.new_zeros(size, size)

    @torch.no_grad()
    def add(self, z: Tensor, y: Tensor) -> None:
        """Take in the latents (n, D) of classes ``y``."""
        self.counts.mul_(self.keep).index_add_(0, y, self.counts.new_ones(len(y)))
        self.sums.mul_(self.keep).index_add_(0, y, z)
        self.gram.addmm_(z.T, z, beta=self.keep)

    def add_classes(self, count: int) -> None:
        """Room for ``count`` more classes."""
        self.counts = torch.cat((self.counts, self.counts.new_zeros(count)))
        self.sums = torch.cat((self.sums, self.sums.new_zeros(count, self.sums.shape[1])))

    def gaussian(self, shrinkage: float) -> tuple[Tensor, Tensor]:
        """Means (K, D), NaN for a class without samples, and the factor L of (1 − ε) Σ + ε v I."""
        counts = self.counts.double()
        means = self.sums.double() / counts[:, None]
        covariance = _within(self.gram.double(), means.nan_to_num(), counts, shrinkage)
        return means.to(self.sums), torch.linalg.cholesky(covariance).to(self.sums)


class Inverse:
    """Σ⁻¹ of growing moments, taken anew whenever a quarter more samples stand behind it."""

    def __init__(self) -> None:
        self._samples = 0
        self._inverse = torch.empty(0)

    def of(self, moments: Moments, shrinkage: float, size: int) -> Tensor:
        """((1 − ε) Σ + ε v I)⁻¹ of the first ``size`` features."""
        if moments.samples >= 1.25 * self._samples:
            factor = torch.linalg.cholesky(moments.covariance(shrinkage, size))
            self._inverse = torch.cholesky_inverse(factor).float()
            self._samples = moments.samples
        return self._inverse

    def state(self) -> tuple[int, Tensor]:
        """For a checkpoint: when it was taken decides what it is."""
        return self._samples, self._inverse

    def restore(self, state: tuple[int, Tensor]) -> None:
        """Continue from ``state``."""
        self._samples, self._inverse = state
