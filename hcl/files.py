"""Files that appear whole or not at all, and digests that say what is in them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from hcl.errors import HCLError


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a path beside ``path`` to write a file or a folder to; move it into place at the end.

    A reader sees what was there before or the new content, never a part of it. If the block raises,
    what was written is removed and ``path`` stays as it was.
    """
    path = Path(path).absolute()  # "." has no name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HCLError(f"{path}: can't be written ({error.strerror}).") from None
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    remove(partial)
    try:
        yield partial
        if partial.is_dir() and path.is_dir():
            # A folder can't replace one that is not empty: step aside first.
            previous = path.with_name(f".{path.name}.{os.getpid()}.previous")
            os.replace(path, previous)
            os.replace(partial, path)
            remove(previous)
        else:
            os.replace(partial, path)
    finally:
        remove(partial)


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
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def canonical_json(value: Any) -> str:
    """The same text for equal values, whatever the order of their keys."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


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
