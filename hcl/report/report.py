"""The report: tables as Markdown, CSV and LaTeX, figures as PNG and SVG, and one page with all.

Everything is listed from the grid that it is given, never from what lies in a folder, and the
same results give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hcl.errors import HCLError
from hcl.files import replacing
from hcl.records.runs import Trace
from hcl.records.scores import INCREMENTAL, METRICS, Result, read_result, shares
from hcl.records.studies import METHODS, MoonsStudy, ToyLosses
from hcl.report import catalogue, figures, tables
from hcl.report.catalogue import label
from hcl.report.figures import Draw, Series, TraceView
from hcl.report.names import SEPARATOR, class_names, fitted, markdown, one_line, slug, task_names
from hcl.report.page import (
    Picture,
    facts_table,
    figure_html,
    methods_table,
    metrics_table,
    page,
    panels_html,
    settings_rows,
    simple_table,
    table_html,
    task_key,
)
from hcl.report.study_figures import moons_panels, toy_panel
from hcl.report.styles import style_of

REPORT_FILES = (
    *("index.html", "tables.*", "seeds.csv", "classes.csv", "headline.txt", "figures", "plots"),
)
UPPER_BOUND = " and ".join(m.label for m in catalogue.METHODS.values() if m.upper_bound)


@dataclass(frozen=True)
class Grid:
    """What the report must show."""

    benchmarks: tuple[str, ...]
    methods: tuple[str, ...]
    datasets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("benchmarks", "methods"):
            values = getattr(self, name)
            if not values:
                raise ValueError(f"{name}: is empty; name at least one.")
            if len(set(values)) != len(values):
                raise ValueError(f"{name}: a name stands twice in {list(values)}.")


def read_results(scores: Path, grid: Grid) -> dict[str, list[Result]]:
    """Every method on every benchmark of the grid; a missing one is an error."""
    results = {}
    for benchmark in grid.benchmarks:
        found = [read_result(scores, benchmark, method) for method in grid.methods]
        if len({json.dumps(r.about["stream"]) + str(r.accuracy.shape[1:]) for r in found}) != 1:
            raise HCLError(
                f"{scores / benchmark}: the methods were scored on different streams; "
                "make them again with `hcl evaluate`."
            )
        results[benchmark] = found
    return results


def write_report(
    out: str | Path,
    results: dict[str, list[Result]],
    moons: MoonsStudy | None = None,
    toy: ToyLosses | None = None,
    again: Sequence[tuple[str, str]] = (),
) -> str:
    """Write the whole folder ``out`` and return the headline tables as plain text.

    Args:
        out: the folder.
        results: by benchmark, in the order to be shown.
        moons: what ``hcl moons`` found.
        toy: what ``hcl toy-losses`` found.
        again: what a reader may want to make again, and the commands that make it.
    """
    headlines = {name: tables.headline(found) for name, found in results.items()}
    plain = "\n".join(f"{one_line(n)}\n\n{tables.plain(t)}" for n, t in headlines.items())
    tasks = {name: tables.by_task(found) for name, found in results.items()}
    with replacing(out) as folder:
        folder.mkdir()
        pictures = folder / "figures"
        first = next(iter(results.values()))
        sections = [("how-to-read", "What the numbers count", metrics_table())]
        for name, found in results.items():
            html = _benchmark_html(found, headlines[name], tasks[name], pictures / slug(name))
            sections.append((f"benchmark-{slug(name)}", name, html))
        labels = _labels_html(results, pictures)
        if labels is not None:
            sections.append(("labels", "With fewer labels", labels))
        sections.append(("methods", "Which method to take", methods_table(first)))
        if moons is not None:
            sections.append(("two-moons", "Two moons", _moons_html(moons, pictures)))
        if toy is not None:
            sections.append(
                ("toy-losses", "The two losses on a toy flow", _toy_html(toy, pictures))
            )
        sections.append(("what-was-run", "What was run", _provenance_html(results, again)))
        html = page("Continual learning report", _lede(results), sections, _footer())
        (folder / "index.html").write_text(html, encoding="utf-8")
        both = [table for name in results for table in (headlines[name], tasks[name])]
        (folder / "tables.csv").write_text(tables.tidy_csv(both), encoding="utf-8")
        runs = [result for found in results.values() for result in found]
        (folder / "seeds.csv").write_text(tables.seeds_csv(runs), encoding="utf-8")
        (folder / "classes.csv").write_text(tables.classes_csv(runs), encoding="utf-8")
        (folder / "plots").mkdir()
        for name, text in tables.plots_csv(results).items():
            (folder / "plots" / f"{name}.csv").write_text(text, encoding="utf-8")
        (folder / "headline.txt").write_text(plain + "\n", encoding="utf-8")
        (folder / "tables.md").write_text(_markdown(headlines, tasks), encoding="utf-8")
        latex = "\n".join(tables.latex(table) for table in both)
        (folder / "tables.tex").write_text(latex, encoding="utf-8")
    return plain


def _markdown(headlines: dict[str, tables.Table], tasks: dict[str, tables.Table]) -> str:
    parts = []
    for name, table in headlines.items():
        parts.append(f"## {markdown(name)}\n\n{tables.markdown(table)}\n{_paper_note(table)}\n")
        if table.has_changes:
            parts.append(f"{tables.CHANGES_NOTE}\n")
        parts.append(f"Final accuracy on each task:\n\n{tables.markdown(tasks[name])}")
    note = (
        "Percent, mean ± standard deviation over seeds (population). Bold: best of its column, "
        f"{UPPER_BOUND} left out (they see all data again). A dash: not defined.\n"
    )
    counts = "".join(f"- {m.label}: {m.sentence}\n" for m in catalogue.METRICS.values())
    return "\n".join(["# Results\n", note, counts, *parts])


def _paper_note(table: tables.Table) -> str:
    if table.paper is None:
        return "The paper has no results for this benchmark, stream and number of epochs."
    embedded = "; it does not name its backbone" if "cifar" in table.paper.benchmark else ""
    return f"Paper: {table.paper.source}, {_count(table.paper.seeds, 'run')} each{embedded}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _lede(results: dict[str, list[Result]]) -> str:
    count = len(next(iter(results.values())))
    return (
        f"<p>{_count(count, 'method')} on {_count(len(results), 'benchmark')}, in percent, mean "
        "± standard deviation over seeds. No method is told the task at test time; those "
        "marked (TA) are not told it in training either. How each number is made: "
        "<code>docs/evaluation.md</code>.</p>"
    )


def _footer() -> str:
    return (
        "<p>Made by <code>hcl report</code> from the files in <code>results/</code>. The tables "
        "are also in <code>tables.md</code>, <code>tables.csv</code> and <code>tables.tex</code>, "
        "each run in <code>seeds.csv</code>, each class in <code>classes.csv</code>, the figures "
        "as PNG and SVG in <code>figures/</code>. "
        "The method: Kirichenko et al., “Task-agnostic Continual Learning with Hybrid "
        "Probabilistic Models”.</p>"
    )


# A benchmark --------------------------------------------------------------------------------------


def _benchmark_html(
    results: Sequence[Result], headline: tables.Table, by_task: tables.Table, folder: Path
) -> str:
    first = results[0]
    parts = [
        f'<p class="lede">{_stream_text(first)}</p>',
        table_html(headline, "Mean ± standard deviation over seeds, percent."),
        f'<p class="note">▸ best of its column, {UPPER_BOUND} left out. '
        f"{escape(_paper_note(headline))}</p>",
        f'<p class="note">{escape(_example(first))}</p>',
        "<h3>Accuracy by task</h3>",
        _by_task_figures(results, folder),
        table_html(by_task, "Final accuracy on each task, percent."),
        "<h3>Average accuracy, forgetting and overall accuracy</h3>",
        _bars(results, folder),
        "<h3>Accuracy on each task as the stream goes on</h3>",
        _over_time(results, folder),
        "<h3>The accuracy matrix</h3>",
        _heat_maps(results, folder),
    ]
    if "class_incremental" in first.summary:
        parts += ["<h3>All classes so far</h3>", _so_far_html(results, folder)]
    if first.about.get("shown", {}).get("blur"):
        parts += ["<h3>Whose samples came when</h3>", _mixture_html(results, folder)]
    parts += ["<h3>Accuracy by class</h3>", _by_class_html(results, folder)]
    agnostic = [r for r in results if r.task_agnostic]
    if agnostic:
        parts += ["<h3>Task changes</h3>", _changes_html(agnostic), _traces(agnostic, folder)]
    sure = [r for r in results if "calibration_error" in r.summary]
    if sure:
        parts += ["<h3>Are probabilities right?</h3>", _calibration_html(sure)]
    near = [r for r in results if "nearest" in r.summary]
    if near:
        parts += ["<h3>Are draws like the data?</h3>", _nearest_html(near)]
    drawing = [r for r in results if r.samples is not None]
    if drawing:
        parts += ["<h3>What each method draws</h3>", _drawn(drawing, folder)]
    seen = [r for r in results if r.latent]
    if seen:
        parts += ["<h3>The latent space after the last task</h3>", _latent_views(seen, folder)]
    else:
        parts.append(
            '<p class="note">No view of the latent space: no run kept the model of a flow. '
            "<code>save_model: true</code> in the benchmark's training settings keeps it.</p>"
        )
    return "\n".join(parts)


def _example(result: Result) -> str:
    """What the two accuracies ask of one test image, by the classes' own names."""
    task = result.about["tasks"][-1]
    last = class_names(task)[-1]
    place = f"class {len(task['classes'])} of {len(task['classes'])} in its task"
    return (
        f"For example, an image of “{last}”: the average accuracy asks for “{place}”, whatever the "
        f"task; the overall accuracy asks for “{last}” itself."
    )


