"""The report's figures, drawn by matplotlib from plain arrays.

One function draws one panel into given axes; ``panel`` and ``grid`` make whole figures of them,
and ``save`` writes PNG and SVG whose bytes depend on nothing but what is drawn. ``inline_svg``
gives the same drawing for a web page: without background, and with the colours as CSS variables,
so that one drawing serves a light and a dark page.

Colours are Okabe and Ito's for colour-blind readers, with a few of Tol's where more are needed;
line style and marker say the same thing again. Task-agnostic methods are dashed or hatched.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Circle
from numpy.typing import NDArray

FloatArray = NDArray[np.floating]
Images = NDArray[np.uint8]

INK, MUTED, RULE, PAPER = "#1d2329", "#6b747d", "#d5dae0", "#ffffff"
BLUE, ORANGE, GREEN, VERMILLION, PINK = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7"
SKY, OLIVE, WINE, TEAL = "#56b4e9", "#999933", "#882255", "#44aa99"
PALETTE = {
    **{"ink": INK, "muted": MUTED, "blue": BLUE, "orange": ORANGE, "green": GREEN, "pink": PINK},
    **{"vermillion": VERMILLION, "sky": SKY, "olive": OLIVE, "wine": WINE, "teal": TEAL},
}
TASK_COLOURS = (BLUE, ORANGE, GREEN, VERMILLION, PINK, SKY, OLIVE, WINE, TEAL, MUTED)

# What a dark page shows instead; colours that read on both stay as they are.
DARK = {
    INK: "#e8ecf0",
    MUTED: "#9aa5b1",
    RULE: "#3a424b",
    PAPER: "#15191e",
    BLUE: "#3a96dc",
    SKY: "#9ad9ff",
    WINE: "#b8508a",
    PINK: "#eab3d2",
    GREEN: "#1fbf92",
    VERMILLION: "#f07a2b",
}

SHADES = LinearSegmentedColormap.from_list("shades", ["#f3f7fb", "#9cc8e6", "#3b87bd", "#0b4a78"])
DPI = 160
FONT_SIZE = 8.5
NAMED_CLASSES = 20  # in a confusion matrix: the names of more would lie on each other


@dataclass(frozen=True)
class Style:
    """How one method is drawn, in every figure."""

    colour: str
    marker: str
    task_agnostic: bool = False

    @property
    def line(self) -> str | tuple[float, tuple[float, ...]]:
        return (0, (4, 2)) if self.task_agnostic else "-"


@dataclass(frozen=True)
class Series:
    """One method's values over tasks, mean and standard deviation over seeds."""

    label: str
    style: Style
    mean: FloatArray
    std: FloatArray


# Whole figures ------------------------------------------------------------------------------------


@contextmanager
def _drawing() -> Iterator[None]:
    settings: Any = {
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": FONT_SIZE,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": MUTED,
        "axes.linewidth": 0.7,
        "axes.titlesize": FONT_SIZE + 0.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlecolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.facecolor": "none",
        "grid.color": RULE,
        "grid.linewidth": 0.6,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "xtick.major.width": 0.7,
        "ytick.major.width": 0.7,
        "xtick.major.size": 3,
        "ytick.major.size": 3,
        "legend.frameon": False,
        "legend.fontsize": FONT_SIZE - 0.5,
        "lines.linewidth": 1.4,
        "lines.markersize": 4.5,
        "hatch.linewidth": 1.1,
        "text.parse_math": False,  # a class may be called "$"
        "svg.fonttype": "none",
        "svg.hashsalt": "hcl",
    }
    with matplotlib.rc_context(settings):
        yield


Draw = Callable[[Axes], None]


def panel(draw: Draw, width: float = 3.4, height: float = 2.5) -> Figure:
    """A figure of one panel; sizes in inches."""
    return grid([draw], columns=1, width=width, height=height)


