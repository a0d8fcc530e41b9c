"""The order of the tests, and what they need of the process that they share."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

# Before torch is imported: tests run side by side, one on each core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell without job control starts what it puts into the background deaf to SIGINT, and so is all
# that the tests start from there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest test first: at the end it would run alone, with the other cores idle."""
    items.sort(key=lambda item: item.path.name != "test_repro.py")


def pytest_collection_finish() -> None:
    """Torch's first gradient before any test runs.

    After ``torch.compile``, the first gradient of a process starts threads, and no process that is
    forked from it can take one: a test that compiles would fail those behind it that train.
    """
    if "torch" in sys.modules:
        import torch

        torch.zeros(1, requires_grad=True).sum().backward()


@pytest.fixture(autouse=True, scope="module")
def watched() -> Iterator[None]:
    """What watches over mutated files, in whichever module, ends with it, not with the process."""
    yield
    if "tests.fuzz.verdicts" in sys.modules:
        sys.modules["tests.fuzz.verdicts"].unwatch()
