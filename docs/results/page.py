"""The tables of results.md, pixels.md, beyond.md and notebook/ratios.md, and figures, from CSVs.

    python docs/results/page.py
    python docs/results/page.py --add report --commit 5fd4a9e
    python docs/results/page.py --join report --commit 5fd4a9e

The first writes the tables into the pages and the figures into docs/figures. The others take over
the numbers of a report that `hcl report` wrote before that; the commit is that of the code which
trained them. With --add the runs of a method on a benchmark replace those that were there; with
--join they stand beside those of other seeds in runs.csv, which must have the same settings, and
the means are taken over all of them.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from hcl.evaluate.metrics import mean_and_std
from hcl.files import replacing
from hcl.records.scores import write_csv
from hcl.report import figures
from hcl.report.catalogue import label
from hcl.report.figures import Series
from hcl.report.paper import CUT, METRICS
from hcl.report.styles import style_of
from hcl.report.tables import DASH, mean_std, title_of

HERE = Path(__file__).resolve().parent
PAGES = tuple(
    HERE.parent / name for name in ("results.md", "pixels.md", "beyond.md", "notebook/ratios.md")
)
FIGURES = HERE.parent / "figures"
RUNS = "runs.csv"
USUAL_SEEDS = "3"  # said once, above the tables
ORDER = (
    *("adam", "mtl", "er", "curl", "hcl-gr", "hcl-fr", "hcl-gr-ta", "hcl-fr-ta"),
    *("hcl-fr-trimmed-ta", "hcl-fr-measured", "hcl-fr-measured-ta"),
    *("ncm", "slda", "ranpac", "ranpac-10000", "hcl-plus-ridge", "hcl-plus-ridge-ta"),
    *("hcl-plus", "hcl-plus-ta", "joint"),
)
PAPERS = ORDER[:8]
SINGLE_PASS = "-single-pass"  # what the other half of a table is called
BESIDE = ("hcl-plus", "hcl-plus-ta", "joint")  # the paper's methods, where both halves are shown
OF_HALVES = ("average_accuracy", "overall_accuracy")
HALVES = tuple(
    f"{metric}, {half}{whose}"
    for half in ("15 epochs", "single pass")
    for metric in ("average", "overall")
    for whose in ("", ": paper")
)

Row = dict[str, str]
Method = dict[str, Row]  # a method's rows, by metric


def read_rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    names.sort(key=lambda name: (name == "commit", name.startswith("task_")))  # these come last
    with replacing(path) as partial_file:
        write_csv(partial_file, names, [[row.get(name, "") for name in names] for row in rows])


def read_methods(benchmark: str, folder: Path = HERE) -> dict[str, Method]:
    """The rows of each method on a benchmark, in the order of the page."""
    methods: dict[str, Method] = {}
    for row in read_rows(folder / f"{benchmark}.csv"):
        methods.setdefault(row["method"], {})[row["metric"]] = row
    return {name: methods[name] for name in sorted(methods, key=ORDER.index)}


def merged(old: Sequence[Row], new: Sequence[Row], keys: Sequence[str]) -> list[Row]:
    """``old`` without the rows that ``new`` has others for, and ``new``; by method."""
    replaced = {tuple(row[key] for key in keys) for row in new}
    kept = [row for row in old if tuple(row[key] for key in keys) not in replaced]
    return sorted([*kept, *new], key=lambda row: (row["benchmark"], ORDER.index(row["method"])))


def add(report: Path, commit: str, folder: Path = HERE, join: bool = False) -> None:
    """Take over the numbers of a report, in place of a method's runs or (``join``) beside them."""
    path = folder / RUNS
    new = [{**row, "commit": commit} for row in read_rows(report / "seeds.csv")]
    keys = ("benchmark", "method", "seed") if join else ("benchmark", "method")
    runs = merged(read_rows(path), new, keys)
    runs.sort(key=lambda row: (row["benchmark"], ORDER.index(row["method"]), int(row["seed"])))
    write_rows(path, runs)
    rows = read_rows(report / "tables.csv")
    for row in rows:
        del row["best"]  # among the methods of that report
        summarise(row, [run for run in runs if all(run[k] == row[k] for k in keys[:2])])
    for benchmark in dict.fromkeys(row["benchmark"] for row in rows):
        path = folder / f"{benchmark}.csv"
        of_benchmark = [row for row in rows if row["benchmark"] == benchmark]
        write_rows(path, merged(read_rows(path), of_benchmark, ("benchmark", "method")))


