"""What is fitted once, on the first task alone: the scaling of the inputs.

Paper: silent. Here: a fixed first layer, set from up to 4,096 training samples of the first task
and never changed, because whatever moves later moves all old tasks' latents.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hcl.errors import HCLError
from hcl.learn.contract import Start
from hcl.learn.settings import Scaling
from hcl.model.hybrid import HybridModel, build_model
from hcl.model.realnvp import RealNVP

FITTING_SAMPLES = 4096


def scaling_of(x: Tensor, kind: Scaling) -> tuple[Tensor, Tensor]:
    """Shift and scale of the inputs, fitted on ``x``."""
    if kind == "none":
        return torch.zeros(x.shape[1]), torch.ones(x.shape[1])
    shift = x.mean(0)
    variance = (x - shift).square().mean(0)
    overall = variance.mean().sqrt()
    if not overall > 0:  # equal samples say nothing of the scale
        overall = torch.ones_like(overall)
    if kind == "global":
        return shift, overall.expand(x.shape[1])
    return shift, variance.sqrt().clamp(min=0.1 * overall)


def fitted_model(start: Start, first: Tensor) -> HybridModel:
    """A model without tasks, with what is taken from data set by ``first``."""
    training, weights = start.training, start.generator("weights")
    try:
        model = build_model(
            start.flow, start.shape, start.num_classes, weights, training.mean_scale
        )
    except ValueError as error:
        raise HCLError(
            f"flow.kind {start.flow.kind} does not fit samples of shape {start.shape} ({error}). "
            "Flattened images need training.image_shape: [C, H, W]."
        ) from error
    model.to(start.device)
    if isinstance(model.flow, RealNVP):
        model.flow.set_scaling(*scaling_of(first, training.scaling))
    else:
        model.flow.initialise(first)
    return model
