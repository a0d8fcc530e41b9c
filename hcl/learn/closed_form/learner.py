"""A closed form as a learner: each (class, task) pair is one of its classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hcl.learn.closed_form.forms import (
    ClosedForm,
    NearestMean,
    RandomProjectionRidge,
    StreamingLDA,
)
from hcl.learn.closed_form.settings import NearestMeanMethod, RanPACMethod, StreamingLDAMethod
from hcl.learn.contract import Batch, Observation, Prediction, Start, TaskBatch
from hcl.settings import check_memory


def build(
    method: NearestMeanMethod | StreamingLDAMethod | RanPACMethod, start: Start
) -> ClosedFormLearner:
    """The learner of a method."""
    (size,) = start.shape
    form: ClosedForm
    match method:
        case NearestMeanMethod():
            form = NearestMean(size)
        case StreamingLDAMethod():
            form = StreamingLDA(size, method.shrinkage)
        case RanPACMethod():
            # The features' sums of squares, a copy to solve, and what is solved for: in float64.
            needed = 8 * method.projections * (3 * method.projections + size)
            check_memory(needed, f"{method.projections:,} random features", "projections")
            generator = np.random.default_rng([start.seed, 2])
            form = RandomProjectionRidge(size, method.projections, method.ridge, generator)
    return ClosedFormLearner(form, start.num_classes)


class ClosedFormLearner:
    """A closed form over (class, task) pairs: each pair is one of its classes."""

    def __init__(self, form: ClosedForm, num_classes: int) -> None:
        self.form = form
        self.num_classes = num_classes
        self.task = -1
        self.given: list[int] = []

    @property
    def num_tasks(self) -> int:
        """Tasks that the learner knows."""
        return len(self.given)

    def observe(self, batch: Batch | TaskBatch) -> Observation:
        """Add the batch to the sums."""
        assert isinstance(batch, TaskBatch)
        if batch.task not in self.given:
            self.given.append(batch.task)
        self.task = self.given.index(batch.task)
        self.form.observe(batch.x.numpy(), self.task * self.num_classes + batch.y.numpy())
        return Observation()

    def add_classes(self, count: int) -> None:
        """``count`` more classes may come from now on, in every task."""
        pairs = np.arange(self.num_tasks * self.num_classes)
        self.form.renumber(pairs + pairs // self.num_classes * count)
        self.num_classes += count

    def predict(self, x: Tensor) -> Prediction:
        """The pair with the highest score, as class and task; p of the class over all tasks."""
        pair = self.form.scores(x.numpy()).argmax(1)
        of_class, task = (pair % self.num_classes), (pair // self.num_classes)
        by_class = self.posterior(x).exp().sum(1).numpy()
        confidence = by_class[np.arange(len(pair)), of_class].astype(np.float32)
        answers = (v.astype(np.int16) for v in (of_class, task, of_class))
        return Prediction(*answers)._replace(confidence=confidence)

    def posterior(self, x: Tensor) -> Tensor:
        """log p(y, t | x), (n, T, K), as far as the form says it: see ``ClosedForm``."""
        found = self.form.probabilities(x.numpy())
        missing = self.num_tasks * self.num_classes - found.shape[1]  # the last task's, not seen
        pairs = np.pad(found, ((0, 0), (0, missing)))
        return torch.from_numpy(pairs).log().unflatten(1, (self.num_tasks, self.num_classes))

    def state(self) -> dict[str, Any]:
        """The sums."""
        sums = {name: torch.from_numpy(value) for name, value in self.form.state().items()}
        return {"task": self.task, "given": list(self.given), "form": sums}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.task = state["task"]
        self.given = list(state["given"])
        self.form.restore({name: value.numpy() for name, value in state["form"].items()})
