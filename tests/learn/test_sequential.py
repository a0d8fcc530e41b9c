"""The sequential test: what it takes to raise an alarm, and how seldom it is false."""

from __future__ import annotations

import numpy as np
import pytest

from hcl.learn.plus.sequential import CumulativeSum, SequentialSettings


def calibrated(**settings) -> CumulativeSum:
    """A test that has accepted T = 9, 10, 11 in turn: mean 10, standard deviation about 0.82."""
    test = CumulativeSum(SequentialSettings(**settings))
    for index in range(test.settings.window):
        test.accept(9.0 + index % 3)
    return test


def test_evidence_is_pages_cumulative_sum():
    test = calibrated(window=30, drift=2.0)
    mean, std = test.scale()
    assert mean == pytest.approx(10.0)
    known = np.array([9.0, 10.0, 11.0] * 10)
    assert std == pytest.approx(known.std(ddof=1))
    assert test.update(10.0 + 1.9 * std) == 0.0
    assert test.update(10.0 + 5.0 * std) == pytest.approx(3.0)
    assert test.update(10.0 + 1.0 * std) == pytest.approx(2.0)
    assert test.update(10.0 + 6.0 * std) == pytest.approx(6.0)
    assert not test.alarm
    assert test.update(10.0 - 50.0 * std) == 0.0


def test_an_alarm_is_above_the_limit():
    test = calibrated(window=30, drift=2.0, limit=20.0, gather=1)
    _, std = test.scale()
    test.update(10.0 + 21.9 * std)
    assert not test.alarm
    test.update(10.0 + 2.2 * std)
    assert test.alarm
    test.reset()
    assert not test.alarm


def test_it_takes_several_batches_however_strange_they_are():
    test = calibrated(gather=4, limit=20.0)
    for _ in range(3):
        assert test.update(1e9) <= 20.0
        assert not test.alarm
    test.update(1e9)
    assert test.alarm


def test_a_young_task_is_not_judged():
    test = CumulativeSum(SequentialSettings(minimum=10))
    for index in range(9):
        test.accept(9.0 + index % 3)
    assert np.isnan(test.scale()).all()
    assert test.update(1e9) == 0.0
    test.accept(10.0)
    assert test.update(1e9) > 0
    test.reset()
    assert test.update(1e9) == 0.0  # the next task, too, has its first batches
    assert test.scale()[0] == pytest.approx(10.0)  # judged by what is known by then


def test_only_the_window_is_remembered():
    test = calibrated(window=20)
    for _ in range(20):
        test.accept(100.0)
    assert test.scale() == (100.0, 0.0)
    assert test.excess(100.0) == 0.0
    assert test.excess(101.0) > 1e6


def test_gaussian_batches_raise_no_alarm_and_a_shift_soon_does():
    rng = np.random.default_rng(0)
    test = CumulativeSum(SequentialSettings())
    for value in rng.normal(size=5000):
        if test.update(value) == 0:
            test.accept(value)
        assert not test.alarm
    delay = 0
    while not test.alarm:
        test.update(rng.normal(9.0))
        delay += 1
    assert delay <= 5


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"drift": 0}, "drift"),
        ({"limit": -1}, "limit"),
        ({"threshold": 0}, "threshold"),
        ({"gather": 0}, "gather"),
        ({"shrinkage": 0}, "shrinkage"),
        ({"minimum": 60}, "minimum"),
    ],
)
def test_impossible_settings_are_named(values, key):
    with pytest.raises(ValueError, match=key):
        SequentialSettings(**values)
