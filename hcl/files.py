"""Files that appear whole or not at all, and digests that say what is in them."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from hcl.errors import HCLError

FULL = (errno.ENOSPC, errno.EDQUOT)
# What a write may end with beside a full disk, through no fault of the code
_UNWRITABLE = (*FULL, errno.EFBIG, errno.EIO, errno.EROFS, errno.ENAMETOOLONG)
_NO_SPACE = os.strerror(errno.ENOSPC)  # of a library that tells no number
_HOST = re.sub(r"[^A-Za-z0-9-]", "", platform.node())[:32]
_FOREIGN = 24 * 3600  # seconds after which the unfinished file of another machine is given up
JSON_LIMIT = 1 << 24  # characters of a text that is read as JSON
JSON_DEPTH = 64  # lists and mappings within each other
# Brackets; and texts, whose brackets don't count (an open one to the end: in linear time)
_JSON_PARTS = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{\]}]', re.DOTALL)


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a path beside ``path`` to write a file or a folder to; move it into place at the end.

    A reader sees what was there before or the new content, never a part of it, even where the power
    fails: the content reaches the disk before its name does. If the block raises, what was written
    is removed and ``path`` stays as it was. What a killed process left behind in this place goes.
    A disk without room is an ``HCLError``.
    """
    path = Path(path).absolute()  # "." has no name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_orphans(path)
        partial = path.with_name(f".{path.name}.{_owner()}.part")
        remove(partial)
    except OSError as error:
        raise unwritable(path, error) from None
    try:
        yield partial
        _sync(partial)
        _put(partial, path)
    except OSError as error:
        ours = str(error.filename or "").startswith(str(partial))
        if ours or error.errno in _UNWRITABLE or _NO_SPACE in str(error):
            raise unwritable(path, error) from error
        raise
    finally:
        remove(partial)


def unwritable(path: str | Path, error: OSError) -> HCLError:
    """What to say where a file or folder can't be written."""
    if error.errno in FULL or _NO_SPACE in str(error):
        return HCLError(
            f"{path}: can't be written: no space left on the disk; make room and run again."
        )
    why = error.strerror or str(error)
    return HCLError(f"{path}: can't be written ({why}).")


def _owner() -> str:
    return f"{os.getpid()}@{_HOST}"


def remove_orphans(path: Path) -> None:
    """Remove what a process that is gone left beside ``path`` while it wrote it.

    A folder that was stepped aside for a new one that never came is put back. On storage that
    machines share, the unfinished file of another machine is let be for a day.
    """
    pattern = re.compile(rf"\.{re.escape(path.name)}\.(\d+)(?:@([^.]*))?\.(part|previous)")
    with suppress(FileNotFoundError):
        for orphan in sorted(path.parent.iterdir()):
            found = pattern.fullmatch(orphan.name)
            if not found or not _is_orphan(orphan, int(found[1]), found[2]):
                continue
            if found[3] == "previous" and not path.exists():
                with suppress(OSError):  # another process was faster
                    os.replace(orphan, path)
            remove(orphan)


