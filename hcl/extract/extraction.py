"""From a raw file to an embedding file: every image once through a pretrained backbone.

The images go through the backbone in blocks (``forward``). The bytes of an embedding depend neither
on the size of the written batches, nor on who shares the work, nor on the points at which a run was
stopped.

A lane is a GPU, or one core of the CPU: cores that each work through a small block of their own
need not wait for each other at every layer. With a Ray cluster, its lanes do the work (``on_ray``).

Unfinished work lies beside the output, in a folder named by the fingerprint of what makes it (see
``partial``), and is moved into place when it is whole.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcl.cluster import connect
from hcl.errors import HCLError
from hcl.extract import on_ray
from hcl.extract.backbones import Backbone, Transform, load_backbone
from hcl.extract.forward import (
    Cut,
    Embed,
    Images,
    check_amp,
    compile_wanted,
    embed_blocks,
    exact_convolutions,
    forward_batch,
    freed_memory_kept,
    make_embedders,
    one_thread,
    room_for,
    versions,
)
from hcl.extract.partial import Partial
from hcl.extract.settings import ExtractSettings
from hcl.files import canonical_json, remove, unwritable
from hcl.progress import bar
from hcl.records import embeddings
from hcl.records.raw import Raw

LOG = logging.getLogger(__name__)

# What torch raises when a GPU is gone; before torch 2.8 there was no such class.
DEVICE_FAILED: Any = getattr(torch, "AcceleratorError", ())
KEY = 16  # digits of a fingerprint in the name of unfinished work
READY_MADE = "none (ready-made embeddings)"


def extract(
    raw_path: str | Path,
    out: str | Path,
    settings: ExtractSettings,
    *,
    ray: str | None = None,
    shared: bool = False,
) -> tuple[int, int]:
    """Embed every image of a raw file; the number of samples and the size of an embedding.

    Stopped at any moment, even by SIGKILL, a second call continues from the last finished batch and
    ends with the same bytes. Embeddings that come ready-made are passed through.

    Args:
        raw_path: the raw file.
        out: the embedding file to write.
        settings: what to make, and how.
        ray: address of a Ray cluster whose machines do the work; without it, this machine does.
        shared: the machines of the cluster see the raw file at the same path; without it, its
            images are sent to them.
    """
    raw, out = Raw(raw_path), Path(out)
    raw.verify()
    try:
        if raw.kind == "embeddings":
            embeddings.write(out, raw.x, raw.y, raw.split, _ready_made(raw))
            return raw.x.shape
        if ray is not None:
            return _extract_on_ray(raw, out, settings, ray, shared)
        return _extract(raw, out, settings, find_lanes(settings.device))
    except OSError as error:
        raise unwritable(out, error) from error


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
    """On this machine."""
    device = lanes[0].type
    check_amp(settings, device)
    block = forward_batch(settings, device)
    backbone = load_backbone(settings.backbone, settings.weights, settings.image_size)
    with exact_convolutions(settings.amp), freed_memory_kept():
        embedders, compiled = make_embedders(backbone, lanes, settings, block, len(raw))
        with _made(raw, out, backbone, device, settings.amp, compiled, block) as partial:
            embed_all(raw, backbone.transform, embedders, settings, partial)
    return len(raw), backbone.size


def _extract_on_ray(
    raw: Raw, out: Path, settings: ExtractSettings, address: str, shared: bool
) -> tuple[int, int]:
    """On the machines of a Ray cluster; the file says of itself what it says of one machine's."""
    with connect(address) as ray:
        device = on_ray.device_of(ray, settings.device)
        check_amp(settings, device)
        block = forward_batch(settings, device)
        compiled = compile_wanted(settings, device, len(raw))
        backbone = load_backbone(settings.backbone, settings.weights, settings.image_size)
        with _made(raw, out, backbone, device, settings.amp, compiled, block) as partial:
            decided = replace(settings, compile=compiled, forward_batch=block)
            on_ray.embed_all(ray, raw, backbone, decided, device, partial, shared)
    return len(raw), backbone.size


