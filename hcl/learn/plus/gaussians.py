"""A Gaussian for each (class, task) pair, with a covariance of its own, each sample once.

All pairs share the covariance Σ within them, shrunk by ε towards a multiple of I. A pair's own
differs from it by the directions in which the pair spreads more. In coordinates u = W z that make Σ
white (WᵀW = Σ⁻¹), with λ_1 ≥ λ_2 ≥ … the eigenvalues of the scatter Σ (u − u_c)(u − u_c)ᵀ of the
pair's n_c samples around their mean, and V_c the first r eigenvectors as rows,

    Σ_c = I + V_cᵀ diag(e) V_c,   e_k = a (λ_k − λ_r) / n_c.

λ_r is taken off because with fewer samples than features the scatter spreads in r directions
whatever the pair is like, as in the frequent directions of Liberty (2013). Where the pair spreads
less than Σ it is left at Σ, and a is one number for all. So pairs with many samples and with few
are alike in what they have in common: with a blend (1 − a) Σ + a Σ_c whose a grows with n_c, the
pairs of a new task lose to the old until they have as many samples.

What is kept of a pair is B_c, at most 2r rows: new samples are rows below it, and when there are
more, the SVD in the metric of Σ leaves r (an incremental PCA). With r ≥ D nothing is dropped.

Paper: N(μ_{y,t}, I) with μ drawn at random, and a flow that brings the class there. Here: measured
Gaussians where the class is, because nothing then has to be moved when a task comes.
"""

from __future__ import annotations

from math import log, pi
from typing import Any

import torch
from torch import Tensor

from hcl.learn.moments import Inverse, Moments

METRIC_SHRINKAGE = 0.1  # ε of the Σ in whose metric directions are kept
MANY, NEAREST = 256, 64  # pairs from which on not all are looked at, and how many then are
DRAWN = 128  # draws at a time, each with its pair's directions beside it
CELLS = 2**24  # numbers of one product with all pairs' directions


class Spreads:
    """B_c of pairs that grow in number.

    Args:
        size: D.
        rank: r, directions that are kept of a pair; 0 keeps none.
        device: where the latents are.
    """

    def __init__(self, size: int, rank: int, device: torch.device) -> None:
        self.size, self.rank = size, min(rank, size)
        self.counts: list[int] = []
        self.means = torch.zeros(0, size, dtype=torch.float64, device=device)
        self.rows: list[Tensor] = []  # B_c, from 0 to 2r rows
        self.metric = Inverse()

    def add_classes(self, count: int) -> None:
        """Room for ``count`` more pairs."""
        self.counts += [0] * count
        self.means = torch.cat((self.means, self.means.new_zeros(count, self.size)))
        self.rows += [torch.zeros(0, self.size, device=self.means.device) for _ in range(count)]

    def widen(self, groups: int, count: int) -> None:
        """Room for ``count`` more pairs in each of ``groups`` groups of equal size."""
        size = len(self.counts) // groups
        old = Spreads(self.size, self.rank, self.means.device)
        old.counts, old.means, old.rows = self.counts, self.means, self.rows
        self.counts, self.rows = [], []
        self.means = self.means[:0]
        for group in range(groups):
            within = slice(group * size, (group + 1) * size)
            self.counts += old.counts[within]
            self.rows += old.rows[within]
            self.means = torch.cat((self.means, old.means[within]))
            self.add_classes(count)

    def with_samples(self, z: Tensor, pairs: list[int]) -> dict[int, Tensor]:
        """B_c with the rows of samples (n, D) below it, for each pair that is among ``pairs``.

        Deviations from the samples' own mean, and one row for the step from the old mean: together
        the scatter around the new mean, exactly.
        """
        found = {}
        for pair, mine in _by_pair(z, pairs).items():
            mean, old = mine.mean(0), self.counts[pair]
            step = (mean - self.means[pair]) * (old * len(mine) / (old + len(mine))) ** 0.5
            rows = torch.cat((mine - mean, step[None])) if old else mine - mean
            found[pair] = torch.cat((self.rows[pair], rows.float()))
        return found

    def add(self, z: Tensor, pairs: list[int], moments: Moments) -> None:
        """Take in samples (n, D); the metric is of Σ as ``moments`` has it."""
        for pair, rows in self.with_samples(z, pairs).items():
            if len(rows) > 2 * self.rank:
                inverse = self.metric.of(moments, METRIC_SHRINKAGE, self.size)
                _, directions = principal(rows, rows @ inverse)
                rows = directions[:, : self.rank].T @ rows
            self.rows[pair] = rows
        for pair, mine in _by_pair(z, pairs).items():
            self.counts[pair] += len(mine)
            self.means[pair] += (mine - self.means[pair]).sum(0) / self.counts[pair]

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "counts": list(self.counts),
            "means": self.means,
            "rows": list(self.rows),
            "metric": self.metric.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.counts, self.rows = list(state["counts"]), list(state["rows"])
        self.means = state["means"].clone()
        self.metric.restore(state["metric"])


