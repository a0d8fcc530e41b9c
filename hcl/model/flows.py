"""The flow f_θ: an invertible network between data and latent space (Section 2 of the paper).

Every transform keeps one contract, stated here once:

    forward(x) → (z, log_det)        inverse(z) → (x, log_det)

``log_det`` is log |det ∂output/∂input| of the direction that was asked for, one value a sample: at
the same point the two directions have opposite signs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from hcl.model.images import glow, realnvp_image
from hcl.model.realnvp import RealNVP


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


@dataclass(frozen=True)
class FlowSettings:
    """Which flow, and how large. The defaults are the paper's for embeddings.

    ================  ===========  =================  ==============
    the paper's       embeddings   MNIST with SVHN    split MNIST
    ================  ===========  =================  ==============
    ``kind``          realnvp      realnvp-image      glow
    ``scales``        1            3                  2
    ``couplings``     8            16                 28
    ``hidden_layers`` 3            8                  3
    ``hidden``        512          64                 200
    ================  ===========  =================  ==============

    Attributes:
        kind: ``realnvp`` for vectors; ``realnvp-image`` and ``glow`` for images.
        couplings: couplings in all.
        hidden_layers: hidden layers of each coupling network; residual blocks in ``realnvp-image``.
        hidden: width of those layers; channels in a flow on images.
        bound: largest absolute log-scale of one coupling.
        scales: resolutions of a flow on images.
        spread: of the first weights of each coupling network's last layer, in 1/√inputs, for
            ``realnvp``: 0 starts the flow as the identity, above it as a random map.
    """

    kind: Literal["realnvp", "realnvp-image", "glow"] = "realnvp"
    couplings: int = 8
    hidden_layers: int = 3
    hidden: int = 512
    bound: float = 3.0
    scales: int = 1
    spread: float = 0.0

    def __post_init__(self) -> None:
        for name in ("couplings", "hidden_layers", "hidden", "scales"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be 1 or more, found {getattr(self, name)}")
        if not self.bound > 0:
            raise ValueError(f"bound: must be positive, found {self.bound}")
        if self.kind == "realnvp" and self.scales != 1:
            raise ValueError(f"scales: a flow on vectors has 1, found {self.scales}")
        if not 0 <= self.spread < float("inf"):
            raise ValueError(f"spread: must be 0 or more, found {self.spread}")
        if self.kind != "realnvp" and self.spread != 0:
            raise ValueError(f"spread: a flow on images starts with 0, found {self.spread}")


def build_flow(settings: FlowSettings, shape: tuple[int, ...], generator: torch.Generator) -> Flow:
    """The flow of ``settings`` for samples of ``shape``: (D,), or (C, H, W) for images."""
    if settings.kind == "realnvp":
        if len(shape) != 1:
            raise ValueError(f"shape: a vector flow takes (D,), found {shape}")
        return RealNVP(
            shape[0],
            couplings=settings.couplings,
            hidden=settings.hidden,
            hidden_layers=settings.hidden_layers,
            bound=settings.bound,
            spread=settings.spread,
            generator=generator,
        )
    if settings.kind == "realnvp-image":
        return realnvp_image(
            shape,
            scales=settings.scales,
            couplings=settings.couplings,
            channels=settings.hidden,
            blocks=settings.hidden_layers,
            bound=settings.bound,
            generator=generator,
        )
    return glow(
        shape,
        scales=settings.scales,
        couplings=settings.couplings,
        channels=settings.hidden,
        layers=settings.hidden_layers,
        bound=settings.bound,
        generator=generator,
    )
