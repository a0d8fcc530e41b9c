"""Task identification: typical sets of batch statistics (Section 4.2 of the paper).

For each task t the learner keeps the last l batches' statistics

    S1(B, t) = Σ log p_X(x | y, t)   log-likelihood             ``log_px``
    S2(B, t) = Σ log p_Z(f(x) | y, t)   of the latent variable  ``log_pz``
    S3(B, t) = S1 − S2                  log-determinant         ``log_det``

and their mean μ_S^t and standard deviation σ_S^t. A batch B leaves the typical set of t if
|S(B, t) − μ_S^t| > λ σ_S^t for any statistic in use: the task has changed. If B is in the typical
set of an earlier task t' under all of them, t' has come back; otherwise the task is new.

Paper: S is a sum over a batch. Here: the same sum, with windows that remember how many samples
stand behind each, because batches need not be equally large: μ_S for n samples is n times the mean
per sample, σ_S² is n times the variance per sample. For equal batches this is the paper's rule.

Paper: silent on what holds until a window is full. Here: no verdict before ``minimum`` batches;
from then on λ is widened to

    λ_k = λ q_k / q_l,   q_k = t_{k−1}⁻¹(Φ(λ)) √(1 + 1/k)

for a window that holds k < l batches, because μ and σ estimated from few batches are uncertain:
by Student's t, a Gaussian statistic then leaves the set as seldom as it does with a full window.
With l = 100 and λ = 5: 12.1 at k = 10, 7.0 at k = 20, 5.4 at k = 50. It also gives a new task, on
which the flow learns fast and S drifts, room until the drift slows down. (A steady drift is no
danger: the newest of k equally spaced values lies at most √3 standard deviations from their mean.)

Paper: silent on which earlier task is meant if several fit. Here: the one whose bounds the batch
uses least of, because it is the most typical.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

from hcl.learn.settings import Batches, Spread
from hcl.settings import Range, check_limits

Statistic = Literal["log_px", "log_pz", "log_det"]
STATISTICS: tuple[Statistic, ...] = get_args(Statistic)  # S1, S2, S3

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class DetectionSettings:
    """Changes of task are found by the paper's typical sets.

    Attributes:
        kind: ``typical``.
        statistics: those in use. The log-likelihood is enough for most pairs of tasks; use all
            three for hard ones (Section 4.2).
        window: l, batches that a window holds.
        threshold: λ, half the width of the typical set in standard deviations.
        minimum: batches that a window must hold before it is used.
        trim: samples left out of S at either end, the least and the most likely of a batch, beyond
            the paper: one strange sample can outweigh all others in a sum. It must be less than
            half a batch; a shorter batch that would have none left is summed whole.
    """

    kind: Literal["typical"] = "typical"
    statistics: tuple[Statistic, ...] = ("log_px",)
    window: Batches = 100
    threshold: Spread = 5.0
    minimum: Batches = 10
    trim: Annotated[int, Range(0, 1_000_000)] = 0

    unless_said: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_limits(self)
        if not self.statistics or len(set(self.statistics)) != len(self.statistics):
            raise ValueError(
                f"statistics: is {list(self.statistics)}; name each of {', '.join(STATISTICS)} "
                "at most once, and at least one."
            )
        if self.window < 2:
            raise ValueError(f"window: is {self.window}; expected at least 2 batches.")
        if not 2 <= self.minimum <= self.window:
            raise ValueError(
                f"minimum: is {self.minimum}; expected from 2 to the window of {self.window}."
            )

    def check_batch(self, size: int) -> None:
        """An error where trimming would leave nothing of a batch of ``size`` samples."""
        if 2 * self.trim >= size:
            raise ValueError(
                f"trim: is {self.trim} samples at either end, which leaves nothing of a batch of "
                f"{size}; expected {(size - 1) // 2} or less."
            )

    def advice(self, batches: int) -> str | None:
        """A window that reaches back to where S still rises, a task's beginning, is too wide."""
        if self.window <= batches / 2:
            return None
        return (
            f"detection.window is {self.window} batches, but the shortest segment of the stream "
            f"has {batches}: changes of task may be missed. Take half of that, or less."
        )


class TypicalSet(NamedTuple):
    """Mean and standard deviation of S1, S2, S3 for a batch of a given size.

    ``std`` carries the widening of a window that is not full: the set is mean ± λ·std.
    """

    mean: FloatArray  # (3,)
    std: FloatArray  # (3,)


