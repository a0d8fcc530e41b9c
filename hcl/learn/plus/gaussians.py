"""A Gaussian for each (class, task) pair, with a covariance of its own, each sample once.

With n_c samples of a pair, their mean m_c and scatter S_c = Σ (z − m_c)(z − m_c)ᵀ, and the
covariance Σ within all pairs, shrunk by ε towards a multiple of I,

    Σ_c = (ν Σ + S_c) / (ν + n_c) = (1 − a) Σ + a S_c / n_c,   a = n_c / (ν + n_c):

what a pair's covariance is after n_c samples if ν samples' worth of Σ were believed of it before
(the inverse Wishart's mean, but for a constant). A pair with few samples has Σ, one with many its
own. The mean is uncertain too: a new sample of the pair has Σ_c (1 + 1/n_c).

S_c of D features would take D² numbers for each pair. Here it is kept as r directions,

    S_c ≈ B_cᵀ B_c + τ_c Σ,

where B_c (r, D) holds the directions in which the pair spreads most *in the metric of Σ*, and τ_c
spreads what is left over the others evenly. New samples are rows below B_c; at 2r rows the SVD in
that metric leaves r of them (an incremental PCA). With r ≥ n_c − 1 nothing is lost.

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
CELLS = 2**24  # numbers of one product with all pairs' directions


class Spreads:
    """B_c, and what it leaves out, of pairs that grow in number.

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
        self.left = torch.zeros(0, dtype=torch.float64, device=device)  # tr(Σ⁻¹ S_c) not in B_c
        self.metric = Inverse()

    def add_classes(self, count: int) -> None:
        """Room for ``count`` more pairs."""
        self.counts += [0] * count
        self.means = torch.cat((self.means, self.means.new_zeros(count, self.size)))
        self.left = torch.cat((self.left, self.left.new_zeros(count)))
        self.rows += [torch.zeros(0, self.size, device=self.means.device) for _ in range(count)]

    def with_samples(self, z: Tensor, classes: list[int]) -> dict[int, Tensor]:
        """B_c with the rows of samples (n, D), for each pair that is among ``classes``.

        Deviations from the samples' own mean, and one row for the step from the old mean: the
        scatter around the new mean, exactly.
        """
        found = {}
        for pair in dict.fromkeys(classes):
            mine = z[[row for row, other in enumerate(classes) if other == pair]].double()
            mean, old = mine.mean(0), self.counts[pair]
            step = (mean - self.means[pair]) * (old * len(mine) / (old + len(mine))) ** 0.5
            rows = torch.cat((mine - mean, step[None])) if old else mine - mean
            found[pair] = torch.cat((self.rows[pair], rows.float()))
        return found

    def add(self, z: Tensor, classes: list[int], moments: Moments) -> None:
        """Take in samples (n, D); the metric is of Σ as ``moments`` has it."""
        for pair, rows in self.with_samples(z, classes).items():
            mine = z[[row for row, other in enumerate(classes) if other == pair]]
            self.counts[pair] += len(mine)
            self.means[pair] += (mine.double() - self.means[pair]).sum(0) / self.counts[pair]
            if len(rows) > 2 * self.rank:
                inverse = self.metric.of(moments, METRIC_SHRINKAGE, self.size)
                squares, directions = principal(rows, rows @ inverse)
                rows = directions[:, : self.rank].T @ rows
                self.left[pair] += squares[self.rank :].sum()
            self.rows[pair] = rows

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "counts": list(self.counts),
            "means": self.means,
            "rows": list(self.rows),
            "left": self.left,
            "metric": self.metric.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.counts, self.rows = list(state["counts"]), list(state["rows"])
        self.means, self.left = state["means"].clone(), state["left"].clone()
        self.metric.restore(state["metric"])


