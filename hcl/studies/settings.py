"""The parameters of both analyses, without what it takes to act on them: no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from hcl.model.settings import FlowSettings


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

    samples: int = 1000
    noise: float = 0.08
    steps: int = 600
    batch_size: int = 128
    learning_rate: float = 3e-3
    alpha: float = 100.0
    mean_scale: float = 3.0
    flow: FlowSettings = field(
        default_factory=lambda: FlowSettings(couplings=4, hidden_layers=2, hidden=64)
    )
    grid: int = 140
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("samples", "steps", "batch_size", "grid"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be 1 or more, found {getattr(self, name)}")
        for name in ("noise", "learning_rate", "alpha", "mean_scale", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: is {getattr(self, name)}; expected 0 or more.")
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

    gamma: float = 1.0
    highest: float = 3.0
    steps: int = 300
    samples: int = 1000

    def __post_init__(self) -> None:
        for name in ("gamma", "highest"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: must be above 0, found {getattr(self, name)}")
        for name in ("steps", "samples"):
            if getattr(self, name) < 2:
                raise ValueError(f"{name}: must be 2 or more, found {getattr(self, name)}")
