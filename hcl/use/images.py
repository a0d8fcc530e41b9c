"""From images to the samples of a model: by the backbone that its file names, or as pixels.

The images pass the same code as in extraction (``hcl.extract``): the same transform, the same
blocks, the same lanes, compiled from the same number of images on. They come one after the other
and may be without end: what is held at a time is a few blocks for each lane.
"""

from __future__ import annotations

import queue
import stat
import threading
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hcl.errors import HCLError
from hcl.records.raw import decode_image
from hcl.train.saving import Input

if TYPE_CHECKING:  # timm, which takes seconds to import, is needed for images alone
    from hcl.extract.backbones import Backbone
    from hcl.extract.forward import Cut, Embed
    from hcl.extract.settings import ExtractSettings

Picture = str | Path | bytes  # a path, or an image file's bytes
AT_ONCE = 256  # images that are handed on together
AHEAD = 8  # blocks for each lane that are read or wait to be handed on
LARGEST_IMAGE = 1 << 28  # bytes of a file: more is no image, and would not fit into memory
BLACK = np.zeros((8, 8, 3), np.uint8)  # stands for an image that can't be read

T = TypeVar("T")


class Seen(NamedTuple):
    """Images as samples, in their order."""

    x: NDArray[Any]  # (n, D); of an image that could not be read, of a black one
    errors: list[str]  # why it could not; empty where it could


def read_picture(picture: Picture) -> NDArray[np.uint8]:
    """An image (H, W, 3); ``ValueError`` says why it can't be read."""
    if isinstance(picture, bytes):
        return decode_image(picture)
    path = Path(picture)
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("not a file")
        if found.st_size > LARGEST_IMAGE:
            raise ValueError(f"{found.st_size} bytes, more than the {LARGEST_IMAGE} of an image")
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    return decode_image(data)


class ImageReader:
    """Makes samples of images, as the learner's were made.

    Args:
        input: what the learner's samples are.
        path: of the model file, for messages.
        weights: of the backbone: as ``extract.weights``.
        device: as ``extract.device``.
    """

    def __init__(
        self, input: Input, path: str | Path, weights: str = "auto", device: str = "auto"
    ) -> None:
        self.input = input
        self.path = path
        self.weights = weights
        self.device = device
        self._backbone: Backbone | None = None
        self._embedders: dict[bool, list[tuple[torch.device, Embed]]] = {}  # by: compiled or not

    def see(self, pictures: Iterable[Picture]) -> Iterator[Seen]:
        """Samples of the images, ``AT_ONCE`` at a time."""
        if self.input.pixels is not None:
            for some in _batches(pictures, AT_ONCE):
                yield self._as_pixels(some)
        else:
            yield from self._embedded(pictures)

    def check(self) -> None:
        """An error unless images can be seen: the backbone and its very weights are here."""
        if self.input.pixels is None:
            self._settings()
            self.backbone()

    def _settings(self) -> ExtractSettings:
        from hcl.extract.settings import ExtractSettings

        try:
            return ExtractSettings(self.input.backbone, device=self.device)
        except ValueError as error:
            raise HCLError(str(error)) from None

    def backbone(self) -> Backbone:
        """The backbone that the model file names, with the weights and the transform it names."""
        if self._backbone is None:
            self._backbone = self._load()
        return self._backbone

    def _load(self) -> Backbone:
        from dataclasses import replace

        from hcl.extract.backbones import Transform, load_backbone

        said = self.input
        if not said.transform or said.backbone.startswith("none"):
            raise HCLError(
                f"{self.path}: was trained on embeddings without a known backbone "
                f"({said.backbone}): it takes embeddings, not images."
            )
        try:
            values: dict[str, Any] = {
                k: tuple(v) if isinstance(v, list) else v for k, v in said.transform.items()
            }
            transform = Transform(**values)
        except TypeError as error:
            raise HCLError(f"{self.path}: its transform is not whole ({error}).") from error
        backbone = load_backbone(said.backbone, self.weights)
        if backbone.weights.sha256 != said.weights_sha256:
            raise HCLError(
                f"{self.path}: was trained with the weights '{said.weights}' of {said.backbone} "
                f"(SHA-256 {said.weights_sha256[:12]}…), but here are '{backbone.weights.source}' "
                f"({backbone.weights.sha256[:12]}…). Name the file of the former with --weights."
            )
        return replace(backbone, transform=transform)

    def _as_pixels(self, pictures: list[Picture]) -> Seen:
        from hcl.extract.pixels import as_pixels

        assert self.input.pixels is not None
        images, errors = _read_all(pictures)
        return Seen(np.stack([as_pixels(image, self.input.pixels) for image in images]), errors)

    def _embedded(self, pictures: Iterable[Picture]) -> Iterator[Seen]:
        from hcl.extract.extraction import find_lanes
        from hcl.extract.forward import (
            COMPILE_FROM,
            compile_wanted,
            exact_convolutions,
            forward_batch,
            freed_memory_kept,
            make_embedders,
        )

        settings = self._settings()
        lanes = find_lanes(self.device)
        kind = lanes[0].type
        block = forward_batch(settings, kind)
        backbone = self.backbone()
        pictures = iter(pictures)
        first = list(islice(pictures, COMPILE_FROM.get(kind, 0)))  # so many pay for compiling
        compiled = compile_wanted(settings, kind, len(first))
        with exact_convolutions(False), freed_memory_kept():
            if compiled not in self._embedders:
                made, _ = make_embedders(backbone, lanes, settings, block, len(first))
                self._embedders[compiled] = made
            line = _Line(chain(first, pictures), block, AHEAD * len(lanes))
            yield from line.through(self._embedders[compiled], backbone, settings)


