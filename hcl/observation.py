"""What a learner hands back: its answers, and what one batch left behind."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class Prediction(NamedTuple):
    """A learner's answers: see ``hcl.runs`` for what each means."""

    predicted_class: NDArray[np.int16]  # (n,)
    predicted_task: NDArray[np.int16]
    pair_class: NDArray[np.int16]


class Evidence(NamedTuple):
    """What a task-agnostic learner went by on one batch, for the trace."""

    statistics: NDArray[np.float64]  # (3,) S1, S2, S3 of the batch for the task before the verdict
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    verdict: int


class Observation(NamedTuple):
    """What one batch left behind: its loss, and the evidence of a task-agnostic learner."""

    loss: Tensor | None = None
    evidence: Evidence | None = None
