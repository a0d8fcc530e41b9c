"""The flow f_θ: an invertible network between data and latent space (Section 2 of the paper).

Every transform keeps one contract, stated here once:

    forward(x) → (z, log_det)        inverse(z) → (x, log_det)

``log_det`` is log |det ∂output/∂input| of the direction that was asked for, one value per sample:
at the same point the two directions have opposite signs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hcl.model.images import ImageFlow, glow, realnvp_image
from hcl.model.realnvp import RealNVP
from hcl.model.settings import FlowSettings
from hcl.settings import check_memory


class Flow(Protocol):
    """What the model asks of a flow; each one is an ``nn.Module``.

    ``shape`` is the shape of one sample x, ``size`` the number of its latent features: z is always
    flat, (B, size). ``initialise`` sets the parts that are taken from data, once, before training.
    ``trace`` walks from x to z and names each weight and value that it meets.
    """

    shape: tuple[int, ...]
    size: int

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]: ...

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]: ...

    def initialise(self, x: Tensor) -> None: ...

    def trace(self, x: Tensor) -> Iterator[tuple[str, Tensor]]: ...

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]: ...

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]: ...

    def state_dict(self) -> dict[str, Any]: ...


def _weights(settings: FlowSettings, shape: tuple[int, ...]) -> int:
    """About as many as the flow has; for images the 3 × 3 convolutions between hidden layers."""
    if settings.kind == "realnvp":
        ends = (3 * shape[0] // 2) * settings.hidden
        return settings.couplings * (ends + (settings.hidden_layers - 1) * settings.hidden**2)
    dense = settings.dense * (3 * math.prod(shape) // 2) * settings.dense_hidden
    return settings.couplings * settings.hidden_layers * 9 * settings.hidden**2 + dense


def build_flow(settings: FlowSettings, shape: tuple[int, ...], generator: torch.Generator) -> Flow:
    """The flow of ``settings`` for samples of ``shape``: (D,), or (C, H, W) for images."""
    # Weights, their gradients, Adam's two moments and a snapshot, in float32.
    check_memory(5 * 4 * _weights(settings, shape), "such a flow", "flow.hidden or flow.couplings")
    if settings.kind == "realnvp":
        if len(shape) != 1:
            raise ValueError(f"shape: a vector flow takes (D,), found {shape}")
        flow: RealNVP | ImageFlow = RealNVP(
            shape[0],
            couplings=settings.couplings,
            hidden=settings.hidden,
            hidden_layers=settings.hidden_layers,
            bound=settings.bound,
            spread=settings.spread,
            generator=generator,
        )
    else:
        flow = build_image_flow(settings, shape, generator)
    if settings.precision == "bfloat16":
        flow.set_precision(torch.bfloat16)
    return flow


def build_image_flow(
    settings: FlowSettings, shape: tuple[int, ...], generator: torch.Generator
) -> ImageFlow:
    """RealNVP or Glow, in float32."""
    if settings.kind == "realnvp-image":
        flow = realnvp_image(
            shape,
            scales=settings.scales,
            couplings=settings.couplings,
            channels=settings.hidden,
            blocks=settings.hidden_layers,
            bound=settings.bound,
            generator=generator,
            pixels=settings.pixels,
        )
    else:
        flow = glow(
            shape,
            scales=settings.scales,
            couplings=settings.couplings,
            channels=settings.hidden,
            layers=settings.hidden_layers,
            bound=settings.bound,
            generator=generator,
            pixels=settings.pixels,
        )
    if settings.dense:
        flow.dense = RealNVP(
            flow.size,
            couplings=settings.dense,
            hidden=settings.dense_hidden,
            hidden_layers=1,
            bound=settings.bound,
            generator=generator,
        )
    return flow