def _by_pair(z: Tensor, pairs: list[int]) -> dict[int, Tensor]:
    """Each pair's samples, in double precision."""
    rows: dict[int, list[int]] = {}
    for row, pair in enumerate(pairs):
        rows.setdefault(pair, []).append(row)
    return {pair: z[mine].double() for pair, mine in rows.items()}


def principal(rows: Tensor, measured: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues of B M Bᵀ (k,), largest first, and eigenvectors (k, k); ``measured`` is B M."""
    values, vectors = torch.linalg.eigh((rows @ measured.T).double())
    return values.flip(0).clamp(min=0), vectors.flip(1).float()


class Densities:
    """N(z; m_c, Σ_c) of all pairs for one ε, solved; a is still free.

    Inverse and determinant of Σ_c follow from r numbers (Woodbury), and the squares of all pairs
    from one product with all V_c.

    Args:
        moments: counts and means of all pairs, and Σ, of the first D features.
        spreads: what is kept of each pair's scatter.
        waiting: samples that are in ``moments`` and not in ``spreads``, and their pairs.
        shrinkage: ε.
    """

    def __init__(
        self,
        moments: Moments,
        spreads: Spreads,
        waiting: tuple[Tensor, list[int]] | None,
        shrinkage: float,
    ) -> None:
        size = spreads.size
        means = moments.means(size)
        factor = torch.linalg.cholesky(moments.covariance(shrinkage, size))
        whiten = torch.linalg.solve_triangular(
            factor, factor.new_zeros(size, size).fill_diagonal_(1.0), upper=False
        )
        self.factor = factor.float()  # W⁻¹
        self.whiten = whiten.float()  # W
        self.log_det = float(factor.diagonal().log().sum())  # ½ log |Σ|
        self.means = (means @ whiten.T).float()  # u_c, (C, D)
        self.known = moments.counts > 0
        counts, rows = list(spreads.counts), list(spreads.rows)
        if waiting is not None:
            for pair, more in spreads.with_samples(*waiting).items():
                rows[pair] = more
            for pair in waiting[1]:
                counts[pair] += 1
        rank = min(spreads.rank, max((len(found) for found in rows), default=0))
        self.counts = torch.tensor(counts).to(means)
        self.squares = means.new_zeros(len(rows), rank)  # λ_k − λ_r
        self.directions = torch.zeros(len(rows), rank, size, device=means.device)  # V_c
        for pair, found in enumerate(rows):
            if not len(found) or not rank:
                continue
            white = found @ self.whiten.T
            squares, vectors = principal(white, white)
            kept = min(rank, len(found))
            least = squares[rank - 1] if rank < size and kept == rank else 0.0
            scale = squares[:kept].clamp(min=1e-6).rsqrt().float()
            self.squares[pair, :kept] = squares[:kept] - least
            self.directions[pair, :kept] = (vectors[:, :kept] * scale).T @ white
        self.offsets = torch.einsum("crd,cd->cr", self.directions, self.means)

    def excess(self, blend: float) -> Tensor:
        """e (C, r), by how much more a pair spreads along V_c than Σ, for a = ``blend``."""
        return blend * self.squares / self.counts.clamp(min=1)[:, None]

    def distances(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """‖u − u_c‖² (n, C), and the squares of V_c (u − u_c) (n, C, r)."""
        u, means = z @ self.whiten.T.to(z), self.means.to(z)
        both = u.square().sum(1, keepdim=True) + means.square().sum(1)
        whole = torch.addmm(both, u, means.T, alpha=-2)
        along = torch.addmm(-self.offsets.flatten().to(z), u, self.directions.flatten(0, 1).T.to(z))
        return whole, along.square_().unflatten(1, self.offsets.shape)

    def scores(self, distances: tuple[Tensor, Tensor], blend: float) -> Tensor:
        """log N(z; m_c, Σ_c), (n, C), from ``distances``; −∞ where no sample was seen."""
        whole, along = distances
        excess = self.excess(blend)
        share = (excess / (1 + excess)).to(whole)
        square = whole - torch.einsum("ncr,cr->nc", along, share)
        constant = self.log_det + 0.5 * len(self.whiten) * log(2 * pi)
        log_det = 0.5 * excess.log1p().sum(1) + constant
        return (-0.5 * square - log_det.to(whole)).masked_fill(~self.known, -torch.inf)

    def log_prob(self, z: Tensor, blend: float) -> Tensor:
        """log N(z; m_c, Σ_c) of every pair, (n, C).

        Of more than ``MANY`` pairs, exactly for the ``NEAREST`` to each sample in the metric of Σ;
        the others are taken to spread as Σ does, which leaves them as far as they are or further.
        """
        if len(self.means) > MANY:
            return self._log_prob_of_many(z, blend)
        step = max(1, CELLS // max(self.offsets.numel(), 1))
        return torch.cat([self.scores(self.distances(part), blend) for part in z.split(step)])

    def _log_prob_of_many(self, z: Tensor, blend: float) -> Tensor:
        u, means = z @ self.whiten.T.to(z), self.means.to(z)
        both = u.square().sum(1, keepdim=True) + means.square().sum(1)
        square = torch.addmm(both, u, means.T, alpha=-2)
        excess = self.excess(blend)
        log_det = 0.5 * excess.log1p().sum(1) + self.log_det + 0.5 * len(self.whiten) * log(2 * pi)
        share = (excess / (1 + excess)).to(z)
        unseen = torch.where(self.known, 0.0, torch.inf).to(z)
        nearest = (square + unseen).topk(NEAREST, dim=1, largest=False).indices
        near = torch.zeros_like(square, dtype=torch.bool).scatter_(1, nearest, True)
        for pair in range(len(means)):
            rows = near[:, pair].nonzero()[:, 0]
            if len(rows):
                along = (u[rows] - means[pair]) @ self.directions[pair].T.to(z)
                square[rows, pair] -= along.square_() @ share[pair]
        return (-0.5 * square - log_det.to(z)).masked_fill(~self.known, -torch.inf)

    def sample(self, pairs: Tensor, blend: float, generator: torch.Generator) -> Tensor:
        """z ~ N(m_c, Σ_c), one for each of ``pairs`` (n,)."""
        size = len(self.whiten)
        noise = torch.randn(len(pairs), size, generator=generator, device=generator.device)
        stretch = ((1 + self.excess(blend)).sqrt() - 1).float()
        parts = []
        for part, of in zip(noise.split(DRAWN), pairs.split(DRAWN), strict=True):
            directions = self.directions[of]
            along = torch.einsum("nrd,nd->nr", directions, part)
            more = torch.einsum("nrd,nr->nd", directions, stretch[of] * along)
            parts.append(self.means[of] + part + more)
        return torch.cat(parts) @ self.factor.T
