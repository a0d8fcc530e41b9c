"""From a raw file to an embedding file: every image once through a pretrained backbone.

The images go through the backbone in blocks of ``forward_batch``, the last one padded, and block b
always holds the images from ``b * forward_batch`` on. An image therefore meets the same kernel at
the same place whatever the size of the written batches, the number of lanes that share the work and
the points at which a run was stopped, and its embedding has the same bytes.

A lane is a GPU, or one core of the CPU: cores that each work through a small block of their own
need not wait for each other at every layer, and the bytes don't depend on their number.

Unfinished work lies beside the output, in a folder named by the fingerprint of what makes it (see
``_Partial``), and is moved into place when it is whole.
"""

from __future__ import annotations

import copy
import ctypes
import errno
import importlib.metadata
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hcl.errors import HCLError
from hcl.extract.backbones import Backbone, Transform, load_backbone
from hcl.extract.settings import ExtractSettings
from hcl.files import canonical_json, remove
from hcl.progress import bar
from hcl.records import embeddings
from hcl.records.raw import Raw

LOG = logging.getLogger(__name__)

# Below so many images, compiling takes longer than it saves: on the CPU as benchmarks/extract.py
# measures it, on a GPU as estimated from a minute for compiling and thousands of images a second.
COMPILE_FROM = {"cpu": 20_000, "cuda": 500_000}
# Small on the CPU, where what a layer hands to the next should stay in the cache.
FORWARD_BATCH = {"cpu": 8}
FORWARD_BATCH_ELSEWHERE = 128
# What torch raises when a GPU is gone; before torch 2.8 there was no such class.
DEVICE_FAILED: Any = getattr(torch, "AcceleratorError", ())
READY_MADE = "none (ready-made embeddings)"


def extract(raw_path: str | Path, out: str | Path, settings: ExtractSettings) -> tuple[int, int]:
    """Embed every image of a raw file; the number of samples and the size of an embedding.

    Stopped at any moment, even by SIGKILL, a second call continues from the last finished batch and
    ends with the same bytes. Embeddings that come ready-made are passed through.
    """
    raw, out = Raw(raw_path), Path(out)
    raw.verify()
    try:
        if raw.kind == "embeddings":
            embeddings.write(out, raw.x, raw.y, raw.split, _ready_made(raw))
            return raw.x.shape
        return _extract(raw, out, settings, find_lanes(settings.device))
    except OSError as error:
        full = error.errno == errno.ENOSPC
        why = "the disk is full; make room and run again" if full else str(error)
        raise HCLError(f"{out}: cannot be written: {why}.") from error


