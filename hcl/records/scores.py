"""The scores of one method on one benchmark: what ``evaluate`` writes and ``report`` reads.

A folder of tidy files, all in percent, tasks and segments counted from 1 as in the paper, and the
same bytes for the same runs:

==================  ===============================================================================
``summary.json``    every metric's mean and standard deviation over seeds
``accuracy.csv``    every a[i, j]: seed, segment, task, accuracy
``metrics.csv``     one row a seed
``classes.csv``     one row a seed and class: its name, its accuracy, how often it was named
``confusion.csv``   which class was taken for which how often, all seeds together
``trace.csv``       of task-agnostic methods: one row a training batch, each statistic with the
                    bounds that the verdict used (``name``, ``name_low``, ``name_high``)
``latent.csv``      of flows, where embeddings are given: a 2-D view of the latent space
``samples.npz``     of methods that can draw, on pixels: samples of the first seed, and real ones
``about.json``      what was run: settings, versions, tasks, data and weights with their digests
==================  ===============================================================================

An undefined value (the overall accuracy of ``curl``, the forgetting of a single task, the accuracy
of ``joint`` before the last task) is an empty cell in CSV and null in JSON. A bound that is
infinite or absent is an empty cell too.

Nothing here needs torch.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from hcl.errors import HCLError
from hcl.files import replacing, write_json
from hcl.records.runs import Run, Trace

# The scalar metrics, in the order of the paper's columns.
METRICS = ("average_accuracy", "forgetting", "overall_accuracy")
INCREMENTAL = ("final_accuracy", "incremental_accuracy")  # where tasks bring new classes
SCORE_FILES = (
    *("summary.json", "about.json"),
    *("accuracy.csv", "metrics.csv", "trace.csv", "latent.csv", "samples.npz"),
    *("classes.csv", "confusion.csv"),
)
_PLACES = ("segment", "true_task", "learner_task", "verdict")
_BOUNDS = ("", "_low", "_high")  # what follows a statistic's name in the head of its columns


@dataclass(frozen=True)
class Scores:
    """One seed's metrics, as fractions; NaN where a metric is not defined."""

    seed: int
    accuracy: NDArray[np.float64]  # (M, J); NaN where there was no answer yet
    average_accuracy: float
    forgetting: float
    overall_accuracy: float
    changes: Mapping[str, float] | None  # counts of task-agnostic methods, by name
    class_accuracy: NDArray[np.float64]  # (M, K), NaN for a class without test samples
    confusion: NDArray[np.integer] | None  # (M·K, M·K + 1) counts; the last: no task was named
    so_far: NDArray[np.float64] | None = None  # (J,), on all classes that came: own labels alone
    calibration_error: float = math.nan  # of methods that give probabilities
    nearest: tuple[float, float] | None = None  # medians: of draws, of test samples

    @property
    def named(self) -> NDArray[np.float64]:
        """Share of each class's test samples whose class and task were both named, (M, K)."""
        if self.confusion is None:
            return np.full(self.class_accuracy.shape, np.nan)
        return shares(self.confusion).diagonal().reshape(self.class_accuracy.shape)


@dataclass(frozen=True)
class Samples:
    """Images, n of each class of each of M tasks: real ones, and what a method drew."""

    real: NDArray[np.uint8]  # (M, K, n, C, H, W)
    drawn: NDArray[np.uint8]  # (J, M, K, n, C, H, W); M is 1 where the method knows no tasks


def shares(confusion: NDArray[np.integer]) -> NDArray[np.float64]:
    """Counts as shares of their row; NaN in a row without samples."""
    total = confusion.sum(1, keepdims=True).astype(np.float64)
    return np.divide(confusion, total, out=np.full(confusion.shape, np.nan), where=total > 0)