def _is_orphan(path: Path, pid: int, host: str | None) -> bool:
    if host not in (None, _HOST):
        try:
            return time.time() - path.lstat().st_mtime > _FOREIGN
        except FileNotFoundError:
            return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False  # somebody else's
    return _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Whether a process is dead and only waits for its parent to ask how it ended.

    Where nothing asks, as in a container without an init, it stays so and keeps its number.
    """
    try:
        said = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:  # another system, or gone by now
        return False
    return said.rpartition(b")")[2].split()[:1] == [b"Z"]  # the name before may hold anything


def _sync(path: Path) -> None:
    """Wait until a file, or all of a folder, has reached the disk."""
    within = [path]
    if path.is_dir():
        within = [Path(root, name) for root, _, names in os.walk(path) for name in (*names, ".")]
    for one in within:
        sync(one)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, have reached the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _put(partial: Path, path: Path) -> None:
    """Move ``partial`` to ``path``, where other processes may be about to do the same."""
    previous = path.with_name(f".{path.name}.{_owner()}.previous")
    while True:
        try:
            # A folder can't replace one that is not empty: that one steps aside first.
            if partial.is_dir() and path.is_dir():
                os.replace(path, previous)
            os.replace(partial, path)
            break
        except OSError as error:
            taken = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
            if not taken and not (error.errno == errno.ENOENT and partial.exists()):
                raise
        finally:
            remove(previous)
    sync(path.parent)


class Sink(io.RawIOBase):
    """A file for libraries in C that do not survive a write that fails.

    HDF5 crashes at the end of the process over a full disk, torch loses the reason. They are told
    that all went well; the first error is kept, and raised by ``check`` and at the end.

    Attributes:
        digest: SHA-256 over all that was written, for those who never go back.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._at = 0
        self._error: OSError | None = None
        self.digest = hashlib.sha256()

    def check(self) -> None:
        """Raise the first error, if there was one."""
        if self._error is not None:
            raise self._error

    def __exit__(self, kind: Any, error: Any, story: Any) -> None:
        self.close()
        if self._error is not None and error is not self._error:
            raise self._error

    def close(self) -> None:
        if not self.closed:
            os.close(self._file)
        super().close()

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        whole = memoryview(data).cast("B")
        left, at = whole, self._at
        try:
            while left and self._error is None:
                written = os.pwrite(self._file, left, at)
                left, at = left[written:], at + written
        except OSError as error:
            self._error = error
        self.digest.update(whole)
        self._at += len(whole)
        return len(whole)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = os.pread(self._file, len(view), self._at)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END:
            offset += os.fstat(self._file).st_size
        self._at = offset + (self._at if whence == os.SEEK_CUR else 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def truncate(self, size: int | None = None) -> int:
        size = self._at if size is None else size
        try:
            os.ftruncate(self._file, size)
        except OSError as error:
            self._error = self._error or error
        return size


def check_file_to_write(path: Path, option: str) -> None:
    """An error where ``path`` can't become a file; before any work is done for it."""
    if path.is_dir():
        raise HCLError(f"{path}: is a folder; {option} names the file to write.")
    _check_place(path)


def check_folder_to_write(path: Path, option: str, ours: Sequence[str]) -> None:
    """An error where ``path`` can't become a folder, or holds what would be lost by that.

    A folder that is written anew is replaced as a whole. ``ours`` are patterns of the names that
    are written to it: nothing else may be in it.
    """
    if path.exists() and not path.is_dir():
        raise HCLError(f"{path}: is a file; {option} names the folder to write.")
    _check_place(path)
    if path.is_dir():
        names: list[str] = []
        with suppress(FileNotFoundError):  # another process is about to replace it
            names = sorted(entry.name for entry in path.iterdir())
        others = [name for name in names if not any(fnmatch(name, one) for one in ours)]
        if others:
            listed = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
            raise HCLError(
                f"{path}: holds what this command did not write ({listed}), and would lose it; "
                f"name another folder with {option}."
            )


def _check_place(path: Path) -> None:
    """Whether the folder of ``path`` is there and can be written to, or can be made."""
    place = path.absolute().parent
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise HCLError(f"{path}: can't be written, because {place} can't be written to.")


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there; others may do the same at the same time."""
    while path.is_dir() and not path.is_symlink():
        try:
            shutil.rmtree(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise
    with suppress(FileNotFoundError):
        path.unlink()


def canonical_json(value: Any) -> str:
    """The same text for equal values, whatever the order of their keys."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def parse_json(text: str) -> Any:
    """The value of a JSON text from a file that may be anybody's; ``ValueError`` if it is not one.

    So is a text of more than ``JSON_LIMIT`` characters, or one that is nested ``JSON_DEPTH`` deep.
    """
    if len(text) > JSON_LIMIT:
        raise ValueError(f"it has {len(text)} characters, at most {JSON_LIMIT} are read")
    depth = 0
    for bracket in _JSON_PARTS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(bracket[0], 0)
        if depth > JSON_DEPTH:
            raise ValueError(f"it is nested more than {JSON_DEPTH} deep")
    return json.loads(text)


def write_json(path: str | Path, value: Any) -> None:
    """Write ``value`` as indented JSON, whole or not at all."""
    with replacing(path) as partial:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
        partial.write_text(text + "\n", encoding="utf-8")


def fingerprint(value: Any) -> str:
    """SHA-256 of a JSON value: a key for what was made from these settings."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def sha256_of(path: str | Path) -> str:
    """SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def csv_text(text: str) -> str:
    """A text for a cell of a CSV file that no spreadsheet takes for a formula, and runs."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
