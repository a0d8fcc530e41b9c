"""Runs that are still there when a test comes to kill them, on a machine of any speed."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from hcl.train import store


def hold(patch: pytest.MonkeyPatch, checkpoints: int, folder: Path = Path("/")) -> None:
    """From now on, runs within ``folder`` write so many checkpoints each, then wait to be killed.

    It holds in this process and in those that are forked from it, where each counts for itself.
    """
    real, count = store.write_checkpoint, itertools.count(1)

    def write(path: Path, state: dict[str, Any]) -> None:
        if path.absolute().is_relative_to(folder.absolute()) and next(count) > checkpoints:
            time.sleep(600)  # and no longer, should the test have failed
        real(path, state)

    patch.setattr(store, "write_checkpoint", write)