def grid(draws: Sequence[Draw], columns: int, width: float = 3.4, height: float = 2.5) -> Figure:
    """A figure of many panels of the same size, row by row."""
    columns = min(columns, len(draws))
    rows = -(-len(draws) // columns)
    with _drawing():
        figure = Figure(figsize=(columns * width, rows * height))
        FigureCanvasAgg(figure)
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        for draw, ax in zip(draws, axes, strict=False):
            draw(ax)
        for ax in axes[len(draws) :]:
            ax.set_visible(False)
        # The layout is solved once, not again for every file.
        ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06).execute(figure)
    return figure


def save(figure: Figure, stem: Path) -> None:
    """Write ``stem``.png and ``stem``.svg, on white; the same drawing gives the same bytes."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    figure.set_facecolor(PAPER)
    with _drawing():
        figure.set_dpi(DPI)
        FigureCanvasAgg(figure).print_png(
            stem.with_name(f"{stem.name}.png"), metadata={"Software": None}
        )
        _print_svg(figure, stem.with_name(f"{stem.name}.svg"))


def _print_svg(figure: Figure, target: Path | io.StringIO) -> None:
    # Straight to the canvas: Figure.savefig would draw everything once more, for the layout.
    FigureCanvasSVG(figure).print_svg(target, metadata={"Date": None})


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """The figure as an ``<svg>`` element for a page.

    Args:
        figure: what to show.
        name: of letters, digits, dashes and _; unique in the page, it keeps ids apart.
        description: for those who can't see it.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise ValueError(f"{name!r} can't be an id: use letters, digits, - and _.")
    buffer = io.StringIO()
    figure.set_facecolor("none")
    with _drawing():
        _print_svg(figure, buffer)
    text = buffer.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    # Names such as "axes_1" are in every drawing; only ids that are referred to may stay.
    used = set(re.findall(r'(?:xlink:href="#|url\(#)([^")]+)', text))
    text = re.sub(r' id="([^"]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", text)
    text = re.sub(r'(xlink:href="#|url\(#)([^")]+)', rf"\g<1>{name}-\g<2>", text)
    for colour in DARK:
        text = text.replace(colour, f"var({css_name(colour)},{colour})")
    text = re.sub(r"\n\s*", "\n", text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(description)}" ', 1)


def css_name(colour: str) -> str:
    """The CSS variable that a page may set to another colour for dark readers."""
    return f"--c-{colour.removeprefix('#')}"


# Results ------------------------------------------------------------------------------------------


def accuracy_by_task(
    ax: Axes, series: Sequence[Series], title: str, names: Sequence[str] = ()
) -> None:
    """Final accuracy on each task, a line a method (the paper's Figures 3 and 4, top).

    ``names`` of the tasks stand under their numbers; they may be of two lines.
    """
    tasks = np.arange(1, len(series[0].mean) + 1)
    spread = np.linspace(-0.12, 0.12, len(series)) if len(series) > 1 else np.zeros(1)
    for s, shift in zip(series, spread, strict=True):
        ax.errorbar(
            tasks + shift,
            s.mean,
            yerr=s.std,
            label=s.label,
            color=s.style.colour,
            marker=s.style.marker,
            linestyle=s.style.line,
            markeredgewidth=0,
            elinewidth=0.8,
        )
    ax.set_title(title)
    names = names or [""] * len(tasks)
    lines = max(name.count("\n") + bool(name) for name in names)
    ax.set_xticks(tasks, [f"{i}\n{n}".strip() for i, n in zip(tasks, names, strict=True)])
    ax.set_xlabel("task")
    ax.set_ylabel("final accuracy, %")
    ax.set_xlim(0.6, len(tasks) + 0.4)
    lowest = min(float(np.min(s.mean - s.std)) for s in series)
    ax.set_ylim(max(0, 10 * np.floor(lowest / 10)) - 2, 102)
    ax.grid(axis="y")
    ax.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.17 - 0.085 * lines),
        ncols=4,
        handlelength=2.4,
        columnspacing=1.2,
        borderaxespad=0,
    )


