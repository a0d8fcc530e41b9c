"""The one way in which HDF5 files are written and read, whatever they hold.

A file may come from anywhere, and the library believes what it says. So each object that is read
must be a dataset of the expected type and rank that lies in one piece in the file itself: no link
but a hard one, no storage outside, nothing that is put together or unpacked while it is read. An
array then takes no more memory than the file has bytes. Attributes are text, of a bounded length.

A small file carries ``content_sha256`` over all texts and arrays that make it up (``Writer`` and
``Reader`` agree on how); one with large arrays has a digest of its own, which is taken block by
block.

Every file ends with a seal, a line that HDF5 does not look at: the SHA-256 of all bytes before it,
but for those of one large array. It is checked before the library sees the file, because over a
single flipped bit that may read without end. A file from before there was a seal must end where its
header says, and a process of its own looks at it first.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hcl.errors import HCLError
from hcl.files import JSON_LIMIT, Sink, fingerprint, parse_json, replacing

DIGEST = "content_sha256"
_SEAL = re.compile(rb"hcl-seal ([0-9a-f]{64}) (\d{16}) (\d{16})\n")
_MAGIC = b"\x89HDF\r\n\x1a\n"  # every HDF5 file begins with it
_SEAL_LENGTH = 9 + 65 + 17 + 17
_AT_ONCE = 1 << 20  # bytes
PATIENCE = 30.0  # seconds for a look at a user's own file
_INFLATED = 2000  # times the bytes on disk: deflate, the usual filter, reaches 1032


@dataclass(frozen=True)
class Format:
    """What a kind of file is called, in words and by itself, and which command makes it."""

    noun: str
    names: tuple[str, ...]  # of the attribute ``format``
    command: str
    unsealed: tuple[str, ...] = ()  # names from before there was a seal, which are read as well

    def missing(self, path: Path) -> HCLError:
        return HCLError(f"{path}: no such {self.noun}. `{self.command}` makes it.")

    def broken(self, path: Path, why: str) -> HCLError:
        again = f"Make it again with `{self.command}`."
        return HCLError(f"{path}: not a whole {self.noun}: {why}. {again}")


# Writing ------------------------------------------------------------------------------------------


@contextmanager
def writing(path: str | Path, large: str | None = None) -> Iterator[tuple[h5py.File, Sink]]:
    """An HDF5 file that appears whole or not at all, and where its bytes go.

    Whoever writes block by block asks the sink after each whether there is still room.

    Args:
        path: of the file.
        large: the dataset that the seal leaves out, because it has a digest of its own.
    """
    with replacing(path) as partial:
        with Sink(partial) as sink, h5py.File(sink, "w") as file:
            yield file, sink
            start, length = 0, 0
            if large is not None and file[large].size:
                start, length = file[large].id.get_offset(), file[large].nbytes
        with open(partial, "r+b") as plain:
            end = plain.seek(0, os.SEEK_END)
            digest = _digest_around(plain, start, length, end)
            plain.seek(end)
            plain.write(b"hcl-seal %s %016d %016d\n" % (digest.encode(), start, length))


def _digest_around(file: IO[bytes], start: int, length: int, end: int) -> str:
    """SHA-256 of the bytes before ``end``, but for ``length`` of them from ``start`` on."""
    found = hashlib.sha256(f"{start} {length}\n".encode())
    for first, last in ((0, start), (start + length, end)):
        file.seek(first)
        while first < last and (data := file.read(min(_AT_ONCE, last - first))):
            found.update(data)
            first += len(data)
    return found.hexdigest()


def _is_sealed(path: Path, form: Format) -> bool:
    """Whether a file ends with a seal, which then must fit."""
    with open(path, "rb") as file:
        end = max(file.seek(0, os.SEEK_END) - _SEAL_LENGTH, 0)
        file.seek(end)
        seal = _SEAL.fullmatch(file.read())
        if seal is None and not form.unsealed:
            raise form.broken(path, "its end, the seal, is missing: it is cut, changed or older")
        if seal is None:  # an older file, of which nothing tells whether it is whole
            file.seek(0)
            if file.read(len(_MAGIC)) != _MAGIC:
                raise form.broken(path, "it is no HDF5 file")
            if not _ends_where_it_says(file):
                raise form.broken(path, "its end, the seal, is missing or changed")
            why = _harm_of(path)
            if why is not None:
                raise form.broken(path, why)
            return False
        start, length = int(seal[2]), int(seal[3])
        if start + length > end or _digest_around(file, start, length, end) != seal[1].decode():
            raise form.broken(path, "its bytes are not those that were written")
        return True


def _ends_where_it_says(file: IO[bytes]) -> bool:
    """Whether the header of HDF5 puts the end of the file where it is: half a seal lies beyond."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    header = file.read(48)
    start = 40 if header[8:9] in (b"\0", b"\1") else 28  # by the version of the superblock
    return int.from_bytes(header[start : start + 8], "little") == size


