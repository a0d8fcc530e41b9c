"""Whose sample is it? In a mixed batch, each sample's task is inferred; beyond the paper.

The samples of a batch are of several tasks, and nobody says which is whose. The model of a batch is
a mixture over the tasks known so far, and each sample is given to its likeliest component with the
current parameters (hard assignment, as in classification EM):

    t_i = argmax_t log p̂_X(x_i | y_i, t),   L_ll = mean of log p̂_X(x_i | y_i, c) over t_i = c

with c the current task. Two things keep it from falling into itself. A task that is new has not
learned its Gaussians yet: none of its samples would be likeliest there, so t_i is an earlier task
only if log p̂ lies at most ``TYPICAL`` standard deviations below what that task's own samples had.
And samples of earlier tasks are left out of L_ll (the memory stands for them): what is taken for an
old task's by mistake is not drawn into it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

TYPICAL = 1.5  # standard deviations
KEEP = 0.9  # of what is known of a task's own samples, at each batch of it


class Belonging:
    """Infers each sample's task, and keeps how likely the samples of each task are."""

    def __init__(self) -> None:
        self.levels: dict[int, Tensor] = {}  # by task: weight, sum and sum of squares of log p̂

    def task_of(self, log_likelihoods: Tensor, current: int) -> Tensor:
        """The task of each sample, (B,), from log p̂ for every task, (B, T), up to a term of x."""
        least = log_likelihoods.new_full((log_likelihoods.shape[1],), -torch.inf)
        for task in self.levels:
            mean, std = self.level(task)
            least[task] = mean - TYPICAL * std
        others = log_likelihoods.masked_fill(log_likelihoods < least, -torch.inf)
        others[:, current] = log_likelihoods[:, current]
        return others.argmax(1)

    def level(self, task: int) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of log p̂ of the task's own samples."""
        weight, total, squares = self.levels[task]
        mean = total / weight
        return mean, (squares / weight - mean.square()).clamp(min=0).sqrt()

    def learned(self, log_likelihoods: Tensor, t: Tensor) -> None:
        """Samples of the tasks ``t`` were looked at, and had these log p̂ there."""
        for task in t.unique().tolist():
            own = log_likelihoods[t == task].double()
            new = torch.stack([own.new_tensor(len(own)), own.sum(), own.square().sum()])
            before = self.levels.get(task)
            self.levels[task] = new if before is None else KEEP * before + new

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"levels": dict(self.levels)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.levels = dict(state["levels"])