def find_lanes(device: str) -> list[torch.device]:
    """The devices that share the work; the CPU once for each of its cores."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        device = "cuda" if count else "cpu"
    if device == "cpu":
        return [torch.device("cpu")] * torch.get_num_threads()
    if device == "mps":
        if not torch.backends.mps.is_available():
            raise HCLError("extract.device is 'mps', but this machine has none. Use auto or cpu.")
        return [torch.device("mps")]
    wanted = [int(device[5:])] if ":" in device else list(range(count))
    if not wanted or wanted[-1] >= count:
        raise HCLError(
            f"extract.device is {device!r}, but torch sees {count} CUDA devices here. "
            "Use auto or cpu, or install the CUDA build of torch."
        )
    return [torch.device("cuda", i) for i in wanted]


def _extract(
    raw: Raw, out: Path, settings: ExtractSettings, lanes: Sequence[torch.device]
) -> tuple[int, int]:
    kind = lanes[0].type
    if settings.amp and kind == "cpu":
        raise HCLError("extract.amp is true, but the device is the CPU. Set amp to false.")
    block = settings.forward_batch
    if block == "auto":
        block = FORWARD_BATCH.get(kind, FORWARD_BATCH_ELSEWHERE)
    backbone = load_backbone(settings.backbone, settings.weights, settings.image_size)
    with _exact_convolutions(settings.amp), _freed_memory_kept():
        embedders, compiled = _make_embedders(backbone, lanes, settings, block, len(raw))
        made = {"amp": settings.amp, "compiled": compiled, "device": kind, "forward_batch": block}
        provenance = _provenance(raw, backbone, made)
        key = embeddings.provenance_fingerprint(provenance)
        with _Partial(_folder(out, key), len(raw), backbone.size, block) as partial:
            _embed_all(raw, backbone.transform, embedders, settings, partial)
            whole = partial.folder / "whole.h5"
            embeddings.write(whole, partial.rows(), raw.y, raw.split, provenance)
            os.replace(whole, out)
    for leftover in out.parent.glob(f".{out.name}.*.part"):
        remove(leftover)
    return len(raw), backbone.size


def _folder(out: Path, key: str) -> Path:
    # Beside the output, where DVC leaves it when it removes the output of a stage that it runs.
    return out.with_name(f".{out.name}.{key[:16]}.part")


# What the file says of itself


def _provenance(raw: Raw, backbone: Backbone, made: dict[str, Any]) -> dict[str, str]:
    return {
        "format": embeddings.FORMAT,
        "dataset": raw.dataset,
        "classes": json.dumps(raw.classes, ensure_ascii=False),
        "backbone": backbone.name,
        "weights": backbone.weights.source,
        "weights_sha256": backbone.weights.sha256,
        "transform": canonical_json(backbone.transform.describe()),
        "data_sha256": raw.content_sha256,
        "versions": canonical_json(_versions("timm", "torch")),
        "settings": canonical_json(made),
    }


def _ready_made(raw: Raw) -> dict[str, str]:
    return {
        "format": embeddings.FORMAT,
        "dataset": raw.dataset,
        "classes": json.dumps(raw.classes, ensure_ascii=False),
        "backbone": READY_MADE,
        "weights": "none",
        "weights_sha256": "none",
        "transform": canonical_json({}),
        "data_sha256": raw.content_sha256,
        "versions": canonical_json(_versions("numpy")),
        "settings": canonical_json({}),
    }


def _versions(*packages: str) -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in packages}


# The backbone on its lanes


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


def _make_embedders(
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
    wanted = settings.compile
    if wanted == "auto":
        wanted = count >= COMPILE_FROM.get(lanes[0].type, count + 1)
    if wanted:
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
        with torch.no_grad(), _one_thread(device), _room_for(block):
            images = torch.zeros(block, 3, 32, 32, dtype=torch.uint8, device=device)
            shape = tuple(embed[device](backbone.transform.resize(images)).shape)
        if shape != (block, backbone.size):
            raise HCLError(
                f"backbone {backbone.name} gives {list(shape[1:])} for an image, "
                f"not a vector of {backbone.size}. Choose another."
            )


def _exact_convolutions(amp: bool) -> AbstractContextManager[Any]:
    """On a GPU: the same algorithm every time, and full float32 unless half precision is wanted."""
    if not torch.backends.cudnn.is_available():
        return nullcontext()
    flags: AbstractContextManager[Any] = torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=amp
    )
    return flags


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """On the CPU, one core for what the calling thread does: the other cores have their own."""
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _freed_memory_kept() -> Iterator[None]:
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
def _room_for(block: int) -> Iterator[None]:
    """Say what to do when a device runs out of memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise HCLError(
            f"the device has no room for {block} images at once. Lower extract.forward_batch."
        ) from error


# The images on their way


def _embed_all(
    raw: Raw,
    transform: Transform,
    embedders: Sequence[tuple[torch.device, Embed]],
    settings: ExtractSettings,
    partial: _Partial,
) -> None:
    """Embed the blocks that are not finished yet; each lane takes the next one when it is free.

    What a lane leaves undone whose device fails is done by the others.
    """
    lanes = list(embedders)
    done = partial.images_done()
    with bar(total=len(raw), initial=done, desc=f"extract {raw.dataset}", unit="image") as progress:
        while pending := partial.pending():
            lost = _embed_pending(pending, raw, transform, lanes, settings, partial, progress)
            if not lost:
                return
            lanes = [lane for index, lane in enumerate(lanes) if index not in lost]
            why = "; ".join(lost.values())
            if not lanes:
                raise HCLError(f"no device is left: {why}. What is done is kept; run again.")
            LOG.warning("%s; the other devices go on", why)
            progress.n = partial.images_done()


def _embed_pending(
    pending: Sequence[int],
    raw: Raw,
    transform: Transform,
    lanes: Sequence[tuple[torch.device, Embed]],
    settings: ExtractSettings,
    partial: _Partial,
    progress: Any,
) -> dict[int, str]:
    """Embed blocks on all lanes; which lanes were lost, by their number, and why."""
    blocks, lock = _shared(pending), threading.Lock()

    def run(device: torch.device, embed: Embed) -> str | None:
        try:
            with torch.no_grad(), _one_thread(device), _room_for(partial.block):
                for images in _embed(blocks, raw, transform, device, embed, settings, partial):
                    with lock:
                        progress.update(images)
        except DEVICE_FAILED as error:
            return f"{device} failed ({str(error).splitlines()[0]})"
        return None

    with ThreadPoolExecutor(len(lanes), "lane") as pool:
        jobs = [pool.submit(run, device, embed) for device, embed in lanes]
        try:
            failures = enumerate([job.result() for job in jobs])
        finally:
            for _ in blocks:  # an error in one lane: nothing is left to do for the others
                pass
    return {index: why for index, why in failures if why is not None}