class Writer:
    """Texts and arrays on their way into a file, and the digest over them."""

    def __init__(self, file: h5py.File) -> None:
        self._file = file
        self._digests: dict[str, str] = {}

    def text(self, name: str, value: str, group: str = "/") -> None:
        """An attribute."""
        self._file.require_group(group).attrs[name] = value
        self._digests[_attribute(group, name)] = _digest_of_text(value)

    def array(self, name: str, values: NDArray[Any]) -> None:
        """A dataset."""
        self._file.create_dataset(name, data=values)
        self._digests[name] = _digest_of(values)

    def finish(self) -> None:
        """Write the digest."""
        self._file.attrs[DIGEST] = fingerprint(self._digests)


# Reading ------------------------------------------------------------------------------------------


@contextmanager
def reading(path: str | Path, form: Format) -> Iterator[Reader]:
    """A file of this format, opened and looked at with care; any fault is an ``HCLError``."""
    path = Path(path)
    with _opened(path, form) as (file, sealed):
        reader = Reader(file, path, form)
        found = reader.text("format")
        if found not in form.names + form.unsealed:
            expected = " or ".join(map(repr, form.names))
            raise reader.broken(f"its format is {found!r}, expected {expected}")
        if not sealed and found not in form.unsealed:
            raise reader.broken("its end, the seal, is missing")
        yield reader


@contextmanager
def _opened(path: Path, form: Format) -> Iterator[tuple[h5py.File, bool]]:
    """A plain file, opened by the library, and whether it has its seal.

    What the library raises over broken bytes becomes an error that names the file.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
            raise form.broken(path, "it is not a plain file")
        sealed = _is_sealed(path, form)
        with h5py.File(path, "r") as file:
            yield file, sealed
    except HCLError:
        raise
    except FileNotFoundError:
        raise form.missing(path) from None
    except Exception as error:  # over broken bytes, the library raises nearly anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise form.broken(path, f"it cannot be read ({reason})") from error


class Reader:
    """Gives texts and arrays of a file that may be anybody's, and remembers what it gave."""

    def __init__(self, file: h5py.File, path: Path, form: Format) -> None:
        self._file, self.path, self._form = file, path, form
        self._size = path.stat().st_size
        self._digests: dict[str, str] = {}

    def broken(self, why: str) -> HCLError:
        """What to say of a file that is not what it should be."""
        return self._form.broken(self.path, why)

    def has(self, name: str) -> bool:
        """Whether there is an object of this name, or a link that pretends to be one."""
        *groups, last = name.split("/")
        return last in self._group("/".join(groups))

    def names(self, group: str) -> list[str]:
        """The names in a group."""
        return sorted(self._group(group))

    def text(self, name: str, group: str = "/") -> str:
        """An attribute that is text."""
        value = self._text(name, group)
        if value is None:
            raise self.broken(f"the attribute {_named(group, name)} is missing, or no text")
        if name != DIGEST:
            self._digests[_attribute(group, name)] = _digest_of_text(value)
        return value

    def has_text(self, name: str) -> bool:
        """Whether the file has an attribute of this name."""
        return name in self._file.attrs

    def _text(self, name: str, group: str) -> str | None:
        attributes = self._group(group).attrs
        if name not in attributes:
            return None
        found = attributes.get_id(name)
        if found.shape != () or not h5py.check_string_dtype(found.dtype):
            return None
        if found.get_storage_size() > JSON_LIMIT:
            raise self.broken(f"the attribute {_named(group, name)} is too long")
        value = attributes[name]
        return value if isinstance(value, str) else None

    def json(self, name: str, group: str = "/") -> Any:
        """An attribute that is JSON."""
        try:
            return parse_json(self.text(name, group))
        except ValueError as error:
            raise self.broken(f"its {_named(group, name)} is not JSON ({error})") from None

    def strings(self, name: str, group: str = "/") -> tuple[str, ...]:
        """An attribute that is a JSON list of names."""
        names = self.json(name, group)
        if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
            raise self.broken(f"its attribute {_named(group, name)} is not a JSON list of names")
        return tuple(names)

    def array(self, name: str, dtype: str, rank: int | None) -> NDArray[Any]:
        """A dataset of this type and number of dimensions (``None``: any), as a whole."""
        values = np.asarray(self._dataset(name, dtype, rank)[...])
        self._digests[name] = _digest_of(values)
        return values

    def mapped(self, name: str, dtype: str, rank: int) -> NDArray[Any]:
        """A dataset that stays on disk, mapped into memory, read-only; not part of the digest."""
        values = self._dataset(name, dtype, rank)
        if values.size == 0:
            raise self.broken(f"{name} is empty")
        return np.memmap(self.path, values.dtype, "r", values.id.get_offset(), values.shape)

    def check_digest(self) -> None:
        """An error unless what was read is what was written, all of it."""
        if self.text(DIGEST) != fingerprint(self._digests):
            raise self.broken("its content does not have the SHA-256 that it names")

    def _group(self, name: str) -> h5py.Group:
        group: Any = self._file
        if name.strip("/"):
            group = _follow(self._file, name.strip("/"))
            if not isinstance(group, h5py.Group):
                raise self.broken(f"the group {name} is missing, or is no group of this file")
        return group

    def _dataset(self, name: str, dtype: str, rank: int | None) -> h5py.Dataset:
        found = _follow(self._file, name)
        if not isinstance(found, h5py.Dataset):
            raise self.broken(f"the dataset {name} is missing, or is no dataset of this file")
        if found.shape is None or found.dtype != dtype or rank not in (None, found.ndim):
            expected = dtype if rank is None else f"{dtype} with {rank} dimensions"
            raise self.broken(f"{name} is {found.dtype} {found.shape}, expected {expected}")
        why = _misplaced(found, self._size)
        if why is not None:
            raise self.broken(f"{name} {why}")
        return found


