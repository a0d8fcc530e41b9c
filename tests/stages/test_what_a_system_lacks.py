"""What a system does not give is told in one line; a fault of ours is not hidden."""

from __future__ import annotations

import errno
import os

import click
import pytest
from click.testing import CliRunner

from stages import options


def run(error: BaseException) -> click.testing.Result:
    @click.command(cls=options.Command)
    def command() -> None:
        raise error

    return CliRunner().invoke(command)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "x", "a.h5"), "Error: a.h5: no space left on the disk; make room"),
        (OSError(errno.EACCES, "x", "a\nb"), "Error: a b: Permission denied. Name another"),
        (OSError(errno.EROFS, "x", "a"), "Error: a: Read-only file system. Name another"),
        (MemoryError(), "Error: There is not enough memory for this"),
    ],
)
def test_one_line(error: BaseException, said: str) -> None:
    result = run(error)
    assert result.exit_code == 1
    assert result.output.startswith(said)
    assert result.output.count("\n") == 1


def test_another_fault_is_shown_as_it_is() -> None:
    error = OSError(errno.EBADF, os.strerror(errno.EBADF))
    assert run(error).exception is error
