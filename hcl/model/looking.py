"""When a value may be read back: on the CPU at any time, elsewhere seldom.

A GPU works off a queue, and who looks at one of its values waits until the queue is empty: a step
that does so can't be prepared while the step before it runs.
"""

from __future__ import annotations

import torch


def is_free(device: torch.device) -> bool:
    """Whether looking at a value costs nothing."""
    return device.type == "cpu"
