"""A linear layer whose weights come from a generator."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Module):
    """A linear layer with weights and biases uniform within ±1/√inputs, from ``generator``."""

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        numbers = torch.rand(outputs, inputs + 1, generator=generator, device=generator.device)
        numbers = (2 * numbers - 1) * inputs**-0.5
        self.weight = nn.Parameter(numbers[:, :-1].contiguous())
        self.bias = nn.Parameter(numbers[:, -1].contiguous())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)
