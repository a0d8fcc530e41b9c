"""Files that appear whole or not at all, and digests that say what is in them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a path beside ``path`` to write a file or a folder to; move it into place at the end.

    A reader sees what was there before or the new content, never a part of it. If the block raises,
    what was written is removed and ``path`` stays as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
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