def curves(
    ax: Axes, series: Sequence[Series], at: Sequence[float], ticks: Sequence[str], axis: str
) -> None:
    """Accuracy against ``at``, a line a method; ``ticks`` are written there."""
    for s in series:
        ax.errorbar(
            at,
            s.mean,
            yerr=s.std,
            label=s.label,
            color=s.style.colour,
            marker=s.style.marker,
            linestyle=s.style.line,
            markeredgewidth=0,
            elinewidth=0.8,
        )
    ax.set_xticks(list(at), list(ticks))
    ax.set_xlabel(axis)
    ax.set_ylabel("accuracy, %")
    ax.grid(axis="y")
    ax.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.2),
        ncols=4,
        handlelength=2.4,
        columnspacing=1.2,
        borderaxespad=0,
    )


def mixture(
    ax: Axes, stream: Sequence[int], width: Sequence[float], noticed: Sequence[Noticed]
) -> None:
    """The share of each task in the batches of a stream whose changes are blurred.

    The new task's rises over the first part of a segment, ``width`` of it from 0 to 1. Above it, by
    method, where changes were noticed: segments from 0 on, and fractions of them.
    """
    for j, (task, part) in enumerate(zip(stream, width, strict=True)):
        at = np.array([j, j + part, j + 1])
        share = np.array([0.0 if j and part else 100.0, 100.0, 100.0])
        before = stream[j - 1] if j else task
        new, old = (TASK_COLOURS[i % len(TASK_COLOURS)] for i in (task, before))
        ax.fill_between(at, 0, share, color=new, alpha=0.75, linewidth=0)
        ax.fill_between(at, share, 100, color=old, alpha=0.75, linewidth=0)
        ax.text(j + 0.97, 4, f"T{task + 1}", ha="right", color=INK, weight="bold")
    for row, each in enumerate(noticed):
        ax.plot(
            each.at,
            np.full(len(each.at), 108 + 9 * row),
            linestyle="none",
            marker=each.style.marker,
            color=each.style.colour,
            markersize=8,
            markeredgewidth=0,
            label=f"noticed by {each.label}",
        )
    ax.set_xlim(0, len(stream))
    ax.set_ylim(0, 104 + 9 * len(noticed))
    ax.set_yticks(range(0, 101, 25))
    ax.set_xticks(range(len(stream) + 1))
    ax.set_xlabel("segments of the stream")
    ax.set_ylabel("share of a batch, %")
    if noticed:
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, borderaxespad=0)


def bars(ax: Axes, series: Sequence[Series], title: str) -> None:
    """One metric, a bar a method, from the top in the order given (Figures 3 and 4, bottom)."""
    ends = [float(s.mean + s.std) for s in series if not np.isnan(s.mean)]
    high = max([*ends, 1.0])
    for place, s in enumerate(series):
        mean, std = float(s.mean), float(s.std)
        if np.isnan(mean):
            ax.text(0, place, " – not defined", va="center", color=MUTED, size=FONT_SIZE - 1)
            continue
        ax.barh(
            place,
            mean,
            xerr=std,
            height=0.68,
            color="none" if s.style.task_agnostic else s.style.colour,
            edgecolor=s.style.colour,
            hatch="//////" if s.style.task_agnostic else None,
            linewidth=0.9,
            error_kw={"ecolor": INK, "elinewidth": 0.8, "capsize": 2, "capthick": 0.8},
        )
        end = max(mean + std, 0) + high * 0.02
        ax.text(end, place, f"{mean:.1f}", va="center", size=FONT_SIZE - 1)
    ax.set_yticks(range(len(series)), [s.label for s in series])
    ax.invert_yaxis()
    lows = [float(s.mean - s.std) * 1.1 for s in series if not np.isnan(s.mean)]
    ax.set_xlim(min([0.0, *lows]), high * 1.17)
    ax.set_title(title)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.axvline(0, color=MUTED, linewidth=0.7)
    ax.grid(axis="x")


