"""A sequential test for a change of task, on the mean latents of batches.

The paper looks at one batch at a time, and at log-likelihoods, which are sums over the D features:
a shift of the class means by a Mahalanobis distance Δ moves S1 of n samples by n Δ²/2 against a
spread of √(nD/2). The mean latents say more. With class means m_y streamed over n_y samples, the
pooled covariance Σ within classes, and b_y samples of class y in the batch, whose mean is z̄_y,

    T = Σ_y (z̄_y − m_y)ᵀ Σ⁻¹ (z̄_y − m_y) / (1/b_y + 1/n_y)

(the mean over the classes in the batch) would be about D while the task lasts, by Hotelling, and
grows by about n Δ²/2 when it changes, against a spread of √(2D): √n times the power. The size of a
batch and the age of the task are in the weights, so that T is comparable between batches and tasks.
Σ is shrunk by half towards a multiple of I, because directions whose variance is hardly known would
drown the others; this makes T smaller than D, and it falls while Σ is being learned.

Evidence is gathered over batches by a cumulative sum (Page, 1954): with u = (T − mean)/std of the
batches found typical so far, C ← max(0, C + u − drift), and a change is declared at C > ``limit``.
One batch adds limit / (gather − 1) at most: from C = 0 it takes ``gather`` batches to declare a
change, however strange one of them is. The change is taken to have begun after the last batch at
which C was 0: those since then are *pending*, nothing is learned from them before the verdict. If C
falls back to 0, or ``window`` of them are pending, they are learned as the task's own. Whose they
are after a change is decided by T of all of them together: the earlier task for which it is least,
if it lies within ``threshold`` standard deviations there; else the task is new.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hcl.learn.settings import Batches, Fraction, Spread
from hcl.settings import check_limits


@dataclass(frozen=True)
class SequentialSettings:
    """How a change of task is noticed.

    Attributes:
        drift: what u must exceed for evidence to grow, in standard deviations.
        limit: the evidence at which a change is declared.
        window: batches over which mean and standard deviation of T are taken.
        minimum: batches of a task before it is watched: its own spread is not in Σ before.
        gather: the least number of batches that declare a change.
        threshold: λ, how far above its mean T may lie for a task that has come back.
        shrinkage: ε of Σ in T, relative to the mean variance.
    """

    drift: Spread = 2.0
    limit: Spread = 20.0
    window: Batches = 50
    minimum: Batches = 10
    gather: Batches = 4
    threshold: Spread = 5.0
    shrinkage: Fraction = 0.5

    def __post_init__(self) -> None:
        check_limits(self)
        if not 2 <= self.minimum <= self.window:
            raise ValueError(
                f"minimum: is {self.minimum}; expected from 2 to the window of {self.window}."
            )


class CumulativeSum:
    """Page's test on T, calibrated by the batches that it found typical."""

    def __init__(self, settings: SequentialSettings) -> None:
        self.settings = settings
        self.known: list[float] = []  # T of the last typical batches
        self.evidence = 0.0  # C
        self.age = 0  # batches that the task is known to have had

    @property
    def ready(self) -> bool:
        """Whether enough batches are known to judge by."""
        return self.age >= self.settings.minimum

    def scale(self) -> tuple[float, float]:
        """Mean and standard deviation of T within a task; NaN before the test begins."""
        if len(self.known) < self.settings.minimum:
            return float("nan"), float("nan")
        known = np.array(self.known)
        # A constant statistic tells nothing apart: any other value is infinitely far.
        return float(known.mean()), float(known.std(ddof=1))

    def excess(self, statistic: float) -> float:
        """u: how far T lies above its mean, in standard deviations."""
        mean, std = self.scale()
        return (statistic - mean) / max(std, 1e-12 * abs(mean), 1e-300)

    def update(self, statistic: float) -> float:
        """Take in T of one more batch; the evidence C after it."""
        if self.ready:
            most = self.settings.limit / max(self.settings.gather - 1, 1e-9)
            gain = min(self.excess(statistic) - self.settings.drift, most)
            self.evidence = max(0.0, self.evidence + gain)
        return self.evidence

    @property
    def alarm(self) -> bool:
        """Whether the task has changed."""
        return self.evidence > self.settings.limit

    def accept(self, statistic: float) -> None:
        """Remember T of a batch that belongs to the task."""
        self.age += 1
        self.known.append(statistic)
        del self.known[: -self.settings.window]

    def reset(self) -> None:
        """Start again after a change: no evidence, the same calibration."""
        self.evidence = 0.0
        self.age = 0
