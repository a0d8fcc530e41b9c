"""The latent mixture: a Gaussian N(μ_{y,t}, I) for each class y of each task t (Section 4.1)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class LatentMixture(nn.Module):
    """Gaussians with unit covariance and fixed means; ``means[t, y]`` is μ_{y,t}.

    It starts without tasks. The means are a buffer, never trained.

    Paper: means drawn at random when a task is added, silent on the distribution. Here:
    N(0, mean_scale² I). With scale 1 in D dimensions two means lie √(2D) apart, far beyond the
    Gaussians' overlap, and all at the same distance from the origin, so that no class is favoured.

    Args:
        num_classes: K, the same for every task.
        size: D, the number of latent features.
        mean_scale: standard deviation of each entry of a mean.
    """

    means: Tensor

    def __init__(self, num_classes: int, size: int, mean_scale: float = 1.0) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.size = size
        self.mean_scale = mean_scale
        self.register_buffer("means", torch.empty(0, num_classes, size))

    @property
    def num_tasks(self) -> int:
        """T, the number of tasks so far."""
        return len(self.means)

    def add_task(self, generator: torch.Generator) -> int:
        """Draw the K means of a new task; its index."""
        means = torch.randn(
            1, self.num_classes, self.size, generator=generator, device=generator.device
        )
        self.means = torch.cat((self.means, (self.mean_scale * means).to(self.means)))
        return self.num_tasks - 1

    def log_prob(self, z: Tensor, y: Tensor, t: Tensor | int) -> Tensor:
        """log N(z; μ_{y,t}, I), (B,), for one class and task a sample."""
        square = (z - self.means[t, y]).square().sum(-1)
        return -0.5 * square - 0.5 * self.size * math.log(2 * math.pi)

    def scores(self, z: Tensor) -> Tensor:
        """log N(z; μ_{y,t}, I) up to a term that depends on z alone, (B, T, K).

        ‖z − μ‖² = ‖z‖² − 2 z·μ + ‖μ‖²: one matrix product for all classes. The term ‖z‖² is the
        same for each class, and left out: beside it, float32 would round away the differences
        between classes that decide. Means far from the origin would bring the same loss back, so
        all is measured from the centre of the means.
        """
        centre = self.means.mean((0, 1))
        means = (self.means - centre).flatten(0, 1)  # (T K, D)
        scores = torch.addmm(-0.5 * means.square().sum(-1), z - centre, means.T)
        return scores.unflatten(1, (self.num_tasks, self.num_classes))

    def log_probs(self, z: Tensor) -> Tensor:
        """log N(z; μ_{y,t}, I) for every class and task, (B, T, K)."""
        square = (z - self.means.mean((0, 1))).square().sum(-1)
        common = -0.5 * square - 0.5 * self.size * math.log(2 * math.pi)
        return self.scores(z) + common[:, None, None]

    def sample(self, y: Tensor, t: Tensor | int, generator: torch.Generator) -> Tensor:
        """z ~ N(μ_{y,t}, I), (B, D). The noise is drawn where the generator lives."""
        means = self.means[t, y]
        noise = torch.randn(
            means.shape, dtype=means.dtype, generator=generator, device=generator.device
        )
        return means + noise.to(means.device)