def probe(path: Path) -> None:
    """An error unless a process of its own can look at a user's file, all of it, in good time.

    There is no seal to ask first.
    """
    why = _harm_of(path)
    if why is not None:
        raise HCLError(f"{path}: damaged: {why}; write it again.")


LOOK = (
    "import sys, h5py; f = h5py.File(sys.argv[1]); dict(f.attrs); "
    "f.visititems(lambda name, node: dict(node.attrs) and None)"
)


def _harm_of(path: Path) -> str | None:
    """What the library does over some damaged files, tried in a process of its own."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", LOOK, path], capture_output=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return "HDF5 does not come to an end with it"
    return "HDF5 crashes over it" if done.returncode < 0 else None


def array_of(file: h5py.File, name: str, path: Path) -> h5py.Dataset | None:
    """A dataset of a user's own file, or ``None``; here it may lie in chunks, and be compressed.

    It then takes no more memory than a compressed file of this size can hold.
    """
    if name not in file:
        return None
    found = _follow(file, name)
    if not isinstance(found, h5py.Dataset) or found.shape is None:
        raise HCLError(
            f"{path}: {name} is no dataset of this file with rows; write it as an array."
        )
    why = _misplaced(found, path.stat().st_size, chunks=True)
    if why is not None:
        raise HCLError(f"{path}: {name} {why}; write it as one plain array.")
    return found


def _follow(file: h5py.File, name: str) -> Any:
    """The object of a name, by hard links alone; ``None`` where there is none."""
    found: Any = file
    for part in name.split("/"):
        if not isinstance(found, h5py.Group) or part not in found:
            return None
        if not isinstance(found.get(part, getlink=True), h5py.HardLink):
            return None
        found = found[part]
    return found


def _misplaced(dataset: h5py.Dataset, size: int, chunks: bool = False) -> str | None:
    """What is wrong with where a dataset lies, in a file of so many bytes; ``None``: nothing."""
    plan = dataset.id.get_create_plist()
    layout = plan.get_layout()
    if plan.get_external_count():
        return "is stored outside of the file"
    if layout == h5py.h5d.VIRTUAL:
        return "is put together from other files"
    if dataset.size == 0:
        return None
    if layout == h5py.h5d.CONTIGUOUS:
        offset = dataset.id.get_offset()
        if offset is None or offset + dataset.nbytes > size:
            return f"takes {dataset.nbytes} bytes, which the file does not hold"
        return None
    if not chunks:
        return "is not stored contiguously"
    if dataset.nbytes > _INFLATED * size:
        return f"takes {dataset.nbytes} bytes, more than a file of {size} bytes can hold"
    steps = zip(dataset.shape, dataset.chunks, strict=True)
    if dataset.id.get_num_chunks() != math.prod(-(-length // step) for length, step in steps):
        return "is not written in full"
    return None


def _attribute(group: str, name: str) -> str:
    """An attribute's name with its group, as no dataset is called."""
    return f"{group.strip('/')}@{name}"


def _named(group: str, name: str) -> str:
    return _attribute(group, name).removeprefix("@")


def _digest_of(values: NDArray[Any]) -> str:
    """SHA-256 over type and shape, a newline, and the bytes in C order."""
    found = hashlib.sha256(f"{values.dtype.str} {list(values.shape)}\n".encode())
    data: Any = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    found.update(data)
    return found.hexdigest()


def _digest_of_text(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()
