"""The report's tables: as data first, then as Markdown, CSV, LaTeX and plain text.

Means and standard deviations over seeds in percent, with two decimals as in the paper. The best
value of a column is marked, leaving upper bounds out (``mtl``, ``joint``): they see the old data
again, and are no competitors.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from hcl.files import csv_text
from hcl.records.scores import METRICS, Result, shares
from hcl.report import catalogue, names
from hcl.report.paper import PaperResult, PaperTable, find_paper_table

DASH = "–"
CONFUSED = 3  # pairs of classes that are listed as the most confused
CHANGES = "changes found"  # the head of the column
CHANGES_NOTE = (
    "Changes found: how many of the stream's changes of task a method noticed, how many verdicts "
    "were false, and how many changes were taken for another task; means over seeds."
)


@dataclass(frozen=True)
class Cell:
    """One number of ours, and the paper's where it has one."""

    mean: float | None
    std: float | None
    best: bool = False
    paper: float | None = None
    paper_std: float | None = None

    @property
    def gap(self) -> float | None:
        """Ours less the paper's, in points."""
        return None if self.mean is None or self.paper is None else self.mean - self.paper


@dataclass(frozen=True)
class Changes:
    """How a method that is not told of task changes found them: means over seeds."""

    true: int
    found: float
    false: float
    misnamed: float  # of those found, the ones taken for another task

    def __str__(self) -> str:
        found, false, misnamed = (
            f"{round(value, 2):g}" for value in (self.found, self.false, self.misnamed)
        )
        wrong = f", {misnamed} misnamed" if self.misnamed else ""
        return f"{found}/{self.true}, {false} false{wrong}"


@dataclass(frozen=True)
class Row:
    """One method."""

    method: str
    label: str
    task_agnostic: bool
    seeds: int
    cells: tuple[Cell, ...]
    changes: Changes | None = None


@dataclass(frozen=True)
class Table:
    """Methods down, metrics or tasks across."""

    benchmark: str
    columns: tuple[str, ...]  # metric names, or "task 1" and so on
    rows: tuple[Row, ...]
    paper: PaperTable | None
    tasks: tuple[str, ...] = ()  # where tasks stand across: their names

    @property
    def heads(self) -> tuple[str, ...]:
        """What stands over the columns."""
        if self.tasks:
            return tuple(f"{c}: {n}" for c, n in zip(self.columns, self.tasks, strict=True))
        return tuple(map(title_of, self.columns))

    @property
    def has_changes(self) -> bool:
        """Whether a method seeks changes of task, and a column tells how many it found."""
        return any(row.changes for row in self.rows)


def headline(results: Sequence[Result]) -> Table:
    """Average accuracy, forgetting and overall accuracy of the methods on one benchmark."""
    paper = paper_table(results[0])
    rows = []
    for result in results:
        printed = _printed(paper, result.method)
        cells = []
        for metric in METRICS:
            mean, std = result.metric(metric)
            cells.append(
                Cell(
                    mean,
                    _spread(result, std),
                    paper=printed.mean[metric] if printed else None,
                    paper_std=printed.std[metric] if printed else None,
                )
            )
        rows.append(_row(result, cells, _changes(result)))
    return _with_best(Table(results[0].benchmark, METRICS, tuple(rows), paper))


def _row(result: Result, cells: Sequence[Cell], changes: Changes | None = None) -> Row:
    seeds = result.summary["seeds"]
    return Row(
        result.method,
        catalogue.label(result.method),
        result.task_agnostic,
        seeds,
        tuple(cells),
        changes,
    )


def _changes(result: Result) -> Changes | None:
    counts = result.summary.get("changes")
    if counts is None:
        return None
    means = (counts[name]["mean"] for name in ("found", "false", "misnamed"))
    return Changes(counts["true"], *means)


