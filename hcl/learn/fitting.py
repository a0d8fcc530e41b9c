"""What stands before a model: Tukey's transform, and the scaling of the inputs.

Paper: silent on both. Here: scaling is a fixed first layer, set from up to 4,096 training samples
of the first task and never changed, because whatever moves later moves all old tasks' latents.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hcl.detect.settings import CalibratedSettings
from hcl.errors import HCLError
from hcl.learn.contract import Start
from hcl.learn.settings import Scaling
from hcl.model.hybrid import HybridModel, build_model
from hcl.model.images import dequantise
from hcl.model.realnvp import RealNVP
from hcl.model.settings import FlowSettings

FITTING_SAMPLES = 4096


def tukey(x: Tensor, power: float) -> Tensor:
    """Tukey's transform, sign(x)·|x|^p: pooled activations are skewed, and a root less so."""
    return x if power == 1 else x.sign() * x.abs().pow(power)


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
    check_kind(start.flow, start.shape)
    training, weights = start.training, start.generator("weights")
    try:
        model = build_model(
            start.flow,
            start.shape,
            start.num_classes,
            weights,
            training.mean_scale,
            start.only_seen,
        )
    except ValueError as error:
        raise HCLError(
            f"flow.kind {start.flow.kind} does not fit samples of shape {start.shape}: {error}."
        ) from error
    model.to(start.device)
    if isinstance(model.flow, RealNVP):
        model.flow.set_scaling(*scaling_of(first, training.scaling))
    else:
        model.flow.initialise(dequantise(first, weights))
    return model


def check_labels(start: Start, unlabelled: float, detection: object) -> None:
    """An error where a detector that goes by labels would be shown samples without one."""
    if start.partly_labelled and unlabelled and isinstance(detection, CalibratedSettings):
        raise HCLError(
            f"unlabelled: is {unlabelled:g}, but the detector of the method goes by labels, which "
            "not all samples of the stream have. Take unlabelled: 0, or a method that is told its "
            "tasks."
        )


def check_kind(flow: FlowSettings, shape: tuple[int, ...]) -> None:
    """An error where the flow is made for vectors and samples are images, or the other way."""
    if flow.kind == "realnvp" and len(shape) == 3:
        raise HCLError(
            f"flow.kind is realnvp, a flow on vectors, but samples are pixels {list(shape)}. Take "
            "flow.kind glow or realnvp-image, or a data set without pixels."
        )
    if flow.kind != "realnvp" and len(shape) == 1:
        raise HCLError(
            f"flow.kind is {flow.kind}, a flow on images, but samples are vectors of {shape[0]} "
            "numbers. Take flow.kind realnvp, or data sets with pixels: [C, H, W]."
        )
