"""Settings of joint training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from hcl.learn.settings import (
    TrainingSettings,
    check_count,
    check_fraction,
    check_not_negative,
    check_rates,
)


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
    hidden: int = 1024
    epochs: int = 20
    batch_size: int = 128
    power: float = 0.5
    noise: float = 0.2
    dropout: float = 0.5
    smoothing: float = 0.1
    learning_rate: float = 1e-3
    weight_decay: float = 0.0

    learner: ClassVar[str] = "hcl.learn.joint.learner"
    takes_images: ClassVar[bool] = False
    closed_form: ClassVar[bool] = False
    reads_flow: ClassVar[bool] = False
    detection: ClassVar[None] = None
    sees_once: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("hidden", "epochs", "batch_size"):
            check_count(name, getattr(self, name))
        check_fraction("power", self.power)
        check_not_negative("noise", self.noise)
        for name in ("dropout", "smoothing"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ValueError(f"{name}: is {value:g}; expected from 0, below 1.")
        check_rates(self.learning_rate, self.weight_decay)

    def check(self, training: TrainingSettings) -> None:
        """Nothing in how a benchmark is trained is at odds with it."""

    def advice(self, batches: int) -> str | None:
        """Batches may be as few as they are."""
        return None
