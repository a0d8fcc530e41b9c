"""Which samples have come before, so that a second epoch is noticed.

A sample is known by a number of 8 bytes, its fingerprint. Of a stream without end the last million
are kept, in runs that are sorted once, when they are full: to ask for a block of samples then costs
the same after a million samples as after ten million, and no block pays for sorting all.
"""

from __future__ import annotations

import torch
from torch import Tensor

RUN = 2**14  # fingerprints that are sorted together
RUNS = 64  # sorted runs that are kept; with each that comes more, the oldest is forgotten


class Seen:
    """Fingerprints of the samples that came last, at most ``RUN`` · (``RUNS`` + 1) of them."""

    def __init__(self, device: torch.device) -> None:
        self.recent = torch.zeros(0, dtype=torch.int64, device=device)  # fewer than ``RUN``
        self.runs = self.recent.new_zeros(0, RUN)  # each sorted, the oldest first

    def has(self, marks: Tensor) -> Tensor:
        """Which of the fingerprints (n,) have come, (n,)."""
        found = torch.isin(marks, self.recent)
        if len(self.runs):
            asked = marks.expand(len(self.runs), -1).contiguous()
            places = torch.searchsorted(self.runs, asked).clamp_(max=RUN - 1)
            found |= (self.runs.gather(1, places) == asked).any(0)
        return found

    def add(self, marks: Tensor) -> None:
        """Fingerprints (n,) that have come now."""
        self.recent = torch.cat((self.recent, marks))
        while len(self.recent) >= RUN:
            run = self.recent[:RUN].sort().values
            self.runs = torch.cat((self.runs, run[None]))[-RUNS:]
            self.recent = self.recent[RUN:].clone()

    def state(self) -> Tensor:
        """For a checkpoint: all that are kept, (n,)."""
        return torch.cat((self.runs.flatten(), self.recent))

    def restore(self, state: Tensor) -> None:
        """Continue from ``state``."""
        self.runs, self.recent = self.runs[:0], self.recent[:0]
        self.add(state)


def fingerprint(z: Tensor) -> Tensor:
    """A number (n,) for the bits of each sample (n, D): the same for the same sample."""
    odd = (
        torch.arange(1, z.shape[1] + 1, device=z.device, dtype=torch.int64) * 0x9E3779B97F4A7C1 | 1
    )
    return (z.contiguous().view(torch.int32).long() * odd).sum(1)
