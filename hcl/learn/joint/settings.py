"""Settings of joint training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from hcl.learn.settings import BatchSize, Decay, Fraction, Rate, TrainingSettings
from hcl.model.settings import Width
from hcl.settings import Range, check_limits

Share = Annotated[float, Range(0, 0.99)]


@dataclass(frozen=True)
class JointMethod:
    """A network with one hidden layer, trained on all data of all tasks at once.

    Attributes:
        kind: ``joint``.
        hidden: width of the hidden layer.
        epochs: passes over all data, in place of the stream's.
        batch_size: samples a step, in place of the benchmark's.
        power: of Tukey's transform; 1 leaves it out.
        noise: standard deviation of what is added to the scaled inputs.
        dropout: share of the hidden units that a step leaves out.
        smoothing: share of a label that is spread over all (class, task) pairs.
        learning_rate: of Adam at the beginning; it falls to 0 along half a cosine.
        weight_decay: of Adam, as an L2 term.
    """

    kind: Literal["joint"] = "joint"
    hidden: Width = 1024
    epochs: Annotated[int, Range(1, 1_000_000)] = 20
    batch_size: BatchSize = 128
    power: Fraction = 0.5
    noise: Annotated[float, Range(0, 1_000)] = 0.2
    dropout: Share = 0.5
    smoothing: Share = 0.1
    learning_rate: Rate = 1e-3
    weight_decay: Decay = 0.0

    learner: ClassVar[str] = "hcl.learn.joint.learner"
    takes_images: ClassVar[bool] = False
    closed_form: ClassVar[bool] = False
    reads_flow: ClassVar[bool] = False
    detection: ClassVar[None] = None
    sees_once: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_limits(self)

    def check(self, training: TrainingSettings) -> None:
        """Nothing in how a benchmark is trained is at odds with it."""

    def advice(self, batches: int) -> str | None:
        """Batches may be as few as they are."""
        return None
