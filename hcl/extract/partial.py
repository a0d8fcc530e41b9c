"""Unfinished work of extract, in a folder beside its output."""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcl.errors import HCLError
from hcl.extract.forward import Cut

LOG = logging.getLogger(__name__)

# In the list of finished blocks: a block's number, and a digest over it and its rows
NOTE = np.dtype([("block", "<i8"), ("digest", "u1", 16)])


class Partial:
    """Unfinished work that survives SIGKILL: rows at their final place, and a list of what is done.

    ``rows`` is the plain float32 array (n, D). ``finished`` lists blocks with their digests; a note
    is appended after its rows have reached the disk, so that what it names is whole. Rows that have
    changed since are made again. Both files stay open: another process that finishes the same work
    first may remove them.
    """

    def __init__(self, folder: Path, count: int, size: int, block: int) -> None:
        self.folder = folder
        self.cut, self.size = Cut(count, block), size
        self._lock = threading.Lock()

    def __enter__(self) -> Partial:
        self.folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT
        self._rows = os.open(self.folder / "rows", flags, 0o644)
        os.ftruncate(self._rows, self.cut.count * self.size * 4)
        self._finished = os.open(self.folder / "finished", flags | os.O_APPEND, 0o644)
        whole = os.fstat(self._finished).st_size // NOTE.itemsize * NOTE.itemsize
        os.ftruncate(self._finished, whole)  # a note may have been cut
        self._done = np.zeros(len(self.cut), bool)
        self._read_notes(np.frombuffer(os.pread(self._finished, whole, 0), NOTE))
        return self

    def _read_notes(self, notes: NDArray[Any]) -> None:
        """Take for finished what its digest fits."""
        for block, digest in zip(notes["block"].tolist(), notes["digest"], strict=True):
            if 0 <= block < len(self.cut) and not self._done[block]:
                start, images = block * self.cut.block, self.cut.images_in(block)
                rows = os.pread(self._rows, images * self.size * 4, start * self.size * 4)
                self._done[block] = _digest(block, rows) == digest.tobytes()
        damaged = len(set(notes["block"].tolist())) - int(self._done.sum())
        if damaged:
            LOG.warning(
                "%s: blocks are damaged (%d, whose digest does not fit); they are made again.",
                self.folder,
                damaged,
            )

    def __exit__(self, *error: object) -> None:
        os.close(self._rows)
        os.close(self._finished)

    def pending(self) -> NDArray[np.int64]:
        """The blocks that are not finished, in order."""
        return np.flatnonzero(~self._done)

    def images_done(self) -> int:
        """The images of the blocks that are finished."""
        pending = self.pending()
        left = len(pending) * self.cut.block
        if len(pending) and pending[-1] == len(self.cut) - 1:
            left -= self.cut.block - self.cut.images_in(len(self.cut) - 1)
        return self.cut.count - left

    def write(self, outputs: Mapping[int, NDArray[np.float32]]) -> None:
        """Write the embeddings (block, D) of some blocks, then note that these are finished."""
        if not outputs:
            return
        notes = np.zeros(len(outputs), NOTE)
        for note, (block, values) in zip(notes, outputs.items(), strict=True):
            start, rows = block * self.cut.block, values[: self.cut.images_in(block)]
            check_finite(rows, start)
            data = np.ascontiguousarray(rows, np.float32).tobytes()
            _write_at(self._rows, data, start * self.size * 4)
            note["block"] = block
            note["digest"] = np.frombuffer(_digest(block, data), np.uint8)
        os.fsync(self._rows)
        with self._lock:
            os.write(self._finished, notes.tobytes())
            os.fsync(self._finished)
            self._done[list(outputs)] = True

    def rows(self) -> NDArray[np.float32]:
        """All rows, mapped into memory, read-only."""
        length = self.cut.count * self.size * 4
        mapped = mmap.mmap(self._rows, length, access=mmap.ACCESS_READ)
        return np.frombuffer(mapped, np.float32).reshape(self.cut.count, self.size)


def check_finite(rows: NDArray[np.float32], start: int) -> None:
    """An error unless the embeddings of the images from ``start`` on are finite."""
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise HCLError(
            f"the embedding of image {start + int(np.argmin(finite))} is not finite. "
            "Check extract.weights; with extract.amp true, try false."
        )


def _digest(block: int, rows: bytes) -> bytes:
    size: int = NOTE["digest"].shape[0]
    return hashlib.blake2b(rows, digest_size=size, salt=block.to_bytes(8, "little")).digest()


def _write_at(file: int, data: bytes, offset: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(file, left, offset)
        left, offset = left[written:], offset + written
