"""Evidence of a change from ranks alone: what it is worth does not depend on any distribution.

A statistic of m batches is ranked together with the same statistic of r reference batches. If all
of them are alike, each of the (r + m)! orders is equally likely, whatever the statistic's
distribution. After a change the m tend to be larger. If the reference has the distribution function
F and the m have F^θ (Lehmann, 1953), the order has the probability of Plackett and Luce: from the
largest down, each place falls to one of those left in proportion to its weight, 1 or θ. So with S_j
the sum of the weights of the j smallest,

    E(θ) = (r + m)! θ^m / Π_j S_j

is the likelihood ratio of the order that was found. It is exact for every r and m, also where few
reference batches stand behind a long suspicion, and its mean is 1 while nothing changes. Where all
m lie beyond all r it tends to the largest value that ranks can give, (r + m)! / (r! m!), as θ
grows. E is the mean over ``WEIGHTS``, for changes of any size.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence
from math import exp, lgamma, log

WEIGHTS = (4.0, 16.0, 64.0, 256.0)  # θ: a batch is the largest of θ with even odds


def log_ratio(below: Sequence[float], reference: int, weight: float) -> float:
    """log E(θ) of batches with so many reference values ``below`` each, in ascending order."""
    found = lgamma(reference + len(below) + 1) + len(below) * log(weight)
    before = 0.0  # reference values that are passed on the way up
    passed = 0.0  # weight of the batches that are
    for here in below:
        found -= lgamma(here + passed + 1) - lgamma(before + passed + 1)
        passed += weight
        found -= log(here + passed)
        before = here
    return found - lgamma(reference + passed + 1) + lgamma(before + passed + 1)


def evidence(below: Sequence[float], reference: int) -> float:
    """E, the mean over θ."""
    ordered = sorted(below)
    ratios = [exp(min(log_ratio(ordered, reference, w), 600.0)) for w in WEIGHTS]
    return sum(ratios) / len(ratios)


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
        """The value that ``share`` of the values lie below; NaN where there is none."""
        if not self._sorted:
            return float("nan")
        return self._sorted[min(int(share * len(self._sorted)), len(self._sorted) - 1)]

    def below(self, value: float) -> float:
        """How many values are smaller; one that is equal counts as half."""
        return 0.5 * (bisect_left(self._sorted, value) + bisect_right(self._sorted, value))