def summarise(row: Row, runs: Sequence[Row]) -> None:
    """Put the mean and the standard deviation over a method's runs into the row of a metric."""
    row["seeds"] = str(len(runs))
    row["commit"] = " ".join(dict.fromkeys(run["commit"] for run in runs))
    values = [float(run[row["metric"]]) for run in runs if run[row["metric"]]]
    if not values:  # not defined, such as the overall accuracy of CURL
        return
    mean, std = mean_and_std(values)
    row["mean"] = f"{mean:.4f}"
    if not row["metric"].startswith("changes_"):
        row["std"] = f"{std:.4f}" if len(values) > 1 else ""
    if row["paper_mean"]:
        row["gap"] = f"{mean - float(row['paper_mean']):.4f}"


def number(row: Row | None) -> str:
    """``91.67±0.12``, without a spread where there is one seed."""
    if row is None or not row["mean"]:
        return DASH
    spread = float(row["std"]) if row["std"] and row["seeds"] != "1" else None
    return mean_std(float(row["mean"]), spread).replace(" ", "")


def changes(method: Method) -> str:
    """How many changes were found, as means over seeds."""
    if "changes_true" not in method:
        return ""
    true, found, false, misnamed = (
        f"{round(float(method[f'changes_{name}']['mean']), 2):g}"
        for name in ("true", "found", "false", "misnamed")
    )
    false = f", {false} false" if false != "0" else ""
    wrong = f", {misnamed} misnamed" if misnamed != "0" else ""
    return f"{found}/{true}{false}{wrong}"


def name_of(name: str, method: Method) -> str:
    """The method's label, with its number of seeds where it is not the usual one."""
    seeds = method["average_accuracy"]["seeds"]
    plural = "" if seeds == "1" else "s"
    return label(name) + ("" if seeds == USUAL_SEEDS else f", {seeds} seed{plural}")


def paper(method: Method, metric: str) -> str:
    row = method.get(metric)
    return f"{float(row['paper_mean']):.2f}" if row and row["paper_mean"] else ""


def table(benchmark: str, folder: Path = HERE) -> str:
    """The table of a benchmark, in Markdown; a column that would be empty is left out."""
    methods = read_methods(benchmark, folder)
    columns = {"method": [name_of(name, method) for name, method in methods.items()]}
    for metric in METRICS:
        title = metric.removesuffix("_accuracy")
        columns[title] = [number(method.get(metric)) for method in methods.values()]
    columns["changes"] = [changes(method) for method in methods.values()]
    whose = "paper, full size" if benchmark.endswith(CUT) else "paper"
    for metric in ("average_accuracy", "overall_accuracy"):
        title = f"{whose}: {metric.removesuffix('_accuracy')}"
        columns[title] = [paper(method, metric) for method in methods.values()]
    shown = {title: cells for title, cells in columns.items() if any(cells)}
    lines = ["| " + " | ".join(shown) + " |", "|" + "---|" * len(shown)]
    lines += ["| " + " | ".join(cells) + " |" for cells in zip(*shown.values(), strict=True)]
    return "\n".join(re.sub(r"\|\s+(?=\|)", "|", line) for line in lines)


def halves(benchmark: str, folder: Path = HERE) -> str:
    """15 epochs beside a single pass, ours beside the paper's, in Markdown."""
    both = [read_methods(name, folder) for name in (benchmark, benchmark + SINGLE_PASS)]
    lines = ["| method | " + " | ".join(HALVES) + " |", "|" + "---|" * (1 + len(HALVES))]
    for name in sorted({*both[0], *both[1]}, key=ORDER.index):
        if name not in (*PAPERS, *BESIDE):
            continue
        cells = []
        for method in (methods.get(name, {}) for methods in both):
            for metric in OF_HALVES:
                cells += [number(method.get(metric)) if method else "", paper(method, metric)]
        lines.append(f"| {label(name)} | " + " | ".join(cells) + " |")
    return "\n".join(re.sub(r"\|\s+(?=\|)", "|", line) for line in lines)


