"""What is measured of a batch: how far its classes lie from where they were, and how spread.

With the mean m_y of a class of the task, n_y samples behind it, r_i = z_i − m_y, Mahalanobis'
metric M = Σ⁻¹ and, for b_y samples of class y in a batch, g_y the mean of their r_i:

    T = mean over the k classes of  (g_yᵀ M g_y) / (1/b_y + 1/n_y)
    s = Σ_i (r_i − g_y)ᵀ M (r_i − g_y) / (n − k)
    shift  = (T/s − 1) / √(1/k + 1/(n − k))

T is Hotelling's: it grows with n where class means have moved, √n times as fast as a log-likelihood
does. Dividing by s, the spread inside the batch, makes it 1 on average in every task, also where Σ
does not know the task's spread yet, and one sample far out raises both. The root makes batches of
more and of fewer classes comparable.

    common = (gᵀ M g Σ_y w_y / s − 1) / √(1 + 1/(n − k)),   g = Σ_y w_y g_y / Σ_y w_y,
    w_y = 1 / (1/b_y + 1/n_y)

is the same of the mean over classes: where all of them move together, by little, it has the noise
of one class and the samples of all.

    spread = mean over samples of  log(r_iᵀ M r_i · n_y/(n_y + 1)) − ℓ_y

where ℓ_y is the mean of that logarithm in class y so far: a change that leaves means in place moves
it. All are taken for each class by itself, so that the classes' frequencies do not matter.

Means follow slow drift: a mean has the weight of at most ``MEMORY`` batches. Behind what drifts
they lag, always in the same direction: the mean of the g_y of the last batches, ``trend``, is how
far, and noise where nothing drifts.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

WIDEST = 1536  # features: wider samples are projected at random
PIXEL = 255.0
MEMORY = 20  # batches behind a mean
TREND = 60  # batches behind a trend
SHRINKAGE = 0.5  # ε: directions whose variance is hardly known would drown the others
FLOOR = 1e-2  # least variance of a feature in the metric, relative to the median
BLOCK = 256  # residuals that wait until they are added up: one larger product is faster
TASKS_AT_ONCE = 64  # that a batch is compared with
PRIOR = 4.0  # degrees of freedom that the spread of earlier batches has in s


def known_size(shape: tuple[int, ...]) -> int:
    """Features of a sample as the detector sees it."""
    return min(int(torch.Size(shape).numel()), WIDEST)


class Features:
    """Samples as vectors: bytes as x/255, Tukey's root, at most ``WIDEST`` features.

    The root sign(x)·|x|^½ makes activations of a backbone more alike to Gaussians and pulls in
    outliers.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        size = int(torch.Size(shape).numel())
        self.projection: Tensor | None = None
        if size > WIDEST:
            fixed = torch.Generator().manual_seed(0)  # the same one for every stream
            projection = torch.randn(size, WIDEST, generator=fixed) / WIDEST**0.5
            self.projection = projection.to(device)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """(n, D) in single precision."""
        z = x.flatten(1).float()
        if x.dtype == torch.uint8:
            z = z / PIXEL
        z = z.sign() * z.abs().sqrt()
        return z if self.projection is None else z @ self.projection


