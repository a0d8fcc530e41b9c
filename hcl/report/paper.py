"""The results that the paper prints, as data: ``paper_tables.json``, in percent.

Each entry is one benchmark at one number of epochs, with the table or section that prints it. A
result of ours stands beside the paper's only where the benchmark is the same: its name, the order
of its tasks, the number of classes in each, and the epochs. Beside one that is cut, and says so in
its name (``split-mnist-small``), stands the paper's of full size, and says that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from hcl.records.scores import METRICS

CUT = "-small"  # ends the name of a benchmark that is cut: fewer epochs, samples or weights


@dataclass(frozen=True)
class PaperResult:
    """One method's row: percent, ``None`` where the paper prints none."""

    task_accuracy: tuple[float, ...]  # empty where the paper prints the average alone
    mean: dict[str, float | None]  # by METRICS
    std: dict[str, float | None]


@dataclass(frozen=True)
class PaperTable:
    """What the paper prints for one benchmark at one number of epochs a task."""

    source: str  # the table or section of the paper
    benchmark: str
    epochs: int
    classes_per_task: int
    order: tuple[int, ...]  # task numbers from 1, in the order shown
    seeds: int
    results: dict[str, PaperResult]  # by our name of the method


@cache
def paper_tables() -> tuple[PaperTable, ...]:
    """All of them, in the paper's order."""
    text = resources.files("hcl.report").joinpath("paper_tables.json").read_text(encoding="utf-8")
    return tuple(
        PaperTable(
            source=entry["source"],
            benchmark=entry["benchmark"],
            epochs=entry["epochs"],
            classes_per_task=entry["classes_per_task"],
            order=tuple(entry["order"]),
            seeds=entry["seeds"],
            results={
                method: PaperResult(
                    task_accuracy=tuple(row["mean"].get("task_accuracy", ())),
                    mean={metric: row["mean"].get(metric) for metric in METRICS},
                    std={metric: row.get("std", {}).get(metric) for metric in METRICS},
                )
                for method, row in entry["results"].items()
            },
        )
        for entry in json.loads(text)
    )


def find_paper_table(
    benchmark: str, epochs: int | None, classes_per_task: int, order: Sequence[int]
) -> PaperTable | None:
    """The paper's table for the same benchmark, or ``None``.

    A benchmark's name may go on after the paper's (``split-cifar10-single-pass``), so that one
    parameter file can hold both of the paper's settings; then order, classes and epochs decide.

    Args:
        benchmark: our name.
        epochs: a task's epochs; ``None`` where segments differ, which the paper never does.
        classes_per_task: K.
        order: task numbers from 1, in the order shown.
    """
    for table in paper_tables():
        named = benchmark == table.benchmark or benchmark.startswith(f"{table.benchmark}-")
        if not named or (classes_per_task, tuple(order)) != (table.classes_per_task, table.order):
            continue
        if epochs == table.epochs:
            return table
        if benchmark == table.benchmark + CUT:
            return replace(table, source=f"{table.source}, at full size")
    return None
