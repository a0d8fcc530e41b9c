"""Blocks of images through a pretrained backbone on one device.

The images go through in blocks of ``forward_batch``, the last one padded, and block b always holds
the images from ``b * forward_batch`` on. An image therefore meets the same kernel at the same place
whoever works through its block, and its embedding has the same bytes.
"""

from __future__ import annotations

import copy
import ctypes
import importlib.metadata
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hcl.errors import HCLError
from hcl.extract.backbones import Backbone, Transform
from hcl.extract.settings import ExtractSettings

LOG = logging.getLogger(__name__)

# Below so many images, compiling takes longer than it saves: on the CPU as benchmarks/extract.py
# measures it, on a GPU as estimated from a minute for compiling and thousands of images a second.
COMPILE_FROM = {"cpu": 20_000, "cuda": 500_000}
# Small on the CPU, where what a layer hands to the next should stay in the cache.
FORWARD_BATCH = {"cpu": 8}
FORWARD_BATCH_ELSEWHERE = 128


@dataclass(frozen=True)
class Cut:
    """How ``count`` images are cut into blocks of ``block``; the last one may be smaller."""

    count: int
    block: int

    def __len__(self) -> int:
        return -(-self.count // self.block)

    def images_in(self, block: int) -> int:
        return min(self.block, self.count - block * self.block)


class Images(Protocol):
    """Where images are read from, by their place in the data set."""

    @property
    def kind(self) -> Literal["images", "encoded", "embeddings"]: ...

    def read_images(self, start: int, stop: int) -> NDArray[np.uint8] | list[NDArray[np.uint8]]: ...


def forward_batch(settings: ExtractSettings, device: str) -> int:
    """Images in a block, on a kind of device."""
    if settings.forward_batch != "auto":
        return settings.forward_batch
    return FORWARD_BATCH.get(device, FORWARD_BATCH_ELSEWHERE)


def compile_wanted(settings: ExtractSettings, device: str, count: int) -> bool:
    """Whether to compile for a kind of device and a number of images."""
    if settings.compile == "auto":
        return count >= COMPILE_FROM.get(device, count + 1)
    return settings.compile


def versions() -> dict[str, str]:
    """Of the packages on which the numbers depend."""
    return {name: importlib.metadata.version(name) for name in ("timm", "torch")}


def check_amp(settings: ExtractSettings, device: str) -> None:
    if settings.amp and device == "cpu":
        raise HCLError("extract.amp is true, but the device is the CPU. Set amp to false.")


class Embedder(nn.Module):
    """uint8 images (b, 3, height, width) to embeddings float32 (b, D) on one device."""

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: Backbone, device: torch.device, amp: bool) -> None:
        super().__init__()
        self.device = device
        self.amp = amp
        mean, std = backbone.transform.levels()  # on the device once, not in every block
        self.register_buffer("mean", mean.to(device))
        self.register_buffer("std", std.to(device))
        model = copy.deepcopy(backbone.model).to(device)
        self.model = model.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        x = (images.float() - self.mean) / self.std
        autocast: AbstractContextManager[Any] = nullcontext()
        if self.amp:
            autocast = torch.autocast(self.device.type, torch.float16)
        with autocast:
            embedding: Tensor = self.model(x)
        return embedding.float()


Embed = Callable[[Tensor], Tensor]


def make_embedders(
    backbone: Backbone,
    lanes: Sequence[torch.device],
    settings: ExtractSettings,
    block: int,
    count: int,
) -> tuple[list[tuple[torch.device, Embed]], bool]:
    """A forward function for each lane, tried once, and whether they are compiled.

    Lanes on one device share it.
    """
    eager = {device: Embedder(backbone, device, settings.amp) for device in set(lanes)}
    if compile_wanted(settings, lanes[0].type, count):
        try:
            compiled = {device: compile_embedder(module) for device, module in eager.items()}
            _try_out(compiled, backbone, block)
            return [(device, compiled[device]) for device in lanes], True
        except HCLError:
            raise
        except Exception as error:  # no C++ compiler, an operator that it doesn't know, …
            reason = " ".join(str(error).split())[:160]
            LOG.warning("not compiled, which is slower but works (%s)", reason)
    _try_out(eager, backbone, block)
    return [(device, eager[device]) for device in lanes], False


def compile_embedder(module: Embed) -> Embed:
    # Freezing folds batch norm into the weights and lays these out for the CPU's kernels: most of
    # the gain there.
    compiled: Embed = torch.compile(module, dynamic=False, options={"freezing": True})
    return compiled


