"""Settings of CURL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from hcl.learn.settings import Decay, Rate, TrainingSettings
from hcl.model.settings import Width
from hcl.settings import check_limits

MOST_LAYERS = 100


@dataclass(frozen=True)
class CurlMethod:
    """Supervised CURL with generative replay. The defaults are the paper's for embeddings.

    For MNIST it takes an encoder 1200-600-300-150, a Bernoulli decoder 500-500 and 32 latents.

    Attributes:
        kind: ``curl``.
        encoder: widths of the encoder's hidden layers.
        decoder: widths of the decoder's hidden layers.
        latents: dimensions of z.
        likelihood: of x given z; ``bernoulli`` expects values from 0 to 1.
        weighing: ``samples`` counts each replayed sample as one of the batch, ``terms`` all of them
            together as much as the batch.
        learning_rate: instead of the benchmark's.
        weight_decay: instead of the benchmark's.
    """

    kind: Literal["curl"] = "curl"
    encoder: tuple[Width, ...] = (512, 512)
    decoder: tuple[Width, ...] = (512, 512)
    latents: Width = 64
    likelihood: Literal["gaussian", "bernoulli"] = "gaussian"
    weighing: Literal["samples", "terms"] = "samples"
    learning_rate: Rate | None = None
    weight_decay: Decay | None = None

    learner: ClassVar[str] = "hcl.learn.curl.learner"
    takes_images: ClassVar[bool] = False
    closed_form: ClassVar[bool] = False
    reads_flow: ClassVar[bool] = False
    detection: ClassVar[None] = None
    sees_once: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_limits(self)
        for name in ("encoder", "decoder"):
            if not 1 <= len(getattr(self, name)) <= MOST_LAYERS:
                raise ValueError(
                    f"{name}: has {len(getattr(self, name))} widths; list from 1 to {MOST_LAYERS}."
                )

    def check(self, training: TrainingSettings) -> None:
        """Nothing in how a benchmark is trained is at odds with it."""

    def advice(self, batches: int) -> str | None:
        """Batches may be as few as they are."""
        return None