def _embed(
    blocks: Iterable[int],
    raw: Raw,
    transform: Transform,
    device: torch.device,
    embed: Embed,
    settings: ExtractSettings,
    partial: _Partial,
) -> Iterator[int]:
    """Embed blocks on one lane and write them batch by batch; yields the images of each block."""

    def load(block: int) -> tuple[int, Tensor]:
        start, count = block * partial.block, partial.images_in(block)
        images = _load(raw, transform, start, count, partial.block)
        return block, images.pin_memory() if device.type == "cuda" else images

    automatic = 0 if device.type == "cpu" else min(8, os.cpu_count() or 1)
    workers = automatic if settings.workers == "auto" else settings.workers
    outputs: dict[int, Tensor] = {}
    for block, images in _ahead(load, blocks, workers):
        images = images.to(device, non_blocking=True)
        outputs[block] = embed(transform.resize(images) if raw.kind == "images" else images)
        yield partial.images_in(block)
        if len(outputs) * partial.block >= settings.batch_size:
            partial.write(outputs)
            outputs = {}
    partial.write(outputs)


def _load(raw: Raw, transform: Transform, start: int, count: int, size: int) -> Tensor:
    """Images start…start + count − 1 as uint8 (size, C, h, w), black where there are none.

    Files of a folder differ in size, so these are resized here, one by one; arrays go to the device
    as they are, and are resized there.
    """
    images = raw.read_images(start, start + count)
    if isinstance(images, list):
        resized = [transform.resize(_channels_first(image[None])) for image in images]
        tensor = torch.cat(resized)
    else:
        tensor = _channels_first(images)
    if count < size:
        padding = torch.zeros(size - count, *tensor.shape[1:], dtype=torch.uint8)
        tensor = torch.cat([tensor, padding])
    return tensor.contiguous(memory_format=torch.channels_last)


def _channels_first(images: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2)


T = TypeVar("T")


def _shared(items: Iterable[T]) -> Iterator[T]:
    """An iterator that several threads may draw from."""
    lock, source = threading.Lock(), iter(items)

    def draw() -> T | None:
        with lock:
            return next(source, None)

    return iter(draw, None)


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


class _Partial:
    """Unfinished work that survives SIGKILL: rows at their final place, and a list of what is done.

    ``rows`` is the plain float32 array (n, D). ``finished`` is a list of block numbers, eight bytes
    each; a number is appended after its rows have reached the disk, so that what it names is whole.
    """

    def __init__(self, folder: Path, count: int, size: int, block: int) -> None:
        self.folder = folder
        self.count, self.size, self.block = count, size, block
        self._lock = threading.Lock()

    def __enter__(self) -> _Partial:
        self.folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT
        self._rows = os.open(self.folder / "rows", flags, 0o644)
        os.ftruncate(self._rows, self.count * self.size * 4)
        self._finished = os.open(self.folder / "finished", flags | os.O_APPEND, 0o644)
        whole = os.fstat(self._finished).st_size // 8 * 8
        os.ftruncate(self._finished, whole)  # a number may have been cut
        self._done = set(np.frombuffer(os.pread(self._finished, whole, 0), "<i8").tolist())
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._rows)
        os.close(self._finished)

    def pending(self) -> list[int]:
        """The blocks that are not finished, in order."""
        return [b for b in range(-(-self.count // self.block)) if b not in self._done]

    def images_done(self) -> int:
        """How many images are in the blocks that are finished."""
        return self.count - sum(map(self.images_in, self.pending()))

    def images_in(self, block: int) -> int:
        return min(self.block, self.count - block * self.block)

    def write(self, outputs: Mapping[int, Tensor]) -> None:
        """Write the embeddings (block, D) of some blocks, then note that these are finished."""
        if not outputs:
            return
        for block, values in outputs.items():
            start, rows = block * self.block, values[: self.images_in(block)].cpu().numpy()
            finite = np.isfinite(rows).all(axis=1)
            if not finite.all():
                raise HCLError(
                    f"the embedding of image {start + int(np.argmin(finite))} is not finite. "
                    "Check extract.weights; with extract.amp true, try false."
                )
            _write_at(self._rows, rows, start * self.size * 4)
        os.fsync(self._rows)
        with self._lock:
            os.write(self._finished, np.asarray(list(outputs), "<i8").tobytes())
            os.fsync(self._finished)
            self._done.update(outputs)

    def rows(self) -> NDArray[np.float32]:
        shape = (self.count, self.size)
        return np.memmap(self.folder / "rows", np.float32, "r", shape=shape)


def _write_at(file: int, values: NDArray[np.float32], offset: int) -> None:
    whole: Any = values.reshape(-1).view(np.uint8)
    data = memoryview(whole)
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written
