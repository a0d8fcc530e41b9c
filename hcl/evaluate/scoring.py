"""From runs to scores: the metrics of every seed, their summary, and tidy files of both.

The files of one method on one benchmark, all in percent, tasks and segments counted from 1 as in
the paper, and the same bytes for the same runs:

==================  ===============================================================================
metrics (JSON)      mean and standard deviation over seeds, for ``dvc metrics``
``accuracy.csv``    every a[i, j]: seed, segment, task, accuracy
``metrics.csv``     one row a seed
``trace.csv``       of task-agnostic methods: one row a training batch, with the detector's bounds
``latent.csv``      of flows, where embeddings are given: a 2-D view of the latent space
``about.json``      what was run: settings, versions, tasks, data and weights with their digests
==================  ===============================================================================

An undefined value (the overall accuracy of ``curl``, the forgetting of a single task) is an empty
cell in CSV and null in JSON.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hcl.errors import HCLError
from hcl.evaluate import metrics
from hcl.files import replacing, write_json
from hcl.records.runs import Run, read_run
from hcl.records.tasks import Benchmark

# What an embedding file says of itself that a reader of the results wants to know.
PROVENANCE = ("backbone", "weights", "weights_sha256", "transform", "data_sha256", "versions")
SCORE_FILES = ("accuracy.csv", "metrics.csv", "trace.csv", "latent.csv", "about.json")


@dataclass(frozen=True)
class Scores:
    """One seed's metrics, as fractions; NaN where a metric is not defined."""

    seed: int
    accuracy: metrics.FloatArray  # (M, J)
    average_accuracy: float
    forgetting: float
    overall_accuracy: float
    changes: metrics.Changes | None  # of task-agnostic methods


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
                f"{path}: no such run. Train it with `dvc repro train@{benchmark.name}-{method}`."
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
                f"(`dvc repro train@{benchmark.name}-{method}`), or name the file of those."
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
    changes = None
    if run.trace is not None:
        changes = metrics.score_changes(
            run.trace.segment, run.trace.verdict, run.trace.learner_task, added_in, stream
        )
    return Scores(
        seed=run.seed,
        accuracy=accuracy,
        average_accuracy=metrics.average_accuracy(accuracy),
        forgetting=metrics.average_forgetting(accuracy, stream),
        overall_accuracy=metrics.overall_accuracy(run.pair_class[-1], named, y, task),
        changes=changes,
    )


