"""Whose sample is it, in HCL+: the task of each sample of a mixed batch is inferred.

As for flows (``hcl.learn.belonging``), with the measured Gaussians in place of the flow's, along
the q directions u = Wᵀz in which all samples spread most, scaled so that S, the covariance of u
within pairs, is the identity. With n samples behind its mean a pair expects

    log p̂(x | y, t) = −½ ‖u − m_{y,t}‖² / (1 + 1/n) − ½ q log (1 + 1/n),

up to what all tasks share: the mean of few samples is itself uncertain. Both matter where there are
fewer samples than features. Along a direction that no sample has had yet everything is far away;
and a mean of a few samples lies off its class by its noise along every direction, so that an old
task, whose means are known well, would seem to be nearer. A class of which the current task has no
sample yet is as unlikely there as can be, so that a sample is the current task's unless it is
typical of an earlier one. Samples of earlier tasks are left out: their sums stand for them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hcl.learn.belonging import Belonging
from hcl.learn.moments import Moments

DIRECTIONS = 40  # at most; q
SAMPLES_FOR_EACH = 10  # samples for each direction
ROUNDS = 20  # of orthogonal iteration
SHRINKAGE = 0.1  # ε of S
NEVER = -1e30  # log p̂ in the current task where a class never came there


class Whose:
    """Infers which samples of a batch are the current task's."""

    def __init__(self) -> None:
        self.belonging = Belonging()
        self._samples = 0  # behind W
        self._leading = torch.empty(0)  # W, (D, q)

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
        if moments.samples >= 1.25 * self._samples:
            self._leading, self._samples = leading(moments, z.shape[1]), moments.samples
        u = z.double() @ self._leading
        means = moments.means(z.shape[1]) @ self._leading
        wider = 1 + 1 / moments.counts.clamp(min=1)
        square = torch.cdist(u, means).square()
        found = -0.5 * (square / wider + u.shape[1] * wider.log())
        by_task = found.masked_fill(moments.counts == 0, -torch.inf)
        by_task = by_task.unflatten(1, (-1, num_classes))  # (n, T, K)
        return by_task.gather(2, y[:, None, None].expand(-1, by_task.shape[1], 1))[:, :, 0]

    def state(self) -> dict[str, Any]:
        """For a checkpoint: when W was taken decides what it is."""
        return {
            "belonging": self.belonging.state(),
            "samples": self._samples,
            "leading": self._leading,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.belonging.restore(state["belonging"])
        self._samples, self._leading = state["samples"], state["leading"]


def leading(moments: Moments, size: int) -> Tensor:
    """W, (D, q): the directions of most spread, with unit covariance within pairs along them."""
    counts, means = moments.counts, moments.means(size)
    within = moments.covariance(0.0, size)
    centre = (counts @ means) / counts.sum()
    between = (means - centre).T * (counts / counts.sum()) @ (means - centre)
    spread = within + between
    q = min(DIRECTIONS, size, max(1, moments.samples // SAMPLES_FOR_EACH))
    basis = spread[:, spread.diagonal().topk(q).indices.sort().values]
    for _ in range(ROUNDS):
        basis = spread @ torch.linalg.qr(basis).Q
    basis = torch.linalg.qr(basis).Q
    inside = basis.T @ within @ basis
    variance = inside.diagonal().mean().clamp(min=1e-12)
    inside = (1 - SHRINKAGE) * inside
    inside.diagonal().add_(SHRINKAGE * variance)
    factor = torch.linalg.cholesky(inside)
    return torch.linalg.solve_triangular(factor, basis.T, upper=False).T