@contextmanager
def _made(
    raw: Raw, out: Path, backbone: Backbone, device: str, amp: bool, compiled: bool, block: int
) -> Iterator[Partial]:
    """The unfinished work for these settings; finished by the block, it becomes the file."""
    made = {"amp": amp, "compiled": compiled, "device": device, "forward_batch": block}
    provenance = _provenance(raw, backbone, made)
    key = embeddings.provenance_fingerprint(provenance)
    with Partial(_folder(out, key), len(raw), backbone.size, block) as partial:
        yield partial
        embeddings.write(out, partial.rows(), raw.y, raw.split, provenance)
    for leftover in out.parent.glob(f".{out.name}.{'[0-9a-f]' * KEY}.part"):
        remove(leftover)


def _folder(out: Path, key: str) -> Path:
    # Beside the output, where DVC leaves it when it removes the output of a stage that it runs.
    return out.with_name(f".{out.name}.{key[:KEY]}.part")


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
        "versions": canonical_json(versions()),
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
        "versions": canonical_json({"numpy": importlib.metadata.version("numpy")}),
        "settings": canonical_json({}),
    }


# The images on this machine


class DataSet(Images, Protocol):
    """Images that can be counted, and called by a name."""

    @property
    def dataset(self) -> str: ...

    def __len__(self) -> int: ...


class Rows(Protocol):
    """Where embeddings are put, block by block: on the disk (``Partial``) or in memory."""

    @property
    def cut(self) -> Cut: ...

    def pending(self) -> NDArray[np.int64]: ...

    def images_done(self) -> int: ...

    def write(self, outputs: Mapping[int, NDArray[np.float32]]) -> None: ...


def embed_all(
    raw: DataSet,
    transform: Transform,
    embedders: Sequence[tuple[torch.device, Embed]],
    settings: ExtractSettings,
    partial: Rows,
) -> None:
    """Embed the blocks that are not finished yet; each lane takes the next one when it is free.

    What a lane leaves undone whose device fails is done by the others.
    """
    lanes = list(embedders)
    done = partial.images_done()
    with bar(total=len(raw), initial=done, desc=f"extract {raw.dataset}", unit="image") as progress:
        while len(partial.pending()):
            lost = _embed_pending(raw, transform, lanes, settings, partial, progress)
            if not lost:
                return
            lanes = [lane for index, lane in enumerate(lanes) if index not in lost]
            why = "; ".join(lost.values())
            if not lanes:
                raise HCLError(f"no device is left: {why}. What is done is kept; run again.")
            LOG.warning("%s; the other devices go on", why)
            progress.n = partial.images_done()


def _embed_pending(
    raw: DataSet,
    transform: Transform,
    lanes: Sequence[tuple[torch.device, Embed]],
    settings: ExtractSettings,
    partial: Rows,
    progress: Any,
) -> dict[int, str]:
    """Embed what is not finished on all lanes; which lanes were lost, by their number, and why."""
    blocks, lock = _shared(map(int, partial.pending())), threading.Lock()

    def write(outputs: dict[int, Tensor]) -> None:
        partial.write({block: values.cpu().numpy() for block, values in outputs.items()})

    def run(device: torch.device, embed: Embed) -> str | None:
        outputs: dict[int, Tensor] = {}
        try:
            with torch.no_grad(), one_thread(device), room_for(partial.cut.block):
                embedded = embed_blocks(
                    blocks, raw, transform, device, embed, settings, partial.cut
                )
                for block, values in embedded:
                    outputs[block] = values
                    with lock:
                        progress.update(partial.cut.images_in(block))
                    if len(outputs) * partial.cut.block >= settings.batch_size:
                        write(outputs)
                        outputs = {}
                write(outputs)
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


T = TypeVar("T")


def _shared(items: Iterable[T]) -> Iterator[T]:
    """An iterator that several threads may draw from."""
    lock, source = threading.Lock(), iter(items)

    def draw() -> T | None:
        with lock:
            return next(source, None)

    return iter(draw, None)
