"""Adam, as every learner of the project that has weights uses it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim.adam import adam

SHARE = 0.02  # of the newest gradient in the mean length


class Adam:
    """Adam with an L2 term, by torch's fused kernel, on a fixed list of parameters.

    ``torch.optim.Adam`` makes the same call, but its constructor imports torch's compiler first,
    which takes longer than many a small run.

    Args:
        parameters: what is trained.
        learning_rate: η.
        weight_decay: of the L2 term.
        clip: c: a gradient that is longer than c times the running mean of their lengths is
            shortened to that. Without it one sample far out, whose gradient is a thousand times a
            batch's, fills the second moments, and nothing is learned for thousands of steps.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        learning_rate: float,
        weight_decay: float,
        clip: float | None = None,
    ) -> None:
        self.parameters = list(parameters)
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.clip = clip
        self.averages = [torch.zeros_like(p) for p in self.parameters]
        self.squares = [torch.zeros_like(p) for p in self.parameters]
        self.steps = [torch.zeros((), device=p.device) for p in self.parameters]
        self.length = [torch.full_like(steps, torch.inf) for steps in self.steps[:1]]  # no step yet

    def zero_grad(self) -> None:
        """Drop the gradients of the last step."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step along the gradients that ``backward`` left."""
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.parameters]
        if self.clip is not None:
            self._shorten(grads, self.clip)
        adam(
            list(self.parameters),
            grads,
            self.averages,
            self.squares,
            [],
            self.steps,
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self.learning_rate,
            weight_decay=self.weight_decay,
            eps=1e-8,
            maximize=False,
        )

    def _shorten(self, grads: list[Tensor], clip: float) -> None:
        """In place; without a look from the host."""
        mean = self.length[0]
        length = get_total_norm(grads).to(mean)
        shorter = torch.minimum(length, clip * mean)
        factor = shorter / length.clamp(min=1e-30)
        for grad in grads:
            grad.mul_(factor)
        mean.copy_(torch.where(mean.isinf(), length, mean.lerp(shorter, SHARE)))

    def state_dict(self) -> dict[str, list[Tensor]]:
        """Moments and step counts, and where gradients are clipped their mean length."""
        state = {"averages": self.averages, "squares": self.squares, "steps": self.steps}
        return state if self.clip is None else state | {"length": self.length}

    def load_state_dict(self, state: dict[str, list[Tensor]]) -> None:
        """Continue from ``state``."""
        known = ("averages", "squares", "steps")
        for name in (*known, *(("length",) if "length" in state else ())):
            for mine, theirs in zip(getattr(self, name), state[name], strict=True):
                mine.copy_(theirs)
