"""Adam, as every learner of the project that has weights uses it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.adam import adam


class Adam:
    """Adam with an L2 term, by torch's fused kernel, on a fixed list of parameters.

    ``torch.optim.Adam`` makes the same call, but its constructor imports torch's compiler first,
    which takes longer than many a small run.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], learning_rate: float, weight_decay: float
    ) -> None:
        self.parameters = list(parameters)
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.averages = [torch.zeros_like(p) for p in self.parameters]
        self.squares = [torch.zeros_like(p) for p in self.parameters]
        self.steps = [torch.zeros((), device=p.device) for p in self.parameters]

    def zero_grad(self) -> None:
        """Drop the gradients of the last step."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step along the gradients that ``backward`` left."""
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.parameters]
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

    def state_dict(self) -> dict[str, list[Tensor]]:
        """Moments and step counts."""
        return {"averages": self.averages, "squares": self.squares, "steps": self.steps}

    def load_state_dict(self, state: dict[str, list[Tensor]]) -> None:
        """Continue from ``state``."""
        for name in ("averages", "squares", "steps"):
            for mine, theirs in zip(getattr(self, name), state[name], strict=True):
                mine.copy_(theirs)
