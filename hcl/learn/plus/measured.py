"""The measured Gaussians of a stream: what is kept, and how a rule is made of it.

Samples wait in a block before they are taken into the pairs' covariances, so that they can be a
test first (``hcl.learn.plus.choosing``). A sample that comes again, in a second epoch, is no test
and no news: it is known by its fingerprint (``hcl.learn.plus.seen``), passed over here and taken
out of the sums.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from hcl.learn.moments import BLOCK, LinearScores, Moments
from hcl.learn.plus.choosing import Choice, Chosen, Grid, log_posteriors
from hcl.learn.plus.gaussians import Densities, Spreads
from hcl.learn.plus.seen import Seen, fingerprint
from hcl.learn.plus.settings import GaussiansRule

FEWEST = 32  # samples of a block; a sixth of the task's so far, up to BLOCK
AGAIN = 8  # one in so many of a block: when more come again, an epoch is over
KNOWN = 0.75  # of the samples that pairs have on average: less, and a pair's samples are no test


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
        self.waiting: list[tuple[Tensor, Tensor]] = []  # φ and pairs
        self.taken = 0  # samples of the task so far that wait no longer
        self.seen = Seen(device)

    def add_classes(self, count: int) -> None:
        """Room for ``count`` more pairs."""
        self.spreads.add_classes(count)

    def widen(self, groups: int, count: int) -> None:
        """Room for ``count`` more pairs in each of ``groups`` groups of equal size."""
        size = len(self.spreads.counts) // groups
        self.spreads.widen(groups, count)
        self.waiting = [(lifted, p + p // size * count) for lifted, p in self.waiting]

    def add(self, lifted: Tensor, pairs: Tensor, moments: Moments) -> None:
        """Take in samples φ (n, D + M), which ``moments`` has taken in before.

        Two blocks wait, so that there is always one to be a test when the task is over.
        """
        self.waiting.append((lifted, pairs))
        least = min(BLOCK, max(FEWEST, self.taken // 6))
        if sum(len(pairs) for _, pairs in self.waiting) >= 2 * least:
            self._settle(moments, least)

    def end_task(self, moments: Moments) -> None:
        """The samples that wait are the last of their task, at least for now."""
        if self.waiting:
            self._settle(moments)
        self.taken = 0

    def _settle(self, moments: Moments, least: int | None = None) -> None:
        """Try the samples that waited longest, where a trial is due, and take them in for good.

        At ``least`` so many; without it all, because the task is over. Its first epoch is, too,
        when samples come again: then its pairs have all the samples that they will have.
        """
        lifted, pairs, fresh = self._looked_at()
        again = len(pairs) - len(fresh)
        is_over = least is None or AGAIN * again >= len(pairs)
        count, settled = 0, 0
        while count < len(self.waiting) and (is_over or settled < (least or 0)):
            settled += len(self.waiting[count][1])
            count += 1
        del self.waiting[:count]
        self.seen.add(fingerprint(lifted[:settled, : self.size]))
        rows = [row for row in fresh if row < settled]
        if len(rows) < settled:
            stale = sorted(set(range(settled)) - set(rows))
            moments.remove(lifted[stale], pairs[stale])
        if not rows:
            return
        if self.choice.is_due(sum(self.spreads.counts), is_over):
            grown = 1.0 if is_over else KNOWN * self._mean_count()
            tests = [row for row in rows if self.spreads.counts[fresh[row]] >= grown]
            if 2 * len(tests) >= len(rows):
                unseen = [*rows, *range(settled, len(pairs))]
                before = moments.without(lifted[unseen], pairs[unseen])
                self._try(before, lifted[tests], pairs[tests])
        self.spreads.add(lifted[rows, : self.size], [fresh[row] for row in rows], moments)
        self.taken += len(rows)

    def _looked_at(self) -> tuple[Tensor, Tensor, dict[int, int]]:
        """All that waits, and the pair of each row of it that has not come before.

        One look for each block, where looks are not free.
        """
        lifted = torch.cat([lifted for lifted, _ in self.waiting])
        pairs = torch.cat([pairs for _, pairs in self.waiting])
        marks = fingerprint(lifted[:, : self.size])
        known = self.seen.has(marks)
        rows: dict[int, tuple[int, int]] = {}  # by fingerprint: the first row that has it
        for row, (mark, pair, old) in enumerate(torch.stack((marks, pairs, known)).T.tolist()):
            if not old:
                rows.setdefault(mark, (row, pair))
        return lifted, pairs, dict(rows.values())

    def _mean_count(self) -> float:
        """Samples that a pair has, of those that have any."""
        known = [count for count in self.spreads.counts if count]
        return sum(known) / max(len(known), 1)

    def _try(self, before: Moments, lifted: Tensor, pairs: Tensor) -> None:
        """Ask every combination of the numbers for samples that none of them has seen.

        Args:
            before: the moments without these samples.
            lifted: φ of the samples.
            pairs: of the samples, each of which has others before.
        """
        choice = self.choice
        choice.trials += 1
        choice.tried = sum(self.spreads.counts)
        weight = choice.tried * len(pairs)
        z = lifted[:, : self.size]
        scores = torch.zeros(len(pairs), len(self.spreads.counts), device=z.device)
        alone = dataclasses.replace(choice.grid, weight=(0.0,))
        for number, shrinkage in enumerate(choice.grid.shrinkage):
            found = before.gaussian_scores(shrinkage, self.size)(z)
            choice.pooled[number] += weight * log_posteriors(found, scores, pairs, alone)[:, 0]
        if choice.grid.weight != (0.0,):
            found = before.ridge_scores(self.settings.penalty)(lifted)
            scores = found.masked_fill(before.counts == 0, 0.0)
        densities = Densities(before, self.spreads, None, choice.best_shrinkage())
        distances = densities.distances(z)
        for number, blend in enumerate(choice.grid.blend):
            found = densities.scores(distances, blend)
            choice.sums[number] += weight * log_posteriors(found, scores, pairs, choice.grid)

    def rule(self, moments: Moments) -> Rule:
        """What has been learned so far, solved; what waits is in it."""
        chosen = self.choice.best()
        waiting = None
        if self.waiting:
            lifted, _, fresh = self._looked_at()
            waiting = lifted[list(fresh), : self.size], list(fresh.values())
        densities = Densities(moments, self.spreads, waiting, chosen.shrinkage)
        ridge = moments.ridge_scores(self.settings.penalty) if chosen.weight else None
        return Rule(densities, ridge, chosen)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "spreads": self.spreads.state(),
            "choice": self.choice.state(),
            "waiting": [list(part) for part in self.waiting],
            "taken": self.taken,
            "fingerprints": self.seen.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.spreads.restore(state["spreads"])
        self.choice.restore(state["choice"])
        self.waiting = [(lifted, pairs) for lifted, pairs in state["waiting"]]
        self.taken = state["taken"]
        self.seen.restore(state["fingerprints"])


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