def by_task(results: Sequence[Result]) -> Table:
    """Final accuracy on each task."""
    paper = paper_table(results[0])
    tasks = names.task_names(results[0].about["tasks"])
    rows = []
    for result in results:
        printed = _printed(paper, result.method)
        there = printed.task_accuracy if printed else ()
        cells = []
        for i in range(len(tasks)):
            value = result.summary["task_accuracy"][str(i + 1)]
            cells.append(
                Cell(
                    value["mean"],
                    _spread(result, value["std"]),
                    paper=there[i] if i < len(there) else None,
                )
            )
        rows.append(_row(result, cells))
    columns = tuple(f"task {i + 1}" for i in range(len(tasks)))
    table = Table(results[0].benchmark, columns, tuple(rows), paper, tuple(tasks))
    return _with_best(table)


def _spread(result: Result, std: float | None) -> float | None:
    """The standard deviation over seeds; one seed has none, not 0."""
    return std if result.summary["seeds"] > 1 else None


def paper_table(result: Result) -> PaperTable | None:
    """What the paper prints for this result's benchmark."""
    return find_paper_table(
        result.benchmark,
        result.epochs,
        result.about["classes_per_task"],
        [task + 1 for task in result.stream],
    )


def _printed(paper: PaperTable | None, method: str) -> PaperResult | None:
    return paper.results.get(method) if paper else None


def _with_best(table: Table) -> Table:
    best: list[float | None] = []
    for column, name in enumerate(table.columns):
        means = [
            round(row.cells[column].mean, 2)  # type: ignore[arg-type]
            for row in table.rows
            if _competes(row, column)
        ]
        best.append((min if _lower_is_better(name) else max)(means) if means else None)

    def marked(row: Row) -> Row:
        return replace(
            row,
            cells=tuple(
                replace(cell, best=_competes(row, i) and round(cell.mean or 0.0, 2) == best[i])
                for i, cell in enumerate(row.cells)
            ),
        )

    return replace(table, rows=tuple(map(marked, table.rows)))


def _competes(row: Row, column: int) -> bool:
    return not catalogue.entry(row.method).upper_bound and row.cells[column].mean is not None


def _lower_is_better(column: str) -> bool:
    metric = catalogue.METRICS.get(column)
    return metric is not None and metric.lower_is_better


# As text ------------------------------------------------------------------------------------------


def number(value: float | None, signed: bool = False) -> str:
    """Two decimals with a true minus sign; a dash where there is no value."""
    if value is None:
        return DASH
    text = f"{value:+.2f}" if signed else f"{value:.2f}"
    return ("0.00" if float(text) == 0 and not signed else text).replace("-", "−")


def mean_std(mean: float | None, std: float | None) -> str:
    """``95.06 ± 0.25``; without ± where there is no standard deviation."""
    return number(mean) if mean is None or std is None else f"{number(mean)} ± {number(std)}"


def compared(table: Table) -> tuple[bool, ...]:
    """For each column, whether the paper's figures stand beside ours.

    The metrics are compared, the single tasks not: a table of these would be too wide to read, and
    ``tidy_csv`` has them.
    """
    return tuple(
        column in METRICS and any(row.cells[i].paper is not None for row in table.rows)
        for i, column in enumerate(table.columns)
    )


def title_of(column: str) -> str:
    """What stands at the head of a column."""
    metric = catalogue.METRICS.get(column)
    return metric.label if metric else column


def markdown(table: Table) -> str:
    """A Markdown table, best in bold; with the paper's figure and the gap where there is one."""
    beside = compared(table)
    header = ["method"]
    for head, compare in zip(table.heads, beside, strict=True):
        header += [names.markdown(head)] + (["paper", "gap"] if compare else [])
    header += [CHANGES] * table.has_changes
    lines = ["| " + " | ".join(header) + " |"]
    lines.append("| --- |" + " ---: |" * (len(header) - 1))
    for row in table.rows:
        cells = [names.markdown(row.label)]
        for cell, compare in zip(row.cells, beside, strict=True):
            text = mean_std(cell.mean, cell.std)
            cells.append(f"**{text}**" if cell.best else text)
            if compare:
                cells += [mean_std(cell.paper, cell.paper_std), number(cell.gap, signed=True)]
        cells += [str(row.changes or "")] * table.has_changes
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def plain(table: Table) -> str:
    """Columns aligned by spaces, for a terminal; with the changes found where a method seeks them.

    ``4/4, 0 false``: all of the stream's four changes, and none where there is none.
    """
    rows = [["method", *table.heads]]
    rows += [
        [r.label, *(mean_std(c.mean, c.std) + ("*" if c.best else " ") for c in r.cells)]
        for r in table.rows
    ]
    if table.has_changes:
        found = [CHANGES, *(str(r.changes or "") for r in table.rows)]
        rows = [[*row, cell] for row, cell in zip(rows, found, strict=True)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        first, *others = row
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines) + "\n"


