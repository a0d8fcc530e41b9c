"""What watches over the fuzzer ends with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.verdicts import unwatch


@pytest.fixture(autouse=True, scope="module")
def watched() -> Iterator[None]:
    yield
    unwatch()
