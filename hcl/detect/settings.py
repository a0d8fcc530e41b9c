"""The one setting of the calibrated detector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from hcl.detect.sequential import ENOUGH
from hcl.settings import Range, check_limits

NEEDED = ENOUGH + 3  # batches of a stream before it can be judged: two make the first metric
Apart = Annotated[int, Range(100, 1_000_000)]  # batches; what the limits were simulated for


@dataclass(frozen=True)
class CalibratedSettings:
    """Changes of task are found from ranks, at a stated rate of false alarms.

    Attributes:
        kind: ``calibrated``.
        false_alarm_every: N, batches between two false alarms, on average, while nothing changes.
    """

    kind: Literal["calibrated"] = "calibrated"
    false_alarm_every: Apart = 10_000

    def __post_init__(self) -> None:
        check_limits(self)

    def advice(self, batches: int) -> str | None:
        """What to say of a stream whose shortest segment has so many batches."""
        if batches >= NEEDED:
            return None
        return (
            f"the shortest segment of the stream has {batches} batches, and the detector needs "
            f"{NEEDED} before it judges: changes of task may be missed. Take smaller batches."
        )
