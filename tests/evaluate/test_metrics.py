"""The metrics against matrices worked by hand.

The numbers are chosen so that a transposed matrix, another definition of forgetting or another
weighting of samples gives another answer.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from hcl.evaluate import metrics

# Rows are tasks, columns segments. Task 0 is at its best after segment 1, not after its own.
ACCURACY = np.array(
    [
        [0.60, 0.90, 0.50],
        [0.40, 0.80, 0.70],
        [0.30, 0.20, 0.95],
    ]
)


def test_accuracy_by_class_is_that_of_each_class_of_each_task() -> None:
    y, task = np.array([0, 0, 1, 0, 0, 0]), np.array([0, 0, 0, 1, 1, 1])
    found = metrics.class_accuracy(np.array([0, 1, 1, 0, 1, 1]), y, task, tasks=2, classes=2)
    np.testing.assert_allclose(found, [[1 / 2, 1], [1 / 3, np.nan]])


def test_confusion_counts_pairs_of_task_and_class() -> None:
    y, task = np.array([0, 0, 1, 0, 1]), np.array([0, 0, 0, 1, 1])
    pair_class, named = np.array([0, 1, 1, 0, 1]), np.array([0, 1, 0, 0, -1])
    counts = metrics.confusion(pair_class, named, y, task, tasks=2, classes=2)
    assert counts is not None
    assert counts.tolist() == [
        [1, 0, 0, 1, 0],  # class 0 of task 0: once itself, once class 1 of task 1
        [0, 1, 0, 0, 0],
        [1, 0, 0, 0, 0],  # class 0 of task 1, taken for that of task 0
        [0, 0, 0, 0, 1],  # no task was named
    ]
    assert counts.trace() / counts.sum() == metrics.overall_accuracy(pair_class, named, y, task)
    assert metrics.confusion(pair_class, np.full(5, -1), y, task, 2, 2) is None


def test_accuracy_matrix_has_tasks_down_and_segments_across() -> None:
    task = np.array([0, 0, 0, 0, 1, 1])
    y = np.array([0, 1, 0, 1, 0, 1])
    predicted = np.array(
        [
            [0, 1, 0, 0, 1, 1],  # after segment 0: 3 of 4, 1 of 2
            [0, 0, 1, 0, 0, 1],  # after segment 1: 1 of 4, 2 of 2
            [1, 0, 1, 0, 1, 0],  # after segment 2: none
        ]
    )
    accuracy = metrics.accuracy_matrix(predicted, y, task, tasks=2)
    np.testing.assert_array_equal(accuracy, [[0.75, 0.25, 0.0], [0.5, 1.0, 0.0]])


def test_a_segment_without_an_answer_has_no_accuracy_and_nothing_is_forgotten() -> None:
    task, y = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    predicted = np.array([[-1, -1, -1, -1], [0, -1, 0, 1]])  # one sample unanswered is a wrong one
    accuracy = metrics.accuracy_matrix(predicted, y, task, tasks=2)
    np.testing.assert_array_equal(accuracy, [[math.nan, 0.5], [math.nan, 1.0]])
    assert metrics.average_accuracy(accuracy) == 0.75
    assert math.isnan(metrics.average_forgetting(accuracy, [0, 1]))


def test_average_accuracy_is_of_the_last_column() -> None:
    # (0.50 + 0.70 + 0.95) / 3; the last row would give 0.483
    assert metrics.average_accuracy(ACCURACY) == pytest.approx(2.15 / 3)


def test_forgetting_is_the_drop_from_when_the_task_was_learned() -> None:
    # ((0.60 − 0.50) + (0.80 − 0.70)) / 2. From the best ever: 0.25; transposed: 0.45; with the
    # last task in the mean: 0.067.
    assert metrics.average_forgetting(ACCURACY, [0, 1, 2]) == pytest.approx(0.10)


def test_forgetting_is_negative_where_tasks_improve() -> None:
    accuracy = np.array([[0.5, 0.8], [0.5, 0.9]])
    assert metrics.average_forgetting(accuracy, [0, 1]) == pytest.approx(-0.3)


def test_forgetting_of_a_recurring_task_counts_from_its_first_segment() -> None:
    accuracy = np.array(
        [
            [0.90, 0.50, 0.85, 0.70],  # 0.20 lost since segment 0; 0.15 since segment 2
            [0.30, 0.80, 0.60, 0.50],  # 0.30
            [0.10, 0.20, 0.30, 0.95],  # first shown last: left out
        ]
    )
    assert metrics.average_forgetting(accuracy, [0, 1, 0, 2]) == pytest.approx(0.25)


def test_a_stream_that_ends_with_an_old_task_leaves_no_task_out() -> None:
    accuracy = np.array([[0.90, 0.50, 0.85], [0.30, 0.80, 0.60]])
    assert metrics.average_forgetting(accuracy, [0, 1, 0]) == pytest.approx((0.05 + 0.20) / 2)


def test_forgetting_follows_the_order_of_the_stream() -> None:
    # Task 1 comes first: a_{1,1} is its accuracy after segment 0.
    accuracy = np.array([[0.2, 0.9], [0.8, 0.6]])
    assert metrics.average_forgetting(accuracy, [1, 0]) == pytest.approx(0.2)


def test_forgetting_of_a_single_task_is_not_defined() -> None:
    assert math.isnan(metrics.average_forgetting(np.array([[0.9]]), [0]))


def test_a_task_that_never_comes_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"tasks \[1\] never come in \[0, 2, 0\]"):
        metrics.first_segments([0, 2, 0], tasks=3)


def test_tasks_added_while_task_i_was_shown_belong_to_task_i() -> None:
    # Learner tasks 0 and 1 were added in segment 0 (the second by mistake), task 2 in segment 1,
    # task 3 in segment 3, which shows task 0 again.
    answered = np.array([0, 1, 2, 3, -1])
    named = metrics.relabelled_tasks(answered, [0, 0, 1, 3], stream=[0, 1, 2, 0])
    np.testing.assert_array_equal(named, [0, 0, 1, 0, -1])


def test_a_task_that_the_learner_never_added_can_not_be_answered() -> None:
    with pytest.raises(ValueError, match="2 was answered, but only 2 learner tasks"):
        metrics.relabelled_tasks(np.array([0, 2]), [0, 1], stream=[0, 1])


def test_overall_accuracy_needs_class_and_task_and_weighs_samples() -> None:
    task = np.array([0, 0, 0, 1])
    y = np.array([0, 1, 1, 0])
    pair_class = np.array([0, 1, 0, 0])
    named = np.array([0, 1, 0, 1])
    # Right pairs: samples 0 and 3. Mean over tasks instead of samples: (1/3 + 1) / 2.
    assert metrics.overall_accuracy(pair_class, named, y, task) == 0.5


def test_missed_task_counts_as_wrong() -> None:
    # The learner took task 1 for a part of task 0: no learner task stands for it.
    task = np.array([0, 0, 1, 1])
    y = np.array([0, 1, 0, 1])
    named = metrics.relabelled_tasks(np.zeros(4, int), [0], stream=[0, 1])
    assert metrics.overall_accuracy(y, named, y, task) == 0.5


def test_overall_accuracy_without_tasks_is_not_defined() -> None:
    y = np.array([0, 1])
    assert math.isnan(metrics.overall_accuracy(y, np.array([-1, -1]), y, y))


def _trace(
    verdicts: dict[int, int], learner: list[int], per_segment: int = 5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``per_segment`` batches a segment; ``learner`` has the learner's task of each segment."""
    segment = np.repeat(np.arange(len(learner)), per_segment)
    verdict = np.zeros(len(segment), int)
    for batch, said in verdicts.items():
        verdict[batch] = said
    return segment, verdict, np.repeat(learner, per_segment)


