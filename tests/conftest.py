"""The order of the tests, and one thread for each."""

from __future__ import annotations

import os

# Before torch is imported: tests run side by side, one on each core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest test first: at the end it would run alone, with the other cores idle."""
    items.sort(key=lambda item: item.path.name != "test_repro.py")
