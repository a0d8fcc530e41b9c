"""Figures: what is drawn, that a page can show it in light and dark, and that bytes are stable."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import matplotlib.colors
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hcl.report import catalogue, figures
from hcl.report.figures import Series, Style, TraceView
from hcl.report.styles import style_of

METHODS = [name for name in catalogue.METHODS if not name.endswith("-ta")]


def drawn(draw: figures.Draw) -> Axes:
    return figures.panel(draw, width=7).axes[0]


def series(method: str, mean: object, std: object) -> Series:
    style = style_of(method, method.endswith("-ta"))
    return Series(method, style, np.asarray(mean, float), np.asarray(std, float))


def test_every_method_has_a_look_of_its_own() -> None:
    styles = [style_of(method, False) for method in METHODS]
    assert len({s.marker for s in styles}) == len(METHODS)
    # A variant of HCL-GR, HCL-FR or HCL+ has its colour.
    families = [m for m in METHODS if not m.startswith(("hcl-gr-", "hcl-fr-", "hcl-plus-"))]
    assert len({style_of(method, False).colour for method in families}) == len(families)


def test_task_agnostic_is_the_same_colour_but_dashed() -> None:
    aware, agnostic = style_of("hcl-fr", False), style_of("hcl-fr-ta", True)
    assert agnostic.colour == aware.colour
    assert agnostic.line != aware.line == "-"


def contrast(one: str, other: str) -> float:
    """WCAG's ratio of luminances."""

    def luminance(colour: str) -> float:
        rgb = np.array(matplotlib.colors.to_rgb(colour))
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_stands_out_on_light_and_on_dark() -> None:
    for ink in (figures.INK, figures.MUTED):
        assert contrast(ink, figures.PAPER) >= 4.5
        assert contrast(figures.DARK[ink], figures.DARK[figures.PAPER]) >= 4.5


@pytest.mark.parametrize("method", METHODS)
def test_lines_stand_out_on_light_and_on_dark(method: str) -> None:
    colour = style_of(method, False).colour
    assert contrast(colour, figures.PAPER) >= 2
    assert contrast(figures.DARK.get(colour, colour), figures.DARK[figures.PAPER]) >= 3


def test_accuracy_by_task_draws_a_line_a_method() -> None:
    lines = [series("mtl", [90, 80], [1, 2]), series("hcl-fr-ta", [70, 60], [3, 4])]
    ax = drawn(lambda ax: figures.accuracy_by_task(ax, lines, "t"))
    assert [c.lines[0].get_ydata().tolist() for c in ax.containers] == [[90, 80], [70, 60]]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["mtl", "hcl-fr-ta"]
    low, high = ax.get_ylim()
    assert low <= 56
    assert high >= 100