def heat_map(
    ax: Axes, accuracy: FloatArray, stream: Sequence[int], title: str, names: Sequence[str] = ()
) -> None:
    """``accuracy[i, j]`` in percent: task i down, with its name, segment j across.

    What stands before a task's first segment was not learned yet: it is shown without colour. What
    is NaN was not answered: its cell is empty.
    """
    tasks, segments = accuracy.shape
    first = [list(stream).index(i) for i in range(tasks)]
    learned = np.array([[j >= first[i] for j in range(segments)] for i in range(tasks)])
    ax.pcolormesh(
        np.arange(segments + 1) - 0.5,
        np.arange(tasks + 1) - 0.5,
        np.ma.masked_array(accuracy, ~learned | np.isnan(accuracy)),
        cmap=SHADES,
        vmin=0,
        vmax=100,
        edgecolors=PAPER,
        linewidth=1.2,
    )
    size = FONT_SIZE - 1 if segments <= 6 else FONT_SIZE - 2.5
    digits = 1 if segments <= 6 else 0
    for i in range(tasks):
        for j in range(segments):
            value = accuracy[i, j]
            if np.isnan(value):
                continue
            # Text that must stand out from the cell, not from the page: fixed colours.
            colour = MUTED if not learned[i, j] else "#10151a" if value < 55 else "#fefefe"
            text = ax.text(
                j, i, f"{value:.{digits}f}", ha="center", va="center", color=colour, size=size
            )
            text.set_in_layout(False)  # it lies within the axes: nothing to make room for
    ax.set_xticks(range(segments), [f"T{task + 1}" for task in stream])
    named = enumerate(names or [""] * tasks, start=1)
    ax.set_yticks(range(tasks), [f"{name}  T{i}".strip() for i, name in named])
    ax.set_xlabel("after training on")
    ax.set_ylabel("accuracy on")
    ax.set_ylim(tasks - 0.5, -0.5)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.set_title(title)


def confusion(
    ax: Axes,
    shares: FloatArray,
    names: Sequence[str],
    tasks: Sequence[int],
    title: str,
) -> None:
    """Which class (down) was taken for which (across), in percent of the row.

    Up to ``NAMED_CLASSES`` classes are named and have their numbers; more are a picture, with lines
    between tasks. The scale of the colour is that of the square root, so that few mistakes show.

    Args:
        ax: where to.
        shares: (C, C), percent.
        names: of the classes.
        tasks: the task of each class, from 0, in blocks.
        title: of the panel.
    """
    count = len(names)
    named = count <= NAMED_CLASSES
    ax.imshow(
        shares, cmap=SHADES, norm=PowerNorm(0.5, 0, 100), interpolation="nearest", aspect="equal"
    )
    edges = [i for i in range(1, count) if tasks[i] != tasks[i - 1]]
    for edge in edges:
        for line in (ax.axvline, ax.axhline):
            line(edge - 0.5, color=ORANGE, linewidth=0.9 if named else 0.4)
    if named:
        for i, j in np.ndindex(count, count):
            if shares[i, j] >= 0.5:
                colour = "#10151a" if shares[i, j] < 30 else "#fefefe"
                number = f"{shares[i, j]:.0f}"
                size = FONT_SIZE - 3
                text = ax.text(j, i, number, ha="center", va="center", color=colour, size=size)
                text.set_in_layout(False)
        short = [name if len(name) <= 12 else f"{name[:11]}…" for name in names]
        ax.set_xticks(range(count), short, rotation=90, size=FONT_SIZE - 2)
        ax.set_yticks(range(count), short, size=FONT_SIZE - 2)
    else:
        middles = [(a + b - 1) / 2 for a, b in pairwise([0, *edges, count])]
        labels = [f"T{tasks[round(m)] + 1}" for m in middles]
        ax.set_xticks(middles, labels, size=FONT_SIZE - 2)
        ax.set_yticks(middles, labels, size=FONT_SIZE - 2)
    ax.set_xlabel("taken for")
    ax.set_ylabel("class")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_title(title)