class _Line:
    """Pictures on their way through the lanes, in blocks, and out again in their order.

    It is what ``embed_blocks`` reads images from, and how they are cut.

    Args:
        pictures: may be without end.
        block: images in a block.
        ahead: blocks that may be on their way.
    """

    kind: Literal["encoded"] = "encoded"

    def __init__(self, pictures: Iterable[Picture], block: int, ahead: int) -> None:
        self.block = block
        self._blocks = enumerate(_batches(pictures, block))
        self._held: dict[int, list[Picture]] = {}
        self._errors: dict[int, list[str]] = {}
        self._lock = threading.Lock()
        self._room = threading.Semaphore(ahead)
        self._stopped = False
        self._done: queue.Queue[tuple[int, NDArray[np.float32]] | BaseException | None] = (
            queue.Queue()
        )

    def through(
        self,
        lanes: list[tuple[torch.device, Embed]],
        backbone: Backbone,
        settings: ExtractSettings,
    ) -> Iterator[Seen]:
        """Each picture once through one of the lanes."""
        threads = [
            threading.Thread(target=self._run, args=(*lane, backbone, settings), daemon=True)
            for lane in lanes
        ]
        for thread in threads:
            thread.start()
        try:
            yield from _together(self._in_order(len(threads)))
        finally:
            self._stopped = True
            self._room.release(len(threads))
            for thread in threads:
                thread.join()

    def _run(
        self, device: torch.device, embed: Embed, backbone: Backbone, settings: ExtractSettings
    ) -> None:
        from hcl.extract.forward import embed_blocks, one_thread, room_for

        try:
            with torch.no_grad(), one_thread(device), room_for(self.block):
                for number, values in embed_blocks(
                    self._numbers(),
                    self,
                    backbone.transform,
                    device,
                    embed,
                    settings,
                    cast("Cut", self),  # its size is not known in advance
                ):
                    self._done.put((number, values.cpu().numpy()[: self.images_in(number)]))
            self._done.put(None)
        except BaseException as error:  # it is raised where the results are waited for
            self._done.put(error)

    def _numbers(self) -> Iterator[int]:
        """Blocks for one lane, as long as there are any, and room for them."""
        while True:
            self._room.acquire()
            with self._lock:
                found = None if self._stopped else next(self._blocks, None)
                if found is None:
                    self._room.release()
                    return
                self._held[found[0]] = found[1]
            yield found[0]

    def images_in(self, number: int) -> int:
        return len(self._held[number])

    def read_images(self, start: int, stop: int) -> list[NDArray[np.uint8]]:
        """The images of the block that begins with picture ``start``."""
        number = start // self.block
        images, self._errors[number] = _read_all(self._held[number])
        return images

    def _in_order(self, lanes: int) -> Iterator[Seen]:
        waiting: dict[int, NDArray[np.float32]] = {}
        following = 0
        while lanes:
            done = self._done.get()
            if isinstance(done, BaseException):
                raise done
            if done is None:
                lanes -= 1
                continue
            waiting[done[0]] = done[1]
            while following in waiting:
                del self._held[following]
                yield Seen(waiting.pop(following), self._errors.pop(following))
                self._room.release()
                following += 1


def _read_all(pictures: list[Picture]) -> tuple[list[NDArray[np.uint8]], list[str]]:
    """The images, black where they can't be read, and why they can't."""
    images, errors = [], []
    for picture in pictures:
        try:
            images.append(read_picture(picture))
            errors.append("")
        except ValueError as error:
            images.append(BLACK)
            errors.append(" ".join(str(error).split()) or "not a readable image")
    return images, errors


def _together(parts: Iterator[Seen]) -> Iterator[Seen]:
    """Blocks joined to about ``AT_ONCE`` images: few large products are faster than many."""
    held: list[Seen] = []
    count = 0
    for part in parts:
        held.append(part)
        count += len(part.x)
        if count >= AT_ONCE:
            yield _join(held)
            held, count = [], 0
    if held:
        yield _join(held)


def _join(parts: list[Seen]) -> Seen:
    return Seen(np.concatenate([p.x for p in parts]), [e for p in parts for e in p.errors])


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    source = iter(items)
    while some := list(islice(source, size)):
        yield some
