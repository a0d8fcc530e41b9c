"""What the report says of a detector that missed changes, or could not judge."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from hcl.records.runs import Trace
from hcl.report.report import _warnings

BATCHES = 10  # of each of two segments


def result(missed: int = 0, judged: tuple[int, int] = (10, 10), window: int | None = None) -> Any:
    """A method's run on two segments, of which so many batches could be judged."""
    segment = np.repeat([0, 1], BATCHES)
    high = np.full(2 * BATCHES, np.nan)
    for j in (0, 1):
        high[np.flatnonzero(segment == j)[BATCHES - judged[j] :]] = 1.0
    values = np.zeros(2 * BATCHES)
    trace = Trace(
        segment=segment.astype(np.int16),
        true_task=segment.astype(np.int16),
        learner_task=segment.astype(np.int16),
        verdict=np.zeros(2 * BATCHES, np.int8),
        statistics={"log_px": np.stack([values, high, high], axis=1).astype(np.float32)},
    )
    detection = {} if window is None else {"window": window}
    return SimpleNamespace(
        by_seed=[{"changes_missed": str(missed), "changes_true": "1"}],
        traces={0: trace},
        stream=[0, 1],
        about={"seeds": [0], "settings": {"method": {"detection": detection}}},
    )


def test_a_detector_that_could_judge_and_missed_nothing_needs_no_words():
    assert _warnings(result()) == []
    assert _warnings(result(window=BATCHES - 1)) == []


def test_what_was_missed_is_said():
    (said,) = _warnings(result(missed=1))
    assert said.startswith("1 of 1 changes were missed.")


def test_a_window_as_long_as_a_task_is_said():
    (said,) = _warnings(result(window=BATCHES))
    assert f"window of {BATCHES} batches is as long as a task" in said


def test_a_segment_that_could_not_be_judged_is_said():
    (said,) = _warnings(result(judged=(5, 4)))
    assert said.startswith(f"of the {BATCHES} batches of segment 2 it could judge 4:")
