"""The lift of HCL+: features that stand beside z, so that sums give a boundary not linear in z.

``random``, max(0, zR) with R fixed and random, is of use from the first sample on. ``kernel`` are
the features of Nyström's method (Williams and Seeger 2001) for a Gaussian's kernel,

    k(a, b) = exp(−‖a − b‖² / 2D),   √D L⁻¹ (k(z, l_1), …, k(z, l_M)),   L Lᵀ = (k(l_i, l_j))_ij,

whose inner products are D k(a, b) as far as the landmarks l can tell, of the size of those of z.
As many of them come nearer to the whole kernel than random ones do. The landmarks are not samples,
none of which is kept: they are drawn from a Gaussian with the moments of the first samples.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from hcl.model.products import product

JITTER = 1e-4  # on the diagonal of the landmarks' kernel, which is 1


class RandomLift:
    """max(0, zR).

    Args:
        weights: R (D, M).
    """

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights

    def __call__(self, z: Tensor) -> Tensor:
        """(n, M)."""
        return (z @ self.weights.to(z)).relu_()


class KernelLift:
    """√D L⁻¹ k(z, l) for landmarks l.

    Args:
        weights: the landmarks, side by side (D, M).
    """

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights
        self.lengths = weights.double().square().sum(0).float()

    @cached_property
    def whiten(self) -> Tensor:
        """√D L⁻ᵀ (M, M), made when it is first asked for: a state that is read brings others."""
        kernel = self.kernel(self.weights.T).double()
        kernel.diagonal().add_(JITTER)
        unit = torch.eye(len(kernel), dtype=kernel.dtype, device=kernel.device)
        inverse = torch.linalg.solve_triangular(torch.linalg.cholesky(kernel), unit, upper=False)
        return (len(self.weights) ** 0.5 * inverse.T).float().contiguous()

    def kernel(self, z: Tensor) -> Tensor:
        """k(z, l) of every landmark, (n, M)."""
        twice = product(z, self.weights.to(z)).mul_(2)
        twice.sub_(self.lengths.to(z)).sub_(z.square().sum(1, keepdim=True))
        return twice.clamp_(max=0).mul_(0.5 / len(self.weights)).exp_()

    def __call__(self, z: Tensor) -> Tensor:
        """(n, M)."""
        return product(self.kernel(z), self.whiten.to(z))


Lift = RandomLift | KernelLift


def random_weights(size: int, count: int, generator: torch.Generator) -> Tensor:
    """R (D, M), of N(0, 1/D)."""
    device = generator.device
    return torch.randn(size, count, generator=generator, device=device) / size**0.5


def landmarks(z: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """``count`` draws of N(m, (1 − ρ) S + ρ v I), side by side (D, M).

    Args:
        z: the samples (n, D) whose mean and covariance m and S are; v is S's mean variance.
        count: M.
        generator: of the draws.
    """
    n, size = z.shape
    centred = z - z.mean(0)
    shrinkage, variance = oas(centred)
    device = generator.device
    along = torch.randn(count, n, generator=generator, device=device).to(z)
    apart = torch.randn(count, size, generator=generator, device=device).to(z)
    drawn = z.mean(0) + ((1 - shrinkage) / n) ** 0.5 * (along @ centred)
    return (drawn + (shrinkage * variance) ** 0.5 * apart).T.contiguous()


def oas(centred: Tensor) -> tuple[float, float]:
    """ρ of the oracle approximating shrinkage (Chen et al. 2010), and the mean variance.

    With few samples in many features nearly 1: then S says little.
    """
    n, size = centred.shape
    x = centred.double()
    gram = (x @ x.T if n < size else x.T @ x) / n
    variance = float(gram.trace()) / size
    square = float(gram.square().sum()) / size**2
    apart = (n + 1) * (square - variance**2 / size)
    return (1.0 if apart <= 0 else min(1.0, (square + variance**2) / apart)), variance
