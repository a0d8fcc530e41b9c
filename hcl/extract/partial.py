"""Unfinished work of extract, in a folder beside its output."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcl.errors import HCLError
from hcl.extract.forward import Cut


class Partial:
    """Unfinished work that survives SIGKILL: rows at their final place, and a list of what is done.

    ``rows`` is the plain float32 array (n, D). ``finished`` is a list of block numbers, eight bytes
    each; a number is appended after its rows have reached the disk, so that what it names is whole.
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
        whole = os.fstat(self._finished).st_size // 8 * 8
        os.ftruncate(self._finished, whole)  # a number may have been cut
        self._done = np.zeros(len(self.cut), bool)
        self._done[np.frombuffer(os.pread(self._finished, whole, 0), "<i8")] = True
        return self

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
        for block, values in outputs.items():
            start, rows = block * self.cut.block, values[: self.cut.images_in(block)]
            check_finite(rows, start)
            _write_at(self._rows, rows, start * self.size * 4)
        os.fsync(self._rows)
        with self._lock:
            os.write(self._finished, np.asarray(list(outputs), "<i8").tobytes())
            os.fsync(self._finished)
            self._done[list(outputs)] = True

    def rows(self) -> NDArray[np.float32]:
        shape = (self.cut.count, self.size)
        return np.memmap(self.folder / "rows", np.float32, "r", shape=shape)


def check_finite(rows: NDArray[np.float32], start: int) -> None:
    """An error unless the embeddings of the images from ``start`` on are finite."""
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise HCLError(
            f"the embedding of image {start + int(np.argmin(finite))} is not finite. "
            "Check extract.weights; with extract.amp true, try false."
        )


def _write_at(file: int, values: NDArray[np.float32], offset: int) -> None:
    whole: Any = values.reshape(-1).view(np.uint8)
    data = memoryview(whole)
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written