def _stream_text(result: Result) -> str:
    order = " ".join(str(task + 1) for task in result.stream)
    epochs = "epochs differ" if result.epochs is None else f"{_count(result.epochs, 'epoch')} each"
    about = result.about
    backbones = dict.fromkeys(_backbone(source) for source in about["sources"])
    return (
        f"{_count(len(about['tasks']), 'task')} of {about['classes_per_task']} classes, shown in "
        f"the order {order}, {epochs}; {_count(len(about['seeds']), 'seed')}. "
        f"Embeddings: {escape('; '.join(backbones))}."
    )


def _backbone(source: dict[str, Any]) -> str:
    if "backbone" not in source:
        return f"{source['dataset']} (backbone not recorded)"
    if "pixels" in source:
        return f"{source['dataset']} as pixels {source['pixels']}"
    return f"{source['dataset']} seen by {source['backbone']}"


def _by_task_figures(results: Sequence[Result], folder: Path) -> str:
    """The paper's methods in one figure, as in the paper; others beside the upper bound."""
    papers = [r for r in results if catalogue.entry(r.method).origin == "the paper's"]
    others = [r for r in results if r not in papers]
    bounds = [r for r in papers if catalogue.entry(r.method).upper_bound]
    groups = {"paper": papers, "other": bounds + others if others else []}
    pictures = []
    for name, chosen in groups.items():
        if not chosen:
            continue
        title = "The paper's methods" if name == "paper" else "Other methods"
        draw = partial(
            figures.accuracy_by_task,
            series=[_series(r) for r in chosen],
            title=title,
            names=_fitted(chosen[0], 60 // len(chosen[0].about["tasks"])),
        )
        said = "; ".join(
            f"{label(r.method)}: " + ", ".join(f"{v:.1f}" for v in _final(r).mean(0))
            for r in chosen
        )
        picture = _picture(
            [draw],
            folder / f"accuracy-by-task-{name}",
            f"Final accuracy on each task in percent. {said}.",
            width=4.9,
            height=3.3,
        )
        pictures.append(picture)
    return panels_html(
        pictures,
        "Mean over seeds, bars of one standard deviation; dashed: task-agnostic.",
        size="large",
    )


def _fitted(result: Result, width: int) -> list[str]:
    """The tasks' names where a figure has room for ``width`` characters, each."""
    return fitted(task_names(result.about["tasks"]), width)


def _final(result: Result) -> figures.FloatArray:
    return result.accuracy[:, :, -1]


def _series(result: Result) -> Series:
    final = _final(result)
    style = style_of(result.method, result.task_agnostic)
    return Series(label(result.method), style, final.mean(0), final.std(0))


def _picture(
    draws: Sequence[Draw],
    stem: Path,
    description: str,
    caption: str = "",
    width: float = 3.4,
    height: float = 2.5,
) -> Picture:
    """Draw one panel, write its files and return it for the page."""
    figure = figures.grid(draws, columns=1, width=width, height=height)
    figures.save(figure, stem)
    return Picture(_svg(figure, stem, description), caption, wide=width > 5)


def _svg(figure: Any, stem: Path, description: str) -> str:
    return figures.inline_svg(figure, f"{stem.parent.name}-{stem.name}", description)


def _panels(
    draws: Sequence[Draw],
    names: Sequence[str],
    stem: Path,
    descriptions: Sequence[str],
    caption: str,
    width: float = 3.4,
    height: float = 2.5,
    columns: Literal[3, 4] = 3,
) -> str:
    """Many panels: one figure of all as files, and one drawing each in the page, which wraps."""
    figures.save(figures.grid(draws, columns, width, height), stem)
    pictures = []
    for draw, name, description in zip(draws, names, descriptions, strict=True):
        figure = figures.panel(draw, width, height)
        pictures.append(Picture(_svg(figure, stem.with_name(f"{stem.name}-{name}"), description)))
    return panels_html(pictures, caption, "small" if columns == 4 else "medium")


def _bars(results: Sequence[Result], folder: Path) -> str:
    draws: list[Draw] = []
    descriptions = []
    for metric in METRICS:
        series, said = [], []
        for result in results:
            mean, std = (np.array(np.nan if v is None else v) for v in result.metric(metric))
            style = style_of(result.method, result.task_agnostic)
            series.append(Series(label(result.method), style, mean, std))
            said.append(f"{label(result.method)} {tables.number(result.metric(metric)[0])}")
        lower = catalogue.METRICS[metric].lower_is_better
        better = f"{'lower' if lower else 'higher'} is better"
        title = f"{tables.title_of(metric).capitalize()}, %"
        draws.append(partial(figures.bars, series=series, title=title))
        descriptions.append(f"{title} ({better}): {', '.join(said)}.")
    return _panels(
        draws,
        METRICS,
        folder / "metrics",
        descriptions,
        "Mean over seeds, whiskers of one standard deviation; hatched: task-agnostic. Forgetting "
        "is better when it is low, the others when they are high.",
        height=0.6 + 0.27 * len(results),
    )


def _over_time(results: Sequence[Result], folder: Path) -> str:
    draws = [
        partial(
            figures.over_time,
            mean=r.accuracy.mean(0),
            std=r.accuracy.std(0),
            stream=r.stream,
            title=label(r.method),
        )
        for r in results
    ]
    tasks = task_names(results[0].about["tasks"])
    key = task_key(
        [figures.TASK_COLOURS[i % len(figures.TASK_COLOURS)] for i in range(len(tasks))],
        [f"T{i}: {name}" for i, name in enumerate(tasks, start=1)],
    )
    return key + _panels(
        draws,
        [slug(r.method) for r in results],
        folder / "accuracy-over-time",
        [
            f"{label(r.method)}: accuracy on each task after each segment of the stream."
            for r in results
        ],
        "Each line begins where its task is first shown; bands of one standard deviation.",
    )


def _heat_maps(results: Sequence[Result], folder: Path) -> str:
    draws = [
        partial(
            figures.heat_map,
            accuracy=r.accuracy.mean(0),
            stream=r.stream,
            title=label(r.method),
            names=_fitted(r, 11 if len(r.stream) <= 6 else 6),
        )
        for r in results
    ]
    size = 1 + 0.3 * len(results[0].about["tasks"])
    return _panels(
        draws,
        [slug(r.method) for r in results],
        folder / "accuracy-matrix",
        [
            f"{label(r.method)}: accuracy on task i after segment j, mean over seeds."
            for r in results
        ],
        "Accuracy a<sub>i,j</sub> on the task of the row after the segment of the column, mean "
        "over seeds. Without colour: the task had not been shown yet.",
        height=size,
    )


# Settings beyond the paper's ----------------------------------------------------------------------


def _so_far_html(results: Sequence[Result], folder: Path) -> str:
    """Where tasks bring new classes: accuracy on all that came, after each segment."""
    rows, series, said = [], [], []
    for result in results:
        found = result.summary["class_incremental"]
        both = (found[name] for name in INCREMENTAL)
        rows.append(
            [
                label(result.method),
                *(tables.mean_std(value["mean"], value["std"]) for value in both),
            ]
        )
        mean, std = (np.array([v[name] for v in found["so_far"]]) for name in ("mean", "std"))
        style = style_of(result.method, result.task_agnostic)
        series.append(Series(label(result.method), style, mean, std))
        said.append(f"{label(result.method)}: " + ", ".join(f"{value:.1f}" for value in mean))
    stream = results[0].stream
    draw = partial(
        figures.curves,
        series=series,
        at=range(1, len(stream) + 1),
        ticks=[f"T{task + 1}" for task in stream],
        axis="after training on",
    )
    picture = _picture(
        [draw],
        folder / "accuracy-so-far",
        f"Accuracy on all classes so far, in percent. {'; '.join(said)}.",
        "Share of the test samples of all classes that came so far; bars of one standard "
        "deviation, dashed: task-agnostic.",
        width=4.9,
        height=3.3,
    )
    table = simple_table(
        "Tasks bring new classes. Final accuracy: on all of them, in the end; average incremental "
        "accuracy: the mean over segments of the accuracy on all that came so far.",
        ["method", "final accuracy", "average incremental accuracy"],
        rows,
    )
    return table + figure_html(picture)


def _mixture_html(results: Sequence[Result], folder: Path) -> str:
    """Where batches are mixed: each task's share in them, and where changes were noticed."""
    first = results[0]
    noticed = [
        figures.Noticed(label(r.method), style_of(r.method, True), _noticed(r))
        for r in results
        if r.task_agnostic
    ]
    said = "; ".join(
        f"{each.label} noticed changes at {', '.join(f'{at:.2f}' for at in each.at) or 'none'}"
        for each in noticed
    )
    draw = partial(figures.mixture, stream=first.stream, width=_blurred(first), noticed=noticed)
    picture = _picture(
        [draw],
        folder / "mixture",
        f"Share of each task in the batches, segment by segment. {said}.",
        "Changes that the first seed of each task-agnostic method noticed stand above.",
        width=7.2,
        height=2.9,
    )
    return figure_html(picture)


def _blurred(result: Result) -> list[float]:
    """The part of each segment over which its task's share rises."""
    about, size = result.about, result.about["settings"]["training"]["batch_size"]
    shown = about["shown"]
    parts = [0.0]  # nothing comes before the first
    for segment in about["stream"][1:]:
        samples = about["tasks"][segment["task"] - 1]["train"]
        batches = shown.get("batches") or segment["epochs"] * max(1, round(samples / size))
        parts.append(min(1.0, shown["blur"] / batches))
    return parts


def _noticed(result: Result) -> list[float]:
    """Where the first seed noticed changes: segments from 0 on, and fractions of them."""
    trace = result.traces[result.about["seeds"][0]]
    found = []
    for batch in np.flatnonzero(trace.verdict):
        inside = np.flatnonzero(trace.segment == trace.segment[batch])
        found.append(float(trace.segment[batch] + (batch - inside[0]) / len(inside)))
    return found


def _labelled(result: Result) -> float:
    """The share of training samples that come with their label."""
    return float(result.about.get("shown", {}).get("labelled", 1.0))


def _but_for_labels(result: Result) -> tuple[list[tuple[str, list[int]]], dict[str, Any]]:
    """Tasks, and how they are shown: what benchmarks must share to be compared by their labels."""
    shown = result.about.get("shown", {})
    tasks = [(task["dataset"], task["classes"]) for task in result.about["tasks"]]
    return tasks, {key: shown[key] for key in shown if key not in ("labelled", "seed")}


def _labels_html(results: dict[str, list[Result]], folder: Path) -> str | None:
    """Accuracy against the share of labels, where benchmarks of the grid differ in it."""
    share = {name: _labelled(found[0]) for name, found in results.items()}
    alike = {name: _but_for_labels(found[0]) for name, found in results.items()}
    fewest = min(share, key=lambda name: share[name])
    names = sorted((n for n in results if alike[n] == alike[fewest]), key=lambda n: share[n])
    if share[fewest] == 1 or len(names) < 2:
        return None
    series, rows = [], []
    for index, first in enumerate(results[names[0]]):
        values = [results[name][index].metric("average_accuracy") for name in names]
        mean, std = (np.array([v[i] for v in values], np.float64) for i in (0, 1))
        series.append(
            Series(label(first.method), style_of(first.method, first.task_agnostic), mean, std)
        )
        rows.append([label(first.method), *(tables.mean_std(*value) for value in values)])
    ticks = [f"{100 * share[name]:g} %" for name in names]
    draw = partial(
        figures.curves,
        series=series,
        at=range(len(names)),
        ticks=ticks,
        axis="training samples with a label",
    )
    said = "; ".join(" ".join(row) for row in rows)
    picture = _picture(
        [draw],
        folder / "accuracy-by-labels",
        f"Average accuracy in percent against the share of labels. {said}.",
        "Average accuracy, mean over seeds; bars of one standard deviation.",
        width=4.9,
        height=3.3,
    )
    heads = [f"{tick} ({name})" for tick, name in zip(ticks, names, strict=True)]
    caption = "Average accuracy by the share of training samples that come with their label."
    return simple_table(caption, ["method", *heads], rows) + figure_html(picture)


# Classes ------------------------------------------------------------------------------------------


def _by_class_html(results: Sequence[Result], folder: Path) -> str:
    table = tables.by_class(results)
    html = simple_table(
        "Test samples whose class, and with it the task, is named: percent, mean over seeds.",
        ["class", "task", *(label(result.method) for result in results)],
        table,
    )
    if len(table) > figures.NAMED_CLASSES:
        html = f"<details><summary>All {len(table)} classes</summary>{html}</details>\n"
    seen = [r for r in results if r.confusion is not None]
    if not seen:
        return html
    html += simple_table(
        "The classes that are most often taken for another, in percent of the class's samples.",
        ["method", *(f"{place}." for place in range(1, tables.CONFUSED + 1))],
        [[label(r.method), *tables.most_confused(r)] for r in seen],
    )
    names = [row[0] for row in table]
    tasks = [i for i, task in enumerate(seen[0].about["tasks"]) for _ in task["classes"]]
    draws = [
        partial(
            figures.confusion,
            shares=100 * np.nan_to_num(shares(_confusion(r))[:, :-1]),
            names=names,
            tasks=tasks,
            title=label(r.method),
        )
        for r in seen
    ]
    return html + _panels(
        draws,
        [slug(r.method) for r in seen],
        folder / "confusion",
        [
            f"{label(r.method)}: which class is taken for which. Most often: "
            f"{', '.join(tables.most_confused(r))}."
            for r in seen
        ],
        "Which class (row) is taken for which (column) in the end, in percent of its test samples, "
        "all seeds together; lines part the tasks. Every count: <code>confusion.csv</code> in the "
        "scores.",
        height=3.3,
    )


def _confusion(result: Result) -> NDArray[np.int64]:
    assert result.confusion is not None
    return result.confusion


# Task changes -------------------------------------------------------------------------------------


def _changes_html(results: Sequence[Result]) -> str:
    counted = ("true", "found", "missed", "false", "misnamed", "recurring", "recurring_named")
    rows = []
    for result in results:
        total = {key: sum(int(row[f"changes_{key}"]) for row in result.by_seed) for key in counted}
        delay = result.summary["changes"]["delay"]
        recurring = f"{total['recurring_named']} of {total['recurring']}"
        rows.append(
            [
                label(result.method),
                f"{total['found']} of {total['true']}",
                str(total["missed"]),
                str(total["false"]),
                str(total["misnamed"]),
                tables.mean_std(delay["mean"], delay["std"]),
                recurring if total["recurring"] else tables.DASH,
            ]
        )
    seeds = len(results[0].about["seeds"])
    return simple_table(
        f"Changes of task, summed over {_count(seeds, 'seed')}; delay in batches. Misnamed: found, "
        "but taken for another task.",
        ["method", "found", "missed", "false", "misnamed", "delay", "recurring named"],
        rows,
    ) + "".join(
        f'<p class="note">{escape(label(r.method))}: {escape(said)}</p>'
        for r in results
        for said in _warnings(r)
    )


def _warnings(result: Result) -> list[str]:
    """What a detector missed, and where it could not judge."""
    said = []
    missed, true = (
        sum(int(row[f"changes_{key}"]) for row in result.by_seed) for key in ("missed", "true")
    )
    if missed:
        said.append(
            f"{missed} of {true} changes were missed. What was missed was learned as part of "
            "another task, and the accuracies are those of a learner that was wrong about its "
            "tasks."
        )
    traces = [result.traces[seed] for seed in result.about["seeds"]]
    segments = range(len(result.stream))
    shortest = min(int((t.segment == j).sum()) for t in traces for j in segments)
    window = (result.about["settings"]["method"]["detection"] or {}).get("window", 0)
    if window >= shortest:
        said.append(
            f"its window of {window} batches is as long as a task or longer (the shortest is shown "
            f"for {shortest}): what it goes by reaches back to a task's first batches."
        )
    for j in segments:
        judged = sum(int(_judged(t)[t.segment == j].sum()) for t in traces)
        batches = sum(int((t.segment == j).sum()) for t in traces)
        if 2 * judged < batches:
            said.append(
                f"of the {batches} batches of segment {j + 1} it could judge {judged}: changes "
                "there may be missed. Smaller batches help."
            )
    return said


def _judged(trace: Trace) -> NDArray[np.bool_]:
    """Whether there was a bound to judge each batch by, (B,)."""
    _, low, high = trace.statistics[_shown(trace)].T
    return np.isfinite(low) | np.isfinite(high)


def _calibration_html(results: Sequence[Result]) -> str:
    rows = [
        [label(r.method), tables.mean_std(*r.metric("calibration_error")), _accuracy_of(r)]
        for r in results
    ]
    return simple_table(
        "Expected calibration error of the answered class, percent: how far the share of right "
        "answers lies from the probability that was given, mean over 15 bins. Methods that give "
        "no probability are left out.",
        ["method", "calibration error", "average accuracy"],
        rows,
    )


def _accuracy_of(result: Result) -> str:
    return tables.mean_std(*result.metric("average_accuracy"))


def _nearest_html(results: Sequence[Result]) -> str:
    rows = []
    for result in results:
        found = result.summary["nearest"]
        draws, real = found["draws"], found["test_samples"]
        rows.append(
            [
                label(result.method),
                tables.mean_std(draws["mean"], draws["std"]),
                tables.mean_std(real["mean"], real["std"]),
                f"{draws['mean'] / real['mean']:.2f}" if real["mean"] else tables.DASH,
            ]
        )
    return simple_table(
        "Median distance to the nearest training sample of the same class and task, of draws after "
        "the last task and of test samples. Draws that are as the data have a ratio of 1; above it "
        "they lie beside the data, far below it they would be copies.",
        ["method", "draws", "test samples", "ratio"],
        rows,
    )


def _traces(results: Sequence[Result], folder: Path) -> str:
    html = []
    for result in results:
        view = _trace_view(result)
        seed = result.about["seeds"][0]
        picture = _picture(
            [
                partial(
                    figures.detector_trace,
                    view=view,
                    title=f"{label(result.method)}, seed {seed}",
                )
            ],
            folder / f"trace-{slug(result.method)}",
            f"{label(result.method)}: {view.label} of each training batch with "
            "the bounds; changes at "
            f"batches {', '.join(str(s + 1) for s in view.starts[1:])}, found at "
            f"{', '.join(str(f + 1) for f in view.found) or 'none'}, false at "
            f"{', '.join(str(f + 1) for f in view.false) or 'none'}.",
            width=7.2,
            height=2.5,
        )
        html.append(figure_html(picture))
    html.append(
        '<p class="note">A statistic that the detector looks at, of each training batch of the '
        "first seed; values beyond the frame are cut. All seeds and statistics: "
        "<code>trace.csv</code> in the scores.</p>"
    )
    return "\n".join(html)


def _trace_view(result: Result) -> TraceView:
    """The first seed's trace of the statistic to show."""
    trace = result.traces[result.about["seeds"][0]]
    verdicts = np.flatnonzero(trace.verdict)
    stream = result.stream
    starts = [int(np.flatnonzero(trace.segment == j)[0]) for j in range(len(stream))]
    found: list[int] = []
    for j in range(1, len(stream)):
        inside = verdicts[trace.segment[verdicts] == j]
        if stream[j] != stream[j - 1] and inside.size:
            found.append(int(inside[0]))
    statistic = _shown(trace)
    values, low, high = trace.statistics[statistic].T
    return TraceView(
        label=catalogue.statistic_label(statistic),
        values=values,
        low=low,
        high=high,
        starts=starts,
        tasks=[task + 1 for task in stream],
        found=found,
        false=[int(v) for v in verdicts if int(v) not in found],
    )


def _shown(trace: Trace) -> str:
    """The first statistic that a verdict looked at: one with a bound; else the first of all."""
    names = list(trace.statistics)
    bounded = (name for name in names if np.isfinite(trace.statistics[name][:, 1:]).any())
    return next(bounded, names[0])


# What is drawn ------------------------------------------------------------------------------------


def _drawn(results: Sequence[Result], folder: Path) -> str:
    """For each method real samples, and below them its own after each segment of the stream."""
    parts = []
    for result in results:
        found = result.samples
        assert found is not None
        real, names = found.real, _fitted(result, 40)
        if found.drawn.shape[1] != len(real):  # it knows classes alone: take turns with the tasks
            turns = [real[i % len(real), :, i] for i in range(real.shape[2])]
            real, names = np.stack(turns, axis=1)[None], ["all tasks"]
        _, tasks, classes, count, _, height, width = found.drawn.shape
        across = tasks * classes * count * (width + 1)
        inches = max(7.0, min(across / 100, 20.0))
        tall = inches * (1 + len(found.drawn)) * (height + 1) / across + 0.6
        draw = partial(
            figures.samples,
            real=real,
            drawn=found.drawn,
            tasks=names,
            title=label(result.method),
        )
        stem = folder / f"samples-{slug(result.method)}"
        said = f"{label(result.method)}: real samples, and below them drawn ones after each task."
        parts.append(figure_html(_picture([draw], stem, said, width=inches, height=tall)))
    return "".join(parts) + (
        '<p class="note">Samples of every class of every task: real ones in the first row, below '
        "them what the first seed draws after each segment of the stream; black before the task "
        "was there. A row that no longer looks like the first is what was forgotten.</p>"
    )


# The latent space ---------------------------------------------------------------------------------


def _latent_views(results: Sequence[Result], folder: Path) -> str:
    draws: list[Draw] = []
    for result in results:
        rows = result.latent or []
        points = [row for row in rows if row["kind"] == "sample"]
        means = [row for row in rows if row["kind"] == "mean"]
        draws.append(
            partial(
                figures.latent_view,
                points=_places(points),
                task=np.array([int(row["task"]) - 1 for row in points]),
                label=np.array([int(row["class"]) for row in points]),
                means=_places(means),
                mean_task=np.array([int(row["task"]) - 1 for row in means]),
                title=label(result.method),
            )
        )
    return _panels(
        draws,
        [slug(r.method) for r in results],
        folder / "latent-space",
        [
            f"{label(r.method)}: test points and Gaussians in a plane of the latent space."
            for r in results
        ],
        "Test points of the first seed under the final model, in the plane that spreads the "
        "Gaussians' means most. Colour: true task, as above; shape: class; ring: a Gaussian, 2σ "
        "wide. Points that have left the rings of their own colour are forgotten.",
        height=3.1,
    )


def _places(rows: Sequence[dict[str, str]]) -> figures.FloatArray:
    return np.array([[float(row["x"]), float(row["y"])] for row in rows]).reshape(-1, 2)


# Studies and provenance ---------------------------------------------------------------------------


def _moons_html(found: MoonsStudy, folder: Path) -> str:
    before = found.first_log_likelihood["snapshot"]
    rows = [
        [
            label,
            tables.number(found.distance[method]),
            tables.number(before),
            tables.number(found.first_log_likelihood[method]),
            tables.number(found.drop(method)),
            tables.number(found.second_log_likelihood[method]),
        ]
        for method, label in METHODS.items()
    ]
    return (
        '<p class="lede">One flow learns the upper moon, then the lower one, with the same four '
        "points of the upper moon as its only replay (the paper’s Figure 2). Functional "
        "regularisation holds the points where they were in latent space, and with them the "
        "upper moon; generative replay only keeps the four points likely.</p>"
        + simple_table(
            "Largest move of a replay point in latent space, and mean log-likelihood in nats.",
            ["method", "move", "first moon, before", "after", "drop", "second moon"],
            rows,
        )
        + _panels(
            moons_panels(found),
            ["data", "gr", "fr", "latent"],
            folder / "two-moons",
            [
                "Both moons and the four replay points on the first.",
                "Density after learning the second moon with generative replay.",
                "Density after learning the second moon with functional regularisation.",
                "The replay points in latent space before, after GR and after FR.",
            ],
            "Squares in the data: replay points. Both densities are on one scale. In latent space, "
            "rings lie one and two σ about the first task’s mean, and FR’s stars should cover the "
            "squares.",
            width=2.8,
            height=2.4,
            columns=4,
        )
    )


def _toy_html(found: ToyLosses, folder: Path) -> str:
    picture = _picture(
        [toy_panel(found)],
        folder / "toy-losses",
        f"GR and FR loss against θ: both least at θ = {found.gamma:g}; towards θ = 0 GR grows "
        "without bound, FR ends at 1.",
        "The paper’s Figure S1: both losses are least where the flow was; only GR’s has a pole.",
        width=4.6,
        height=2.8,
    )
    return (
        '<p class="lede">For the flow f(x) = θx with the snapshot at θ = γ, the FR loss is '
        "(θ/γ − 1)² and the GR loss ½(θ/γ)² − log θ, up to a constant.</p>" + figure_html(picture)
    )


def _provenance_html(results: dict[str, list[Result]], again: Sequence[tuple[str, str]]) -> str:
    parts = [f"<p>{escape(what)}:</p><pre>{escape(commands)}</pre>" for what, commands in again]
    for benchmark, methods in results.items():
        about = methods[0].about
        rows = [
            (f"{source['dataset']}: {key.replace('_', ' ')}", value)
            for source in about["sources"]
            for key, value in source.items()
            if key != "dataset"
        ]
        sizes = [
            [
                f"task {i + 1}",
                task["dataset"],
                SEPARATOR.join(class_names(task)),
                *(f"{task[part]:,}" for part in ("train", "validation", "test")),
            ]
            for i, task in enumerate(about["tasks"])
        ]
        parts.append(f"<h3>{escape(benchmark)}</h3>")
        parts.append(
            simple_table(
                "Tasks and their samples",
                ["", "data set", "classes", "training", "validation", "test"],
                sizes,
            )
        )
        parts.append(facts_table("Data and backbone", rows))
        versions = [(key, str(value)) for key, value in about["versions"].items()]
        parts.append(facts_table("Versions", versions))
        for result in methods:
            fingerprints = [
                (f"fingerprint, seed {seed}", value)
                for seed, value in result.about["fingerprints"].items()
            ]
            rows = settings_rows(result.about["settings"]) + fingerprints
            parts.append(
                f"<details><summary>{escape(label(result.method))}: settings</summary>"
                + facts_table(f"Settings of {label(result.method)} on {benchmark}", rows)
                + "</details>"
            )
    return "\n".join(parts)