class Window:
    """The last l batches' statistics of one task."""

    def __init__(self, length: int) -> None:
        self.sums = np.zeros((length, 3))
        self.sizes = np.zeros(length)
        self.count = 0  # batches ever recorded

    @property
    def held(self) -> int:
        """How many batches the window holds."""
        return min(self.count, len(self.sizes))

    def record(self, sums: FloatArray, size: int) -> None:
        """Remember a batch's statistics; the oldest one is dropped from a full window."""
        slot = self.count % len(self.sizes)
        self.sums[slot] = sums
        self.sizes[slot] = size
        self.count += 1

    def moments(self) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of S per sample, each (3,)."""
        sums, sizes = self.sums[: self.held], self.sizes[: self.held, None]
        mean = sums.sum(0) / sizes.sum()
        variance = (sizes * (sums / sizes - mean) ** 2).sum(0) / (self.held - 1)
        return mean, variance


class Detector:
    """The windows of all tasks, and the verdict on a batch."""

    def __init__(self, settings: DetectionSettings) -> None:
        self.settings = settings
        self.windows: list[Window] = []
        self._used = [STATISTICS.index(s) for s in settings.statistics]
        held = np.arange(2, settings.window + 1)
        quantile = -stdtrit(held - 1.0, ndtr(-settings.threshold)) * np.sqrt(1 + 1 / held)
        self._widening = np.concatenate([[np.inf, np.inf], quantile / quantile[-1]])

    def add_task(self) -> int:
        """Open an empty window for a new task; its index."""
        self.windows.append(Window(self.settings.window))
        return len(self.windows) - 1

    def forget(self, task: int) -> None:
        """Empty the window of ``task``: what it holds is not what comes next."""
        self.windows[task] = Window(self.settings.window)

    def record(self, task: int, sums: FloatArray, size: int) -> None:
        """Remember (S1, S2, S3) of a batch of ``size`` samples that ``task`` was trained on."""
        self.windows[task].record(sums, size)

    def typical_set(self, task: int, size: int) -> TypicalSet:
        """The typical set of ``task`` for a batch of ``size``; NaN if its window holds too few."""
        window = self.windows[task]
        if window.held < self.settings.minimum:
            return TypicalSet(np.full(3, np.nan), np.full(3, np.nan))
        mean, variance = window.moments()
        std = np.sqrt(size * variance) * self._widening[window.held]
        return TypicalSet(size * mean, std)

    def bounds(self, task: int, size: int) -> tuple[FloatArray, FloatArray]:
        """μ_S ∓ λ σ_S of each statistic for a batch of ``size``; NaN for one not in use."""
        mean, std = self.typical_set(task, size)
        half = np.full(len(STATISTICS), np.nan)
        half[self._used] = self.settings.threshold * std[self._used]
        return mean - half, mean + half

    def has_left(self, task: int, sums: FloatArray, size: int) -> bool:
        """Whether any statistic in use is outside: |S(B, t) − μ_S^t| > λ σ_S^t.

        A window that holds too few batches gives no reason to leave it.
        """
        return bool(self._excess(task, sums, size) > 0)

    def came_back(self, sums: FloatArray, size: int, current: int) -> int | None:
        """The earlier task for which all statistics in use are typical, if there is one.

        Args:
            sums: (T, 3), S1, S2, S3 of the batch for each task.
            size: samples in the batch.
            current: the task that the batch has left.
        """
        excess = {
            task: self._excess(task, sums[task], size)
            for task, window in enumerate(self.windows)
            if task != current and window.held >= self.settings.minimum
        }
        typical = {task: value for task, value in excess.items() if value < 0}
        return min(typical, key=typical.__getitem__) if typical else None

    def _excess(self, task: int, sums: FloatArray, size: int) -> float:
        """The largest |S − μ_S| − λ σ_S in units of λ σ_S: above 0 is outside the typical set."""
        mean, std = self.typical_set(task, size)
        # A window of equal values (σ = 0) holds nothing but its own value: 0/0 is inside.
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.abs(sums - mean) / (self.settings.threshold * std)
        return float(np.nan_to_num(ratio[self._used], nan=0.0, posinf=np.inf).max()) - 1.0

    def state(self) -> dict[str, NDArray]:
        """Everything that the verdicts depend on, for a checkpoint."""
        length = self.settings.window
        return {
            "sums": np.stack([w.sums for w in self.windows] or [np.zeros((length, 3))]),
            "sizes": np.stack([w.sizes for w in self.windows] or [np.zeros(length)]),
            "counts": np.array([w.count for w in self.windows], np.int64),
        }

    def restore(self, state: dict[str, NDArray]) -> None:
        """Continue from ``state``."""
        self.windows = []
        for index, count in enumerate(state["counts"]):
            window = Window(self.settings.window)
            window.sums[:] = state["sums"][index]
            window.sizes[:] = state["sizes"][index]
            window.count = int(count)
            self.windows.append(window)
