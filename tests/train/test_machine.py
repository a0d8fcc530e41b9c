"""One thread for a run, and what it costs to see to that."""

from __future__ import annotations

from typing import Any

import pytest
from threadpoolctl import ThreadpoolController, threadpool_info

from hcl.train.machine import one_thread


def threads() -> list[int]:
    return [pool["num_threads"] for pool in threadpool_info()]


def test_one_thread_within_and_as_many_as_before_behind() -> None:
    before = threads()
    with one_thread():
        assert set(threads()) == {1}
    assert threads() == before


def test_libraries_are_not_looked_for_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with one_thread():  # what is imported at the first use is there now
        pass
    looks: list[Any] = []
    monkeypatch.setattr(ThreadpoolController, "__init__", lambda self: looks.append(self))
    for _ in range(3):
        with one_thread():
            pass
    assert looks == []