def principal(rows: Tensor, measured: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues of B M Bᵀ (k,), largest first, and eigenvectors (k, k); ``measured`` is B M."""
    values, vectors = torch.linalg.eigh((rows @ measured.T).double())
    return values.flip(0).clamp(min=0), vectors.flip(1).float()


class Densities:
    """N(z; m_c, Σ_c) of all pairs for one ε, solved; ν is still free.

    In whitened coordinates u = W z, WᵀW = Σ⁻¹, Σ_c is β I + V_cᵀ diag(e) V_c with r orthonormal
    rows V_c, so that its inverse and determinant follow from r numbers (Woodbury), and the squares
    of all pairs from one product with all V_c.

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
        size, rank = spreads.size, spreads.rank
        means = moments.means(size)
        device = means.device
        factor = torch.linalg.cholesky(moments.covariance(shrinkage, size))
        whiten = torch.linalg.solve_triangular(
            factor, torch.eye(size, dtype=factor.dtype, device=device), upper=False
        )
        self.factor = factor.float()
        self.whiten = whiten.float()  # W
        self.log_det = float(factor.diagonal().log().sum())  # ½ log |Σ|
        self.means = (means @ whiten.T).float()  # (C, D), whitened
        self.known = moments.counts > 0
        counts, rows = list(spreads.counts), list(spreads.rows)
        if waiting is not None:
            for pair, more in spreads.with_samples(*waiting).items():
                rows[pair] = more
            for pair in waiting[1]:
                counts[pair] += 1
        rank = min(rank, max((len(found) for found in rows), default=0))
        self.counts = torch.tensor(counts, dtype=torch.float64, device=device).clamp(min=1)
        if not spreads.rank:
            self.counts = moments.counts.clamp(min=1)
        self.squares = torch.zeros(len(rows), rank, dtype=torch.float64, device=device)
        self.directions = torch.zeros(len(rows), rank, size, device=device)  # V_c
        left = spreads.left.clone()
        for pair, found in enumerate(rows):
            if not len(found) or not rank:
                continue
            white = found @ self.whiten.T
            squares, vectors = principal(white, white)
            kept = min(rank, len(found))
            scale = squares[:kept].clamp(min=1e-6 * float(size)).rsqrt().float()
            self.squares[pair, :kept] = squares[:kept]
            self.directions[pair, :kept] = (vectors[:, :kept] * scale).T @ white
            left[pair] += squares[kept:].sum()
        self.evenly = left / max(size - rank, 1)  # τ_c
        if not spreads.rank:  # nothing was measured: S_c is taken to be n_c Σ
            self.evenly = self.counts
        self.offsets = torch.einsum("crd,cd->cr", self.directions, self.means)

    def _spectrum(self, strength: float) -> tuple[Tensor, Tensor]:
        """β (C,) and the eigenvalues e (C, r) that V_c adds to it."""
        prior = strength * self.whiten.shape[0]
        total = prior + self.counts
        return (prior + self.evenly) / total, self.squares / total[:, None]

    def distances(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """‖u − W m_c‖² (n, C), and the squares of V_c (u − W m_c) (n, C, r)."""
        u = z @ self.whiten.T.to(z)
        means = self.means.to(z)
        whole = torch.addmm(
            u.square().sum(1, keepdim=True) + means.square().sum(1), u, means.T, alpha=-2
        ).clamp_(min=0)
        along = u @ self.directions.flatten(0, 1).T.to(z) - self.offsets.flatten().to(z)
        return whole, along.square_().unflatten(1, self.offsets.shape)

    def scores(self, distances: tuple[Tensor, Tensor], strength: float) -> Tensor:
        """log N(z; m_c, Σ_c (1 + 1/n_c)) + ½ log |Σ| + ½ D log 2π, (n, C), from ``distances``."""
        whole, along = distances
        size = self.whiten.shape[0]
        even, more = self._spectrum(strength)
        wider = 1 + 1 / self.counts
        share = (more / (even[:, None] + more) / (even * wider)[:, None]).to(whole)
        square = whole / (even * wider).to(whole) - torch.einsum("ncr,cr->nc", along, share)
        log_det = (size - more.shape[1]) * even.log() + (even[:, None] + more).log().sum(1)
        score = -0.5 * (square + (log_det + size * wider.log()).to(whole))
        return score.masked_fill(~self.known, -torch.inf)

    def log_prob(self, z: Tensor, strength: float) -> Tensor:
        """log N(z; m_c, Σ_c (1 + 1/n_c)) of every pair, (n, C); −∞ where no sample was seen."""
        step = max(1, CELLS // max(self.offsets.numel(), 1))
        parts = [self.scores(self.distances(part), strength) for part in z.split(step)]
        constant = self.log_det + 0.5 * len(self.whiten) * log(2 * pi)
        return torch.cat(parts) - constant

    def sample(self, pairs: Tensor, strength: float, generator: torch.Generator) -> Tensor:
        """z ~ N(m_c, Σ_c), one for each of ``pairs`` (n,)."""
        even, more = self._spectrum(strength)
        size = len(self.whiten)
        noise = torch.randn(len(pairs), size, generator=generator, device=generator.device)
        root = even.sqrt()[:, None]
        extra = ((even[:, None] + more).sqrt() - root).float()
        for row, pair in enumerate(pairs.tolist()):
            along = self.directions[pair]
            bent = along.T @ (extra[pair] * (along @ noise[row]))
            noise[row] = root[pair].float() * noise[row] + bent
        return (noise + self.means[pairs]) @ self.factor.T