def beside_mtl(
    benchmark: str, folder: Path, title: str, of: Callable[[float, float], float]
) -> str:
    """What ``of`` makes of each accuracy and MTL's, ours beside the paper's, in Markdown."""
    lines = [f"| {title} | " + " | ".join(HALVES) + " |", "|" + "---|" * (1 + len(HALVES))]
    cells: dict[str, list[str]] = {}
    for name in (benchmark, benchmark + SINGLE_PASS):
        methods = read_methods(name, folder)
        for method, metric, column in itertools.product(PAPERS, OF_HALVES, ("mean", "paper_mean")):
            both = [methods.get(m, {}).get(metric, {}).get(column) for m in (method, "mtl")]
            share = f"{of(float(both[0]), float(both[1])):.3f}" if both[0] and both[1] else ""
            cells.setdefault(method, []).append(share)
    for method, row in cells.items():
        if method != "mtl" and any(row):
            lines.append(f"| {label(method)} | " + " | ".join(row) + " |")
    return "\n".join(re.sub(r"\|\s+(?=\|)", "|", line) for line in lines)


def ratios(benchmark: str, folder: Path = HERE) -> str:
    """What each of the paper's methods keeps of MTL's accuracy."""
    return beside_mtl(benchmark, folder, "of MTL", lambda own, mtl: own / mtl)


def errors(benchmark: str, folder: Path = HERE) -> str:
    """How often each of the paper's methods errs, in times that MTL does."""
    return beside_mtl(
        benchmark, folder, "errors, MTL's = 1", lambda own, mtl: (100 - own) / (100 - mtl)
    )


MARKS = {"table": table, "halves": halves, "ratios": ratios, "errors": errors}


def with_tables(page: str, folder: Path = HERE) -> str:
    """The page with the tables of each benchmark that it marks."""
    return re.sub(
        r"(<!-- (" + "|".join(MARKS) + r"): (\S+) -->\n).*?(<!-- end -->)",
        lambda mark: mark[1] + MARKS[mark[2]](mark[3], folder) + "\n" + mark[4],
        page,
        flags=re.DOTALL,
    )


def by_task(benchmark: str, stem: str) -> None:
    """Final accuracy on each task, of the paper's methods."""
    series = []
    for name, method in read_methods(benchmark).items():
        if name in PAPERS:
            rows = [row for metric, row in method.items() if metric.startswith("task_")]
            series.append(_series(name, rows))
    draw = partial(figures.accuracy_by_task, series=series, title="The paper's methods")
    _save(stem, [draw], 1, 4.9, 3.3)


def metrics(benchmark: str, stem: str) -> None:
    """The three metrics of all methods."""
    methods = read_methods(benchmark)
    draws: list[Callable[..., None]] = []
    for metric in METRICS:
        series = [_series(name, [method[metric]]) for name, method in methods.items()]
        title = f"{title_of(metric).capitalize()}, %"
        draws.append(partial(figures.bars, series=series, title=title))
    _save(stem, draws, 3, 3.4, 0.6 + 0.27 * len(methods))


def _series(name: str, rows: Sequence[Row]) -> Series:
    mean = np.array([float(row["mean"] or np.nan) for row in rows])
    std = np.array([float(row["std"] or 0) for row in rows])
    if len(rows) == 1:
        mean, std = mean[0], std[0]
    return Series(label(name), style_of(name, name.endswith("-ta")), mean, std)


def _save(
    stem: str, draws: list[Callable[..., None]], columns: int, width: float, height: float
) -> None:
    path = FIGURES / stem
    figures.save(figures.grid(draws, columns, width, height), path)
    path.with_suffix(".svg").unlink()  # the page shows the PNG


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    reports = parser.add_mutually_exclusive_group()
    reports.add_argument("--add", type=Path, help="folder that `hcl report` wrote")
    reports.add_argument("--join", type=Path, help="the same, with seeds beside those there are")
    parser.add_argument("--commit", help="of the code that trained what is added")
    options = parser.parse_args()
    report = options.add or options.join
    if report is not None:
        if not options.commit:
            parser.error("--add and --join need --commit")
        if not (report / "tables.csv").exists():
            parser.error(f"{report}: has no tables.csv; make it with `hcl report`")
        add(report, options.commit, join=options.join is not None)
    for path in PAGES:
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
    by_task("split-cifar10-single-pass", "split-cifar10-single-pass-by-task")
    by_task("split-cifar10", "split-cifar10-by-task")
    by_task("split-mnist-small", "split-mnist-small-by-task")
    metrics("split-cifar100-single-pass", "split-cifar100-single-pass-metrics")


if __name__ == "__main__":
    main()