def _try_out(embed: Mapping[torch.device, Embed], backbone: Backbone, block: int) -> None:
    """One forward pass: it compiles, and shows whether the backbone gives one vector an image."""
    for device in embed:
        with torch.no_grad(), one_thread(device), room_for(block):
            images = torch.zeros(block, 3, 32, 32, dtype=torch.uint8, device=device)
            shape = tuple(embed[device](backbone.transform.resize(images)).shape)
        if shape != (block, backbone.size):
            raise HCLError(
                f"backbone {backbone.name} gives {list(shape[1:])} for an image, "
                f"not a vector of {backbone.size}. Choose another."
            )


def exact_convolutions(amp: bool) -> AbstractContextManager[Any]:
    """On a GPU: the same algorithm every time, and full float32 unless half precision is wanted."""
    if not torch.backends.cudnn.is_available():
        return nullcontext()
    flags: AbstractContextManager[Any] = torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=amp
    )
    return flags


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """On the CPU, one core for what the calling thread does: the other cores have their own."""
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep freed memory for the next layer instead of handing it back to the system.

    glibc gives large blocks back at once, and the system clears every page of the next one: on a
    CPU that took as long as the arithmetic. Elsewhere than on glibc, nothing happens.
    """
    mmap_max, trim_threshold, arena_max = -4, -1, -8  # of malloc.h
    try:
        library = ctypes.CDLL(None)
        mallopt, malloc_trim = library.mallopt, library.malloc_trim
    except (OSError, TypeError, AttributeError):
        yield
        return
    mallopt(mmap_max, 0)
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(arena_max, 1)  # the heaps of further arenas are small, and are given back
    try:
        yield
    finally:
        mallopt(mmap_max, 65_536)
        mallopt(trim_threshold, 128 * 1024)
        malloc_trim(0)


@contextmanager
def room_for(block: int) -> Iterator[None]:
    """Say what to do when a device runs out of memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise HCLError(
            f"the device has no room for {block} images at once. Lower extract.forward_batch."
        ) from error


def embed_blocks(
    blocks: Iterable[int],
    images: Images,
    transform: Transform,
    device: torch.device,
    embed: Embed,
    settings: ExtractSettings,
    cut: Cut,
) -> Iterator[tuple[int, Tensor]]:
    """Each block with its embeddings (block, D) on the device; of a padded block, all of them."""

    def load(block: int) -> tuple[int, Tensor]:
        loaded = _load(images, transform, block * cut.block, cut.images_in(block), cut.block)
        return block, loaded.pin_memory() if device.type == "cuda" else loaded

    automatic = 0 if device.type == "cpu" else min(8, os.cpu_count() or 1)
    workers = automatic if settings.workers == "auto" else settings.workers
    for block, loaded in _ahead(load, blocks, workers):
        loaded = loaded.to(device, non_blocking=True)
        yield block, embed(transform.resize(loaded) if images.kind == "images" else loaded)


def _load(images: Images, transform: Transform, start: int, count: int, size: int) -> Tensor:
    """Images start…start + count − 1 as uint8 (size, C, h, w), black where there are none.

    Files of a folder differ in size, so these are resized here, one by one; arrays go to the device
    as they are, and are resized there.
    """
    found = images.read_images(start, start + count)
    if isinstance(found, list):
        resized = [transform.resize(_channels_first(image[None])) for image in found]
        tensor = torch.cat(resized)
    else:
        tensor = _channels_first(found)
    if count < size:
        padding = torch.zeros(size - count, *tensor.shape[1:], dtype=torch.uint8)
        tensor = torch.cat([tensor, padding])
    return tensor.contiguous(memory_format=torch.channels_last)


def _channels_first(images: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2)


T = TypeVar("T")


def _ahead(load: Callable[[int], T], blocks: Iterable[int], workers: int) -> Iterator[T]:
    """``map(load, blocks)``, by threads that stay a few blocks ahead; without any, in line."""
    if workers == 0:
        yield from map(load, blocks)
        return
    with ThreadPoolExecutor(workers, "load") as pool:
        source = iter(blocks)
        queue = deque(pool.submit(load, block) for block in islice(source, 2 * workers))
        while queue:
            loaded = queue.popleft().result()
            queue.extend(pool.submit(load, block) for block in islice(source, 1))
            yield loaded
