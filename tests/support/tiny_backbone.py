"""A backbone that is real but tiny, and raw files of a few images for it."""

from __future__ import annotations

import io
import time
from pathlib import Path

import numpy as np
import timm
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from hcl.records.raw import Block, Content, write_raw

# timm's model for tests, 160 px; its weights here are random, for nothing is downloaded.
NAME = "test_efficientnet.r160_in1k"
SIZE = 256
CLASSES = ("ash", "birch", "cedar")


def save_weights(path: Path) -> Path:
    """Random weights with batch-norm statistics that matter, as a file."""
    generator = torch.Generator().manual_seed(0)
    state = timm.create_model(NAME).state_dict()
    for name, value in state.items():
        if name.endswith("running_mean"):
            value.copy_(torch.randn(value.shape, generator=generator) * 0.1)
        elif value.ndim > 1:
            value.copy_(torch.randn(value.shape, generator=generator) * value[0].numel() ** -0.5)
    torch.save(state, path)
    return path


def random_images(count: int, shape: tuple[int, ...] = (20, 20, 3)) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)


def labels(count: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    return np.arange(count) % len(CLASSES), (np.arange(count) % 4 == 3).astype(np.uint8)


def save_raw(path: Path, images: NDArray[np.uint8], dataset: str = "trees") -> Path:
    """A raw file of images of one size."""
    block = Block(images, *labels(len(images)))
    content = Content("images", CLASSES, len(images), images.shape[1:], [block])
    write_raw(path, content, dataset=dataset, source="made by a test")
    return path


def save_raw_files(path: Path, images: list[NDArray[np.uint8]]) -> Path:
    """A raw file of PNG files, whose images may differ in size."""
    files = []
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "png")
        files.append(buffer.getvalue())
    block = Block(files, *labels(len(files)))
    content = Content("encoded", CLASSES, len(files), (sum(map(len, files)),), [block])
    write_raw(path, content, dataset="trees", source="made by a test")
    return path


class Slow(nn.Module):
    """A model that gives what another one gives, later: time for something to go wrong."""

    def __init__(self, model: nn.Module, seconds: float) -> None:
        super().__init__()
        self.model, self.seconds = model, seconds

    def forward(self, x: Tensor) -> Tensor:
        if not is_black(x):
            time.sleep(self.seconds)
        result: Tensor = self.model(x)
        return result


class Failing(nn.Module):
    """A model that raises the first ``times`` times, whichever process it is in."""

    def __init__(self, model: nn.Module, folder: Path, times: int) -> None:
        super().__init__()
        self.model, self.folder, self.times = model, folder, times

    def forward(self, x: Tensor) -> Tensor:
        for number in range(self.times if not is_black(x) else 0):
            try:
                (self.folder / f"failed-{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            raise RuntimeError("broken on purpose\nwith a second line")
        result: Tensor = self.model(x)
        return result


def is_black(x: Tensor) -> bool:
    """Whether these are the black images on which a backbone is tried out, normalised."""
    return bool((x.amax((0, 2, 3)) == x.amin((0, 2, 3))).all())
