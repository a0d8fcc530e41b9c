"""The parameters of both analyses, without what it takes to act on them: no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from hcl.model.settings import FlowSettings
from hcl.settings import Range, Seed, check_limits

Count = Annotated[int, Range(1, 1_000_000)]


@dataclass(frozen=True)
class MoonsSettings:
    """Sizes of the study.

    Attributes:
        samples: points of each moon to learn from, and as many to test on.
        noise: standard deviation of the points about their arc.
        steps: training steps on each moon.
        batch_size: points a step.
        learning_rate: of Adam.
        alpha: α, weight of L_FR.
        mean_scale: standard deviation of each entry of a latent mean.
        flow: couplings, hidden_layers, hidden and bound of the RealNVP.
        grid: places along each side at which a density is drawn.
        seed: of everything random.
    """

    samples: Count = 1000
    noise: Annotated[float, Range(0, 1_000)] = 0.08
    steps: Count = 600
    batch_size: Count = 128
    learning_rate: Annotated[float, Range(0, 10, above=True)] = 3e-3
    alpha: Annotated[float, Range(0, 1_000_000_000)] = 100.0
    mean_scale: Annotated[float, Range(0, 1_000_000)] = 3.0
    flow: FlowSettings = field(
        default_factory=lambda: FlowSettings(couplings=4, hidden_layers=2, hidden=64)
    )
    grid: Annotated[int, Range(1, 2_000)] = 140
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_limits(self)
        if self.flow.kind != "realnvp":
            raise ValueError(
                f"flow.kind: the moons are vectors; take realnvp, not {self.flow.kind}"
            )


@dataclass(frozen=True)
class ToySettings:
    """Where the losses are taken.

    Attributes:
        gamma: γ, the snapshot's θ.
        highest: the largest θ; the smallest is one step above 0.
        steps: how many values of θ.
        samples: how many latents z stand for N(0, 1).
    """

    gamma: Annotated[float, Range(0, 1_000_000, above=True)] = 1.0
    highest: Annotated[float, Range(0, 1_000_000, above=True)] = 3.0
    steps: Annotated[int, Range(2, 1_000_000)] = 300
    samples: Annotated[int, Range(2, 1_000_000)] = 1000

    def __post_init__(self) -> None:
        check_limits(self)
