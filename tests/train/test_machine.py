"""One thread for a run, and what it costs to see to that."""

from __future__ import annotations

import sys

import pytest
from threadpoolctl import ThreadpoolController, threadpool_info, threadpool_limits

from hcl.train import machine


def threads() -> list[int]:
    return [pool["num_threads"] for pool in threadpool_info()]


def test_libraries_are_looked_for_once_until_a_module_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = []

    class Watched(ThreadpoolController):
        def __init__(self) -> None:
            looks.append(len(sys.modules))
            super().__init__()

    with machine.one_thread():  # what is imported at the first use is there now
        threads()
    monkeypatch.setattr(machine, "ThreadpoolController", Watched)
    machine._pools.cache_clear()
    with threadpool_limits(2):
        before = threads()
        for _ in range(3):
            with machine.one_thread():
                assert set(threads()) == {1}
            assert threads() == before
    assert len(looks) == 1
    monkeypatch.setitem(sys.modules, "one_more", sys)
    with machine.one_thread():
        pass
    assert len(looks) == 2
    machine._pools.cache_clear()