def headline(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """The few numbers that stand for a method on a benchmark: means over seeds.

    In percent; of task-agnostic methods also how many changes of task were found, and how many
    verdicts were false.
    """
    numbers = {name.removesuffix("_accuracy"): summary[name]["mean"] for name in METRICS}
    if "class_incremental" in summary:
        own = summary["class_incremental"]
        numbers |= {name.removesuffix("_accuracy"): own[name]["mean"] for name in INCREMENTAL}
    if "changes" in summary:
        numbers |= {name: summary["changes"][name]["mean"] for name in ("found", "false")}
    return numbers


@dataclass(frozen=True)
class Result:
    """One method on one benchmark, as read; numbers in percent, tasks counted from 0."""

    benchmark: str
    method: str
    summary: dict[str, Any]
    about: dict[str, Any]
    accuracy: NDArray[np.float64]  # (seeds, M, J); NaN where there was no answer yet
    by_seed: list[dict[str, str]]  # metrics.csv
    traces: dict[int, Trace]  # by seed; empty where the method is told of changes
    latent: list[dict[str, str]] | None  # latent.csv
    samples: Samples | None = None  # samples.npz
    classes: Sequence[dict[str, str]] = ()  # classes.csv
    confusion: NDArray[np.int64] | None = None  # confusion.csv, as ``Scores`` has it

    @property
    def task_agnostic(self) -> bool:
        return bool(self.about["task_agnostic"])

    @property
    def stream(self) -> tuple[int, ...]:
        """The task of each segment."""
        return tuple(segment["task"] - 1 for segment in self.about["stream"])

    @property
    def epochs(self) -> int | None:
        """A segment's epochs, where all of them have the same."""
        epochs = {segment["epochs"] for segment in self.about["stream"]}
        return epochs.pop() if len(epochs) == 1 else None

    def metric(self, name: str) -> tuple[float | None, float | None]:
        """Mean and standard deviation over seeds."""
        value = self.summary[name]
        return value["mean"], value["std"]


def rounded(value: float, percent: bool = False) -> float | None:
    """Rounded to what matters, so that files are short and equal; ``None`` for NaN."""
    value = float(value)
    return None if math.isnan(value) else round(100 * value if percent else value, 4)


# Writing ------------------------------------------------------------------------------------------


def write_scores(
    folder: str | Path,
    runs: Sequence[Run],
    scores: Sequence[Scores],
    summary: Mapping[str, Any],
    about: Mapping[str, Any],
    latent: Sequence[Sequence[object]] | None = None,
    samples: Samples | None = None,
) -> None:
    """Write the tidy files, all or none.

    Args:
        folder: where to.
        runs: of all seeds.
        scores: of the same seeds.
        summary: means and standard deviations over them.
        about: what stands behind the numbers.
        latent: rows of the latent view (kind, task, class, x, y).
        samples: what the first seed drew, beside real ones.
    """
    with replacing(folder) as partial:
        partial.mkdir()
        write_csv(
            partial / "accuracy.csv",
            ("seed", "segment", "task", "accuracy"),
            (
                (s.seed, j + 1, i + 1, rounded(s.accuracy[i, j], percent=True))
                for s in scores
                for j in range(s.accuracy.shape[1])
                for i in range(s.accuracy.shape[0])
            ),
        )
        _write_metrics(partial / "metrics.csv", scores)
        _write_classes(partial, scores, about)
        if any(run.trace is not None for run in runs):
            _write_traces(partial / "trace.csv", runs)
        if latent is not None:
            write_csv(partial / "latent.csv", ("kind", "task", "class", "x", "y"), latent)
        if samples is not None:
            np.savez(partial / "samples.npz", real=samples.real, drawn=samples.drawn)
        write_json(partial / "summary.json", summary)
        write_json(partial / "about.json", about)


def _write_metrics(path: Path, scores: Sequence[Scores]) -> None:
    counts = [s.changes for s in scores if s.changes is not None]
    names = tuple(counts[0]) if counts else ()
    rows = []
    for s in scores:
        values = [getattr(s, name) for name in METRICS]
        row: list[object] = [s.seed, *(rounded(v, percent=True) for v in values)]
        if s.so_far is not None:
            row += [rounded(v, percent=True) for v in (s.so_far[-1], s.so_far.mean())]
        if s.changes is not None:
            row += [rounded(v) if isinstance(v, float) else v for v in s.changes.values()]
        rows.append(row)
    own = INCREMENTAL if scores[0].so_far is not None else ()
    write_csv(path, ("seed", *METRICS, *own, *(f"changes_{name}" for name in names)), rows)


def _write_classes(folder: Path, scores: Sequence[Scores], about: Mapping[str, Any]) -> None:
    pairs = [
        (i + 1, k + 1, str(name))
        for i, task in enumerate(about["tasks"])
        for k, name in enumerate(task.get("class_names") or task["classes"])
    ]
    write_csv(
        folder / "classes.csv",
        ("seed", "task", "class", "name", "accuracy", "named"),
        (
            (s.seed, *pair, rounded(right, percent=True), rounded(named, percent=True))
            for s in scores
            for pair, right, named in zip(pairs, s.class_accuracy.flat, s.named.flat, strict=True)
        ),
    )
    found = [s.confusion for s in scores if s.confusion is not None]
    if found:
        columns = [*pairs, (None, None, None)]
        write_csv(
            folder / "confusion.csv",
            ("task", "class", "name", "named_task", "named_class", "named", "samples"),
            (
                (*pairs[row], *columns[column], count)
                for (row, column), count in np.ndenumerate(sum(found))
                if count
            ),
        )


def _write_traces(path: Path, runs: Sequence[Run]) -> None:
    traces = {run.seed: run.trace for run in runs if run.trace is not None}
    names = list(next(iter(traces.values())).statistics)
    columns = [f"{name}{bound}" for name in names for bound in _BOUNDS]
    header = ("seed", "batch", *_PLACES, *columns)
    rows: list[list[object]] = []
    for seed, trace in traces.items():
        values = np.concatenate([trace.statistics[name] for name in names], axis=1)
        for b in range(len(values)):
            places = (trace.segment[b], trace.true_task[b], trace.learner_task[b])
            rows.append(
                [seed, b + 1, *(int(p) + 1 for p in places), int(trace.verdict[b])]
                + [f"{v:.6g}" if np.isfinite(v) else None for v in values[b]]
            )
    write_csv(path, header, rows)


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file with Unix line ends; ``None`` is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    path.write_text(text.getvalue(), encoding="utf-8")


# Reading ------------------------------------------------------------------------------------------


def read_result(scores: Path, benchmark: str, method: str) -> Result:
    """Read one method's files under ``scores``; what is missing or damaged is named.

    Args:
        scores: the folder with a folder for each benchmark, and in it one for each method.
        benchmark: its name.
        method: its name.
    """
    make = f"make it with `hcl evaluate` of {method} on {benchmark}"
    folder = scores / benchmark / method
    about = _read_json(folder / "about.json", make)
    summary = _read_json(folder / "summary.json", make)
    try:
        latent = folder / "latent.csv"
        return Result(
            benchmark=benchmark,
            method=method,
            summary=summary,
            about=about,
            accuracy=_read_accuracy(folder / "accuracy.csv", about, make),
            by_seed=_read_csv(folder / "metrics.csv", make),
            traces=_read_traces(folder / "trace.csv", make) if about["task_agnostic"] else {},
            latent=_read_csv(latent, make) if latent.exists() else None,
            samples=_read_samples(folder / "samples.npz"),
            classes=_read_csv(folder / "classes.csv", make),
            confusion=_read_confusion(folder / "confusion.csv", about, make),
        )
    except (KeyError, TypeError, ValueError, IndexError, OSError, BadZipFile) as error:
        raise HCLError(f"{folder}: damaged scores ({error!r}); {make}.") from None


def _read_samples(path: Path) -> Samples | None:
    if not path.exists():
        return None
    with np.load(path) as arrays:
        return Samples(arrays["real"], arrays["drawn"])


def _read_accuracy(path: Path, about: dict[str, Any], make: str) -> NDArray[np.float64]:
    rows = _read_csv(path, make)
    seeds = list(dict.fromkeys(row["seed"] for row in rows))
    accuracy = np.full((len(seeds), len(about["tasks"]), len(about["stream"])), np.nan)
    there = np.zeros(accuracy.shape, bool)
    for row in rows:
        place = (seeds.index(row["seed"]), int(row["task"]) - 1, int(row["segment"]) - 1)
        accuracy[place] = float(row["accuracy"] or "nan")
        there[place] = True
    if not there.all() or np.isnan(accuracy[:, :, -1]).any():
        raise HCLError(f"{path}: not every accuracy is there; {make}.")
    return accuracy


def _read_confusion(path: Path, about: dict[str, Any], make: str) -> NDArray[np.int64] | None:
    if not path.exists():
        return None
    classes, tasks = about["classes_per_task"], len(about["tasks"])
    counts = np.zeros((tasks * classes, tasks * classes + 1), np.int64)
    for row in _read_csv(path, make):
        place = (int(row["task"]) - 1) * classes + int(row["class"]) - 1
        named = -1  # the last column
        if row["named_task"]:
            named = (int(row["named_task"]) - 1) * classes + int(row["named_class"]) - 1
        counts[place, named] = int(row["samples"])
    return counts


def _read_traces(path: Path, make: str) -> dict[int, Trace]:
    """Each seed's trace, as the run file holds it."""
    rows = _read_csv(path, make)
    heads = list(rows[0]) if rows else []
    names = [name for name in heads if f"{name}_low" in heads]
    if not names:
        raise HCLError(f"{path}: holds no statistic with its bounds; {make}.")
    traces = {}
    for seed in dict.fromkeys(row["seed"] for row in rows):
        mine = [row for row in rows if row["seed"] == seed]
        counted = {n: np.array([int(r[n]) for r in mine], np.int16) for n in _PLACES}
        traces[int(seed)] = Trace(
            segment=counted["segment"] - 1,
            true_task=counted["true_task"] - 1,
            learner_task=counted["learner_task"] - 1,
            verdict=counted["verdict"].astype(np.int8),
            statistics={
                name: np.array(
                    [[float(row[f"{name}{bound}"] or "nan") for bound in _BOUNDS] for row in mine],
                    np.float32,
                )
                for name in names
            },
        )
    return traces


def _read_json(path: Path, make: str) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HCLError(f"{path}: no such result; {make}.") from None
    except ValueError as error:
        raise HCLError(f"{path}: not valid JSON ({error}); {make}.") from None
    return value


def _read_csv(path: Path, make: str) -> list[dict[str, str]]:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        raise HCLError(f"{path}: no such result; {make}.") from None
