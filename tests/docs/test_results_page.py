"""The page of results says what the CSV files beside it say, the README what the metrics say."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from hcl.report import report
from hcl.report.paper import METRICS
from hcl.settings import load_yaml
from tests.support.imports import ROOT, load_script
from tests.support.made_runs import make_benchmark, write_result

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def page() -> ModuleType:
    return load_script(DOCS / "results" / "page.py")


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_the_tables_are_those_of_the_files(page: ModuleType) -> None:
    marks = 0
    for path in page.PAGES:
        text = path.read_text(encoding="utf-8")
        assert page.with_tables(text) == text, path.name
        marks += sum(text.count(f"<!-- {mark}: ") for mark in page.MARKS)
    assert marks > 6


def test_a_mark_without_a_table_takes_one_and_leaves_the_text_between(page: ModuleType) -> None:
    mark = "<!-- table: split-cifar10-bound-3 -->\n<!-- end -->\n"
    filled = page.with_tables(f"{mark}between\n{mark}")
    assert filled.count("| MTL, 1 seed | 92.74 |") == 2
    assert "<!-- end -->\nbetween\n<!-- table" in filled


def test_a_column_without_a_number_is_left_out(page: ModuleType) -> None:
    head = page.table("split-cifar10").splitlines()[0]
    assert head.startswith("| method | average | forgetting | overall | changes | paper: average |")
    assert "paper" not in page.table("fashion-mnist-mnist")


def halves_of(page: ModuleType, folder: Path) -> None:
    """Two methods with 15 epochs, one of them in a single pass as well, MTL without the paper."""
    means = {
        "toy": {"mtl": (80.0, 64.0, 90.0), "hcl-fr": (60.0, 32.0, 72.0)},
        "toy-single-pass": {"mtl": (50.0, 25.0, None)},
    }
    for benchmark, methods in means.items():
        columns = ("average_accuracy", "overall_accuracy")
        written = [
            {"benchmark": benchmark, "method": method, "seeds": "1", "metric": metric}
            | {"mean": f"{mean:.4f}", "std": "", "paper_mean": "" if paper is None else f"{paper}"}
            for method, (average, overall, paper) in methods.items()
            for metric, mean in zip(columns, (average, overall), strict=True)
        ]
        page.write_rows(folder / f"{benchmark}.csv", written)


def test_both_halves_stand_side_by_side_and_beside_the_papers(
    page: ModuleType, tmp_path: Path
) -> None:
    halves_of(page, tmp_path)
    head, _, *lines = page.halves("toy", tmp_path).splitlines()
    assert head.split(" | ")[1:4] == [
        "average, 15 epochs",
        "average, 15 epochs: paper",
        "overall, 15 epochs",
    ]
    assert lines == [
        "| MTL | 80.00 | 90.00 | 64.00 | 90.00 | 50.00 || 25.00 ||",
        "| HCL-FR | 60.00 | 72.00 | 32.00 | 72.00 |||||",
    ]


def test_ratios_are_those_of_the_means_to_mtls(page: ModuleType, tmp_path: Path) -> None:
    halves_of(page, tmp_path)
    assert page.ratios("toy", tmp_path).splitlines()[2:] == [
        "| HCL-FR | 0.750 | 0.800 | 0.500 | 0.800 |||||"
    ]


def test_errors_are_told_in_times_of_mtls(page: ModuleType, tmp_path: Path) -> None:
    halves_of(page, tmp_path)
    assert page.errors("toy", tmp_path).splitlines()[2:] == [
        "| HCL-FR | 2.000 | 2.800 | 1.889 | 2.800 |||||"
    ]


def known_numbers() -> set[str]:
    """Every mean in the CSVs, ours and the paper's, and what it is beside MTL's, as texts."""
    known = set()
    for path in (DOCS / "results").glob("*.csv"):
        means = [row for row in rows(path) if row.get("metric") in METRICS]
        mtl = {row["metric"]: row for row in means if row["method"] == "mtl"}
        for row in means:
            for key in ("mean", "paper_mean"):
                if row[key]:
                    known.add(f"{float(row[key]):.2f}")
                    if row["metric"] in mtl and float(mtl[row["metric"]][key] or 0):
                        own, upper = float(row[key]), float(mtl[row["metric"]][key])
                        known |= {f"{own / upper:.3f}", f"{(100 - own) / (100 - upper):.3f}"}
    return known


def test_every_accuracy_in_the_text_is_that_of_a_file() -> None:
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("|"))
    said = re.findall(r"\b\d+\.\d{2,3}\b", prose)
    assert len(said) > 30
    assert set(said) <= known_numbers()


def known_pairs() -> set[str]:
    """Average and overall accuracy of every trial with 15 epochs, and of every table, as texts."""
    pairs = []
    for path in (DOCS / "results").glob("*.csv"):
        means: dict[tuple[str, str], dict[str, str]] = {}
        for row in rows(path):
            if "nats_held_out" in row:
                pairs.append((row["average"], row["overall"]))
            elif row.get("metric") in METRICS:
                of_method = means.setdefault((row["benchmark"], row["method"]), {})
                of_method[row["metric"]] = row["mean"]
        pairs += [(of["average_accuracy"], of.get("overall_accuracy", "")) for of in means.values()]
    return {f"{float(a):.2f} / {float(o):.2f}" for a, o in pairs if a and o}


@pytest.mark.parametrize("name", ["epochs.md", "ratios.md"])
def test_every_pair_of_accuracies_in_a_notebook_is_that_of_a_file(name: str) -> None:
    text = " ".join((DOCS / "notebook" / name).read_text(encoding="utf-8").split())
    said = re.findall(r"\b\d\d\.\d\d / \d\d\.\d\d\b", text)
    assert len(said) > 10
    assert set(said) <= known_pairs()


def test_the_table_of_the_readme_is_that_of_the_metrics() -> None:
    """Its rows are the methods of the grid, in that order."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if re.match("-{9,}  -{9,}", line)) + 1
    methods = load_yaml(ROOT / "params.yaml")["grid"]["methods"]
    assert lines[first + len(methods)] == "```"
    path = ROOT / "results" / "metrics" / "split-digits.json"
    metrics = json.loads(path.read_text(encoding="utf-8"))
    for method, line in zip(methods, lines[first:], strict=False):
        means = [metrics[method][name.removesuffix("_accuracy")] for name in METRICS]
        said = re.findall(r"([\d.−]+) ±", line)
        assert said == [f"{mean:.2f}".replace("-", "−") for mean in means if mean is not None]


