"""Closed-form learners on embeddings: nearest mean, streaming LDA, random projection with ridge.

What a user would compare a continual learner with first. Each sees every sample once, stores sums
instead of samples, and ends with the same weights whatever the order of the stream. Classes are
numbered from 0 as they come; the training loop makes one of each (class, task) pair.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.special import softmax

from hcl.learn.contract import shares

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class ClosedForm(Protocol):
    """Sums that grow with the stream, and class scores from them."""

    def observe(self, x: NDArray, labels: IntArray) -> None:
        """Add samples (n, D) and their labels (n,) to the sums."""

    def scores(self, x: NDArray) -> FloatArray:
        """(n, C), for the classes 0…C−1 that were seen; the highest wins."""

    def probabilities(self, x: NDArray) -> FloatArray:
        """(n, C), of the same classes, as far as the scores tell: rows sum to 1."""

    def renumber(self, numbers: IntArray) -> None:
        """Class c is ``numbers[c]`` from now on; numbers between have no samples."""

    def state(self) -> dict[str, FloatArray]:
        """The sums, for a checkpoint."""

    def restore(self, state: dict[str, FloatArray]) -> None:
        """Continue from ``state``."""


def _softmax(scores: FloatArray) -> FloatArray:
    found: FloatArray = softmax(scores, axis=1)
    return found


class _ClassSums:
    """Count and sum of each class's samples."""

    def __init__(self, size: int) -> None:
        self.counts = np.zeros(0)
        self.sums = np.zeros((0, size))

    def add(self, x: NDArray, labels: IntArray) -> None:
        missing = int(labels.max()) + 1 - len(self.counts)
        if missing > 0:
            self.counts = np.pad(self.counts, (0, missing))
            self.sums = np.pad(self.sums, ((0, missing), (0, 0)))
        np.add.at(self.counts, labels, 1.0)
        one_hot = np.eye(len(self.counts))[labels]
        self.sums += one_hot.T @ x

    def renumber(self, numbers: IntArray) -> None:
        there = numbers[: len(self.counts)]
        counts, sums = self.counts, self.sums
        self.counts = np.zeros(there.max(initial=-1) + 1)
        self.sums = np.zeros((len(self.counts), sums.shape[1]))
        self.counts[there], self.sums[there] = counts, sums

    def means(self) -> FloatArray:
        return self.sums / np.maximum(self.counts, 1.0)[:, None]

    def state(self) -> dict[str, FloatArray]:
        return {"counts": self.counts.copy(), "sums": self.sums.copy()}

    def restore(self, state: dict[str, FloatArray]) -> None:
        self.counts, self.sums = state["counts"].copy(), state["sums"].copy()

    def mask(self, scores: FloatArray) -> FloatArray:
        """A class without samples (numbered, but not seen yet) never wins."""
        return np.where(self.counts > 0, scores, -np.inf)


class NearestMean:
    """Nearest class mean: argmin_c ‖x − μ_c‖."""

    def __init__(self, size: int) -> None:
        self._classes = _ClassSums(size)

    def observe(self, x: NDArray, labels: IntArray) -> None:
        """Add samples to the class sums."""
        self._classes.add(x, labels)

    def scores(self, x: NDArray) -> FloatArray:
        """−½‖x − μ_c‖² up to a term that is the same for all classes."""
        means = self._classes.means()
        return self._classes.mask(x @ means.T - 0.5 * (means**2).sum(1))

    def probabilities(self, x: NDArray) -> FloatArray:
        """Bayes' rule with N(μ_c, I), whatever the samples' own spread: it measures none."""
        return _softmax(self.scores(x))

    def renumber(self, numbers: IntArray) -> None:
        """Give classes other numbers."""
        self._classes.renumber(numbers)

    def state(self) -> dict[str, FloatArray]:
        """The class sums."""
        return self._classes.state()

    def restore(self, state: dict[str, FloatArray]) -> None:
        """Continue from ``state``."""
        self._classes.restore(state)


