"""Settings of a method with a flow: its memory, its rates, and whether it detects its tasks.

==============  ============  =========  ========================================================
method          memory        detection  minimises
==============  ============  =========  ========================================================
``adam``        none          –          −L_ll of the batch
``mtl``         all           –          −L_ll of the batch and a batch of every task so far
``er``          buffer        –          −L_ll of the batch and a batch of every task's buffer
``hcl-gr``      generative    –          −L_ll of the batch and a batch drawn for every old task
``hcl-fr``      functional    –          −L_ll of the batch + α L_FR of what is drawn
``hcl-gr-ta``   generative    its own    as ``hcl-gr``, never told the task
``hcl-fr-ta``   functional    its own    as ``hcl-fr``, never told the task
==============  ============  =========  ========================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from hcl.learn.flow.detection import DetectionSettings
from hcl.learn.settings import (
    TrainingSettings,
    check_count,
    check_not_negative,
    check_rates,
)

Draws = Literal["prior", "measured"]


@dataclass(frozen=True)
class NoMemory:
    """Nothing stands for old tasks.

    Attributes:
        kind: ``none``.
    """

    kind: Literal["none"] = "none"


@dataclass(frozen=True)
class AllData:
    """All training samples of the tasks so far may be looked at again: an upper bound.

    Attributes:
        kind: ``all``.
    """

    kind: Literal["all"] = "all"


@dataclass(frozen=True)
class BufferSettings:
    """Stored samples of each task.

    Attributes:
        kind: ``buffer``.
        size: samples stored for each task.
    """

    kind: Literal["buffer"] = "buffer"
    size: int = 1000

    def __post_init__(self) -> None:
        check_count("size", self.size)


@dataclass(frozen=True)
class GenerativeSettings:
    """Generative replay, L_GR.

    Attributes:
        kind: ``generative``.
        weighing: ``samples`` counts each draw as one of the batch, ``terms`` all of them together
            as much as the batch.
        draws: latents of replay: ``prior`` draws them from N(μ_{y,t}, I), the paper's; beyond it,
            ``measured`` takes the means and the covariance that the latents of a task had.
        replay: draws in a step for all old tasks together, in place of a batch for each; ``null``
            draws the paper's batch for each. Beyond the paper: see ``Rehearsal``.
    """

    kind: Literal["generative"] = "generative"
    weighing: Literal["samples", "terms"] = "samples"
    draws: Draws = "prior"
    replay: int | None = None

    def __post_init__(self) -> None:
        if self.replay is not None:
            check_count("replay", self.replay)


@dataclass(frozen=True)
class FunctionalSettings:
    """Functional regularisation, L_FR.

    Attributes:
        kind: ``functional``.
        alpha: α, the weight of L_FR.
        draws: latents of replay: ``prior`` draws them from N(μ_{y,t}, I), the paper's; beyond it,
            ``measured`` takes the means and the covariance that the latents of a task had.
        replay: draws in a step for all old tasks together, in place of a batch for each; ``null``
            draws the paper's batch for each. Beyond the paper: see ``Rehearsal``.
    """

    kind: Literal["functional"] = "functional"
    alpha: float = 1.0
    draws: Draws = "prior"
    replay: int | None = None

    def __post_init__(self) -> None:
        check_not_negative("alpha", self.alpha)
        if self.replay is not None:
            check_count("replay", self.replay)


MemorySettings = NoMemory | AllData | BufferSettings | GenerativeSettings | FunctionalSettings


@dataclass(frozen=True)
class FlowMethod:
    """The paper's learner: a flow, and what stands for old tasks while a new one is learned.

    Attributes:
        kind: ``flow``.
        memory: what stands for old tasks.
        learning_rate: instead of the benchmark's.
        learning_rate_decay: d in η/√(1 + d n), n steps into a task; 0 keeps the rate as it is.
            Paper: silent.
        weight_decay: instead of the benchmark's.
        detection: how changes of task are noticed; with it the learner is never told its tasks.
        unlabelled: weight of the samples without a label, beside those with one; their likelihood
            is summed over classes. 0 leaves them out. Beyond the paper.
        belongs: to a task: a whole ``batch``, the paper's, or each ``sample`` by itself, which is
            inferred; for streams whose batches are mixed, beyond the paper.
    """

    kind: Literal["flow"] = "flow"
    memory: MemorySettings = field(default_factory=NoMemory)
    learning_rate: float | None = None
    learning_rate_decay: float = 0.0
    weight_decay: float | None = None
    detection: DetectionSettings | None = None
    unlabelled: float = 0.1
    belongs: Literal["batch", "sample"] = "batch"

    learner: ClassVar[str] = "hcl.learn.flow.learner"
    takes_images: ClassVar[bool] = True
    closed_form: ClassVar[bool] = False
    reads_flow: ClassVar[bool] = True
    sees_once: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_rates(self.learning_rate, self.weight_decay)
        check_not_negative("learning_rate_decay", self.learning_rate_decay)
        check_not_negative("unlabelled", self.unlabelled)
        if self.detection is not None and isinstance(self.memory, AllData):
            raise ValueError(
                "memory.kind: is all, which has to be told its tasks; take another memory, or no "
                "detection."
            )

    def check(self, training: TrainingSettings) -> None:
        """An error where the method can't be trained like this."""
        if self.detection is not None:
            try:
                self.detection.check_batch(training.batch_size)
            except ValueError as error:
                raise ValueError(f"detection.{error}") from None

    def advice(self, batches: int) -> str | None:
        """A window that reaches back to where S still rises, a task's beginning, is too wide."""
        if self.detection is None or self.detection.window <= batches / 2:
            return None
        return (
            f"detection.window is {self.detection.window} batches, but the shortest segment of the "
            f"stream has {batches}: changes of task may be missed. Take half of that, or less."
        )
