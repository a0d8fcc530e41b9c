"""From runs to scores: the metrics of every seed, their summary, and what stands behind them.

The files of both are ``hcl.records.scores``'s. An undefined metric (the overall accuracy of
``curl``, the forgetting of a single task or of ``joint``) is NaN in ``Scores`` and ``None`` in a
summary.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hcl.errors import HCLError
from hcl.evaluate import metrics
from hcl.records.embeddings import Embeddings
from hcl.records.runs import Run, read_run
from hcl.records.scores import METRICS, Samples, Scores, rounded
from hcl.records.tasks import Benchmark, Task

# What an embedding file says of itself that a reader of the results wants to know.
PROVENANCE = (
    *("backbone", "weights", "weights_sha256", "transform", "pixels", "data_sha256", "versions"),
)


def read_runs(
    folder: str | Path, benchmark: Benchmark, method: str, seeds: Sequence[int]
) -> list[Run]:
    """The runs of the seeds asked for, checked to belong together and to the benchmark."""
    folder = Path(folder)
    samples = sum(len(task.test.y) for task in benchmark.tasks)
    digest = benchmark.digest()
    runs = []
    for seed in seeds:
        path = folder / f"seed-{seed}.h5"
        if not path.exists():
            raise HCLError(
                f"{path}: no such run. Make it with `hcl train` of {method} on {benchmark.name}."
            )
        run = read_run(path)
        found = (run.benchmark, run.method, run.seed)
        if found != (benchmark.name, method, seed):
            raise HCLError(
                f"{path}: is a run of {found[1]} on {found[0]} with seed {found[2]}, expected "
                f"{method} on {benchmark.name} with seed {seed}."
            )
        shape = (len(benchmark.stream), samples)
        if run.predicted_class.shape != shape:
            raise HCLError(
                f"{path}: answers are {run.predicted_class.shape}, but {benchmark.name} has "
                f"{shape} (segments, test samples). Train again on these tasks."
            )
        if run.tasks != digest:
            raise HCLError(
                f"{path}: was trained on tasks of {benchmark.name} that are not those of the tasks "
                "file: their order, epochs, classes or samples differ. Train again on these tasks "
                "(`hcl train`), or name the file of those."
            )
        runs.append(run)
    return runs


def score(run: Run, benchmark: Benchmark) -> Scores:
    """The paper's metrics of one run."""
    stream = [segment.task for segment in benchmark.stream]
    y = np.concatenate([task.test.y for task in benchmark.tasks])
    task = np.repeat(np.arange(len(benchmark.tasks)), [len(t.test.y) for t in benchmark.tasks])
    added_in = [int(segment) for segment in run.added_in]
    accuracy = metrics.accuracy_matrix(run.predicted_class, y, task, len(benchmark.tasks))
    named = metrics.relabelled_tasks(run.predicted_task[-1], added_in, stream)
    sizes = len(benchmark.tasks), len(benchmark.tasks[0].classes)
    answered, pair, paired, k = _within_tasks(run, benchmark, named, y, task)
    calibration = math.nan
    if run.confidence is not None:
        right = run.predicted_class[-1] == y
        calibration = metrics.expected_calibration_error(run.confidence[-1], right)
    changes = None
    if run.trace is not None:
        trace = run.trace
        changes = asdict(
            metrics.score_changes(
                trace.segment, trace.verdict, trace.learner_task, added_in, stream
            )
        )
    return Scores(
        seed=run.seed,
        accuracy=accuracy,
        average_accuracy=metrics.average_accuracy(accuracy),
        forgetting=metrics.average_forgetting(accuracy, stream),
        overall_accuracy=metrics.overall_accuracy(run.pair_class[-1], named, y, task),
        changes=changes,
        so_far=_so_far(accuracy, benchmark),
        class_accuracy=metrics.class_accuracy(answered, k, task, *sizes),
        confusion=metrics.confusion(pair, paired, k, task, *sizes),
        calibration_error=calibration,
        nearest=_medians(run),
    )


