"""The paper's metrics (Section 5, "Metrics" and "Task identification"), in numpy alone.

Everything starts from ``accuracy[i, j]``: accuracy on task i after stream segment j, both 0-based,
as a fraction. A stream names the task of each of its segments: ``[0, 1, 2, 0, 3]`` shows task 0
twice. In the paper's main experiments every task comes once, in order, so that segment j shows
task j; the definitions below say what they mean where a task recurs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.integer]
FloatArray = npt.NDArray[np.float64]


def accuracy_matrix(
    predicted_class: IntArray, y: IntArray, task: IntArray, tasks: int
) -> FloatArray:
    """``accuracy[i, j]``: share of task i's test samples classified rightly after segment j.

    NaN after a segment in which the learner gave no answer at all (``joint`` before the last task).

    Args:
        predicted_class: (J, N), the class answered for each test sample after each segment; −1
            where there was no answer.
        y: (N,), the true class.
        task: (N,), the true task, 0-based.
        tasks: M, the number of distinct tasks.

    Returns:
        (M, J).
    """
    right = (predicted_class == y[None, :]).astype(np.float64)
    right[(predicted_class < 0).all(axis=1)] = np.nan
    return np.stack([right[:, task == i].mean(axis=1) for i in range(tasks)])


def first_segments(stream: Sequence[int], tasks: int) -> list[int]:
    """The segment that shows each task for the first time."""
    stream = list(stream)
    missing = [i for i in range(tasks) if i not in stream]
    if missing:
        raise ValueError(f"stream: tasks {missing} never come in {stream}")
    return [stream.index(i) for i in range(tasks)]


def average_accuracy(accuracy: FloatArray) -> float:
    """(1/M) Σ_i a_{i,τ}: every task weighs the same, however many test samples it has."""
    return float(accuracy[:, -1].mean())


def average_forgetting(accuracy: FloatArray, stream: Sequence[int]) -> float:
    """(1/(τ−1)) Σ_{i<τ} (a_{i,i} − a_{i,τ}); NaN where nothing came after any task.

    NaN also where a_{i,i} is not defined: what is learned with all tasks together (``joint``) has
    nothing to forget.

    Negative where a task is better in the end than when it was learned. It is not the drop from
    the best accuracy ever reached, which other papers call forgetting.

    Paper: tasks are distinct, a_{i,i} is the accuracy on task i after it was trained on, and the
    last task is left out. Here: a_{i,i} is the accuracy on task i after the first segment that
    shows it, and the tasks left out are those whose first segment is the stream's last, because
    nothing came after them that they could be forgotten for. Both are the same for distinct tasks.
    """
    first = first_segments(stream, len(accuracy))
    last = accuracy.shape[1] - 1
    drops = [accuracy[i, f] - accuracy[i, last] for i, f in enumerate(first) if f < last]
    return float(np.mean(drops)) if drops else float("nan")


def relabelled_tasks(
    predicted_task: IntArray, added_in: Sequence[int], stream: Sequence[int]
) -> IntArray:
    """The true task that each answered learner task stands for; −1 where there was no answer.

    The paper's re-labelling: what a learner added while task i was being shown belongs to task i,
    be it the first addition or a spurious further one. A task-aware learner adds task i in the
    first segment of task i, so that its answers stay as they are.

    Paper: silent on a learner that missed a change. Here: no learner task stands for the missed
    task, so every one of its samples counts as wrong in the overall accuracy.

    Args:
        predicted_task: the learner's own task indices, in the order in which it added them.
        added_in: the stream segment in which each of them was added.
        stream: the true task of each segment.
    """
    meaning = np.asarray([stream[segment] for segment in added_in], dtype=np.int64)
    if predicted_task.size and predicted_task.max() >= len(meaning):
        raise ValueError(
            f"predicted_task: {predicted_task.max()} was answered, but only {len(meaning)} "
            "learner tasks were added"
        )
    renamed = np.full(predicted_task.shape, -1, dtype=np.int64)
    answered = predicted_task >= 0
    renamed[answered] = meaning[predicted_task[answered]]
    return renamed


def overall_accuracy(
    pair_class: IntArray, named_task: IntArray, y: IntArray, task: IntArray
) -> float:
    """Share of all test samples whose (class, task) pair is right: K×τ-way classification.

    Paper: silent on how samples weigh. Here: every test sample weighs the same, because that is
    what Table S2 shows: MTL's 96.86 on SVHN-MNIST is its two accuracies (95.96, 99.18) weighted by
    the 26,032 and 10,000 test images, while their mean is 97.57.

    NaN where the learner names no task (``curl``: one latent Gaussian a class, no tasks).

    Args:
        pair_class: (N,), class of the most likely (class, task) pair.
        named_task: (N,), its task, as ``relabelled_tasks`` gives it.
        y: (N,), the true class.
        task: (N,), the true task.
    """
    if (named_task < 0).all():
        return float("nan")
    return float(((pair_class == y) & (named_task == task)).mean())


def accuracy_so_far(
    accuracy: FloatArray, samples: Sequence[int], stream: Sequence[int]
) -> FloatArray:
    """After each segment, the share of the test samples of all tasks shown so far that is right.

    Args:
        accuracy: (M, J).
        samples: test samples of each task.
        stream: the true task of each segment.

    Returns:
        (J,).
    """
    weights = np.asarray(samples, dtype=np.float64)
    found = []
    for j in range(len(stream)):
        shown = sorted(set(stream[: j + 1]))
        found.append(np.average(accuracy[shown, j], weights=weights[shown]))
    return np.array(found)


def class_accuracy(
    predicted_class: IntArray, y: IntArray, task: IntArray, tasks: int, classes: int
) -> FloatArray:
    """Share of the test samples of each class of each task whose class is answered rightly, (M, K).

    NaN for a class without test samples. Its mean over a task's samples is a_{i,τ}.

    Args:
        predicted_class: (N,), the class answered for each test sample in the end.
        y: (N,), the true class.
        task: (N,), the true task.
        tasks: M.
        classes: K.
    """
    pair, length = task * classes + y, tasks * classes
    right = np.bincount(pair, weights=predicted_class == y, minlength=length)
    count = np.bincount(pair, minlength=length).astype(np.float64)
    return np.divide(right, count, out=np.full(length, np.nan), where=count > 0).reshape(tasks, -1)


def confusion(
    pair_class: IntArray,
    named_task: IntArray,
    y: IntArray,
    task: IntArray,
    tasks: int,
    classes: int,
) -> IntArray | None:
    """How many test samples of each (task, class) were taken for which, (M·K, M·K + 1) counts.

    Row and column t·K + k stand for class k of task t; the last column counts answers without a
    task. The trace over the sum is the overall accuracy. ``None`` where no task is ever named.

    Args:
        pair_class: (N,), class of the most likely (class, task) pair.
        named_task: (N,), its task, as ``relabelled_tasks`` gives it.
        y: (N,), the true class.
        task: (N,), the true task.
        tasks: M.
        classes: K.
    """
    if (named_task < 0).all():
        return None
    length = tasks * classes
    named = np.where(named_task < 0, length, named_task * classes + pair_class)
    counts = np.zeros((length, length + 1), np.int64)
    np.add.at(counts, (task * classes + y, named), 1)
    return counts


def expected_calibration_error(
    confidence: FloatArray | npt.NDArray[np.float32], right: npt.NDArray[np.bool_], bins: int = 15
) -> float:
    """Σ_b (n_b / N) |accuracy_b − mean confidence_b| over bins of equal width (Guo et al., 2017).

    Beyond the paper, which reports no probabilities.

    Args:
        confidence: (N,), p̂ of the class that was answered.
        right: (N,), whether it was the true one.
        bins: how many.
    """
    place = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    gap = np.bincount(place, right - confidence.astype(np.float64), minlength=bins)
    return float(np.abs(gap).sum() / len(confidence))


@dataclass(frozen=True)
class Changes:
    """How a task-agnostic learner's verdicts compare with the stream's true changes."""

    true: int  # changes of task in the stream
    found: int
    missed: int
    false: int  # verdicts that answer to no true change
    delay: float  # batches from the first of a new segment to the verdict, mean over those found
    recurring: int  # true changes to a task that had been shown before
    recurring_named: int  # of these, how many were found and given the right old task
    misnamed: int  # changes found, but to the wrong task: a new one taken for an old, or the like


def score_changes(
    segment: IntArray,
    verdict: IntArray,
    learner_task: IntArray,
    added_in: Sequence[int],
    stream: Sequence[int],
) -> Changes:
    """Compare a detector's verdicts, one a training batch, with the stream.

    The first verdict inside a segment that begins with a true change finds this change; a delay of
    0 means that the first batch of the new task was enough. Every other verdict is false: one
    before any change, or a further one in the same segment.

    Args:
        segment: (B,), the stream segment of each training batch.
        verdict: (B,), 0 same task, 1 new task, 2 a task known before.
        learner_task: (B,), the learner's current task after the verdict.
        added_in: the segment in which each learner task was added.
        stream: the true task of each segment.
    """
    said = np.flatnonzero(verdict != 0)
    delays: list[int] = []
    true = recurring = recurring_named = misnamed = 0
    for j in range(1, len(stream)):
        if stream[j] == stream[j - 1]:
            continue
        true += 1
        recurs = stream[j] in stream[:j]
        recurring += recurs
        inside = said[segment[said] == j]
        if not inside.size:
            continue
        at = inside[0]
        delays.append(int(at - np.flatnonzero(segment == j)[0]))
        named = stream[added_in[learner_task[at]]]
        came_back = bool(verdict[at] == 2 and named == stream[j])
        recurring_named += recurs and came_back
        misnamed += not came_back if recurs else verdict[at] == 2
    return Changes(
        true=true,
        found=len(delays),
        missed=true - len(delays),
        false=len(said) - len(delays),
        delay=float(np.mean(delays)) if delays else float("nan"),
        recurring=recurring,
        recurring_named=recurring_named,
        misnamed=int(misnamed),
    )


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation over seeds, NaN where a value is undefined.

    Paper: "mean and standard deviation", without saying which. Here: the population's (divided by
    n), numpy's default; the sample's would be √(3/2) = 1.22 times as large for three seeds.
    """
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()), float(array.std())