def over_time(
    ax: Axes, mean: FloatArray, std: FloatArray, stream: Sequence[int], title: str
) -> None:
    """Accuracy on each task from the segment that first shows it to the end of the stream."""
    tasks, segments = mean.shape
    for i in range(tasks):
        first = list(stream).index(i)
        steps = np.arange(first, segments)
        colour = TASK_COLOURS[i % len(TASK_COLOURS)]
        low, high = mean[i, steps] - std[i, steps], mean[i, steps] + std[i, steps]
        ax.fill_between(steps, low, np.minimum(high, 100), color=colour, alpha=0.15, linewidth=0)
        ax.plot(steps, mean[i, steps], color=colour, marker="o", markersize=3.2)
        ax.text(first, 104, f"{i + 1}", color=colour, ha="center", weight="bold")
    ax.set_xticks(range(segments), [f"T{task + 1}" for task in stream])
    ax.set_xlim(-0.3, segments - 0.7)
    ax.set_ylim(-2, 102)
    ax.set_yticks(range(0, 101, 25))
    ax.set_xlabel("after training on")
    ax.set_ylabel("accuracy, %")
    ax.set_title(title, pad=14)
    ax.grid(axis="y")


@dataclass(frozen=True)
class Noticed:
    """Where a method noticed changes: segments from 0 on, and fractions of them."""

    label: str
    style: Style
    at: Sequence[float]


@dataclass(frozen=True)
class TraceView:
    """One statistic over one run's training batches, and what the detector said."""

    label: str
    values: FloatArray  # (B,)
    low: FloatArray  # (B,) bounds of the verdict; not finite where there is none on this side
    high: FloatArray  # (B,)
    starts: Sequence[int]  # batch at which each segment begins
    tasks: Sequence[int]  # the task, from 1, of each segment
    found: Sequence[int]  # batches of verdicts that answer to a true change
    false: Sequence[int]  # batches of the others


def detector_trace(ax: Axes, view: TraceView, title: str, columns: int = 700) -> None:
    """A statistic of the batches, the bounds that the verdict used, true and found changes.

    Where a batch has a bound on one side alone, the band reaches to the frame on the other.
    """
    count = len(view.values)
    known = view.values[np.isfinite(view.values)]
    below, above = (bound[np.isfinite(bound)] for bound in (view.low, view.high))
    ends = [*np.quantile(known, [0.02, 0.98])] if known.size else []
    ends += [np.quantile(below, 0.05)] if below.size else []
    ends += [np.quantile(above, 0.95)] if above.size else []
    bottom, top = (min(ends), max(ends)) if ends else (0.0, 1.0)
    margin = 0.25 * (top - bottom or 1.0)
    bottom, top = bottom - margin, top + margin
    bounded = np.isfinite(view.low) | np.isfinite(view.high)
    low = np.where(np.isfinite(view.low), view.low, bottom)
    high = np.where(np.isfinite(view.high), view.high, top)

    at, lowest, highest = _binned(np.arange(count) + 1, view.values, columns)
    near = np.minimum(at.astype(int), count) - 1  # the bounds move slowly: one a column will do
    ax.fill_between(
        at,
        np.clip(low, bottom, top)[near],
        np.clip(high, bottom, top)[near],
        where=bounded[near].tolist(),
        color=BLUE,
        alpha=0.16,
        linewidth=0,
        label="within the verdict's bounds",
    )
    lowest, highest = np.clip(lowest, bottom, top), np.clip(highest, bottom, top)
    ax.fill_between(at, lowest, highest, color=INK, alpha=0.25, linewidth=0)
    ax.plot(
        at,
        (lowest + highest) / 2,
        color=INK,
        linewidth=0.8,
        label=view.label,
    )
    for start, task in zip(view.starts, view.tasks, strict=True):
        if start:
            ax.axvline(
                start + 0.5,
                color=MUTED,
                linewidth=1,
                linestyle=(0, (1, 1.5)),
                label="true change" if start == view.starts[1] else None,
            )
        ax.annotate(
            f"T{task}", (start + 1, 1), xycoords=("data", "axes fraction"), xytext=(2, -1),
            textcoords="offset points", va="top", color=MUTED, size=FONT_SIZE - 1,
        )  # fmt: skip
    for batches, colour, marker, label in (
        (view.found, GREEN, "^", "change found"),
        (view.false, VERMILLION, "X", "false change"),
    ):
        if len(batches):
            ax.plot(
                np.asarray(batches) + 1,
                np.full(len(batches), bottom + 0.35 * margin),
                linestyle="none",
                marker=marker,
                color=colour,
                markersize=7,
                label=label,
            )
    ax.set_xlim(0, count + 1)
    ax.set_ylim(bottom, top)
    ax.set_xlabel("training batch")
    ax.set_ylabel(view.label)
    ax.set_title(title)
    ax.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.28), ncols=5, handlelength=1.6, borderaxespad=0
    )


