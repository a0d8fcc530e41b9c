"""What a detector says of a batch."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Watched(NamedTuple):
    """One statistic of a batch, and the bounds that the verdict used; NaN where there are none."""

    value: float
    low: float
    high: float


class Verdict(NamedTuple):
    """What is said of a batch.

    Attributes:
        verdict: ``SAME``, ``NEW`` or ``RECURRING``.
        task: the current task after it, in the order in which tasks were met.
        released: batches to learn now as that task's, in their order; often the batch itself, none
            while it waits, several after an alarm or a suspicion that has passed.
        earlier: at a change, batches that waited but are from before it: to learn first, as those
            of the task that was the current one.
        statistics: what was looked at.
        waiting: batches that wait after it.
    """

    verdict: int
    task: int
    released: list[tuple[Tensor, Tensor]]
    earlier: list[tuple[Tensor, Tensor]]
    statistics: dict[str, Watched]
    waiting: int
