"""The embedding file: one HDF5 layout, written by extract and read by everything after it.

Layout ``hcl-embeddings/2``, n samples, every dataset contiguous (so that equal data gives equal
bytes, and several processes share one copy of it in memory):

- ``x`` float32 (n, D); ``y`` int64 (n,), 0-based class, or −1 throughout where the set has no
  labels and no ``classes``; ``split`` uint8 (n,), 0 train, 1 test;
- the attributes of ``ATTRIBUTES``, all of them text. ``docs/embeddings.md`` says what each holds.

Layout ``hcl-pixels/2`` is the same for images that are learned as they are: ``x`` is uint8
(n, C · H · W), and one more attribute, ``pixels``, holds [C, H, W]. Files of the layouts before,
which were the same without the seal of ``hcl.records.hdf5``, are read as well.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcl.errors import HCLError
from hcl.files import fingerprint, parse_json, write_json
from hcl.records.hdf5 import Format, Reader, reading, writing

FORMAT = "hcl-embeddings/2"
PIXELS = "hcl-pixels/2"
UNSEALED = ("hcl-embeddings/1", "hcl-pixels/1")
EMBEDDINGS = Format("embedding file", (FORMAT, PIXELS), "hcl extract", UNSEALED)
TRAIN, TEST = 0, 1
UNLABELLED = -1  # for every sample of a set without classes

# What made the file, in the order in which it is written; the fingerprint is taken over these.
PROVENANCE = (
    "format",
    "dataset",
    "classes",
    "backbone",
    "weights",
    "weights_sha256",
    "transform",
    "data_sha256",
    "versions",
    "settings",
)
ATTRIBUTES = (*PROVENANCE, "fingerprint", "content_sha256")
BYTES_AT_ONCE = 1 << 24  # bytes of x in memory while it is checked or copied


@dataclass(frozen=True)
class Embeddings:
    """A whole embedding file; ``x`` is mapped from disk, read-only, shared between processes."""

    x: NDArray[np.float32] | NDArray[np.uint8]  # (n, D)
    y: NDArray[np.int64]
    split: NDArray[np.uint8]
    attributes: dict[str, str]

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of the labels; none of a set without labels."""
        names: list[str] = parse_json(self.attributes["classes"])
        return names

    @property
    def pixels(self) -> tuple[int, ...] | None:
        """(C, H, W) of bytes that are images; ``None`` for a backbone's embeddings."""
        shape = self.attributes.get("pixels")
        return None if shape is None else tuple(parse_json(shape))


def provenance_fingerprint(attributes: Mapping[str, str]) -> str:
    """SHA-256 over what made the file: the key by which unfinished work is found again."""
    return fingerprint({name: attributes[name] for name in _names(attributes, PROVENANCE)})


def _names(attributes: Mapping[str, Any], always: tuple[str, ...]) -> tuple[str, ...]:
    return (*always, "pixels") if _is_pixels(attributes["format"]) else always


def _is_pixels(form: str) -> bool:
    return form.startswith("hcl-pixels/")


def _dtype(form: str) -> str:
    """Of ``x``."""
    return "uint8" if _is_pixels(form) else "float32"


def write(
    path: str | Path,
    x: NDArray[np.float32] | NDArray[np.uint8],
    y: NDArray[np.int64],
    split: NDArray[np.uint8],
    provenance: Mapping[str, str],
) -> None:
    """Write an embedding file, a part of ``x`` in memory at a time; it appears whole or not at all.

    With ``pixels`` in its provenance, ``x`` is bytes. Raises ``HCLError`` where a value of ``x`` is
    not finite.
    """
    attributes = {"format": PIXELS if "pixels" in provenance else FORMAT, **provenance}
    dtype = _dtype(attributes["format"])
    attributes["fingerprint"] = provenance_fingerprint(attributes)
    with writing(path, "x") as (file, sink):
        data = file.create_dataset("x", x.shape, dtype)
        digest = _Digest(x.shape)
        for start, stop in _parts(x):
            part = np.ascontiguousarray(x[start:stop], dtype)
            _check_finite(part, start, path)
            data[start:stop] = part
            digest.update(part)
            sink.check()  # a full disk is no reason to make the rest
        file.create_dataset("y", data=y, dtype=np.int64)
        file.create_dataset("split", data=split, dtype=np.uint8)
        attributes["content_sha256"] = digest.finish(y, split)
        for name in _names(attributes, ATTRIBUTES):
            file.attrs[name] = attributes[name]


