"""What the training loop and a learner say to each other: batches, answers, evidence."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class Batch(NamedTuple):
    """What a task-agnostic learner sees: samples and labels, nothing of the task."""

    x: Tensor  # (n, D), or (n, C, H, W)
    y: Tensor  # (n,)


class TaskBatch(NamedTuple):
    """What a learner sees that is told the task."""

    x: Tensor
    y: Tensor
    task: int  # the benchmark's number

    def without_task(self) -> Batch:
        """The same samples for a learner that is not told."""
        return Batch(self.x, self.y)


class TaskBatches(NamedTuple):
    """Samples of several tasks, one task after the other, as many of each."""

    x: Tensor
    y: Tensor


class Prediction(NamedTuple):
    """A learner's answers: see ``hcl.records.runs`` for what each means."""

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
