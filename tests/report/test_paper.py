"""The paper's tables as data: a few numbers read off the printed tables, and their own sums."""

from __future__ import annotations

import numpy as np
import pytest

from hcl.report.paper import METRICS, find_paper_table, paper_tables

METHODS = {"mtl", "adam", "er", "curl", "hcl-fr", "hcl-gr", "hcl-fr-ta", "hcl-gr-ta"}
CIFAR10 = {"epochs": 1, "classes_per_task": 2, "order": [1, 2, 3, 4, 5]}


def test_every_table_is_there_with_its_number() -> None:
    found = [(t.source, t.benchmark, t.epochs) for t in paper_tables()]
    assert found == [
        ("Table S1", "split-mnist", 30),
        ("Table S2", "svhn-mnist", 90),
        ("Table S2", "mnist-svhn", 90),
        ("Table S3", "split-cifar10", 15),
        ("Table S3", "split-cifar10", 1),
        ("Table S4", "split-cifar100", 15),
        ("Table S4", "split-cifar100", 1),
        ("Section 5.2", "split-cifar10-recurring", 15),
    ]


@pytest.mark.parametrize(
    ("benchmark", "epochs", "method", "tasks", "metrics", "stds"),
    [
        ("split-mnist", 30, "curl", (96.67, 97.27), (93.23, 6.90, None), (1.06, 1.47, None)),
        ("svhn-mnist", 90, "adam", (9.28, 99.18), (54.23, 86.69, 30.74), (None, None, None)),
        ("split-cifar10", 15, "hcl-fr", (96.95, 98.97), (96.44, 2.47, 90.12), (0.05, 0.09, 0.35)),
        ("split-cifar10", 1, "hcl-fr-ta", (95.35, 98.90), (94.61, 4.85, 85.72), (0.24, 0.32, 0.37)),
        ("split-cifar100", 1, "er", (78.23, 17.97), (68.13, -27.10, 65.13), (0.36, 0.25, 0.25)),
    ],
)  # fmt: skip
def test_numbers_are_the_printed_ones(
    benchmark: str,
    epochs: int,
    method: str,
    tasks: tuple[float, float],
    metrics: tuple[float | None, ...],
    stds: tuple[float | None, ...],
) -> None:
    (table,) = [t for t in paper_tables() if (t.benchmark, t.epochs) == (benchmark, epochs)]
    row = table.results[method]
    assert (row.task_accuracy[0], row.task_accuracy[-1]) == tasks
    assert tuple(row.mean[m] for m in METRICS) == metrics
    assert tuple(row.std[m] for m in METRICS) == stds


def test_averages_are_the_means_of_their_rows() -> None:
    """Where the paper agrees with itself: CURL's average in Table S1 is 0.19 above its row."""
    checked = 0
    for table in paper_tables():
        assert set(table.results) <= METHODS
        for row in table.results.values():
            if row.task_accuracy and row.mean["average_accuracy"] != 93.23:
                assert len(row.task_accuracy) == len(set(table.order))
                assert row.mean["average_accuracy"] == pytest.approx(
                    np.mean(row.task_accuracy), abs=0.011
                )
                checked += 1
    assert checked == 53


def test_a_benchmark_is_found_by_name_order_classes_and_epochs() -> None:
    table = find_paper_table("split-cifar10", **CIFAR10)
    assert table is not None
    assert table.results["mtl"].mean["average_accuracy"] == 97.64
    assert find_paper_table("split-cifar10-single-pass", **CIFAR10) is table


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("split-digits", {}),
        ("split-cifar10", {"epochs": 2}),
        ("split-cifar10", {"epochs": None}),
        ("split-cifar10", {"classes_per_task": 5}),
        ("split-cifar10", {"order": [2, 1, 3, 4, 5]}),
        ("split-cifar10x", {}),
        ("split-cifar10-smaller", {"epochs": 2}),
        ("split-cifar10-small", {"epochs": 2, "classes_per_task": 5}),
    ],
)
def test_another_benchmark_is_not_compared(name: str, change: dict[str, object]) -> None:
    assert find_paper_table(name, **(CIFAR10 | change)) is None  # type: ignore[arg-type]


def test_beside_a_benchmark_that_is_cut_stands_the_paper_s_of_full_size() -> None:
    table = find_paper_table("split-mnist-small", 10, 2, [1, 2, 3, 4, 5])
    assert table is not None
    assert table.source == "Table S1, at full size"
    assert table.results["hcl-fr"].mean["overall_accuracy"] == 93.55


def test_the_recurring_stream_is_its_own() -> None:
    table = find_paper_table("split-cifar10-recurring", 15, 2, [1, 2, 3, 1, 4])
    assert table is not None
    assert table.source == "Section 5.2"
    assert table.results["hcl-fr-ta"].mean["average_accuracy"] == 95.06