def summarise(scores: Sequence[Scores]) -> dict[str, Any]:
    """Mean and standard deviation over seeds, in percent; changes as means of counts."""
    summary: dict[str, Any] = {
        "average_accuracy": _summary([s.average_accuracy for s in scores], percent=True),
        "forgetting": _summary([s.forgetting for s in scores], percent=True),
        "overall_accuracy": _summary([s.overall_accuracy for s in scores], percent=True),
        "task_accuracy": {
            str(i + 1): _summary([s.accuracy[i, -1] for s in scores], percent=True)
            for i in range(len(scores[0].accuracy))
        },
        "seeds": len(scores),
    }
    changes = [s.changes for s in scores if s.changes is not None]
    if changes:
        summary["changes"] = {
            "true": changes[0].true,
            "found": _summary([c.found for c in changes]),
            "missed": _summary([c.missed for c in changes]),
            "false": _summary([c.false for c in changes]),
            "delay": _summary([c.delay for c in changes if not math.isnan(c.delay)]),
            "recurring": changes[0].recurring,
            "recurring_named": _summary([c.recurring_named for c in changes]),
            "misnamed": _summary([c.misnamed for c in changes]),
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
    if "changes" in summary:
        changes = summary["changes"]
        found, false = changes["found"]["mean"], changes["false"]["mean"]
        said.append(f"{found:.3g} of {changes['true']} changes found, {false:.3g} false")
        if changes["misnamed"]["mean"]:
            said.append(f"{changes['misnamed']['mean']:.3g} taken for another task")
    return f"{', '.join(said)} ({seeds} {'seed' if seeds == 1 else 'seeds'})"


def _summary(values: Sequence[float], percent: bool = False) -> dict[str, float | None]:
    mean, std = metrics.mean_and_std(values) if values else (math.nan, math.nan)
    return {"mean": _number(mean, percent), "std": _number(std, percent)}


def _number(value: float, percent: bool = False) -> float | None:
    """Rounded to what matters, so that files are short and equal; ``None`` for NaN."""
    value = float(value)
    return None if math.isnan(value) else round(100 * value if percent else value, 4)


def about(
    runs: Sequence[Run], benchmark: Benchmark, embeddings: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """What stands behind the numbers.

    Args:
        runs: of all seeds.
        benchmark: the tasks.
        embeddings: for a data set, the attributes of its embedding file; may be empty.
    """
    for source in benchmark.sources:
        found = embeddings.get(source.dataset, {}).get("content_sha256", source.content_sha256)
        if found != source.content_sha256:
            raise HCLError(
                f"{source.dataset}: the embeddings are not those that {benchmark.name} was split "
                f"from. Run `dvc repro split@{benchmark.name}` and train again."
            )
    first = runs[0]
    return {
        "benchmark": benchmark.name,
        "method": first.method,
        "task_agnostic": first.trace is not None,
        "seeds": [run.seed for run in runs],
        "classes_per_task": benchmark.num_classes,
        "tasks": [
            {
                "dataset": task.dataset,
                "classes": list(task.classes),
                "train": len(task.train.y),
                "validation": len(task.validation.y),
                "test": len(task.test.y),
            }
            for task in benchmark.tasks
        ],
        "stream": [{"task": s.task + 1, "epochs": s.epochs} for s in benchmark.stream],
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


def write_scores(
    folder: str | Path,
    runs: Sequence[Run],
    scores: Sequence[Scores],
    described: Mapping[str, Any],
    latent: Sequence[Sequence[object]] | None = None,
) -> None:
    """Write the tidy files, all or none.

    Args:
        folder: where to.
        runs: of all seeds.
        scores: of the same seeds.
        described: what ``about`` gives.
        latent: rows of the latent view (kind, task, class, x, y).
    """
    with replacing(folder) as partial:
        partial.mkdir()
        write_csv(
            partial / "accuracy.csv",
            ("seed", "segment", "task", "accuracy"),
            (
                (s.seed, j + 1, i + 1, _number(s.accuracy[i, j], percent=True))
                for s in scores
                for j in range(s.accuracy.shape[1])
                for i in range(s.accuracy.shape[0])
            ),
        )
        _write_metrics(partial / "metrics.csv", scores)
        if any(run.trace is not None for run in runs):
            _write_trace(partial / "trace.csv", runs)
        if latent is not None:
            write_csv(partial / "latent.csv", ("kind", "task", "class", "x", "y"), latent)
        write_json(partial / "about.json", described)


def _write_metrics(path: Path, scores: Sequence[Scores]) -> None:
    counts = [s.changes for s in scores if s.changes is not None]
    names = tuple(asdict(counts[0])) if counts else ()
    header = ("seed", "average_accuracy", "forgetting", "overall_accuracy")
    rows = []
    for s in scores:
        values = [s.average_accuracy, s.forgetting, s.overall_accuracy]
        row: list[object] = [s.seed, *(_number(v, percent=True) for v in values)]
        if s.changes is not None:
            row += [_number(v) if isinstance(v, float) else v for v in asdict(s.changes).values()]
        rows.append(row)
    write_csv(path, (*header, *(f"changes_{name}" for name in names)), rows)


def _write_trace(path: Path, runs: Sequence[Run]) -> None:
    traces = {run.seed: run.trace for run in runs if run.trace is not None}
    names = list(next(iter(traces.values())).statistics)
    columns = [f"{name}{suffix}" for name in names for suffix in ("", "_low", "_high")]
    header = ("seed", "batch", "segment", "true_task", "learner_task", "verdict", *columns)
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
