"""The measured Gaussians of a stream: what is kept, and how a rule is made of it.

Samples wait in a block before they are taken into the pairs' covariances, so that they can be a
test first (``hcl.learn.plus.choosing``). A sample that comes again, in a second epoch, is no test
and no news: it is known by a fingerprint of 8 bytes, and passed over here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from hcl.learn.moments import BLOCK, LinearScores, Moments
from hcl.learn.plus.choosing import Choice, Chosen, Grid, log_posteriors
from hcl.learn.plus.gaussians import Densities, Spreads
from hcl.learn.plus.settings import GaussiansRule

FEWEST = 32  # samples of a block; an eighth of all so far, up to BLOCK
KNOWN = 0.5  # of the samples that pairs have on average: less, and a pair's samples are no test
REMEMBERED = 2**20  # fingerprints


class Rule:
    """The Gaussians and the regression as they stand, solved.

    Args:
        densities: of all pairs.
        ridge: scores of the regression on φ; ``None`` where it has no weight.
        chosen: the numbers.
    """

    def __init__(self, densities: Densities, ridge: LinearScores | None, chosen: Chosen) -> None:
        self.densities, self.ridge, self.chosen = densities, ridge, chosen

    def __call__(self, lifted: Tensor) -> Tensor:
        """log p(c | x) of every pair, (n, C), but for a term that all pairs share."""
        z = lifted[:, : len(self.densities.whiten)]
        scores = self.densities.log_prob(z, self.chosen.blend) / self.chosen.temperature
        return scores if self.ridge is None else scores + self.chosen.weight * self.ridge(lifted)

    def log_density(self, z: Tensor) -> Tensor:
        """log p(z), (n,): every pair that was seen is as likely."""
        pairs = self.densities.known.sum().to(z)
        return self.densities.log_prob(z, self.chosen.blend).logsumexp(1) - pairs.log()

    def sample(self, pairs: Tensor, generator: torch.Generator) -> Tensor:
        """z ~ N(m_c, Σ_c), one for each of ``pairs``."""
        return self.densities.sample(pairs, self.chosen.blend, generator)


class Measured:
    """Covariances of pairs, the block that waits, and the choice of the numbers.

    Args:
        settings: what is kept, and what is given rather than chosen.
        size: D.
        device: where the latents are.
    """

    def __init__(self, settings: GaussiansRule, size: int, device: torch.device) -> None:
        self.settings = settings
        self.size = size
        self.spreads = Spreads(size, settings.rank, device)
        self.choice = Choice(grid(settings), size, device)
        self.waiting: list[tuple[Tensor, Tensor]] = []  # φ and pairs, each sample fresh
        self.fingerprints = torch.zeros(0, dtype=torch.int64, device=device)

    def add_classes(self, count: int) -> None:
        """Room for ``count`` more pairs."""
        self.spreads.add_classes(count)

    def widen(self, groups: int, count: int) -> None:
        """Room for ``count`` more pairs in each of ``groups`` groups of equal size."""
        size = len(self.spreads.counts) // groups
        self.spreads.widen(groups, count)
        self.waiting = [(lifted, p + p // size * count) for lifted, p in self.waiting]

    def add(self, lifted: Tensor, pairs: Tensor, moments: Moments) -> None:
        """Take in samples φ (n, D + M), which ``moments`` has taken in before."""
        self.waiting.append((lifted, pairs))
        least = min(BLOCK, max(FEWEST, moments.samples // 8))
        if sum(len(pairs) for _, pairs in self.waiting) >= least:
            self._settle(moments)

    def _settle(self, moments: Moments) -> None:
        """Try the block that waits, where a trial is due, and take it into the covariances."""
        lifted, pairs, listed = self._fresh()
        self.waiting.clear()
        if not listed:
            return
        if self.choice.is_due(sum(self.spreads.counts)):
            self._try(lifted, pairs, moments)
        self.spreads.add(lifted[:, : self.size], listed, moments)

    def _fresh(self) -> tuple[Tensor, Tensor, list[int]]:
        """The samples that wait and have not come before, and their pairs, also as a list.

        One look for each block, where looks are not free.
        """
        lifted = torch.cat([lifted for lifted, _ in self.waiting])
        pairs = torch.cat([pairs for _, pairs in self.waiting])
        marks = fingerprint(lifted[:, : self.size])
        known = torch.isin(marks, self.fingerprints)
        self.fingerprints = torch.cat((self.fingerprints, marks))[-REMEMBERED:]
        listed, stale = torch.stack((pairs, known.long())).tolist()
        fresh = [row for row, old in enumerate(stale) if not old]
        return lifted[fresh], pairs[fresh], [listed[row] for row in fresh]

    def _try(self, lifted: Tensor, pairs: Tensor, moments: Moments) -> None:
        """Ask every combination of the numbers for samples that they have not seen."""
        counts = torch.tensor(self.spreads.counts, dtype=torch.float64, device=pairs.device)
        equal = counts[pairs] >= KNOWN * counts[counts > 0].mean()
        if 2 * equal.sum() < len(pairs):
            return
        before = moments.without(lifted, pairs)
        lifted, pairs = lifted[equal], pairs[equal]
        z, choice = lifted[:, : self.size], self.choice
        scores = torch.zeros(len(pairs), len(counts), device=z.device)
        alone = dataclasses.replace(choice.grid, weight=(0.0,))
        for number, shrinkage in enumerate(choice.grid.shrinkage):
            found = before.gaussian_scores(shrinkage, self.size)(z)
            sums = log_posteriors(found, scores, pairs, alone)
            choice.pooled[number] += before.samples * sums[:, 0]
        if choice.grid.weight != (0.0,):
            found = before.ridge_scores(self.settings.penalty)(lifted)
            scores = found.masked_fill(before.counts == 0, 0.0)
        choice.trials += 1
        choice.tried = before.samples
        densities = Densities(before, self.spreads, None, choice.best_shrinkage())
        distances = densities.distances(z)
        for number, blend in enumerate(choice.grid.blend):
            found = densities.scores(distances, blend)
            sums = log_posteriors(found, scores, pairs, choice.grid)
            choice.sums[number] += before.samples * sums

    def rule(self, moments: Moments) -> Rule:
        """What has been learned so far, solved; what waits is in it."""
        chosen = self.choice.best()
        waiting = None
        if self.waiting:
            marked = self.fingerprints
            lifted, _, listed = self._fresh()
            self.fingerprints = marked
            waiting = lifted[:, : self.size], listed
        densities = Densities(moments, self.spreads, waiting, chosen.shrinkage)
        ridge = moments.ridge_scores(self.settings.penalty) if chosen.weight else None
        return Rule(densities, ridge, chosen)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "spreads": self.spreads.state(),
            "choice": self.choice.state(),
            "waiting": [list(part) for part in self.waiting],
            "fingerprints": self.fingerprints,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.spreads.restore(state["spreads"])
        self.choice.restore(state["choice"])
        self.waiting = [(lifted, pairs) for lifted, pairs in state["waiting"]]
        self.fingerprints = state["fingerprints"].clone()


def grid(settings: GaussiansRule) -> Grid:
    """The values to try: one where it is given, the usual ones where it is not."""
    usual = Grid()
    given = {
        "shrinkage": settings.shrinkage,
        "blend": settings.blend if settings.rank else 0.0,
        "temperature": settings.temperature,
        "weight": settings.regression,
    }
    return Grid(
        **{
            name: getattr(usual, name) if value is None else (value,)
            for name, value in given.items()
        }
    )


def fingerprint(z: Tensor) -> Tensor:
    """A number (n,) for the bits of each sample (n, D): the same for the same sample."""
    odd = (
        torch.arange(1, z.shape[1] + 1, device=z.device, dtype=torch.int64) * 0x9E3779B97F4A7C1 | 1
    )
    return (z.contiguous().view(torch.int32).long() * odd).sum(1)