def latex(table: Table) -> str:
    """A LaTeX table for booktabs, best in bold."""
    beside = compared(table)
    head = " & ".join(
        f"\\multicolumn{{2}}{{c}}{{{names.latex(head)}}}" if compare else names.latex(head)
        for head, compare in zip(table.heads, beside, strict=True)
    )
    seeks = table.has_changes
    source = f"; paper: {table.paper.source}" if table.paper else ""
    lines = [
        f"% {names.one_line(table.benchmark)}{source}",
        *([f"% {CHANGES_NOTE}"] if seeks else []),
        f"\\begin{{tabular}}{{l{'r' * (len(beside) + sum(beside) + seeks)}}}",
        "\\toprule",
        f"method & {head}{f' & {CHANGES}' * seeks} \\\\",
    ]
    if any(beside):
        below = ("ours & paper" if compare else "ours" for compare in beside)
        lines.append("& " + " & ".join(below) + " &" * seeks + " \\\\")
    lines.append("\\midrule")
    for row in table.rows:
        cells = [names.latex(row.label)]
        for cell, compare in zip(row.cells, beside, strict=True):
            text = _latex_number(cell.mean, cell.std)
            cells.append(f"{{\\boldmath{text}}}" if cell.best else text)
            if compare:
                cells.append(_latex_number(cell.paper, cell.paper_std))
        cells += [str(row.changes or "")] * seeks
        lines.append(" & ".join(cells) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _latex_number(mean: float | None, std: float | None) -> str:
    if mean is None:
        return "--"
    spread = "" if std is None else f"{{\\scriptsize$\\,\\pm\\,{std:.2f}$}}"
    return f"${mean:.2f}$" + spread


def tidy_csv(tables: Sequence[Table]) -> str:
    """All of them, one number a line: benchmark, method, metric, ours, the paper's, the gap.

    Changes of task follow the metrics of a method that seeks them: counts, means over seeds.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    ours = ("benchmark", "method", "seeds", "metric", "mean", "std", "best")
    writer.writerow((*ours, "paper_mean", "paper_std", "gap", "paper_source"))
    for table in tables:
        for row in table.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                values = (cell.mean, cell.std, cell.paper, cell.paper_std, cell.gap)
                mean, std, paper, paper_std, gap = ("" if v is None else f"{v:.4f}" for v in values)
                source = table.paper.source if table.paper and cell.paper is not None else ""
                names = (table.benchmark, row.method, row.seeds, column.replace(" ", "_"))
                writer.writerow((*names, mean, std, int(cell.best), paper, paper_std, gap, source))
            for name, count in asdict(row.changes).items() if row.changes else ():
                names = (table.benchmark, row.method, row.seeds, f"changes_{name}")
                writer.writerow((*names, f"{count:.4f}", *[""] * 6))
    return text.getvalue()


def seeds_csv(results: Sequence[Result]) -> str:
    """A row a run: its metrics, the changes that it found, and its final accuracy on each task.

    What a run has not, such as changes where they are told, is an empty cell.
    """
    rows: list[dict[str, object]] = []
    for result in results:
        for run, accuracy in zip(result.by_seed, result.accuracy[:, :, -1], strict=True):
            tasks = {f"task_{i}": f"{value:.4f}" for i, value in enumerate(accuracy, start=1)}
            rows.append({"benchmark": result.benchmark, "method": result.method, **run, **tasks})
    names = sorted({name for row in rows for name in row if name.startswith("task_")}, key=_number)
    others = dict.fromkeys(name for row in rows for name in row if name not in names)
    text = io.StringIO()
    writer = csv.DictWriter(text, [*others, *names], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def by_class(results: Sequence[Result]) -> list[list[str]]:
    """A row a class: its name, its task, and how often each method named it, mean over seeds."""
    rows = [
        [name, f"T{i}"]
        for i, task in enumerate(results[0].about["tasks"], start=1)
        for name in names.class_names(task)
    ]
    for result in results:
        for row, (_, named) in zip(rows, _means_by_class(result), strict=True):
            row.append(number(named))
    return rows


def _means_by_class(result: Result) -> list[tuple[float | None, float | None]]:
    """Of each class the accuracy, and how often it was named; means over seeds."""
    by_class: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in result.classes:
        by_class.setdefault((row["task"], row["class"]), []).append(row)
    return [(_mean(rows, "accuracy"), _mean(rows, "named")) for rows in by_class.values()]


def _mean(rows: Sequence[Mapping[str, str]], column: str) -> float | None:
    cells = [row[column] for row in rows]
    return sum(map(float, cells)) / len(cells) if all(cells) else None


def most_confused(result: Result) -> list[str]:
    """The pairs of classes with the most mistakes: "cat for dog 12.3", of the class's samples."""
    assert result.confusion is not None
    called = [name for task in result.about["tasks"] for name in names.class_names(task)]
    found = 100 * np.nan_to_num(shares(result.confusion)[:, :-1])
    np.fill_diagonal(found, 0)
    order = np.argsort(-found, axis=None, kind="stable")[:CONFUSED]
    said = []
    for i, j in zip(*np.unravel_index(order, found.shape), strict=True):
        said.append(f"{called[i]} for {called[j]} {found[i, j]:.1f}" if found[i, j] else DASH)
    return said + [DASH] * (CONFUSED - len(said))


def classes_csv(results: Sequence[Result]) -> str:
    """A row for each class and method: means over seeds, as ``classes.csv`` of the scores has them.

    ``accuracy`` asks for the place in its task, ``named`` for the class itself.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("benchmark", "method", "task", "class", "name", "accuracy", "named"))
    for result in results:
        pairs = dict.fromkeys((row["task"], row["class"], row["name"]) for row in result.classes)
        for pair, means in zip(pairs, _means_by_class(result), strict=True):
            cells = ("" if mean is None else f"{mean:.2f}" for mean in means)
            task, label, name = pair
            named = (task, label, csv_text(str(name)))
            writer.writerow((result.benchmark, result.method, *named, *cells))
    return text.getvalue()


def plots_csv(results: Mapping[str, Sequence[Result]]) -> dict[str, str]:
    """Two small files for other programs that plot.

    ``headline`` has a row a method, ``over-time`` one for each method and segment of the stream:
    the mean accuracy on the tasks shown so far, if there is one. With several benchmarks a method's
    name says which.
    """
    headline, over_time = io.StringIO(), io.StringIO()
    rows, steps = (csv.writer(text, lineterminator="\n") for text in (headline, over_time))
    rows.writerow(("method", *METRICS))
    steps.writerow(("method", "segment", "accuracy"))
    for benchmark, found in results.items():
        for result in found:
            name = result.method if len(results) == 1 else f"{benchmark} {result.method}"
            means = (result.metric(metric)[0] for metric in METRICS)
            rows.writerow((name, *("" if mean is None else f"{mean:.2f}" for mean in means)))
            for j in range(len(result.stream)):
                shown = sorted(set(result.stream[: j + 1]))
                mean = result.accuracy[:, shown, j].mean()
                if not np.isnan(mean):
                    steps.writerow((name, j + 1, f"{mean:.2f}"))
    return {"headline": headline.getvalue(), "over-time": over_time.getvalue()}


def _number(name: str) -> int:
    return int(name.rpartition("_")[2])
