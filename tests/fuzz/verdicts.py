"""What a reader may do with a mutated file, and nothing else."""

from __future__ import annotations

import faulthandler
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings

from hcl.errors import HCLError

SECONDS = 60  # that one case may take; of the clock, also where others have the cores
SHORT = 25  # cases of a test in `make test`
CASES = int(os.environ.get("HCL_FUZZ", SHORT))  # of a kind of file: `make fuzz` asks for 10,000


def fuzzed(of: int = 1) -> settings:
    """How a test is fuzzed that is one ``of`` so many for its kind of file, which share its cases.

    The same cases every time; a machine that is busy is no reason to fail.
    """
    return settings(
        max_examples=max(-(-CASES // of), min(CASES, SHORT)),
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),  # a few changes are small enough to read
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


class EndlessError(AssertionError):
    """A reader that did not come back in time."""


class UnnoticedError(AssertionError):
    """Content that was changed, and read as if it were not."""


_watched = -math.inf


def _watch() -> None:
    """A thread that ends the process where nothing has asked for it within some minutes.

    It is begun anew now and then, not for each case: a busy machine takes long to begin a thread.
    """
    global _watched
    if time.monotonic() > _watched + SECONDS / 2:
        faulthandler.dump_traceback_later(4 * SECONDS, exit=True)
        _watched = time.monotonic()


def unwatch() -> None:
    """No more of it."""
    global _watched
    faulthandler.cancel_dump_traceback_later()
    _watched = -math.inf


@contextmanager
def in_time(seconds: float = SECONDS) -> Iterator[None]:
    """An error where the block takes longer; where it hangs outside of Python, the end of all."""

    def stop(signum: int, frame: object) -> None:
        raise EndlessError(f"no end within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    _watch()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def refused_or(
    read: Callable[[Path], Any], path: Path, original: Any = None, seconds: float = SECONDS
) -> bool:
    """Whether the file is refused, in one line and in time; if not, it reads as the original does.

    Without an ``original``, any content will do. Any other exception goes through: it is what a
    user would see as a traceback.
    """
    with in_time(seconds):
        try:
            found = read(path)
        except HCLError as error:
            line = str(error)
            assert line.strip(), "an error without a word"
            assert "\n" not in line, f"more than one line: {line}"
            return True
    if original is not None and found != original:
        raise UnnoticedError(f"{path}: changed, and read all the same")
    return False
