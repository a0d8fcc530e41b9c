"""The numbers of the measured Gaussians, chosen by the stream itself.

Four numbers decide how well the Gaussians and the regression beside them tell classes apart: ε and
a of the covariances, the temperature T, and the weight w of the regression's scores s,

    log p(c | x) = (1/T) log N(z; m_c, Σ_c) + w s_c − log Σ_c' … .

T is there because D features are not as independent of each other as a Gaussian's are: with T = 1
nearly every answer is given with probability 1.

A sample that was not learned yet is a test that costs nothing (prequential: Dawid, 1984). Samples
wait in two blocks before they are taken into the covariances. When a task is over, what waits is
left out of all sums, every combination of the numbers on a grid is asked for log p of the true
pair, and the logarithms are added up, weighed by the number of samples that stood behind the
answers: what comes late is nearest to what will be asked. The combination with the highest sum is
taken. No second pass, no held-out set, nothing set by hand for a data set.

The end of a task is the time, because the pairs of the test then have as many samples as they will
have. A pair of which little is known yet asks for one covariance for all, and would choose that for
ever. Within a task a block is tried as well, whenever half as many samples again have come, where
most of its pairs have nearly as many samples as pairs have on average: a stream without changes has
no end of a task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

GROWTH = 1.5  # samples so far, over those at the last trial, at which another is due
GROWTH_OF_TASKS = 1.1  # the same, where a task is over
FIRST = 64  # samples before the first trial


@dataclass(frozen=True)
class Grid:
    """Values that are tried. One value alone is not chosen, but given."""

    shrinkage: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.5)  # ε
    blend: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)  # a
    temperature: tuple[float, ...] = (1.0, 1.5, 2.2, 3.4, 5.0, 7.5, 11.0, 16.0, 24.0, 36.0)  # T
    weight: tuple[float, ...] = (0.0, 2.0, 4.0, 8.0, 16.0)  # w


@dataclass(frozen=True)
class Chosen:
    """One combination."""

    shrinkage: float
    blend: float
    temperature: float
    weight: float


class Choice:
    """Sums of log p(c | x) for every combination, and the best of them.

    ε is chosen first, with one covariance for all pairs and without the regression: solving for
    the pairs' own covariances once for each ε would cost as many times more.

    Args:
        grid: the values.
        size: D.
        device: where the latents are.
    """

    def __init__(self, grid: Grid, size: int, device: torch.device) -> None:
        self.grid, self.size = grid, size
        temperatures = len(grid.temperature)
        self.pooled = torch.zeros(
            len(grid.shrinkage), temperatures, dtype=torch.float64, device=device
        )
        self.sums = torch.zeros(
            *(len(grid.blend), temperatures, len(grid.weight)),
            dtype=torch.float64,
            device=device,
        )
        self.tried = 0  # samples that had come at the last trial
        self.trials = 0

    def is_due(self, samples: int, is_over: bool) -> bool:
        """Whether to try again after so many samples, at the end of a task or within it."""
        given = self.pooled.shape[0] == self.sums.numel() == 1
        growth = GROWTH_OF_TASKS if is_over else GROWTH
        return not given and samples >= max(FIRST, growth * self.tried)

    def best_shrinkage(self) -> float:
        """ε."""
        values = self.grid.shrinkage
        if not self.trials:
            return values[_nearest(values, 0.1)]
        return values[int(self.pooled.amax(1).argmax())]

    def best(self) -> Chosen:
        """The combination with the highest sum; before any trial, the middle of the road."""
        grid = self.grid
        if self.trials:
            place = [int(i) for i in torch.unravel_index(self.sums.argmax(), self.sums.shape)]
        else:
            place = [
                _nearest(grid.blend, 0.1),
                _nearest(grid.temperature, max(1.0, self.size / 128)),
                _nearest(grid.weight, 4.0),
            ]
        return Chosen(
            self.best_shrinkage(),
            grid.blend[place[0]],
            grid.temperature[place[1]],
            grid.weight[place[2]],
        )

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "pooled": self.pooled,
            "sums": self.sums,
            "tried": self.tried,
            "trials": self.trials,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.pooled, self.sums = state["pooled"].clone(), state["sums"].clone()
        self.tried, self.trials = state["tried"], state["trials"]


def log_posteriors(log_likelihoods: Tensor, ridge: Tensor, pairs: Tensor, grid: Grid) -> Tensor:
    """Mean log p(c | x) for every T and w, (T, w).

    Args:
        log_likelihoods: (n, C); −∞ for a pair without samples.
        ridge: scores of the regression (n, C), finite.
        pairs: c of the samples (n,).
        grid: the values of T and w.
    """
    rows = []
    for temperature in grid.temperature:
        cold = log_likelihoods / temperature
        for weight in grid.weight:
            log_p = torch.add(cold, ridge, alpha=weight).log_softmax(1)
            rows.append(log_p.gather(1, pairs[:, None]).double().mean())
    return torch.stack(rows).unflatten(0, (len(grid.temperature), len(grid.weight)))


def _nearest(values: tuple[float, ...], wanted: float) -> int:
    return min(range(len(values)), key=lambda i: abs(values[i] - wanted))
