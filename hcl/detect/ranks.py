"""Evidence of a change from ranks alone: what it is worth does not depend on any distribution.

A statistic of a batch is ranked among the same statistic of r reference batches. If all of them are
alike, each of the r + 1 ranks is equally likely, whatever the statistic's distribution. A bet on
the rank k, counted from the top,

    f(k) = mean over ε of (r + 1) [(k/(r + 1))^ε − ((k − 1)/(r + 1))^ε]

has the mean 1 over the ranks: it is an e-value, the ε-mixture of the power bets ε p^(ε−1) that are
usual for conformal p-values, averaged over the p-values that share a rank, so that no random number
is needed to break ties. It pays up to about 0.3 (r + 1) for a batch beyond all reference batches.

Evidence is gathered as by Page (1954): C ← max(1, C) f, and a change is declared at C ≥ ``limit``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from functools import lru_cache

EXPONENTS = (0.1, 0.25, 0.5)  # ε: the smaller, the more is staked on the first ranks


@lru_cache(maxsize=1024)
def stakes(size: int) -> tuple[float, ...]:
    """∫ f up to the k-th of ``size`` ranks, times ``size``: f(k) is a difference of two."""
    powers = [[(k / size) ** e for e in EXPONENTS] for k in range(size + 1)]
    return tuple(size * sum(row) / len(row) for row in powers)


class Reference:
    """The last values of a statistic in batches that were found typical, oldest dropped first."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.values: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self.values)

    def add(self, value: float) -> None:
        """Take in the value of one more typical batch."""
        self.values.append(value)
        insort(self._sorted, value)
        if len(self.values) > self.length:
            del self._sorted[bisect_left(self._sorted, self.values.popleft())]

    def clear(self) -> None:
        """Forget all values."""
        self.values.clear()
        self._sorted.clear()

    def quantile(self, share: float) -> float:
        """The least value that ``share`` of the values do not exceed; NaN where there is none."""
        if not self._sorted:
            return float("nan")
        return self._sorted[min(int(share * len(self._sorted)), len(self._sorted) - 1)]

    def factor(self, value: float, raised: float = 0.0) -> float:
        """f of a value that may be high, with all reference values ``raised``."""
        above = len(self._sorted) - bisect_right(self._sorted, value - raised)
        return self._bet(above, self._equal(value - raised))

    def factor_of_either_side(self, value: float) -> float:
        """f of a value that may be high or low: half of the stake on each."""
        above = len(self._sorted) - bisect_right(self._sorted, value)
        equal = self._equal(value)
        below = len(self._sorted) - above - equal
        return 0.5 * (self._bet(above, equal) + self._bet(below, equal))

    def _equal(self, value: float) -> int:
        return bisect_right(self._sorted, value) - bisect_left(self._sorted, value)

    def _bet(self, beyond: int, equal: int) -> float:
        """The mean of f over the ranks that values equal to this one share."""
        sums = stakes(len(self._sorted) + 1)
        return (sums[beyond + equal + 1] - sums[beyond]) / (equal + 1)
