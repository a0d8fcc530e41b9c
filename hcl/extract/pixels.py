"""From a raw file to a file of pixels: images as they are, brought to one shape, no backbone.

Paper: MNIST is upscaled to 32 × 32 × 3 where it stands beside SVHN; silent on the filter. Here:
Pillow's bilinear one, which averages where it makes an image smaller. An image that has the shape
already keeps its bytes. Grey becomes RGB by repetition, RGB becomes grey by ITU-R 601 luma, both as
Pillow does them.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hcl.errors import HCLError
from hcl.files import canonical_json, unwritable
from hcl.progress import bar
from hcl.records import embeddings
from hcl.records.raw import Raw

MODES = {1: "L", 3: "RGB"}
FILTER = Image.Resampling.BILINEAR
NO_BACKBONE = "none (pixels)"


def extract_pixels(raw_path: str | Path, out: str | Path, shape: tuple[int, ...]) -> int:
    """Write the images of a raw file as bytes of ``shape``, (C, H, W); their number."""
    raw = Raw(raw_path)
    if raw.kind == "embeddings":
        raise HCLError(
            f"{raw_path}: {raw.dataset} is ready-made embeddings, which have no pixels; take "
            f"datasets.{raw.dataset}.pixels out."
        )
    raw.verify()
    with bar(total=len(raw), desc=f"extract {raw.dataset}", unit="image") as progress:
        try:
            images = _Images(raw, shape, progress.update)
            embeddings.write(out, images, raw.y, raw.split, _provenance(raw, shape))  # type: ignore[arg-type]
        except OSError as error:
            raise unwritable(out, error) from error
    return len(raw)


def as_pixels(image: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """One image (h, w, c) as bytes (C · H · W,)."""
    channels, height, width = shape
    picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    if picture.size != (width, height):
        picture = picture.resize((width, height), FILTER)
    pixels = np.asarray(picture.convert(MODES[channels]), np.uint8)
    return pixels.reshape(height, width, channels).transpose(2, 0, 1).reshape(-1)


class _Images:
    """The images of a raw file as an array that is made a part at a time, when it is sliced."""

    def __init__(self, raw: Raw, shape: tuple[int, ...], done: Callable[[int], object]) -> None:
        self.raw, self.pixels, self.done = raw, shape, done
        self.shape = (len(raw), int(np.prod(shape)))

    def __len__(self) -> int:
        return len(self.raw)

    def __getitem__(self, rows: slice) -> NDArray[np.uint8]:
        images = self.raw.read_images(rows.start, rows.stop)
        part = np.stack([as_pixels(image, self.pixels) for image in images])
        self.done(len(part))
        return part


def _provenance(raw: Raw, shape: tuple[int, ...]) -> dict[str, str]:
    return {
        "dataset": raw.dataset,
        "classes": json.dumps(raw.classes, ensure_ascii=False),
        "backbone": NO_BACKBONE,
        "weights": "none",
        "weights_sha256": "none",
        "transform": canonical_json({"filter": FILTER.name.lower(), "mode": MODES[shape[0]]}),
        "data_sha256": raw.content_sha256,
        "versions": canonical_json({"pillow": importlib.metadata.version("pillow")}),
        "settings": canonical_json({}),
        "pixels": json.dumps(list(shape)),
    }
