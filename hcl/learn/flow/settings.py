"""Settings of a method with a flow: its memory, its rates, and whether it detects its tasks.

=============== ============= ========== ========================================================
method          memory        detection  minimises
=============== ============= ========== ========================================================
``adam``        none          –          −L_ll of the batch
``mtl``         all           –          −L_ll of the batch and a batch of every task so far
``er``          buffer        –          −L_ll of the batch and a batch of every task's buffer
``hcl-gr``      generative    –          −L_ll of the batch and a batch drawn for every old task
``hcl-fr``      functional    –          −L_ll of the batch + α L_FR of what is drawn
``hcl-gr-ta``   generative    typical    as ``hcl-gr``, never told the task
``hcl-fr-ta``   functional    typical    as ``hcl-fr``, never told the task
``hcl-gr-auto`` generative    calibrated as ``hcl-gr``, never told the task
``hcl-fr-auto`` functional    calibrated as ``hcl-fr``, never told the task
=============== ============= ========== ========================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from hcl.detect.settings import CalibratedSettings
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
    """

    kind: Literal["generative"] = "generative"
    weighing: Literal["samples", "terms"] = "samples"
    draws: Draws = "prior"


@dataclass(frozen=True)
class FunctionalSettings:
    """Functional regularisation, L_FR.

    Attributes:
        kind: ``functional``.
        alpha: α, the weight of L_FR.
        draws: latents of replay: ``prior`` draws them from N(μ_{y,t}, I), the paper's; beyond it,
            ``measured`` takes the means and the covariance that the latents of a task had.
    """

    kind: Literal["functional"] = "functional"
    alpha: float = 1.0
    draws: Draws = "prior"

    def __post_init__(self) -> None:
        check_not_negative("alpha", self.alpha)


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
        detection: how changes of task are noticed, by the paper's rule or calibrated; with it the
            learner is never told its tasks.
    """

    kind: Literal["flow"] = "flow"
    memory: MemorySettings = field(default_factory=NoMemory)
    learning_rate: float | None = None
    learning_rate_decay: float = 0.0
    weight_decay: float | None = None
    detection: DetectionSettings | CalibratedSettings | None = None

    learner: ClassVar[str] = "hcl.learn.flow.learner"
    takes_images: ClassVar[bool] = True
    closed_form: ClassVar[bool] = False
    reads_flow: ClassVar[bool] = True
    sees_once: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_rates(self.learning_rate, self.weight_decay)
        check_not_negative("learning_rate_decay", self.learning_rate_decay)
        if self.detection is not None and isinstance(self.memory, AllData):
            raise ValueError(
                "memory.kind: is all, which has to be told its tasks; take another memory, or no "
                "detection."
            )

    def check(self, training: TrainingSettings) -> None:
        """An error where the method can't be trained like this."""
        if isinstance(self.detection, DetectionSettings):
            try:
                self.detection.check_batch(training.batch_size)
            except ValueError as error:
                raise ValueError(f"detection.{error}") from None

    def advice(self, batches: int) -> str | None:
        """A task has to be long enough for the detector."""
        return None if self.detection is None else self.detection.advice(batches)
