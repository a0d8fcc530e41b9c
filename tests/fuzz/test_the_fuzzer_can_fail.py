"""Readers that are wrong on purpose: the fuzzer finds each of them out."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from hcl.errors import HCLError
from tests.fuzz.mutations import BYTES, mutated
from tests.fuzz.test_files import HDF5
from tests.fuzz.verdicts import EndlessError, UnnoticedError, fuzzed, in_time, refused_or


def test_a_change_that_goes_unnoticed_is_found(tmp_path: Path) -> None:
    path = tmp_path / "tasks.h5"
    HDF5["tasks"].make(path)
    data, original = path.read_bytes(), path.read_bytes()

    @settings(fuzzed(), max_examples=200)
    @given(changes=BYTES)
    def run(changes: Any) -> None:
        path.write_bytes(mutated(data, changes))
        refused_or(Path.read_bytes, path, original)

    with pytest.raises(UnnoticedError, match="changed, and read all the same"):
        run()


def test_a_traceback_is_found(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        refused_or(lambda path: {}[path], tmp_path)


def test_a_refusal_without_a_word_is_found(tmp_path: Path) -> None:
    def read(path: Path) -> None:
        raise HCLError("\n")

    with pytest.raises(AssertionError, match="an error without a word"):
        refused_or(read, tmp_path)


def test_a_read_without_end_is_found(tmp_path: Path) -> None:
    with pytest.raises(EndlessError, match=r"no end within 0\.1 s"):
        refused_or(lambda path: time.sleep(60), tmp_path, seconds=0.1)
    with in_time(30):
        assert signal.getitimer(signal.ITIMER_REAL) > (0, 0)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)  # no alarm is left behind