class Scatter:
    """Σ, pooled within all (class, task) pairs, from residuals; and its inverse M."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.sums = torch.zeros(size, size, device=device)
        self.weight = torch.zeros((), dtype=torch.float64, device=device)  # of those residuals
        self.rows = 0  # the same, at most; known without a look
        self.metric = torch.eye(size, device=device) / size
        self._waiting = torch.zeros(BLOCK, size, device=device)
        self._filled = 0

    def add(self, residuals: Tensor, freedom: Tensor) -> None:
        """Residuals (n, D), scaled so that their squares add up to ``freedom`` times Σ."""
        self.weight += freedom
        self.rows += len(residuals)
        for part in residuals.split(BLOCK):
            if self._filled + len(part) > BLOCK:
                self._settle()
            self._waiting[self._filled : self._filled + len(part)] = part
            self._filled += len(part)

    def _settle(self) -> None:
        waiting = self._waiting[: self._filled]
        self.sums.addmm_(waiting.T, waiting)
        self._filled = 0

    def renew(self) -> None:
        """M = ((1 − ε) Σ + ε diag Σ)⁻¹, scaled to trace(M Σ) = 1.

        Paper: silent. Here: Σ is shrunk towards its own diagonal, because users' features may have
        any units; a feature that is nearly constant counts as if it had a hundredth of the median
        variance.
        """
        self._settle()
        covariance = self.sums.double() / self.weight.clamp(min=1)
        variances = covariance.diagonal().clone()
        positive = torch.where(variances > 0, variances, torch.nan)
        median = positive.nanmedian().nan_to_num(1.0)
        least = torch.maximum(variances, FLOOR * median)
        shrunk = (1 - SHRINKAGE) * covariance
        shrunk.diagonal().add_(SHRINKAGE * least + (1 - SHRINKAGE) * (least - variances))
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(shrunk))
        trace = (inverse * covariance).sum().clamp(min=1e-12)
        self.metric = (inverse / trace).float()

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "sums": self.sums,
            "weight": self.weight,
            "rows": self.rows,
            "metric": self.metric,
            "waiting": self._waiting[: self._filled].clone(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.sums.copy_(state["sums"])
        self.weight = state["weight"].to(self.sums.device).clone()
        self.rows = state["rows"]
        self.metric = state["metric"].to(self.sums.device)
        self._filled = len(state["waiting"])
        self._waiting[: self._filled] = state["waiting"]


class ClassMeans:
    """m_y, n_y of one task (K, D), and ℓ_y; all in the memory of about ``MEMORY`` batches."""

    def __init__(self, classes: int, size: int, device: torch.device) -> None:
        self.counts = torch.zeros(classes, device=device)  # n_y
        self.means = torch.zeros(classes, size, device=device)  # m_y
        self.trend = torch.zeros(classes, size, device=device)  # g_y of the last batches
        self.logs = torch.zeros(classes, device=device)  # ℓ_y
        self.logged = torch.zeros(classes, device=device)  # samples behind ℓ_y
        self.spread = torch.zeros((), device=device)  # s of the batches before
        self.age = 0  # batches

    def add_classes(self, count: int) -> None:
        """Room for ``count`` more classes."""
        for name in ("counts", "means", "trend", "logs", "logged"):
            held = getattr(self, name)
            if not len(held):
                continue  # a trend at rest
            setattr(self, name, torch.cat((held, held.new_zeros(count, *held.shape[1:]))))

    def rest(self) -> None:
        """Another task begins; by the time this one comes back, its trend will say nothing."""
        self.trend = self.trend.new_zeros(0)

    def begin(self) -> None:
        """The task begins, or comes back."""
        self.trend = torch.zeros_like(self.means)
        self.forget_logs()

    def forget_logs(self) -> None:
        """The metric has changed: distances in the old one say nothing."""
        self.logs.zero_()
        self.logged.zero_()
        self.spread.zero_()

    def moved(self, steps: float) -> ClassMeans:
        """The same task, gone on along its trend."""
        other = copy(self)
        other.means = self.means + steps * self.trend
        return other

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        names = ("counts", "means", "trend", "logs", "logged", "spread", "age")
        return {name: getattr(self, name) for name in names}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        for name, value in state.items():
            moved = value.to(self.counts.device).clone() if isinstance(value, Tensor) else value
            setattr(self, name, moved)


class Measured:
    """A batch beside the means of a task: what is judged, and what is learned from it."""

    @torch.no_grad()
    def __init__(self, z: Tensor, y: Tensor, means: ClassMeans, metric: Tensor) -> None:
        ones = torch.ones_like(z[:, 0])
        self.y = y
        self.size = len(y)
        self.seen = torch.zeros_like(means.counts).index_add_(0, y, ones)  # b_y
        per_class = self.seen.clamp(min=1)
        centres = torch.zeros_like(means.means).index_add_(0, y, z) / per_class[:, None]
        self.known = means.counts > 0
        # A class that the task has not had yet is taken from where it lies in the batch.
        self.origin = torch.where(self.known[:, None], means.means, centres)
        self.residuals = z - self.origin[y]  # r_i
        self.gaps = centres - self.origin  # g_y
        turned = self.residuals @ metric
        self.distances = (self.residuals * turned).sum(1)  # r_iᵀ M r_i
        turned = torch.zeros_like(self.gaps).index_add_(0, y, turned) / per_class[:, None]
        squares = (self.gaps * turned).sum(1)  # g_yᵀ M g_y
        both = self.known & (self.seen > 0)
        self.classes = both.sum()
        weights = both / (1 / per_class + 1 / means.counts.clamp(min=1e-6))
        shift = (weights * squares).sum() / self.classes.clamp(min=1)  # T
        inside = (self.distances.sum() - (self.seen * squares).sum()).clamp(min=0)
        self.freedom = self.size - (self.seen > 0).sum().float()  # n − k
        prior = PRIOR * (means.spread > 0)
        self.scale = (inside + prior * means.spread) / (self.freedom + prior).clamp(min=1e-6)
        self.inside = inside
        noise = 1 / (self.freedom + prior).clamp(min=1e-6)
        scale = self.scale.clamp(min=1e-12)
        usable = (self.classes > 0) & (self.freedom + prior > 0)
        shift = (shift / scale - 1) / (1 / self.classes.clamp(min=1) + noise).sqrt()
        self.shift = torch.where(usable, shift, torch.nan)
        gap = weights @ self.gaps
        common = (gap @ metric @ gap) / weights.sum().clamp(min=1e-6)
        common = (common / scale - 1) / (1 + noise).sqrt()
        self.common = torch.where(usable, common, torch.nan)
        shrink = means.counts / (means.counts + 1)
        self.logs = (self.distances * shrink[y]).clamp(min=1e-12).log()
        judged = (means.logged[y] > 0).float()
        self.spread = ((self.logs - means.logs[y]) * judged).sum() / judged.sum()  # NaN for none

    @torch.no_grad()
    def learn(self, means: ClassMeans, scatter: Scatter) -> None:
        """Take the batch into the means and into Σ."""
        fresh = (self.seen > 0) & ~self.known
        root = torch.where(self.known, means.counts / (means.counts + 1), 1.0).sqrt()
        scatter.add(self.residuals * root[self.y][:, None], self.size - fresh.sum())
        most = MEMORY * self.size / (self.seen > 0).sum()
        total = means.counts + self.seen
        means.means = self.origin + (self.seen / total.clamp(min=1))[:, None] * self.gaps
        known = (self.seen > 0) & self.known
        follow = known.float() / min(means.age + 1, TREND)
        means.trend = means.trend + follow[:, None] * (self.gaps - means.trend)
        self._learn_logs(means, most)
        means.counts = torch.where(self.seen > 0, torch.minimum(total, most), means.counts)
        spread = self.inside / self.freedom.clamp(min=1)
        faded = torch.lerp(means.spread, spread, 1 / min(means.age + 1, MEMORY))
        spread = torch.where(means.spread > 0, faded, spread)
        means.spread = torch.where(self.freedom > 0, spread, means.spread)
        means.age += 1

    def _learn_logs(self, means: ClassMeans, most: Tensor) -> None:
        """ℓ_y of the classes whose mean was known."""
        counted = self.seen * self.known
        sums = torch.zeros_like(means.logs).index_add_(0, self.y, self.logs) * self.known
        total = means.logged + counted
        means.logs = means.logs + (sums - counted * means.logs) / total.clamp(min=1)
        means.logged = torch.where(counted > 0, torch.minimum(total, most), means.logged)


@torch.no_grad()
def shifts(z: Tensor, y: Tensor, tasks: Sequence[ClassMeans], metric: Tensor) -> Tensor:
    """The shift of one batch beside the means of each of many tasks, (T,).

    What ``Measured`` finds, in one product for many tasks: the spread inside a batch does not
    depend on where a task's means lie.
    """
    first = Measured(z, y, tasks[0], metric)
    per_class = first.seen.clamp(min=1)
    centres = torch.zeros_like(first.gaps).index_add_(0, y, z) / per_class[:, None]
    parts = []
    for start in range(0, len(tasks), TASKS_AT_ONCE):
        some = tasks[start : start + TASKS_AT_ONCE]
        counts = torch.stack([means.counts for means in some])
        spread = torch.stack([means.spread for means in some])
        gaps = centres - torch.stack([means.means for means in some])
        squares = ((gaps @ metric) * gaps).sum(-1)
        both = (counts > 0) & (first.seen > 0)
        classes = both.sum(1)
        weights = both / (1 / per_class + 1 / counts.clamp(min=1e-6))
        shift = (weights * squares).sum(1) / classes.clamp(min=1)
        prior = PRIOR * (spread > 0)
        freedom = first.freedom + prior
        scale = (first.inside + prior * spread) / freedom.clamp(min=1e-6)
        noise = 1 / classes.clamp(min=1) + 1 / freedom.clamp(min=1e-6)
        shift = (shift / scale.clamp(min=1e-12) - 1) / noise.sqrt()
        parts.append(torch.where((classes > 0) & (freedom > 0), shift, torch.nan))
    return torch.cat(parts)
