"""Which flow, and how large."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from hcl.settings import Range, check_limits

Width = Annotated[int, Range(1, 65_536)]  # of a layer
Layers = Annotated[int, Range(1, 100)]


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
        pixels: what a flow on images does to its bytes first: ``affine``, or ``logit``, which
            widens the noise of black and white pixels and suits drawings such as MNIST.
        precision: of the coupling networks, but those of ``dense``, in training steps: ``float32``,
            or ``bfloat16``, which is faster where the processor or the GPU has it.
            Log-determinants, answers and draws are float32 in any case.
        dense: couplings of all values at once, behind the scales of a flow on images, each with one
            hidden layer of ``dense_hidden``. Where a flow has few couplings and few steps, they put
            its latents where the means are: docs/notebook/dense.md. Paper: none.
        dense_hidden: width of that layer.
    """

    kind: Literal["realnvp", "realnvp-image", "glow"] = "realnvp"
    couplings: Annotated[int, Range(1, 1_000)] = 8
    hidden_layers: Layers = 3
    hidden: Width = 512
    bound: Annotated[float, Range(0, 20, above=True)] = 3.0
    scales: Annotated[int, Range(1, 10)] = 1
    spread: Annotated[float, Range(0, 1_000)] = 0.0
    pixels: Literal["affine", "logit"] = "affine"
    precision: Literal["float32", "bfloat16"] = "float32"
    dense: Annotated[int, Range(0, 100)] = 0
    dense_hidden: Width = 128

    def __post_init__(self) -> None:
        check_limits(self)
        if self.kind == "realnvp" and self.scales != 1:
            raise ValueError(f"scales: a flow on vectors has 1, found {self.scales}")
        if self.kind == "realnvp" and self.pixels != "affine":
            raise ValueError(f"pixels: a flow on vectors has none, found {self.pixels}")
        if self.kind == "realnvp" and self.dense != 0:
            raise ValueError(f"dense: a flow on vectors is dense already, found {self.dense}")
        if self.kind != "realnvp" and self.spread != 0:
            raise ValueError(f"spread: a flow on images starts with 0, found {self.spread}")
