"""Samples without a label in HCL+: they wait, and are shared out between the classes of their task.

r_y is a sample's responsibility of class y among those of its task, and c says how sure that is,

    r_y ∝ N(z; m_y, Σ)^(1/T),   c = (K max_y r_y − 1) / (K − 1),

and the sums take it in with the weights w c r_y, as in EM. Four things keep this from falling into
itself, which in a single pass nothing would mend:

* **It waits.** A class has one label, or none, when most of its samples come. They wait, at most
  ``WAITING`` of them, until the task changes or no more fit, and are then shared out together; what
  of a task has a class without any label is left out. A question is answered as if they had been.
* **Σ does not rest on the labelled alone**, which are fewer than the features: in the first round
  the scatter of all that waits is in it, around their common mean. For two classes that has the
  same discriminant as the scatter within them (Fisher).
* **T** is the rule's temperature: with T = 1 nearly every r is 0 or 1, right or not.
* **c** leaves out what lies between the classes.

``ROUNDS`` times means and Σ are taken anew with what was shared out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hcl.learn.moments import Moments

WAITING = 1024  # samples
ROUNDS = 3
SHRINKAGE = 0.1  # ε of Σ


class Sharing:
    """The samples of the current task that wait for a share.

    Args:
        weight: w.
        size: D, the features of φ that are z.
        like: a tensor of φ's width, where the samples are.
    """

    def __init__(self, weight: float, size: int, like: Tensor) -> None:
        self.weight, self.size = weight, size
        self.waiting = like.new_zeros(0, like.shape[-1])

    def add(self, lifted: Tensor) -> None:
        """Samples φ (n, D + M) come."""
        self.waiting = torch.cat((self.waiting, lifted))

    @property
    def is_full(self) -> bool:
        """Whether no more should wait."""
        return len(self.waiting) >= WAITING

    def settle(self, moments: Moments, within: slice, temperature: float) -> None:
        """Share out what waits between the classes ``within``; nothing waits any more."""
        self.into(moments, within, temperature)
        self.waiting = self.waiting[:0]

    def into(self, moments: Moments, within: slice, temperature: float) -> None:
        """Add what waits, if each class has come with a label; it goes on waiting."""
        if not len(self.waiting) or not bool((moments.counts[within] > 0).all()):
            return
        z = self.waiting[:, : self.size]
        known = moments.copy(self.size)
        known.add_classes(1)
        known.add(z, torch.full((len(z),), len(known.counts) - 1, device=z.device))
        shares = shares_of(z, known, within, temperature)
        for _ in range(ROUNDS - 1):
            known = moments.copy(self.size)
            known.share(z, within.start, self.weight * shares)
            shares = shares_of(z, known, within, temperature)
        moments.share(self.waiting, within.start, self.weight * shares)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"waiting": self.waiting}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.waiting = state["waiting"].clone()


def shares_of(z: Tensor, moments: Moments, within: slice, temperature: float) -> Tensor:
    """c r_y, (n, K), of the classes ``within``."""
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(moments.covariance(SHRINKAGE)))
    means = moments.means()[within]
    weighed = means @ inverse  # (K, D)
    square = (weighed * means).sum(1) - 2 * z.double() @ weighed.T  # less zᵀΣ⁻¹z, of all classes
    r = (-0.5 * square / temperature).softmax(1)
    confidence = (len(means) * r.amax(1, keepdim=True) - 1) / max(len(means) - 1, 1)
    return (confidence * r).to(z)