def test_changes_found_late_missed_and_false() -> None:
    # Stream 0 1 2 3. Batch 2: before any change, false. Batch 5: change to 1 at once. Batch 7: a
    # second one in the same segment, false. Batch 13: change to 2, three batches late. Task 3 is
    # missed.
    segment, verdict, learner = _trace({2: 1, 5: 1, 7: 1, 13: 1}, learner=[0, 2, 4, 4])
    changes = metrics.score_changes(segment, verdict, learner, [0, 0, 1, 1, 2], [0, 1, 2, 3])
    assert changes == metrics.Changes(
        true=3,
        found=2,
        missed=1,
        false=2,
        delay=1.5,
        recurring=0,
        recurring_named=0,
        misnamed=0,
    )


def test_a_new_task_that_is_taken_for_an_old_one_is_misnamed() -> None:
    segment, verdict, learner = _trace({5: 1, 10: 2, 15: 1}, learner=[0, 1, 0, 2])
    changes = metrics.score_changes(segment, verdict, learner, [0, 1, 3], [0, 1, 2, 3])
    assert (changes.found, changes.false, changes.misnamed) == (3, 0, 1)


@pytest.mark.parametrize(
    ("said", "answered", "named"),
    [(2, 0, 1), (1, 2, 0), (2, 1, 0)],
    ids=["right", "taken for a new task", "taken for another old task"],
)
def test_recurring_task_named_rightly(said: int, answered: int, named: int) -> None:
    segment, verdict, learner = _trace({5: 1, 11: said}, learner=[0, 1, answered])
    changes = metrics.score_changes(segment, verdict, learner, [0, 1, 2], [0, 1, 0])
    assert (changes.true, changes.found, changes.delay) == (2, 2, 0.5)
    assert (changes.recurring, changes.recurring_named) == (1, named)
    assert changes.misnamed == 1 - named


