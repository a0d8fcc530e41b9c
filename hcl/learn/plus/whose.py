"""Whose sample is it, in HCL+: the task of each sample of a mixed batch is inferred.

As for flows (``hcl.learn.belonging``), with the measured Gaussians in place of the flow's,

    log p̂(x | y, t) = −½ (z − m_{y,t})ᵀ Σ⁻¹ (z − m_{y,t}),

up to what all tasks share. A class of which the current task has no sample yet is as unlikely there
as can be, so that a sample is the current task's unless it is typical of an earlier one. Samples of
earlier tasks are left out: their sums stand for them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hcl.learn.belonging import Belonging
from hcl.learn.moments import Inverse, Moments

SHRINKAGE = 0.1  # ε of Σ
NEVER = -1e30  # log p̂ in the current task where a class never came there


class Whose:
    """Infers which samples of a batch are the current task's."""

    def __init__(self) -> None:
        self.belonging = Belonging()
        self.metric = Inverse()

    def own(self, z: Tensor, y: Tensor, moments: Moments, num_classes: int, task: int) -> Tensor:
        """Which of the latents (n, D) of classes ``y`` are of ``task``, (n,)."""
        if not moments.samples:
            return torch.ones_like(y, dtype=torch.bool)
        each = self.log_likelihoods(z, y, moments, num_classes)
        each[:, task].clamp_(min=NEVER)
        t = self.belonging.task_of(each, task)
        found = each.gather(1, t[:, None])[:, 0]
        known = found > NEVER
        self.belonging.learned(found[known], t[known])
        return t == task

    def log_likelihoods(self, z: Tensor, y: Tensor, moments: Moments, num_classes: int) -> Tensor:
        """log p̂ of each sample for its class in every task, (n, T), up to what tasks share."""
        inverse = self.metric.of(moments, SHRINKAGE, z.shape[1])
        means = moments.means(z.shape[1]).to(z)
        both = ((z @ inverse) * z).sum(1, keepdim=True) + ((means @ inverse) * means).sum(1)
        square = both - 2 * (z @ inverse) @ means.T
        found = (-0.5 * square).masked_fill(moments.counts == 0, -torch.inf)
        by_task = found.unflatten(1, (-1, num_classes))  # (n, T, K)
        return by_task.gather(2, y[:, None, None].expand(-1, by_task.shape[1], 1))[:, :, 0]

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"belonging": self.belonging.state(), "metric": self.metric.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.belonging.restore(state["belonging"])
        self.metric.restore(state["metric"])
