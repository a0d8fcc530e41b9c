"""Files changed by somebody who knows how they are sealed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from hcl.records import hdf5


@contextmanager
def tampered(path: Path) -> Iterator[h5py.File]:
    """A file of ours to change by HDF5; sealed again when that is done."""
    with open(path, "r+b") as plain:
        plain.truncate(path.stat().st_size - hdf5._SEAL_LENGTH)
    with h5py.File(path, "r+") as file:
        yield file
    with open(path, "r+b") as plain:
        end = plain.seek(0, os.SEEK_END)
        digest = hdf5._digest_around(plain, 0, 0, end)
        plain.seek(end)
        plain.write(b"hcl-seal %s %016d %016d\n" % (digest.encode(), 0, 0))
