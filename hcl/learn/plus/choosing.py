"""The numbers of the measured Gaussians, chosen by the stream itself.

Four numbers decide how well the Gaussians and the regression beside them tell classes apart: ε and
ν of the covariances, the temperature T, and the weight w of the regression's scores s,

    log p(c | x) = (1/T) log N(z; m_c, Σ_c) + w s_c − log Σ_c' … .

T is there because D features are not as independent of each other as a Gaussian's are: with T = 1
nearly every answer is given with probability 1.

A sample that was not learned yet is a test that costs nothing (prequential: Dawid, 1984). Samples
wait in blocks before they are taken into the covariances. From time to time, whenever half as many
samples again have come, the block that waits is left out of all sums, every combination of the
numbers on a grid is asked for log p of the true pair, and this is added up, each sample weighed by
how many others its pair had: what is hardly known yet says little of what will be known. The
combination with the highest sum is taken. No second pass, no held-out set, nothing set by hand for
a data set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

GROWTH = 1.5  # samples so far, over those at the last trial, at which another is due
FIRST = 64  # samples before the first trial


@dataclass(frozen=True)
class Grid:
    """Values that are tried. One value alone is not chosen, but given."""

    shrinkage: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 0.9)  # ε
    strength: tuple[float, ...] = (16.0, 8.0, 4.0, 2.0, 1.0, 0.5, 0.25)  # ν / D
    temperature: tuple[float, ...] = (1.0, 1.5, 2.2, 3.4, 5.0, 7.5, 11.0, 16.0, 24.0, 36.0)  # T
    weight: tuple[float, ...] = (0.0, 2.0, 4.0, 8.0, 16.0)  # w

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """How many of each."""
        return len(self.shrinkage), len(self.strength), len(self.temperature), len(self.weight)


@dataclass(frozen=True)
class Chosen:
    """One combination."""

    shrinkage: float
    strength: float
    temperature: float
    weight: float


class Choice:
    """Sums of log p(c | x) for every combination, and the best of them.

    Args:
        grid: the values.
        size: D.
        device: where the latents are.
    """

    def __init__(self, grid: Grid, size: int, device: torch.device) -> None:
        self.grid, self.size = grid, size
        self.sums = torch.zeros(grid.shape, dtype=torch.float64, device=device)
        self.tried = 0  # samples that had come at the last trial
        self.trials = 0

    def is_due(self, samples: int) -> bool:
        """Whether to try again after so many samples."""
        return self.sums.numel() > 1 and samples >= max(FIRST, GROWTH * self.tried)

    def add(
        self, shrinkage: int, gaussians: list[Tensor], ridge: Tensor, pairs: Tensor, weights: Tensor
    ) -> None:
        """What samples say of the ε of number ``shrinkage``, for every ν, T and w.

        Args:
            shrinkage: its place in the grid.
            gaussians: log-likelihoods (n, C) for each ν; −∞ for a pair without samples.
            ridge: scores of the regression (n, C), finite.
            pairs: of the samples (n,).
            weights: of the samples (n,).
        """
        grid = self.grid
        for i, log_likelihoods in enumerate(gaussians):
            for j, temperature in enumerate(grid.temperature):
                cold = log_likelihoods / temperature
                for k, weight in enumerate(grid.weight):
                    log_p = torch.add(cold, ridge, alpha=weight).log_softmax(1)
                    said = log_p.gather(1, pairs[:, None])[:, 0].double()
                    self.sums[shrinkage, i, j, k] += (weights * said).sum()

    def best(self) -> Chosen:
        """The combination with the highest sum; before any trial, the middle of the road."""
        grid = self.grid
        if not self.trials:
            place = [
                _nearest(grid.shrinkage, 0.1),
                _nearest(grid.strength, 4.0),
                _nearest(grid.temperature, max(1.0, self.size / 128)),
                _nearest(grid.weight, 4.0),
            ]
        else:
            place = [int(i) for i in torch.unravel_index(self.sums.argmax(), grid.shape)]
        return Chosen(
            grid.shrinkage[place[0]],
            grid.strength[place[1]],
            grid.temperature[place[2]],
            grid.weight[place[3]],
        )

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"sums": self.sums, "tried": self.tried, "trials": self.trials}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.sums, self.tried, self.trials = state["sums"].clone(), state["tried"], state["trials"]


def _nearest(values: tuple[float, ...], wanted: float) -> int:
    return min(range(len(values)), key=lambda i: abs(values[i] - wanted))