class StreamingLDA:
    """Linear discriminant analysis on streamed sums, with shrinkage (Hayes and Kanan, 2020).

    Σ = (G − Σ_c n_c μ_c μ_cᵀ) / n is the pooled covariance within classes, G = Σ x xᵀ. A class
    scores w_cᵀx − ½ w_cᵀμ_c with w_c = ((1 − ε) Σ + ε m I)⁻¹ μ_c, where m is the mean variance of a
    feature: ε means the same for embeddings of any scale.
    """

    def __init__(self, size: int, shrinkage: float) -> None:
        self._classes = _ClassSums(size)
        self._gram = np.zeros((size, size))
        self._shrinkage = shrinkage
        self._weights: tuple[FloatArray, FloatArray] | None = None  # solved when asked for

    def observe(self, x: NDArray, labels: IntArray) -> None:
        """Add samples to the class sums and to G."""
        self._classes.add(x, labels)
        x = x.astype(np.float64)
        self._gram += x.T @ x
        self._weights = None

    def scores(self, x: NDArray) -> FloatArray:
        """w_cᵀx − ½ w_cᵀμ_c."""
        if self._weights is None:
            self._weights = self._solve()
        weights, bias = self._weights
        return self._classes.mask(x @ weights + bias)

    def probabilities(self, x: NDArray) -> FloatArray:
        """Bayes' rule with N(μ_c, Σ), every class as likely before."""
        return _softmax(self.scores(x))

    def _solve(self) -> tuple[FloatArray, FloatArray]:
        means, counts = self._classes.means(), self._classes.counts
        within = (self._gram - (means.T * counts) @ means) / counts.sum()
        variance = np.trace(within) / len(within)
        within *= 1 - self._shrinkage
        within[np.diag_indices_from(within)] += self._shrinkage * max(variance, 1e-12)
        weights = cho_solve(cho_factor(within, lower=True), means.T)  # (D, C)
        return weights, -0.5 * (weights * means.T).sum(0)

    def renumber(self, numbers: IntArray) -> None:
        """Give classes other numbers."""
        self._classes.renumber(numbers)
        self._weights = None

    def state(self) -> dict[str, FloatArray]:
        """The class sums and G."""
        return {**self._classes.state(), "gram": self._gram.copy()}

    def restore(self, state: dict[str, FloatArray]) -> None:
        """Continue from ``state``."""
        self._classes.restore(state)
        self._gram = state["gram"].copy()
        self._weights = None


class RandomProjectionRidge:
    """RanPAC (McDonnell et al., 2023): ridge regression on random ReLU features.

    h = max(0, xW) with W fixed and Gaussian; G = Σ h hᵀ and C = Σ h onehot(y)ᵀ are streamed, and
    the scores are hᵀ(G + ρ m I)⁻¹C, where m is the mean of G's diagonal: ρ means the same for
    embeddings of any scale and any number of samples. RanPAC tunes its ridge on a held-out part of
    each task; here it is a parameter, so that a sample is seen once.
    """

    def __init__(
        self, size: int, projections: int, ridge: float, generator: np.random.Generator
    ) -> None:
        weights = generator.standard_normal((size, projections), dtype=np.float32)
        self._projection = weights / np.float32(np.sqrt(size))
        self._gram = np.zeros((projections, projections))
        self._classes = _ClassSums(projections)
        self._ridge = ridge
        self._weights: FloatArray | None = None  # solved when asked for

    def _features(self, x: NDArray) -> NDArray[np.float32]:
        return np.maximum(x.astype(np.float32) @ self._projection, 0)

    def observe(self, x: NDArray, labels: IntArray) -> None:
        """Add the samples' features to G and C."""
        features = self._features(x)
        self._classes.add(features, labels)
        self._gram += features.T @ features
        self._weights = None

    def scores(self, x: NDArray) -> FloatArray:
        """hᵀ(G + ρ m I)⁻¹C."""
        if self._weights is None:
            gram = self._gram.copy()
            diagonal = np.diag_indices_from(gram)
            gram[diagonal] += self._ridge * max(gram[diagonal].mean(), 1e-12)
            self._weights = cho_solve(cho_factor(gram, lower=True), self._classes.sums.T)
        return self._classes.mask(self._features(x) @ self._weights)

    def probabilities(self, x: NDArray) -> FloatArray:
        """The scores, which estimate indicators, as shares: below 0 counts as 0."""
        return shares(torch.from_numpy(self.scores(x))).numpy()

    def renumber(self, numbers: IntArray) -> None:
        """Give classes other numbers."""
        self._classes.renumber(numbers)
        self._weights = None

    def state(self) -> dict[str, FloatArray]:
        """The class sums and G."""
        return {**self._classes.state(), "gram": self._gram.copy()}

    def restore(self, state: dict[str, FloatArray]) -> None:
        """Continue from ``state``."""
        self._classes.restore(state)
        self._gram = state["gram"].copy()
        self._weights = None
