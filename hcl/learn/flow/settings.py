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
from hcl.learn.settings import BatchSize, Decay, Rate, Samples, Spread, TrainingSettings, Weight
from hcl.settings import check_limits

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
    size: Samples = 1000

    def __post_init__(self) -> None:
        check_limits(self)


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
    replay: BatchSize | None = None

    def __post_init__(self) -> None:
        check_limits(self)


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
    alpha: Weight = 1.0
    draws: Draws = "prior"
    replay: BatchSize | None = None

    def __post_init__(self) -> None:
        check_limits(self)


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
        clip: a gradient longer than so many times the running mean of their lengths is shortened
            to that, for data with outliers. Paper: silent.
        detection: how changes of task are noticed, by the paper's rule or calibrated; with it the
            learner is never told its tasks.
        unlabelled: weight of the samples without a label, beside those with one; their likelihood
            is summed over classes. 0 leaves them out. Beyond the paper.
        belongs: to a task: a whole ``batch``, the paper's, or each ``sample`` by itself, which is
            inferred; for streams whose batches are mixed, beyond the paper.
    """

    kind: Literal["flow"] = "flow"
    memory: MemorySettings = field(default_factory=NoMemory)
    learning_rate: Rate | None = None
    learning_rate_decay: Decay = 0.0
    weight_decay: Decay | None = None
    clip: Spread | None = None
    detection: DetectionSettings | CalibratedSettings | None = None
    unlabelled: Weight = 0.1
    belongs: Literal["batch", "sample"] = "batch"

    learner: ClassVar[str] = "hcl.learn.flow.learner"
    takes_images: ClassVar[bool] = True
    closed_form: ClassVar[bool] = False
    reads_flow: ClassVar[bool] = True
    sees_once: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_limits(self)
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