def _medians(run: Run) -> tuple[float, float] | None:
    """Over all pairs, the median distance to the nearest training sample: draws, test samples."""
    if run.nearest is None or np.isnan(run.nearest).all(axis=(1, 2, 3)).any():
        return None
    drawn, real = (float(np.nanmedian(distances)) for distances in run.nearest)
    return drawn, real


def _within_tasks(
    run: Run,
    benchmark: Benchmark,
    named: metrics.IntArray,
    y: metrics.IntArray,
    task: metrics.IntArray,
) -> tuple[metrics.IntArray, metrics.IntArray, metrics.IntArray, metrics.IntArray]:
    """The last answers by class, by pair and by the pair's task, and the truth, 0…K−1 in each task.

    Of the data set's own labels, one that is not among its task's classes is −1, and a pair of such
    a label names no task.
    """
    answered, pair = run.predicted_class[-1], run.pair_class[-1]
    if benchmark.shown.labels != "own":
        return answered, pair, named, y
    place = np.full((len(benchmark.tasks), benchmark.num_classes), -1, np.int64)
    for i, each in enumerate(benchmark.tasks):
        place[i, list(each.classes)] = np.arange(len(each.classes))
    pair = np.where(named < 0, -1, place[named, pair])
    return place[task, answered], pair, np.where(pair < 0, -1, named), place[task, y]


def _so_far(accuracy: metrics.FloatArray, benchmark: Benchmark) -> metrics.FloatArray | None:
    """Where tasks bring new classes: accuracy on all classes that came, after each segment."""
    if benchmark.shown.labels != "own":
        return None
    samples = [len(task.test.y) for task in benchmark.tasks]
    stream = [segment.task for segment in benchmark.stream]
    return metrics.accuracy_so_far(accuracy, samples, stream)


def summarise(scores: Sequence[Scores]) -> dict[str, Any]:
    """Mean and standard deviation over seeds, in percent; changes as means of counts."""
    summary: dict[str, Any] = {
        **{m: _summary([getattr(s, m) for s in scores], percent=True) for m in METRICS},
        "task_accuracy": {
            str(i + 1): _summary([s.accuracy[i, -1] for s in scores], percent=True)
            for i in range(len(scores[0].accuracy))
        },
        "seeds": len(scores),
    }
    so_far = [s.so_far for s in scores if s.so_far is not None]
    if so_far:
        summary["class_incremental"] = {
            "final_accuracy": _summary([values[-1] for values in so_far], percent=True),
            "incremental_accuracy": _summary([values.mean() for values in so_far], percent=True),
            "so_far": [_summary(values, percent=True) for values in zip(*so_far, strict=True)],
        }
    calibration = [s.calibration_error for s in scores]
    if not any(math.isnan(error) for error in calibration):
        summary["calibration_error"] = _summary(calibration, percent=True)
    near = [s.nearest for s in scores if s.nearest is not None]
    if near:
        drawn, real = zip(*near, strict=True)
        summary["nearest"] = {"draws": _summary(drawn), "test_samples": _summary(real)}
    changes = [s.changes for s in scores if s.changes is not None]
    if changes:
        summary["changes"] = {
            "true": changes[0]["true"],
            "found": _summary([c["found"] for c in changes]),
            "missed": _summary([c["missed"] for c in changes]),
            "false": _summary([c["false"] for c in changes]),
            "delay": _summary([c["delay"] for c in changes if not math.isnan(c["delay"])]),
            "recurring": changes[0]["recurring"],
            "recurring_named": _summary([c["recurring_named"] for c in changes]),
            "misnamed": _summary([c["misnamed"] for c in changes]),
        }
    return summary