def test_bars_say_what_is_not_defined_and_hatch_the_task_agnostic() -> None:
    values = [series("er", 90, 1), series("curl", np.nan, np.nan), series("hcl-fr-ta", -3, 1)]
    ax = drawn(lambda ax: figures.bars(ax, values, "t"))
    assert [bar.get_width() for bar in ax.patches] == [90, -3]
    assert [bool(bar.get_hatch()) for bar in ax.patches] == [False, True]
    assert [text.get_text() for text in ax.texts] == ["90.0", " – not defined", "-3.0"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["er", "curl", "hcl-fr-ta"]
    assert ax.get_xlim()[0] < -4  # the whisker of a negative bar is inside


def test_heat_map_has_tasks_down_and_leaves_the_unlearned_blank() -> None:
    accuracy = np.array([[90.0, 50.0, 85.0], [10.0, 80.0, 60.0]])
    ax = drawn(lambda ax: figures.heat_map(ax, accuracy, [0, 1, 0], "t"))
    cells = ax.collections[0].get_array().reshape(2, 3)
    np.testing.assert_array_equal(cells.mask, [[False, False, False], [True, False, False]])
    written = {tuple(t.get_position()): t.get_text() for t in ax.texts}
    assert written[(2, 0)] == "85.0"  # column 2, row 0
    assert written[(0, 1)] == "10.0"
    assert [label.get_text() for label in ax.get_xticklabels()] == ["T1", "T2", "T1"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # task 1 on top


def test_heat_map_is_empty_where_there_was_no_answer() -> None:
    accuracy = np.array([[np.nan, 50.0], [np.nan, 80.0]])
    ax = drawn(lambda ax: figures.heat_map(ax, accuracy, [0, 1], "t"))
    cells = ax.collections[0].get_array().reshape(2, 2)
    np.testing.assert_array_equal(cells.mask, [[True, False], [True, False]])
    assert sorted(t.get_text() for t in ax.texts) == ["50.0", "80.0"]


def test_over_time_begins_where_a_task_is_first_shown() -> None:
    mean = np.array([[90.0, 50.0, 85.0], [10.0, 80.0, 60.0]])
    ax = drawn(lambda ax: figures.over_time(ax, mean, np.ones_like(mean), [1, 0, 1], "t"))
    assert [line.get_xdata().tolist() for line in ax.lines] == [[1, 2], [0, 1, 2]]
    assert ax.lines[0].get_ydata().tolist() == [50, 85]


def trace_view(count: int = 40) -> TraceView:
    values = np.full(count, -100.0)
    values[20:23] = -900
    low, high = np.full(count, -120.0), np.full(count, -80.0)
    low[:5] = high[:5] = np.nan
    return TraceView("S", values, low, high, [0, 20], [1, 2], found=[22], false=[30])


def test_trace_marks_true_found_and_false_changes_in_their_batches() -> None:
    ax = drawn(lambda ax: figures.detector_trace(ax, trace_view(), "t"))
    by_label = {line.get_label(): line.get_xdata() for line in ax.lines}
    assert by_label["true change"] == pytest.approx([20.5, 20.5])
    assert by_label["change found"].tolist() == [23]
    assert by_label["false change"].tolist() == [31]
    band = ax.collections[0].get_paths()[0].vertices
    assert band[:, 1].min() == pytest.approx(-120)
    assert band[:, 1].max() == pytest.approx(-80)
    assert band[:, 0].min() == 6  # five batches have no bounds yet


@pytest.mark.parametrize("absent", [np.nan, np.inf])
def test_a_bound_on_one_side_leaves_the_other_open(absent: float) -> None:
    count = 40
    view = replace(trace_view(count), low=np.full(count, -absent), high=np.full(count, -80.0))
    ax = drawn(lambda ax: figures.detector_trace(ax, view, "t"))
    band = ax.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(-80)
    assert band[:, 1].min() == pytest.approx(ax.get_ylim()[0])
    assert ax.get_ylim()[1] > -80


def test_a_statistic_without_bounds_is_drawn_alone() -> None:
    nothing = np.full(40, np.nan)
    view = replace(trace_view(), low=nothing, high=nothing)
    ax = drawn(lambda ax: figures.detector_trace(ax, view, "t"))
    assert len(ax.collections[0].get_paths()) == 0
    assert ax.get_ylim()[0] < -900 < -100 < ax.get_ylim()[1]


def test_a_long_trace_keeps_its_extremes() -> None:
    values = np.zeros(10_000)
    values[4321] = -7
    at, lowest, highest = figures._binned(np.arange(10_000) + 1, values, 700)
    assert len(at) <= 700
    assert lowest.min() == -7
    assert highest.max() == 0
    place = at[lowest.argmin()]
    assert abs(place - 4322) <= 8


def test_latent_view_draws_points_by_task_and_a_ring_a_gaussian() -> None:
    points = np.array([[0.0, 0.0], [1.0, 1.0], [5.0, 5.0]])
    ax = drawn(
        lambda ax: figures.latent_view(
            ax,
            points,
            np.array([0, 0, 1]),
            np.array([0, 1, 0]),
            means=np.array([[0.0, 0.0], [5.0, 5.0]]),
            mean_task=np.array([0, 1]),
            title="t",
        )
    )
    assert sorted(len(c.get_offsets()) for c in ax.collections if len(c.get_offsets())) == [1, 1, 1]
    rings = {(ring.center, ring.radius) for ring in ax.patches}
    assert rings == {((0.0, 0.0), 2), ((5.0, 5.0), 2)}
    low, high = ax.get_xlim()
    assert low <= -2
    assert high >= 7


def simple(ax: Axes) -> None:
    ax.plot([0, 1], color=figures.BLUE)
    ax.barh(0, 1, color="none", edgecolor=figures.GREEN, hatch="//")
    ax.set_title("a < b & c")


def figure() -> Figure:
    return figures.grid([simple, simple, simple], columns=2)


def test_files_have_the_same_bytes_every_time(tmp_path: Path) -> None:
    figures.save(figure(), tmp_path / "one")
    figures.save(figure(), tmp_path / "two")
    for kind in ("png", "svg"):
        one, two = ((tmp_path / f"{name}.{kind}").read_bytes() for name in ("one", "two"))
        assert one == two
    assert b"<dc:date>" not in (tmp_path / "one.svg").read_bytes()


def test_inline_svg_is_well_formed_described_and_themed() -> None:
    text = figures.inline_svg(figure(), "my-figure", 'more than "5 < 6"')
    root = ElementTree.fromstring(text)
    assert root.attrib["aria-label"] == 'more than "5 < 6"'
    assert root.attrib["role"] == "img"
    for colour in (figures.INK, figures.BLUE, figures.GREEN):
        assert f"var(--c-{colour[1:]},{colour})" in text
        assert not re.search(rf"(?<!,){colour}", text)  # every use can be changed by the page
    assert "a &lt; b &amp; c" in text


def test_ids_of_two_drawings_in_one_page_do_not_meet() -> None:
    one, two = (figures.inline_svg(figure(), name, "d") for name in ("one", "two"))
    ids = re.findall(r' id="([^"]+)"', one + two)
    assert ids
    assert len(ids) == len(set(ids))
    used = re.findall(r'(?:xlink:href="#|url\(#)([^")]+)', one + two)
    assert used
    assert set(used) == set(ids)  # an id that nothing refers to is only weight


def test_style_of_an_unknown_method_is_drawn_too() -> None:
    assert isinstance(style_of("mine", False), Style)


def test_ticks_carry_the_names_of_tasks() -> None:
    accuracy = np.array([[90.0, 50.0], [10.0, 80.0]])
    named = ["cat · dog", "ewe · fox"]
    ax = drawn(lambda ax: figures.heat_map(ax, accuracy, [0, 1], "t", named))
    labels = [tick.get_text() for tick in ax.get_yticklabels()]
    assert labels == ["cat · dog  T1", "ewe · fox  T2"]
    lines = [series("mtl", [90, 80], [1, 2])]
    ax = drawn(lambda ax: figures.accuracy_by_task(ax, lines, "t", named))
    assert [t.get_text() for t in ax.get_xticklabels()] == ["1\ncat · dog", "2\newe · fox"]


def test_a_name_with_dollars_is_no_formula(tmp_path: Path) -> None:
    figures.save(figures.panel(lambda ax: ax.set_title("$\\nothing{$") and None), tmp_path / "a")
    assert "$\\nothing{$" in (tmp_path / "a.svg").read_text()


def test_an_id_is_of_letters_digits_and_dashes() -> None:
    with pytest.raises(ValueError, match="can't be an id"):
        figures.inline_svg(figure(), 'a"b', "d")
