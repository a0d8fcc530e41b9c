"""Unpacking, distrustful: only the files that are expected, and nothing outside of the folder."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from hcl.errors import HCLError
from hcl.files import replacing

# Besides the expected files, an archive may hold a readme or the like
_ALLOWANCE = 1 << 20  # bytes
_CHUNK = 1 << 20  # bytes


def extract_tar(archive: str | Path, members: Mapping[str, int], folder: str | Path) -> None:
    """Unpack the expected ``members`` of a .tar.gz (path inside → bytes) flat into ``folder``.

    The folder appears whole or not at all. An archive with an absolute path, a path that climbs
    out, a link or a device is refused as a whole, even where that entry is not among the members;
    so is one that unpacks to more than its members' bytes and a little allowance.
    """
    archive = Path(archive)
    left = dict(members)
    with _reading(archive), gzip.open(archive) as stream, replacing(folder) as partial:
        partial.mkdir()
        limited = _Limited(stream, archive, sum(members.values()) + _ALLOWANCE)
        with tarfile.open(fileobj=limited, mode="r|") as tar:
            for entry in tar:
                check_entry(entry, archive)
                if entry.name not in members or not entry.isfile():
                    continue
                size = left.pop(entry.name, None)
                if size is None:
                    raise HCLError(f"{archive}: refused: it holds {entry.name} twice.")
                if entry.size != size:
                    raise HCLError(
                        f"{archive}: {entry.name} has {entry.size} bytes, expected {size}."
                    )
                source = tar.extractfile(entry)
                assert source is not None
                _copy(source, partial / PurePosixPath(entry.name).name)
        while limited.read(_CHUNK):
            pass  # to the very end, where gzip checks its sum
        if left:
            raise HCLError(f"{archive}: these files are missing in it: {', '.join(sorted(left))}.")


@contextmanager
def opened(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file to read; one whose name ends in .gz is unpacked on the way, not on disk."""
    path = Path(path)
    with _reading(path):
        if path.suffix == ".gz":
            with gzip.open(path) as stream:
                yield stream  # type: ignore[misc]
        else:
            with open(path, "rb") as file:
                yield file


def check_entry(entry: tarfile.TarInfo, archive: Path) -> None:
    """An error over an entry that leads elsewhere, or claims bytes that it does not hold."""
    name = entry.name  # no path: pathlib keeps the names that it has seen
    # Backslashes and drive letters mean something on other systems only; nobody needs them here
    if name.startswith("/") or ".." in name.split("/") or "\\" in name or ":" in name:
        raise HCLError(f"{archive}: refused: it holds the unsafe path {name!r}.")
    if not (entry.isfile() or entry.isdir()):
        raise HCLError(f"{archive}: refused: {name!r} in it is a link or a device.")
    if entry.issparse():
        raise HCLError(f"{archive}: refused: {name!r} in it is sparse, as a bomb would be.")


def _copy(source: IO[bytes], target: Path) -> None:
    with open(target, "wb") as file:
        while data := source.read(_CHUNK):
            file.write(data)


class _Limited(io.RawIOBase):
    """A stream that refuses to give more than ``limit`` bytes, whatever the headers promise."""

    def __init__(self, stream: gzip.GzipFile, archive: Path, limit: int) -> None:
        self._stream, self._archive, self._left = stream, archive, limit

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > self._left:
            size = self._left + 1
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise HCLError(f"{self._archive}: refused: it unpacks to more than it should hold.")
        return data


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what goes wrong with the file ``path`` into an error that names it."""
    try:
        yield
    except FileNotFoundError as error:
        raise HCLError(f"{error.filename or path}: no such file.") from error
    except (tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise HCLError(f"{path}: damaged or cut off ({error}). Get it again.") from error
    except OSError as error:
        raise HCLError(f"{path}: cannot be read or unpacked ({error}).") from error
