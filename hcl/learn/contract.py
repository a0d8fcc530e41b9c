"""What the training loop and a learner say to each other: batches, answers, evidence.

A learner's tasks are numbered in the order in which it added them. A learner is handed a ``Batch``;
only one that is told its tasks gets a ``TaskBatch``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcl.detect.verdict import Watched
from hcl.learn.settings import TrainingSettings
from hcl.model.settings import FlowSettings

UNLABELLED = -1  # in place of a label that is not given


class Batch(NamedTuple):
    """What a task-agnostic learner sees: samples and labels, nothing of the task."""

    x: Tensor  # (n, D), or bytes (n, C, H, W)
    y: Tensor  # (n,)

    def labelled(self) -> Batch:
        """The samples that come with their label."""
        given = self.y != UNLABELLED
        return Batch(self.x[given], self.y[given])


class TaskBatch(NamedTuple):
    """What a learner sees that is told the task."""

    x: Tensor
    y: Tensor
    task: int  # the benchmark's number

    def without_task(self) -> Batch:
        """The same samples for a learner that is not told."""
        return Batch(self.x, self.y)

    def labelled(self) -> TaskBatch:
        """The samples that come with their label."""
        return TaskBatch(*self.without_task().labelled(), self.task)


class TaskBatches(NamedTuple):
    """Samples of several tasks, one task after the other, as many of each."""

    x: Tensor
    y: Tensor


class MixedBatch(NamedTuple):
    """Samples of all tasks, mixed."""

    x: Tensor
    y: Tensor
    t: Tensor  # (n,) the benchmark's numbers of their tasks


class Prediction(NamedTuple):
    """A learner's answers: see ``hcl.records.runs`` for what each means.

    One that can't answer yet gives −1 for each.
    """

    predicted_class: NDArray[np.int16]  # (n,)
    predicted_task: NDArray[np.int16]
    pair_class: NDArray[np.int16]
    confidence: NDArray[np.float32] | None = None  # p̂ of the class, of who gives probabilities


class Evidence(NamedTuple):
    """What a task-agnostic learner went by on one batch, for the trace.

    ``statistics`` has a name for each, the same ones in every batch; the first is the one to show.
    """

    statistics: dict[str, Watched]
    verdict: int


class Observation(NamedTuple):
    """What one batch left behind: its loss, and the evidence of a task-agnostic learner."""

    loss: Tensor | None = None
    evidence: Evidence | None = None


class Learner(Protocol):
    """What the training loop asks of a method."""

    task: int  # the current one, −1 before the first

    @property
    def num_tasks(self) -> int:
        """Tasks that the learner knows."""

    def observe(self, batch: Batch | TaskBatch) -> Observation:
        """Learn from one batch."""

    def predict(self, x: Tensor) -> Prediction:
        """Classify samples, without being told their task."""

    def state(self) -> dict[str, Any]:
        """All that a checkpoint must hold to continue as if never stopped."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""


@runtime_checkable
class Sampler(Protocol):
    """A learner that can draw samples, for the report."""

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """``count`` samples of each class of each task that it knows, (T, K, count, …).

        Values are those of the samples that it was shown, not cut to their range. A learner that
        knows no tasks draws for one.
        """


@runtime_checkable
class Posterior(Protocol):
    """A learner that says how sure it is."""

    def posterior(self, x: Tensor) -> Tensor:
        """log p(y, t | x) of every task and class, (n, T, K): exp of it sums to 1 per sample.

        −∞ where no sample was seen. A learner that knows no tasks answers as if all were one.
        """


@runtime_checkable
class Surprise(Protocol):
    """A learner, or the detector that it holds, that says how new a sample is."""

    def novelty(self, x: Tensor) -> Tensor:
        """A p-value of each sample, (n,): small where it is unlike all that was learned."""


class Archive(Protocol):
    """All tasks' training samples, for MTL and joint training, which may look at them again."""

    @property
    def num_tasks(self) -> int:
        """Tasks that the stream has in all."""

    def draw(self, tasks: Sequence[int], count: int, generator: torch.Generator) -> TaskBatches:
        """``count`` samples of each task; their rows are chosen by a ``generator`` on the CPU."""

    def num_mixed(self, count: int) -> int:
        """Batches that ``mixed`` has."""

    def mixed(self, count: int, generator: torch.Generator) -> Iterator[MixedBatch]:
        """All tasks' samples once, in batches of ``count`` whatever their task.

        Their order comes from a ``generator`` on the CPU.
        """


@dataclass(frozen=True)
class Start:
    """What a learner is built from: ``build(method, start)`` in the module of its kind.

    Attributes:
        shape: of one sample.
        num_classes: K.
        first: up to so many training samples of the first task, for what is fitted on it alone.
        flow: the flow's size.
        training: how the benchmark is trained.
        seed: of the run.
        device: where samples come.
        archive: all tasks' training samples.
        only_seen: whether tasks bring new classes, so that most pairs (class, task) never come.
        partly_labelled: whether samples may come with ``UNLABELLED`` in place of their label.
    """

    shape: tuple[int, ...]
    num_classes: int
    first: Callable[[int], Tensor]
    flow: FlowSettings
    training: TrainingSettings
    seed: int
    device: torch.device
    archive: Archive
    only_seen: bool = False
    partly_labelled: bool = False

    def generator(
        self, purpose: Literal["weights", "draws"], *, on_cpu: bool = False
    ) -> torch.Generator:
        """One of its own for each purpose: methods of one seed start from the same weights.

        Weights are drawn on the CPU, the same ones for any device; draws where the samples are,
        unless they choose rows of the archive, which are gathered on the CPU.
        """
        number = {"weights": 2, "draws": 3}[purpose]
        device = torch.device("cpu") if on_cpu or purpose == "weights" else self.device
        state = np.random.SeedSequence([self.seed, number]).generate_state(1, np.uint64)[0]
        return torch.Generator(device).manual_seed(int(state >> np.uint64(1)))

    def rates(self, learning_rate: float | None, weight_decay: float | None) -> dict[str, float]:
        """Adam's two numbers: a method's own, or the benchmark's."""
        training = self.training
        return {
            "learning_rate": training.learning_rate if learning_rate is None else learning_rate,
            "weight_decay": training.weight_decay if weight_decay is None else weight_decay,
        }


def as_int16(*values: Tensor) -> Prediction:
    """Answers as a run file holds them: class, task, and class of the likeliest pair."""
    of_class, task, pair_class = (value.cpu().numpy().astype(np.int16) for value in values)
    return Prediction(of_class, task, pair_class)


def shares(scores: Tensor) -> Tensor:
    """Scores of a regression on indicators (n, C) as probabilities; where none is above 0, equal.

    A class that was never seen scores −∞ and has none.
    """
    positive = scores.clamp(min=0)
    none = (positive.sum(1, keepdim=True) <= 0) & (scores > -torch.inf)
    positive = positive + none
    return positive / positive.sum(1, keepdim=True)
