"""``hcl dvc``: DVC, which may be stopped at any moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from hcl.files import replacing
from stages import options

# What DVC writes in place, again and again, and can't go on with once it is cut
LOCK = "dvc.lock"
RWLOCK = ".dvc/tmp/rwlock"
SETTLED = 0.5  # seconds after which a file that is still cut is not being written


@click.command(
    cls=options.Command,
    short_help="Run DVC so that it may be stopped at any moment.",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Run `dvc` with these ARGUMENTS, such as `hcl dvc repro`.

    DVC writes its lock file in place, for seconds where it is long: stopped in the middle, every
    later `dvc repro` refuses it. Here the file is written beside its place and moved into it. A
    lock file that a plain `dvc repro` left cut is replaced by that of the last commit; what was
    done since, DVC finds in its cache.
    """
    root = _root()
    if root is not None:
        mend(root)
    from dvc.cli import main

    with lock_files_written_whole():
        sys.exit(main(list(arguments)))


def _root() -> Path | None:
    """The folder of the DVC project."""
    here = Path.cwd()
    return next((p for p in (here, *here.parents) if (p / ".dvc").is_dir()), None)


def mend(root: Path) -> None:
    """Make good what a stopped `dvc` left cut, and say so."""
    rwlock = root / RWLOCK
    if _stays_broken(rwlock, json.loads):
        rwlock.unlink(missing_ok=True)
        click.echo(f"{rwlock}: cut by a stopped dvc; removed.", err=True)
    lock = root / LOCK
    if not _stays_broken(lock, _check_lock):
        return
    aside = lock.with_name(f"{LOCK}.damaged")
    os.replace(lock, aside)
    shown = ["git", "show", f"HEAD:./{LOCK}"]
    found = subprocess.run(shown, cwd=root, capture_output=True, check=False)
    if found.returncode == 0:
        with replacing(lock) as partial:
            partial.write_bytes(found.stdout)
    instead = (
        "that of the last commit is there again" if found.returncode == 0 else "a new one begins"
    )
    click.echo(f"{lock}: cut by a stopped dvc; set aside as {aside.name}, {instead}.", err=True)


def _stays_broken(path: Path, check: Callable[[str], Any]) -> bool:
    """Whether a file can't be read, and is not just being written by a `dvc` at work."""
    for last in (False, True):
        try:
            check(path.read_text(encoding="utf-8"))
            return False
        except FileNotFoundError:
            return False
        except Exception:  # whatever YAML, JSON or DVC's schema say
            if not last:
                time.sleep(SETTLED)
    return True


def _check_lock(text: str) -> None:
    import yaml
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    COMPILED_LOCKFILE_SCHEMA(yaml.load(text, loader))


@contextmanager
def lock_files_written_whole() -> Iterator[None]:
    """While this is open, DVC's own writes of its lock files in this process are whole or none."""
    from dvc_objects.fs.local import LocalFileSystem

    kind: Any = LocalFileSystem
    plain = kind.open

    def opened(self: Any, path: Any, mode: str = "r", **settings: Any) -> Any:
        if mode.startswith("w") and Path(path).name in (LOCK, Path(RWLOCK).name):
            return _whole(path, settings.get("encoding"))
        return plain(self, path, mode, **settings)

    kind.open = opened
    try:
        yield
    finally:
        del kind.open  # it inherits its own


@contextmanager
def _whole(path: Any, encoding: str | None) -> Iterator[IO[str]]:
    with replacing(path) as partial, partial.open("w", encoding=encoding) as file:
        yield file
