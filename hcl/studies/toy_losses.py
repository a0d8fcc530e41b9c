"""The two losses on the flow f(x) = θx (the paper's Figure S1 and last section).

A snapshot with θ^(k) = γ maps x ~ N(0, 1/γ²) to z ~ N(0, 1). With the flow at θ,

    L_FR = E ‖(θ/γ) z − z‖² = (θ/γ − 1)²,        L_GR = ½ E ‖(θ/γ) z‖² − log |θ| + const.

Both are least at θ = γ. L_GR grows without bound as θ → 0; L_FR ends at 1.

Paper: L_FR ≈ (θ − γ)². Here: with the factor 1/γ² that the middle of its own equation has. Both are
the same at γ = 1, which the figure shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from hcl.model.hybrid import HybridModel
from hcl.model.latent import LatentMixture
from hcl.model.losses import functional_loss, replay_loss
from hcl.records.studies import ToyLosses
from hcl.studies.settings import ToySettings


class Scale(nn.Module):
    """The flow f(x) = θx of one feature; log |∂f/∂x| = log |θ|."""

    shape: tuple[int, ...] = (1,)
    size = 1

    def __init__(self, theta: float) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(theta, dtype=torch.float64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.theta * x, self.theta.abs().log().expand(len(x))

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return z / self.theta, -self.theta.abs().log().expand(len(z))

    def initialise(self, x: Tensor) -> None:
        """Nothing here is taken from data."""

    def trace(self, x: Tensor) -> Iterator[tuple[str, Tensor]]:
        yield "theta", self.theta
        yield "z", self.theta * x


def toy_losses(settings: ToySettings) -> ToyLosses:
    """Take the losses of ``hcl.model.losses`` on the toy flow.

    The latents are the quantiles of N(0, 1), scaled to variance 1: no draw, and the closed forms
    hold exactly.
    """
    places = (torch.arange(settings.samples, dtype=torch.float64) + 0.5) / settings.samples
    z = torch.special.ndtri(places)[:, None]
    z = z / z.square().mean().sqrt()
    x, _ = Scale(settings.gamma).inverse(z)
    latent = LatentMixture(num_classes=1, size=1).double()
    latent.means = torch.zeros(1, 1, 1, dtype=torch.float64)
    label = torch.zeros(len(z), dtype=torch.long)
    theta = settings.highest * np.arange(1, settings.steps + 1) / settings.steps
    replay, functional = [], []
    with torch.no_grad():
        for value in theta:
            flow = Scale(float(value))
            model = HybridModel(flow, latent)
            log_px = model.statistics(x, label, 0).log_px
            replay.append(float(replay_loss(log_px)) - 0.5 * math.log(2 * math.pi))
            functional.append(float(functional_loss(flow(x)[0], z)))
    return ToyLosses(settings.gamma, theta, np.array(replay), np.array(functional))
