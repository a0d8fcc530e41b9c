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

    Where tasks bring new classes, most pairs (y, t) never come: with ``only_seen``, Bayes' rule and
    replay go by those that did, ``seen[t, y]``.

    Args:
        num_classes: K, the same for every task.
        size: D, the number of latent features.
        mean_scale: standard deviation of each entry of a mean.
        only_seen: whether pairs that were never marked as seen are left out.
    """

    means: Tensor
    seen: Tensor | None

    def __init__(
        self, num_classes: int, size: int, mean_scale: float = 1.0, only_seen: bool = False
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.size = size
        self.mean_scale = mean_scale
        self.register_buffer("means", torch.empty(0, num_classes, size))
        seen = torch.zeros(0, num_classes, dtype=torch.bool) if only_seen else None
        self.register_buffer("seen", seen)

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
        if self.seen is not None:
            self.seen = torch.cat((self.seen, self.seen.new_zeros(1, self.num_classes)))
        return self.num_tasks - 1

    def add_classes(self, count: int, generator: torch.Generator) -> None:
        """Draw the means of ``count`` more classes, in every task that is there."""
        shape = (self.num_tasks, count, self.size)
        means = torch.randn(*shape, generator=generator, device=generator.device)
        self.means = torch.cat((self.means, (self.mean_scale * means).to(self.means)), 1)
        if self.seen is not None:
            self.seen = torch.cat((self.seen, self.seen.new_zeros(shape[:2])), 1)
        self.num_classes += count

    def mark(self, y: Tensor, t: int) -> None:
        """Samples of the classes ``y`` came in task ``t``."""
        if self.seen is not None:
            self.seen[t, y] = True

    def unseen(self, y: Tensor, t: int) -> Tensor:
        """Whether a sample's class never came in task ``t``, (B,); never without ``only_seen``."""
        if self.seen is None:
            return torch.zeros_like(y, dtype=torch.bool)
        return ~self.seen[t, y]

    def log_prob(self, z: Tensor, y: Tensor, t: Tensor | int) -> Tensor:
        """log N(z; μ_{y,t}, I), (B,), for one class and task a sample."""
        square = (z - self.means[t, y]).square().sum(-1)
        return -0.5 * square - 0.5 * self.size * math.log(2 * math.pi)

    def log_marginal(self, z: Tensor, t: Tensor | int) -> Tensor:
        """log 1/K Σ_y N(z; μ_{y,t}, I), (B,): of a sample without a label."""
        of_all = self.log_probs(z).logsumexp(2) - math.log(self.num_classes)  # (B, T)
        if isinstance(t, int):
            return of_all[:, t]
        return of_all.gather(1, t[:, None])[:, 0]

    def log_prob_of_any(self, z: Tensor, y: Tensor, t: Tensor | int) -> Tensor:
        """``log_prob``, or ``log_marginal`` where ``y`` is below 0: no label is given."""
        labelled = self.log_prob(z, y.clamp(min=0), t)
        return torch.where(y < 0, self.log_marginal(z, t), labelled)

    def scores(self, z: Tensor) -> Tensor:
        """log N(z; μ_{y,t}, I) up to a term that depends on z alone, (B, T, K).

        ‖z − μ‖² = ‖z‖² − 2 z·μ + ‖μ‖²: one matrix product for all classes. The term ‖z‖² is the
        same for each class, and left out: beside it, float32 would round away the differences
        between classes that decide. Means far from the origin would bring the same loss back, so
        all is measured from the centre of the means. −∞ for a pair that never came.
        """
        centre = self.means.mean((0, 1))
        means = (self.means - centre).flatten(0, 1)  # (T K, D)
        scores = torch.addmm(-0.5 * means.square().sum(-1), z - centre, means.T)
        scores = scores.unflatten(1, (self.num_tasks, self.num_classes))
        return scores if self.seen is None else scores.masked_fill(~self.seen, -torch.inf)

    def log_probs(self, z: Tensor) -> Tensor:
        """log N(z; μ_{y,t}, I) for every class and task, (B, T, K)."""
        square = (z - self.means.mean((0, 1))).square().sum(-1)
        common = -0.5 * square - 0.5 * self.size * math.log(2 * math.pi)
        return self.scores(z) + common[:, None, None]

    def sample_classes(self, t: Tensor, generator: torch.Generator) -> Tensor:
        """A class for each of the tasks ``t``, uniform over those that came in it."""
        if self.seen is None:
            return torch.randint(self.num_classes, t.shape, generator=generator, device=t.device)
        came = self.seen[t]
        came = came | ~came.any(1, keepdim=True)  # a task without samples has all of them
        return torch.multinomial(came.float(), 1, generator=generator)[:, 0]

    def sample(self, y: Tensor, t: Tensor | int, generator: torch.Generator) -> Tensor:
        """z ~ N(μ_{y,t}, I), (B, D). The noise is drawn where the generator lives."""
        means = self.means[t, y]
        noise = torch.randn(
            means.shape, dtype=means.dtype, generator=generator, device=generator.device
        )
        return means + noise.to(means.device)