def write_report(
    folder: Path, wrong: dict[str, list[list[tuple[int, int]]]], first_seed: int = 0
) -> Path:
    for method, answers in wrong.items():
        write_result(folder, make_benchmark(), method, answers, first_seed)
    grid = report.Grid(benchmarks=("toy",), methods=tuple(wrong))
    results = report.read_results(folder / "scores", grid)
    report.write_report(folder / "report", results)
    return folder / "report"


@pytest.mark.slow
def test_a_report_replaces_the_methods_that_it_has(page: ModuleType, tmp_path: Path) -> None:
    wrong = [[(2, s) for s in range(6)], [(2, s) for s in range(4)]]
    first = write_report(tmp_path / "a", {"adam": wrong, "hcl-fr-ta": [[], [(2, 0)]]})
    second = write_report(tmp_path / "b", {"adam": [[], []]})
    page.add(first, "c0ffee", tmp_path)
    before = page.table("toy", tmp_path)
    assert "| Adam, 2 seeds | 50.00±16.67 |" in before
    page.add(second, "decade", tmp_path)
    after = page.table("toy", tmp_path)
    assert "| Adam, 2 seeds | 100.00±0.00 |" in after
    kept = [line for line in before.splitlines() if "HCL-FR (TA)" in line]
    assert kept == [line for line in after.splitlines() if "HCL-FR (TA)" in line]
    assert "| 2/2, 1 false |" in kept[0]
    commits = {(row["method"], row["commit"]) for row in rows(tmp_path / "toy.csv")}
    assert commits == {("adam", "decade"), ("hcl-fr-ta", "c0ffee")}
    runs = [(row["method"], row["seed"], row["commit"]) for row in rows(tmp_path / "runs.csv")]
    assert runs == [
        ("adam", "0", "decade"),
        ("adam", "1", "decade"),
        ("hcl-fr-ta", "0", "c0ffee"),
        ("hcl-fr-ta", "1", "c0ffee"),
    ]


@pytest.mark.slow
def test_seeds_are_joined_as_if_they_had_run_together(page: ModuleType, tmp_path: Path) -> None:
    methods = ("adam", "curl", "hcl-fr-ta")  # CURL has no overall accuracy
    answers = [[(2, s) for s in range(count)] for count in (6, 4, 1)]
    parts = {
        "whole": write_report(tmp_path / "whole", dict.fromkeys(methods, answers)),
        "early": write_report(tmp_path / "early", dict.fromkeys(methods, answers[:2])),
        "late": write_report(tmp_path / "late", dict.fromkeys(methods, answers[2:]), first_seed=2),
    }
    for name in ("together", "joined"):
        (tmp_path / name).mkdir()
    page.add(parts["whole"], "c0ffee", tmp_path / "together")
    page.add(parts["early"], "c0ffee", tmp_path / "joined")
    page.add(parts["late"], "c0ffee", tmp_path / "joined", join=True)
    for file in ("toy.csv", "runs.csv"):
        together, joined = (rows(tmp_path / name / file) for name in ("together", "joined"))
        assert joined == together
        assert {row["method"] for row in joined} == set(methods)
    reported = {(row["method"], row["metric"]): row for row in rows(parts["whole"] / "tables.csv")}
    means = rows(tmp_path / "joined/toy.csv")
    assert len(means) == len(reported)
    for row in means:
        there = reported[row["method"], row["metric"]]
        for key in ("mean", "std", "gap"):
            assert (row[key] == "") == (there[key] == "")
            assert float(row[key] or 0) == pytest.approx(float(there[key] or 0), abs=2e-4)
    page.add(parts["late"], "decade", tmp_path / "joined", join=True)
    assert {row["commit"] for row in rows(tmp_path / "joined/toy.csv")} == {"c0ffee decade"}
