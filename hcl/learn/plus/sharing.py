"""Samples without a label in HCL+: they wait, and are shared out between the classes of their task.

The task is a mixture with one Gaussian for each class y and one covariance S for all, in the q
directions in which its samples spread most. EM finds it, the labelled holding to their classes, and
the sums take in a sample without a label by its responsibilities,

    r_y ∝ N(u; m_y, S)^(1/T),   with the weights w g r_y.

Three things keep this from falling into itself, which in a single pass nothing would mend:

* **It waits.** A class has one label, or none, when most of its samples come. They wait, at most
  ``WAITING`` of them, until the task changes or no more fit, and are then shared out together; what
  of a task has a class without any label is left out. A question is answered as if they had been.
* **Few directions**, a tenth as many as there are samples, at most ``DIRECTIONS``. With fewer
  samples than features every one is far from all others along a direction of its own: the first
  guess then is a coin's, and EM keeps whatever it is told.
* **The labelled are a test.** A part of them in turn is treated as if it had no label. T is the
  temperature at which they are then told best, and g = 1 − loss / log K is how much better than by
  guessing; 0 leaves the task's samples out. With one label of a class there is no test, and T and g
  are 1.
"""

from __future__ import annotations

from math import log
from typing import Any

import torch
from torch import Tensor

from hcl.learn.moments import Moments

WAITING = 1024  # samples without a label
KEPT = 256  # samples with one, of the current task
DIRECTIONS = 40  # at most; q
SAMPLES_FOR_EACH = 10  # samples for each direction
ROUNDS = 20  # of EM
SHRINKAGE = 0.1  # ε of S
PARTS = 5  # of the labelled, each a test for the others
TEMPERATURES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


class Sharing:
    """The samples of the current task that wait for a share, and those with a label beside them.

    Args:
        weight: w.
        size: D, the features of φ that are z.
        like: a tensor of φ's width, where the samples are.
    """

    def __init__(self, weight: float, size: int, like: Tensor) -> None:
        self.weight, self.size = weight, size
        self.waiting = like.new_zeros(0, like.shape[-1])
        self.labelled = like.new_zeros(0, size)
        self.labels = torch.zeros(0, dtype=torch.int64, device=like.device)

    def add(self, lifted: Tensor, y: Tensor) -> None:
        """Samples φ (n, D + M) come; those whose label is below 0 wait."""
        self.waiting = torch.cat((self.waiting, lifted[y < 0]))
        self.labelled = torch.cat((self.labelled, lifted[y >= 0, : self.size]))[-KEPT:]
        self.labels = torch.cat((self.labels, y[y >= 0]))[-KEPT:]

    @property
    def is_full(self) -> bool:
        """Whether no more should wait."""
        return len(self.waiting) >= WAITING

    def settle(self, moments: Moments, within: slice) -> None:
        """Share out what waits between the classes ``within``; nothing waits any more."""
        self.into(moments, within)
        self.waiting = self.waiting[:0]

    def end_task(self) -> None:
        """The labelled of a task are no help in another."""
        self.labelled, self.labels = self.labelled[:0], self.labels[:0]

    def into(self, moments: Moments, within: slice) -> None:
        """Add what waits, if each class has come with a label; it goes on waiting."""
        classes = within.stop - within.start
        if not len(self.waiting) or len(self.labels.unique()) < classes:
            return
        z = self.waiting[:, : self.size]
        shares = shares_of(z, self.labelled, self.labels, classes)
        moments.share(self.waiting, within.start, self.weight * shares)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"waiting": self.waiting, "labelled": self.labelled, "labels": self.labels}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.waiting = state["waiting"].clone()
        self.labelled, self.labels = state["labelled"].clone(), state["labels"].clone()


def shares_of(z: Tensor, labelled: Tensor, y: Tensor, classes: int) -> Tensor:
    """g r_y, (n, K), of samples (n, D) beside the labelled (m, D) of classes ``y``."""
    u = leading(torch.cat((labelled, z)))
    known, unknown = u[: len(y)], u[len(y) :]
    temperature, gain = tested(known, y, unknown, classes)
    scores = mixture(known, y, unknown, classes)
    return (gain * (scores / temperature).softmax(1)).to(z)


def leading(z: Tensor) -> Tensor:
    """Samples (n, D) along the q directions in which they spread most, in double precision."""
    count = min(DIRECTIONS, max(1, len(z) // SAMPLES_FOR_EACH))
    left, spread, _ = torch.linalg.svd((z - z.mean(0)).double(), full_matrices=False)
    return (left * spread)[:, :count]


def mixture(known: Tensor, y: Tensor, unknown: Tensor, classes: int) -> Tensor:
    """log N(u; m_y, S) of ``unknown`` (n, K), but for a term that all classes share, after EM.

    It begins with the means of ``known`` and the scatter of all samples around their common mean,
    which for two classes has the same discriminant as the scatter within them (Fisher).
    """
    u = torch.cat((known, unknown))
    given = torch.nn.functional.one_hot(y, classes).to(u)
    scatter = u.T @ u
    covariance = _shrunk(scatter / len(u))
    scores = u.new_zeros(len(unknown), classes)
    r = torch.cat((given, scores))
    for turn in range(ROUNDS + 1):
        counts = r.sum(0)
        means = (r.T @ u) / counts[:, None]
        if turn:
            covariance = _shrunk((scatter - (means.T * counts) @ means) / len(u))
        solved = torch.linalg.solve(covariance, means.T)
        scores = unknown @ solved - 0.5 * (means.T * solved).sum(0)
        r = torch.cat((given, scores.softmax(1)))
    return scores


def _shrunk(covariance: Tensor) -> Tensor:
    variance = covariance.diagonal().mean().clamp(min=1e-12)
    mixed = (1 - SHRINKAGE) * covariance
    mixed.diagonal().add_(SHRINKAGE * variance)
    return mixed


def tested(known: Tensor, y: Tensor, unknown: Tensor, classes: int) -> tuple[float, float]:
    """T and g, by the labelled, of which one part after the other is taken for unlabelled."""
    counts = torch.bincount(y, minlength=classes)
    parts = min(PARTS, int(counts.min()))
    if parts < 2:
        return 1.0, 1.0
    number = torch.zeros_like(y)  # of its part, each class in turn
    for label in range(classes):
        number[y == label] = torch.arange(int(counts[label]), device=y.device) % parts
    scores = known.new_zeros(len(y), classes)
    for part in range(parts):
        out = number == part
        others = torch.cat((known[out], unknown))
        found = mixture(known[~out], y[~out], others, classes)
        scores[out] = found[: int(out.sum())]
    losses = [
        float(torch.nn.functional.cross_entropy(scores / temperature, y))
        for temperature in TEMPERATURES
    ]
    least = min(losses)
    return TEMPERATURES[losses.index(least)], max(0.0, 1 - least / log(classes))