def _binned(
    x: NDArray[np.int64], values: FloatArray, columns: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """At most ``columns`` places, with the least and the greatest value at each."""
    size = -(-len(x) // columns)
    starts = np.arange(0, len(x), size)
    lowest = np.fmin.reduceat(values, starts)
    highest = np.fmax.reduceat(values, starts)
    return x[starts] + (size - 1) / 2, lowest, highest


def samples(ax: Axes, real: Images, drawn: Images, tasks: Sequence[str], title: str) -> None:
    """Real samples in the first row, below them what was drawn after each segment of the stream.

    Args:
        ax: where to.
        real: (M, K, n, C, H, W), bytes.
        drawn: (J, M, K, n, C, H, W).
        tasks: the M tasks' names.
        title: of the panel.
    """
    rows = np.stack([real, *drawn])  # (1 + J, M, K, n, C, H, W)
    count, tasks_shown, classes, n, channels, height, width = rows.shape
    padded = np.pad(rows, [(0, 0)] * 5 + [(0, 1), (0, 1)], constant_values=255)
    mosaic = padded.transpose(0, 5, 1, 2, 3, 6, 4).reshape(count * (height + 1), -1, channels)
    shown = mosaic if channels == 3 else mosaic[..., 0]
    ax.imshow(shown, cmap="gray", vmin=0, vmax=255, interpolation="nearest", aspect="equal")
    wide = classes * n * (width + 1)
    ax.set_xticks([(i + 0.5) * wide for i in range(tasks_shown)], tasks)
    ax.set_yticks(
        [(j + 0.5) * (height + 1) for j in range(count)],
        ["real", *(f"after {j}" for j in range(1, count))],
    )
    for edge in range(1, tasks_shown):
        ax.axvline(edge * wide - 1, color=ORANGE, linewidth=1.2)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_title(title)


def latent_view(
    ax: Axes,
    points: FloatArray,
    task: NDArray[np.integer],
    label: NDArray[np.integer],
    means: FloatArray,
    mean_task: NDArray[np.integer],
    title: str,
) -> None:
    """Test points and the Gaussians in a plane of the latent space; colour is the true task.

    A filled marker is a test point, its shape the class; a ring is the Gaussian of one class of one
    task, of radius 2σ. Points far from every ring of their own colour have been forgotten.
    """
    shapes = "osD^vPX<>h"
    for t in np.unique(task):
        colour = TASK_COLOURS[t % len(TASK_COLOURS)]
        for k in np.unique(label):
            chosen = (task == t) & (label == k)
            ax.scatter(
                points[chosen, 0],
                points[chosen, 1],
                s=9,
                color=colour,
                marker=shapes[k % len(shapes)],
                linewidth=0,
                alpha=0.6,
            )
    for centre, t in zip(means, mean_task, strict=True):
        colour = TASK_COLOURS[t % len(TASK_COLOURS)]
        for line, width in ((INK, 1.8), (colour, 1.0)):  # ink about the colour, to stand out
            ax.add_patch(Circle((centre[0], centre[1]), 2, fill=False, color=line, linewidth=width))
    ax.autoscale_view()
    ax.set_aspect("equal", adjustable="datalim")
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set_visible(True)
        spine.set_color(RULE)
    ax.set_title(title)
