"""How a benchmark is trained, whatever the method; and the ranges that methods' settings share."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

from hcl.model.settings import FlowSettings
from hcl.settings import Range, check_limits

Scaling = Literal["global", "standard", "none"]
Device = Literal["auto", "cpu", "cuda"]

Samples = Annotated[int, Range(1, 1_000_000_000)]
BatchSize = Annotated[int, Range(1, 1_000_000)]  # samples a step
Batches = Annotated[int, Range(1, 1_000_000)]
Rate = Annotated[float, Range(0, 10, above=True)]  # of Adam
Decay = Annotated[float, Range(0, 1_000)]
Weight = Annotated[float, Range(0, 1_000_000_000)]  # of a term of a loss
Penalty = Annotated[float, Range(0, 1_000_000, above=True)]  # relative to a mean
Spread = Annotated[float, Range(0, 1_000_000_000, above=True)]  # in standard deviations
Fraction = Annotated[float, Range(0, 1, above=True)]
Projections = Annotated[int, Range(1, 1_000_000)]  # random features


@dataclass(frozen=True)
class TrainingSettings:
    """How a benchmark is trained, whatever the method.

    Attributes:
        batch_size: samples a step; also replay samples for each old task.
        learning_rate: of Adam. Paper: silent.
        weight_decay: of Adam, as an L2 term.
        scaling: of the inputs, fitted on the first task: ``global`` subtracts each feature's mean
            and divides by one number; ``standard`` divides by each feature's standard deviation,
            at least a tenth of the root mean square of them all; ``none`` leaves them alone.
        mean_scale: standard deviation of each entry of a random mean μ_{y,t}.
        device: ``auto`` takes a GPU if there is one.
        save_model: whether the last model of each run is kept beside it.
        checkpoint_every: steps between checkpoints; one is also written after each segment.
    """

    batch_size: BatchSize = 32
    learning_rate: Rate = 1e-4
    weight_decay: Decay = 1e-4
    scaling: Scaling = "global"
    mean_scale: Spread = 1.0
    device: Device = "auto"
    save_model: bool = False
    checkpoint_every: Annotated[int, Range(1, 1_000_000_000)] = 1000

    def __post_init__(self) -> None:
        check_limits(self)


class Method(Protocol):
    """What the training loop asks of a method's settings, whatever its kind."""

    @property
    def kind(self) -> str:
        """What learns."""

    @property
    def learner(self) -> str:
        """The module whose ``build`` makes the learner."""

    @property
    def detection(self) -> Any:
        """How changes of task are noticed; ``None`` where the learner is told its tasks."""

    @property
    def takes_images(self) -> bool:
        """Whether pixels come as bytes (C, H, W); otherwise as vectors with values from 0 to 1."""

    @property
    def closed_form(self) -> bool:
        """Whether it learns by sums alone, on the CPU, from batches of any size."""

    @property
    def reads_flow(self) -> bool:
        """Whether the size of the benchmark's flow matters."""

    @property
    def sees_once(self) -> bool:
        """Whether each sample is shown once, however many epochs the stream has."""

    def check(self, training: TrainingSettings) -> None:
        """An error where the method can't be trained like this."""

    def advice(self, batches: int) -> str | None:
        """What to say of a stream whose shortest segment has so many batches; mostly nothing."""


def used_settings(
    method: Method, flow: FlowSettings, training: TrainingSettings, in_batches: bool = False
) -> dict[str, dict[str, Any]]:
    """What a run depends on, and nothing that its method never reads.

    A closed form reads the size of a batch only where the stream is made of batches.
    """
    used = {"method": dataclasses.asdict(method)}  # type: ignore[call-overload]
    if method.reads_flow:
        used["flow"] = dataclasses.asdict(flow)
    if not method.closed_form or in_batches:
        used["training"] = dataclasses.asdict(training)
    elif training.save_model:
        used["training"] = {"save_model": True}  # it changes no answer, but what is left behind
    return used
