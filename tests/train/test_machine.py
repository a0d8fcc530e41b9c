"""One thread for a run, and what it costs to see to that."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from threadpoolctl import ThreadpoolController, threadpool_info

from hcl.train import machine


def threads() -> list[int]:
    return [pool["num_threads"] for pool in threadpool_info()]


def test_libraries_are_looked_for_once_until_a_module_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks, limits = [], []

    class Watched(ThreadpoolController):
        def __init__(self) -> None:
            looks.append(len(sys.modules))
            super().__init__()

        def limit(self, **options: Any) -> Any:
            limits.append(options)
            return super().limit(**options)

    with machine.one_thread():  # what is imported at the first use is there now
        threads()
    monkeypatch.setattr(machine, "ThreadpoolController", Watched)
    machine._pools.cache_clear()
    before = threads()
    for _ in range(3):
        with machine.one_thread():
            assert set(threads()) == {1}
        assert threads() == before
    assert len(looks) == 1
    assert limits == 3 * [{"limits": 1}]
    monkeypatch.setitem(sys.modules, "one_more", sys)
    with machine.one_thread():
        pass
    assert len(looks) == 2
    machine._pools.cache_clear()