def read(path: str | Path, checked: Path | None = None) -> Embeddings:
    """Read an embedding file and check all of it; any fault is an ``HCLError``.

    Checked are layout, shapes, dtypes, labels, split, the fingerprint, that every value is finite,
    and the SHA-256 of the content. Memory stays flat: ``x`` is mapped and read a part at a time.

    Args:
        path: the file.
        checked: a small file that remembers what was found whole; where size and time of ``path``
            are as they were then, its values are not read again.
    """
    path = Path(path)
    with reading(path, EMBEDDINGS) as file:
        embeddings = _load(file)
    _check_labels(embeddings, path)
    seen = _Checked(checked, path, embeddings.attributes["content_sha256"])
    if seen.before:
        return embeddings
    digest = _Digest(embeddings.x.shape)
    for start, stop in _parts(embeddings.x):
        part = embeddings.x[start:stop]
        _check_finite(part, start, path)
        digest.update(part)
    if digest.finish(embeddings.y, embeddings.split) != embeddings.attributes["content_sha256"]:
        raise _broken(path, "its content does not have the SHA-256 that it names")
    seen.remember()
    return embeddings


class _Checked:
    """Whether a file was found whole before, and has not been touched since."""

    def __init__(self, memory: Path | None, path: Path, digest: str) -> None:
        found = path.stat()
        self.memory, self.name = memory, str(path.resolve())
        self.now = [found.st_size, found.st_mtime_ns, found.st_ino, digest]
        self.before = self._known().get(self.name) == self.now

    def _known(self) -> dict[str, Any]:
        try:
            known = json.loads(self.memory.read_text(encoding="utf-8")) if self.memory else {}
        except (OSError, ValueError):  # nothing is lost: the file is checked once more
            return {}
        return known if isinstance(known, dict) else {}

    def remember(self) -> None:
        if self.memory is not None:
            with suppress(HCLError):  # of a full disk: it is checked again the next time
                write_json(self.memory, self._known() | {self.name: self.now})


def _load(file: Reader) -> Embeddings:
    form = {"format": file.text("format")}
    attributes = {name: file.text(name) for name in _names(form, ATTRIBUTES)}
    if provenance_fingerprint(attributes) != attributes["fingerprint"]:
        raise file.broken("its fingerprint does not fit the settings that it names")
    x = file.mapped("x", _dtype(form["format"]), 2)
    y, split = file.array("y", "int64", 1), file.array("split", "uint8", 1)
    if not len(x) == len(y) == len(split):
        raise file.broken(f"x, y and split have {len(x)}, {len(y)} and {len(split)} rows")
    found = Embeddings(x, y, split, attributes)
    if "pixels" in attributes:
        pixels = file.json("pixels")
        if not isinstance(pixels, list) or not all(isinstance(one, int) for one in pixels):
            raise file.broken("its attribute pixels is not [C, H, W]")
        if math.prod(pixels) != x.shape[1]:
            raise file.broken(f"x has {x.shape[1]} bytes a row, but pixels is {pixels}")
    return found


def _check_labels(embeddings: Embeddings, path: Path) -> None:
    try:
        classes = embeddings.classes
    except ValueError:
        classes = None
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise _broken(path, "its attribute classes is not a JSON list of names")
    low, high = int(embeddings.y.min()), int(embeddings.y.max())
    unlabelled = not classes and low == high == UNLABELLED
    if not unlabelled and (low < 0 or high >= len(classes)):
        raise _broken(path, f"labels are {low}…{high}, but it names {len(classes)} classes")
    if embeddings.split.max() > TEST:
        highest = embeddings.split.max()
        raise _broken(path, f"split holds {highest}; allowed are 0 (train) and 1 (test)")


def _check_finite(part: NDArray[Any], start: int, path: str | Path) -> None:
    finite = np.isfinite(part).all(axis=1)
    if not finite.all():
        raise _broken(Path(path), f"row {start + int(np.argmin(finite))} of x is not finite")


def _parts(x: NDArray[Any]) -> list[tuple[int, int]]:
    step = max(1, BYTES_AT_ONCE // (4 * x.shape[1]))
    return [(start, min(start + step, len(x))) for start in range(0, len(x), step)]


class _Digest:
    """SHA-256 over the shape of ``x``, then the bytes of ``x``, ``y`` and ``split`` in C order."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._hash = hashlib.sha256(f"{list(shape)}\n".encode())

    def update(self, part: NDArray[Any]) -> None:
        data: Any = part.reshape(-1).view(np.uint8)
        self._hash.update(data)

    def finish(self, y: NDArray[np.int64], split: NDArray[np.uint8]) -> str:
        self.update(np.ascontiguousarray(y, np.int64))
        self.update(np.ascontiguousarray(split, np.uint8))
        return self._hash.hexdigest()


def _broken(path: Path, why: str) -> HCLError:
    return EMBEDDINGS.broken(path, why)
