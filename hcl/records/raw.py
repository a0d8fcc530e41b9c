"""The raw file: one HDF5 layout for every data set, written by fetch and read by extract.

Layout ``hcl-raw/2``, n samples, every dataset contiguous (so that equal data gives equal bytes,
and a reader can map it into memory):

- ``y`` int64 (n,), 0-based class, or −1 throughout where the set has no labels and no ``classes``;
  ``split`` uint8 (n,), 0 train, 1 test;
- exactly one of

  - ``images`` uint8 (n, H, W, C), C = 1 or 3;
  - ``encoded`` uint8 (bytes,), the files of an image folder one after the other as they are, and
    ``offsets`` int64 (n + 1,): sample i is ``encoded[offsets[i]:offsets[i + 1]]``;
  - ``x`` float32 (n, D), ready embeddings;

- attributes, all of them text: ``format``, ``dataset`` (its name in the parameters), ``source``
  (what it is), ``classes`` (JSON list of names), ``source_sha256`` (of the user's own embedding
  file that it was made from, else empty), ``fingerprint`` (over these) and ``content_sha256`` (over
  the arrays, see ``_Digest``).
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from hcl.errors import HCLError
from hcl.files import fingerprint
from hcl.progress import bar
from hcl.records.hdf5 import Format, Reader, reading, writing

FORMAT = "hcl-raw/2"
RAW = Format("raw file", (FORMAT,), "hcl fetch")
ABOUT = ("format", "dataset", "source", "classes", "source_sha256")
TRAIN, TEST = 0, 1
UNLABELLED = -1  # for every sample of a set without classes

Kind = Literal["images", "encoded", "embeddings"]
# Each kind's dataset, its dtype and its number of dimensions
ARRAYS: dict[Kind, tuple[str, str, int]] = {
    "images": ("images", "uint8", 4),
    "encoded": ("encoded", "uint8", 1),
    "embeddings": ("x", "float32", 2),
}
LONGEST_TO_SHORTEST = 50  # sides of an image: resized by its shorter side, a strip has no end
# Pillow warns of what decode_image refuses.
warnings.simplefilter("ignore", Image.DecompressionBombWarning)
_STARTS = {"PNG": rb"\x89PNG", "JPEG": rb"\xff\xd8", "WEBP": rb"RIFF[\s\S]{4}WEBP"}
IMAGE_FORMATS = tuple(_STARTS)
_HASHED_AT_ONCE = 1 << 24  # bytes
_CHANGED = "The data set's files changed while they were read. Leave them be and run again."


@dataclass(frozen=True)
class Block:
    """Some samples on their way into a raw file.

    ``data`` is (b, H, W, C) for images, (b, D) for embeddings, a list of b files for encoded.
    """

    data: NDArray[Any] | list[bytes]
    y: NDArray[np.int64]
    split: NDArray[np.uint8]


@dataclass(frozen=True)
class Content:
    """A data set as a reader hands it over: its outline, and its samples block by block."""

    kind: Kind
    classes: tuple[str, ...]
    count: int
    shape: tuple[int, ...]  # of one sample: (H, W, C) or (D,); of encoded: (bytes in all,)
    blocks: Iterable[Block]
    source_sha256: str = ""  # of the one file that it is read from, where its bytes may change


def write_raw(path: str | Path, content: Content, *, dataset: str, source: str) -> None:
    """Write a raw file, one block in memory at a time; it appears whole or not at all."""
    with writing(path, ARRAYS[content.kind][0]) as (file, sink):

        def done(samples: int) -> None:
            shown.update(samples)
            sink.check()  # a full disk is no reason to read the rest

        with bar(total=content.count, desc=f"fetch {dataset}", unit=" samples") as shown:
            digest = _fill(file, content, done)
        classes = json.dumps(content.classes, ensure_ascii=False)
        values = (FORMAT, dataset, source, classes, content.source_sha256)
        about = dict(zip(ABOUT, values, strict=True))
        for name, value in (about | {"fingerprint": fingerprint(about)}).items():
            file.attrs[name] = value
        file.attrs["content_sha256"] = digest


def _fill(file: h5py.File, content: Content, done: Callable[[int], object]) -> str:
    """Write the arrays of ``content``, telling ``done`` the samples of each block; their digest."""
    name, dtype, _ = ARRAYS[content.kind]
    encoded = content.kind == "encoded"
    shape = content.shape if encoded else (content.count, *content.shape)
    data = file.create_dataset(name, shape, dtype)
    digest = _Digest()
    digest.begin(name, data.dtype, shape)
    arrays: dict[str, NDArray[Any]] = {
        "y": np.empty(content.count, np.int64),
        "split": np.empty(content.count, np.uint8),
    }
    if encoded:
        arrays["offsets"] = np.zeros(content.count + 1, np.int64)
    sample, row = 0, 0  # of ``arrays``, of ``data``
    for block in content.blocks:
        samples = slice(sample, sample + len(block.y))
        if samples.stop > content.count:
            raise HCLError(_CHANGED)
        if isinstance(block.data, list):
            ends = row + np.cumsum([len(b) for b in block.data])
            arrays["offsets"][samples.start + 1 : samples.stop + 1] = ends
            values = np.frombuffer(b"".join(block.data), np.uint8)
        else:
            values = np.ascontiguousarray(block.data, dtype)
        if row + len(values) > shape[0]:
            raise HCLError(_CHANGED)
        data[row : row + len(values)] = values
        digest.update(values)
        row += len(values)
        arrays["y"][samples], arrays["split"][samples] = block.y, block.split
        sample = samples.stop
        done(len(block.y))
    if row != shape[0] or sample != content.count:
        raise HCLError(_CHANGED)
    for name, values in arrays.items():
        file.create_dataset(name, data=values)
        digest.add(name, values)
    return digest.hexdigest()


class _Digest:
    """SHA-256 over arrays: each one's name, dtype and shape, a newline, its bytes in C order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def begin(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._hash.update(f"{name} {dtype.str} {list(shape)}\n".encode())

    def update(self, values: NDArray[Any]) -> None:
        self._hash.update(values.reshape(-1).view(np.uint8).data)

    def add(self, name: str, values: NDArray[Any]) -> None:
        self.begin(name, values.dtype, values.shape)
        flat = values.reshape(-1)
        step = max(1, _HASHED_AT_ONCE // flat.itemsize)
        for start in range(0, len(flat), step):
            self.update(flat[start : start + step])

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


class Raw:
    """A raw file that was checked and is read lazily: the samples stay on disk, mapped into memory.

    It can be handed to other processes, forked or spawned: there it is mapped again from ``path``.
    """

    path: Path
    dataset: str
    source: str
    classes: tuple[str, ...]
    source_sha256: str
    content_sha256: str
    kind: Kind
    y: NDArray[np.int64]
    split: NDArray[np.uint8]

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with reading(self.path, RAW) as file:
            self._read(file)

    def __len__(self) -> int:
        return len(self.y)

    def __reduce__(self) -> tuple[type[Raw], tuple[Path]]:
        return Raw, (self.path,)

    @property
    def data(self) -> NDArray[Any]:
        """The samples, read-only: ``images``, ``encoded`` or ``x`` of the file."""
        return self._data

    @property
    def x(self) -> NDArray[np.float32]:
        """Ready embeddings (n, D), read-only; only where ``kind`` is "embeddings"."""
        if self.kind != "embeddings":
            raise TypeError(f"{self.path} holds {self.kind}, not embeddings")
        return self._data

    def read_images(self, start: int, stop: int) -> NDArray[np.uint8] | list[NDArray[np.uint8]]:
        """Samples start…stop−1: an array (b, H, W, C), or for encoded a list of (H, W, 3)."""
        if self.kind == "images":
            return np.array(self._data[start:stop])
        if self.kind == "encoded":
            stop = min(stop, len(self))
            return [self._decode(i) for i in range(start, stop)]
        raise TypeError(f"{self.path} holds embeddings, not images")

    def read_samples(self, start: int, stop: int) -> NDArray[Any] | list[bytes]:
        """Samples start…stop−1 as they lie in the file: encoded ones as files, not decoded."""
        if self._offsets is None:
            return np.array(self._data[start:stop])
        return [self._file(i) for i in range(start, min(stop, len(self)))]

    def verify(self) -> None:
        """Read everything once and compare it with ``content_sha256``; an error if it differs."""
        digest = _Digest()
        digest.add(ARRAYS[self.kind][0], self._data)
        digest.add("y", self.y)
        digest.add("split", self.split)
        if self._offsets is not None:
            digest.add("offsets", self._offsets)
        if digest.hexdigest() != self.content_sha256:
            raise self._broken("its content does not have the SHA-256 that it names")

    def _file(self, i: int) -> bytes:
        assert self._offsets is not None
        return self._data[self._offsets[i] : self._offsets[i + 1]].tobytes()

    def _decode(self, i: int) -> NDArray[np.uint8]:
        try:
            return decode_image(self._file(i))
        except ValueError as error:
            raise self._broken(f"sample {i} is not a readable image: {error}") from error

    def _read(self, file: Reader) -> None:
        kinds: list[Kind] = [kind for kind, (name, _, _) in ARRAYS.items() if file.has(name)]
        if len(kinds) != 1:
            raise self._broken("it must hold exactly one of images, encoded and x")
        self.kind = kinds[0]
        about = {name: file.text(name) for name in ABOUT}
        self.dataset, self.source = about["dataset"], about["source"]
        self.source_sha256 = about["source_sha256"]
        self.content_sha256 = file.text("content_sha256")
        self.classes = file.strings("classes")
        self.y = file.array("y", "int64", 1)
        self.split = file.array("split", "uint8", 1)
        self._offsets = file.array("offsets", "int64", 1) if self.kind == "encoded" else None
        if not len(self.y):
            raise self._broken("it holds no samples")
        self._data = file.mapped(*ARRAYS[self.kind])
        self._check()
        if file.text("fingerprint") != fingerprint(about):
            raise self._broken("its fingerprint does not fit what it says of itself")

    def _check(self) -> None:
        n = len(self.y)
        if len(self.split) != n:
            raise self._broken(f"split has {len(self.split)} entries, y has {n}")
        unlabelled = not self.classes and (self.y == UNLABELLED).all()
        if not unlabelled and (self.y.min() < 0 or self.y.max() >= len(self.classes)):
            raise self._broken(
                f"labels are {self.y.min()}…{self.y.max()} but it has {len(self.classes)} classes"
            )
        if self.split.max() > TEST:
            raise self._broken(f"split holds {self.split.max()}; allowed: 0 (train), 1 (test)")
        if self._offsets is not None:
            ends = (self._offsets[0], self._offsets[-1]) if len(self._offsets) else None
            if len(self._offsets) != n + 1 or ends != (0, len(self._data)):
                raise self._broken("offsets do not fit the samples")
            if (np.diff(self._offsets) <= 0).any():
                raise self._broken("offsets do not rise")
        elif len(self._data) != n:
            raise self._broken(f"it holds {len(self._data)} samples but {n} labels")
        if self.kind == "images" and self._data.shape[3] not in (1, 3):
            raise self._broken(f"images have {self._data.shape[3]} channels, expected 1 or 3")

    def _broken(self, why: str) -> HCLError:
        return RAW.broken(self.path, why)


def check_pixels(shape: tuple[int, ...]) -> None:
    """An error unless ``shape`` is one in which images can be seen: [C, H, W]."""
    if len(shape) != 3 or shape[0] not in (1, 3) or min(shape) < 1:
        raise ValueError(
            f"pixels: is {list(shape)}; expected [C, H, W] with C 1 (grey) or 3 (RGB)."
        )


def decode_image(data: bytes) -> NDArray[np.uint8]:
    """An image file as RGB (H, W, 3), upright by its EXIF entry, on white where transparent.

    Raises ``ValueError`` where the bytes are not a whole PNG, JPEG or WebP image.
    """
    try:
        with Image.open(io.BytesIO(data), formats=IMAGE_FORMATS) as image:
            _check_sides(*image.size)
            return as_rgb(image)
    except UnidentifiedImageError:
        raise ValueError(_unidentified(data)) from None
    except MemoryError:
        raise
    except Exception as error:  # over broken files, Pillow's decoders raise nearly anything
        raise ValueError(str(error) or type(error).__name__) from error


def _unidentified(data: bytes) -> str:
    """What is wrong with a file whose header no decoder takes."""
    for name, start in _STARTS.items():
        if re.match(start, data):
            return f"begins as {name}, but its header is cut off or damaged"
    return f"not one of {', '.join(IMAGE_FORMATS)}" if data else "an empty file"


def _check_sides(width: int, height: int) -> None:
    """A ``ValueError`` over an image that takes gigabytes once it is unpacked, or resized."""
    most = Image.MAX_IMAGE_PIXELS or 0
    if width * height > most:
        raise ValueError(f"{width}×{height} pixels, more than {most:,}")
    if max(width, height) > LONGEST_TO_SHORTEST * min(width, height):
        raise ValueError(
            f"{width}×{height} pixels; one side is more than {LONGEST_TO_SHORTEST} times the other"
        )


def image_size(data: bytes) -> tuple[int, int]:
    """Width and height of an image file by its header; ``ValueError`` where it is none."""
    try:
        with Image.open(io.BytesIO(data), formats=IMAGE_FORMATS) as image:
            return image.size
    except MemoryError:
        raise
    except Exception as error:  # as for decode_image
        raise ValueError(str(error) or type(error).__name__) from error


def as_rgb(image: Image.Image) -> NDArray[np.uint8]:
    """Pillow's image as RGB (H, W, 3), as ``decode_image`` has it of a file."""
    image.load()
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):  # 16-bit grey, which Pillow would clip, not scale
        grey = (np.asarray(upright) >> 8).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if upright.has_transparency_data:
        rgba = upright.convert("RGBA")
        upright = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return np.array(upright.convert("RGB"))
