"""What all of the fuzzer's tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def without_waiting_for_the_disk() -> Iterator[None]:
    """No power fails here, and a case that writes would mostly wait: ten thousand, for an hour."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield
