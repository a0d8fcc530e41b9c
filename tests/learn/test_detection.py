"""Typical sets: the paper's rule worked by hand, half-full windows, recurring tasks."""

from __future__ import annotations

import numpy as np
import pytest

from hcl.errors import HCLError
from hcl.learn.flow.detection import DetectionSettings, Detector, Window
from hcl.settings import build


def detector(values: list[list[float]], **settings: object) -> Detector:
    """A detector with one task for each list; each value is S1 of a batch of one sample."""
    made = Detector(DetectionSettings(**{"window": 4, "minimum": 2, **settings}))
    for task_values in values:
        task = made.add_task()
        for value in task_values:
            made.record(task, np.array([value, 10 * value, -value]), 1)
    return made


def s(log_px: float, log_pz: float = 20.0, log_det: float = -2.0) -> np.ndarray:
    return np.array([log_px, log_pz, log_det])


def test_bound_is_lambda_standard_deviations_on_both_sides():
    # A full window 1, 2, 2, 3: mean 2, standard deviation √(2/3); with λ = 5 the set is 2 ± 4.0825.
    made = detector([[1.0, 2.0, 2.0, 3.0]])
    typical = made.typical_set(0, 1)
    assert typical.mean[0] == pytest.approx(2.0)
    assert typical.std[0] == pytest.approx(np.sqrt(2 / 3))
    edge = 5 * np.sqrt(2 / 3)
    assert not made.has_left(0, s(2 + edge - 1e-6), 1)
    assert made.has_left(0, s(2 + edge + 1e-6), 1)
    assert not made.has_left(0, s(2 - edge + 1e-6), 1)
    assert made.has_left(0, s(2 - edge - 1e-6), 1)


def test_threshold_is_lambda():
    made = detector([[1.0, 2.0, 2.0, 3.0]], threshold=3.0)
    assert made.has_left(0, s(2 + 3.01 * np.sqrt(2 / 3)), 1)
    assert not made.has_left(0, s(2 + 2.99 * np.sqrt(2 / 3)), 1)


def test_window_holds_the_last_batches_only():
    made = detector([[1000.0, -1000.0, 1.0, 2.0, 2.0, 3.0]])
    assert made.typical_set(0, 1).mean[0] == pytest.approx(2.0)


def test_only_statistics_in_use_count():
    values = [[1.0, 2.0, 2.0, 3.0]]
    strange = s(2.0, log_pz=1e6)
    assert not detector(values).has_left(0, strange, 1)
    assert detector(values, statistics=("log_px", "log_pz")).has_left(0, strange, 1)
    assert detector(values, statistics=("log_pz",)).has_left(0, strange, 1)
    assert not detector(values, statistics=("log_px", "log_det")).has_left(0, strange, 1)


def test_no_verdict_before_the_minimum():
    made = detector([[1.0, 1.1, 0.9]], window=10, minimum=4)
    assert np.isnan(made.typical_set(0, 1).mean).all()
    assert not made.has_left(0, s(1e9), 1)
    made.record(0, s(1.0), 1)
    assert made.has_left(0, s(1e9), 1)


def test_a_half_full_window_is_wider_and_a_full_one_is_the_papers():
    rng = np.random.default_rng(0)
    made = Detector(DetectionSettings(window=100, minimum=10))
    made.add_task()
    widths = []
    for _ in range(150):
        made.record(0, rng.normal(size=3), 1)
        std = made.typical_set(0, 1).std
        window = made.windows[0]
        widths.append(
            std[0] / np.std(window.sums[: window.held, 0], ddof=1) if window.held > 9 else 0
        )
    assert widths[9] == pytest.approx(12.1 / 5, rel=0.01)
    assert widths[49] == pytest.approx(5.4 / 5, rel=0.01)
    np.testing.assert_allclose(widths[99:], 1.0)
    assert np.all(np.diff(widths[9:100]) < 0)


def test_half_full_windows_raise_no_more_false_alarms_than_full_ones():
    """At λ = 2, with 20,000 draws each: the rate at k = 5, 10 and 20 batches is that at k = 100."""
    rng = np.random.default_rng(1)
    rates = {}
    for held in (5, 10, 20, 100):
        made = Detector(DetectionSettings(window=100, minimum=5, threshold=2.0))
        scale = made._widening[held]
        draws = rng.normal(size=(20_000, held + 1))
        window, new = draws[:, :-1], draws[:, -1]
        left = np.abs(new - window.mean(1)) > 2.0 * scale * window.std(1, ddof=1)
        rates[held] = left.mean()
    for held in (5, 10, 20):
        assert rates[held] == pytest.approx(rates[100], abs=0.006)


def test_steady_drift_is_no_change():
    made = Detector(DetectionSettings())
    made.add_task()
    for step in range(300):
        sums = s(float(step))
        assert not made.has_left(0, sums, 32)
        made.record(0, sums, 32)


def test_batches_of_other_sizes_are_judged_by_their_size():
    rng = np.random.default_rng(2)
    window = Window(400)
    for size in rng.integers(8, 64, size=400):
        window.record(rng.normal(3.0, 2.0, size=(size, 3)).sum(0), int(size))
    mean, variance = window.moments()
    np.testing.assert_allclose(mean, 3.0, atol=0.1)
    np.testing.assert_allclose(variance, 4.0, rtol=0.25)
    made = Detector(DetectionSettings(window=400))
    made.windows = [window]
    few, many = made.typical_set(0, 8), made.typical_set(0, 32)
    np.testing.assert_allclose(many.mean, 4 * few.mean)
    np.testing.assert_allclose(many.std, 2 * few.std)


def test_a_recurring_task_is_named():
    made = detector([[1.0, 2.0, 2.0, 3.0], [101.0, 102.0, 102.0, 103.0]])
    sums = np.stack([s(2.5), s(50.0)])
    assert made.has_left(1, sums[1], 1)
    assert made.came_back(sums, 1, current=1) == 0
    assert made.came_back(np.stack([s(20.0), s(50.0)]), 1, current=1) is None


def test_recurring_needs_all_statistics_typical():
    values = [[1.0, 2.0, 2.0, 3.0], [101.0, 102.0, 102.0, 103.0]]
    sums = np.stack([s(2.5, log_pz=1e6), s(50.0)])
    assert detector(values).came_back(sums, 1, current=1) == 0
    both = detector(values, statistics=("log_px", "log_pz"))
    assert both.came_back(sums, 1, current=1) is None


def test_of_two_fitting_tasks_the_more_typical_one_is_named():
    wide, narrow, now = [0.0, 4.0, 4.0, 8.0], [1.0, 2.0, 2.0, 3.0], [101.0, 102.0, 102.0, 103.0]
    made = detector([wide, narrow, now])
    assert made.came_back(np.stack([s(4.1), s(5.0), s(0.0)]), 1, current=2) == 0
    assert made.came_back(np.stack([s(9.0), s(2.1), s(0.0)]), 1, current=2) == 1


def test_a_task_with_too_few_batches_never_comes_back():
    made = detector([[1.0], [101.0, 102.0, 102.0, 103.0]])
    assert made.came_back(np.stack([s(1.0), s(50.0)]), 1, current=1) is None


def test_a_constant_statistic_knows_only_its_own_value():
    # A volume-preserving flow: S3 is 0 for every batch.
    made = Detector(DetectionSettings(statistics=("log_px", "log_det"), window=4, minimum=2))
    made.add_task()
    for value in (1.0, 2.0, 2.0, 3.0):
        made.record(0, np.array([value, value, 0.0]), 1)
    assert not made.has_left(0, np.array([2.0, 2.0, 0.0]), 1)
    assert made.has_left(0, np.array([2.0, 2.0, 0.1]), 1)


def test_state_restores_the_windows():
    made = detector([[1.0, 2.0, 2.0, 3.0, 9.0], [5.0, 6.0]])
    other = Detector(made.settings)
    other.restore(made.state())
    for task in (0, 1):
        np.testing.assert_array_equal(other.typical_set(task, 1).std, made.typical_set(task, 1).std)
    other.record(1, s(7.0), 1)  # a restored window is its own
    assert made.windows[1].count == 2
    assert other.windows[1].count == 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"statistics": []}, "detection.statistics"),
        ({"statistics": ["log_px", "log_px"]}, "at most once"),
        ({"statistics": ["S1"]}, "log_px"),
        ({"window": 1}, "detection.window"),
        ({"window": 5}, "detection.minimum"),
        ({"threshold": 0.0}, "detection.threshold"),
    ],
)
def test_impossible_settings_are_named(values, message):
    with pytest.raises(HCLError, match=message):
        build(DetectionSettings, values, "params.yaml", "detection")