def in_words(summary: Mapping[str, Any]) -> str:
    """The line that ``hcl evaluate`` prints."""
    said = []
    seeds = summary["seeds"]
    for name in ("average_accuracy", "overall_accuracy", "forgetting"):
        mean, std = summary[name]["mean"], summary[name]["std"]
        if mean is not None:  # a learner that names no task has no overall accuracy
            spread = f" ± {std:.2f}" if seeds > 1 else ""
            said.append(f"{name.replace('_', ' ')} {mean:.2f}{spread} %")
    if "class_incremental" in summary:
        for name in ("final_accuracy", "incremental_accuracy"):
            mean = summary["class_incremental"][name]["mean"]
            said.append(f"{name.replace('_', ' ')} {mean:.2f} %")
    if "calibration_error" in summary:
        said.append(f"calibration error {summary['calibration_error']['mean']:.2f} %")
    if "changes" in summary:
        changes = summary["changes"]
        found, false = changes["found"]["mean"], changes["false"]["mean"]
        said.append(f"{found:.3g} of {changes['true']} changes found, {false:.3g} false")
        if changes["misnamed"]["mean"]:
            said.append(f"{changes['misnamed']['mean']:.3g} taken for another task")
        if changes["missed"]["mean"]:
            said.append("what was missed was learned as part of another task")
    return f"{', '.join(said)} ({seeds} {'seed' if seeds == 1 else 'seeds'})"


def _summary(values: Sequence[float], percent: bool = False) -> dict[str, float | None]:
    mean, std = metrics.mean_and_std(values) if values else (math.nan, math.nan)
    return {"mean": rounded(mean, percent), "std": rounded(std, percent)}


def about(
    runs: Sequence[Run], benchmark: Benchmark, embeddings: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """What stands behind the numbers.

    Args:
        runs: of all seeds.
        benchmark: the tasks.
        embeddings: for a data set, the attributes of its embedding file; may be empty. From them
            come the provenance of the data and the names of the classes.
    """
    for source in benchmark.sources:
        found = embeddings.get(source.dataset, {}).get("content_sha256", source.content_sha256)
        if found != source.content_sha256:
            raise HCLError(
                f"{source.dataset}: the embeddings are not those that {benchmark.name} was split "
                "from. Split them again (`hcl split`), and train again."
            )
    first = runs[0]
    return {
        "benchmark": benchmark.name,
        "method": first.method,
        "task_agnostic": first.trace is not None,
        "seeds": [run.seed for run in runs],
        "classes_per_task": len(benchmark.tasks[0].classes),
        "tasks": [
            {
                "dataset": task.dataset,
                "classes": list(task.classes),
                **_class_names(task, embeddings.get(task.dataset, {})),
                "train": len(task.train.y),
                "validation": len(task.validation.y),
                "test": len(task.test.y),
            }
            for task in benchmark.tasks
        ],
        "stream": [{"task": s.task + 1, "epochs": s.epochs} for s in benchmark.stream],
        **({"shown": shown} if (shown := benchmark.shown.said()) else {}),
        "sources": [
            {
                "dataset": source.dataset,
                "content_sha256": source.content_sha256,
                **{
                    key: str(embeddings[source.dataset][key])
                    for key in PROVENANCE
                    if key in embeddings.get(source.dataset, {})
                },
            }
            for source in benchmark.sources
        ],
        "settings": first.settings,
        "versions": first.versions,
        "fingerprints": {str(run.seed): run.fingerprint for run in runs},
    }


def samples(run: Run, benchmark: Benchmark, embeddings: Mapping[str, Embeddings]) -> Samples | None:
    """What the run drew for each true task, beside as many test samples; ``None`` without pixels.

    The first of the learner's tasks that was added while a task was shown stands for it, and black
    where there is none.
    """
    if run.samples is None or not all(s.dataset in embeddings for s in benchmark.sources):
        return None
    segments, _, classes, count, *shape = run.samples.shape
    real = np.zeros((len(benchmark.tasks), classes, count, *shape), np.uint8)
    drawn = np.zeros((segments, *real.shape), np.uint8)
    added = [benchmark.stream[int(segment)].task for segment in run.added_in]
    for index, task in enumerate(benchmark.tasks):
        for label in range(classes):
            rows = task.test.rows[task.test.y == label][:count]
            found = embeddings[task.dataset].x[rows].reshape(len(rows), *shape)
            real[index, label, : len(rows)] = found
        if index in added:
            drawn[:, index] = run.samples[:, added.index(index)]
    return Samples(real, drawn if added else run.samples)


def _class_names(task: Task, attributes: Mapping[str, Any]) -> dict[str, list[str]]:
    if "classes" not in attributes:
        return {}
    names: list[str] = json.loads(attributes["classes"])
    return {"class_names": [names[number] for number in task.classes]}