def test_recurring_task_may_go_by_any_of_its_clusters() -> None:
    # Learner task 1 was a false addition while task 0 was shown: it stands for task 0.
    segment, verdict, learner = _trace({3: 1, 5: 1, 10: 2}, learner=[1, 2, 1])
    changes = metrics.score_changes(segment, verdict, learner, [0, 0, 1], [0, 1, 0])
    assert (changes.false, changes.recurring_named) == (1, 1)


def test_segments_of_the_same_task_are_no_change() -> None:
    segment, verdict, learner = _trace({7: 1}, learner=[0, 1])
    changes = metrics.score_changes(segment, verdict, learner, [0, 1], [0, 0])
    assert (changes.true, changes.found, changes.false) == (0, 0, 1)
    assert math.isnan(changes.delay)


def test_standard_deviation_is_the_population_s() -> None:
    assert metrics.mean_and_std([1.0, 2.0, 6.0]) == pytest.approx((3.0, math.sqrt(14 / 3)))


def test_accuracy_so_far_is_over_all_samples_of_the_tasks_that_came():
    accuracy = np.array([[1.0, 0.5, 0.2], [0.0, 0.8, 0.6], [0.0, 0.0, 1.0]])
    so_far = metrics.accuracy_so_far(accuracy, [10, 30, 60], [0, 1, 2])
    np.testing.assert_allclose(so_far, [1.0, (5 + 24) / 40, (2 + 18 + 60) / 100])
    again = metrics.accuracy_so_far(accuracy[:2], [10, 30], [0, 1, 0])  # the first comes back
    np.testing.assert_allclose(again, [1.0, (5 + 24) / 40, (2 + 18) / 40])


def test_the_calibration_error_is_the_gap_of_each_bin_weighed_by_its_samples():
    confidence = np.array([0.95, 0.95, 0.95, 0.95, 0.55, 0.55])
    right = np.array([True, True, True, False, True, False])
    # 0.95 with 3 of 4 right: 0.2 apart; 0.55 with 1 of 2 right: 0.05.
    found = metrics.expected_calibration_error(confidence, right, bins=10)
    assert found == pytest.approx((4 * 0.2 + 2 * 0.05) / 6)
    assert metrics.expected_calibration_error(np.ones(3), np.ones(3, bool)) == 0
