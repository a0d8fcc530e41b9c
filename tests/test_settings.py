"""Parameters become frozen dataclasses, or one line that names file, key, value and remedy."""

from __future__ import annotations

import re
import time
from dataclasses import FrozenInstanceError, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from hcl.errors import HCLError
from hcl.settings import (
    Layered,
    Name,
    Range,
    build,
    check_limits,
    kind_of,
    load_yaml,
    section,
)


@dataclass(frozen=True)
class Inner:
    size: int = 3

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size: is {self.size}; expected 1 or more.")


@dataclass(frozen=True)
class Outer:
    rate: float
    kind: Literal["a", "b"] = "a"
    name: str | None = None
    flag: bool = False
    items: tuple[int | Inner, ...] = ()
    inner: Inner = Inner()
    table: dict[str, float] | None = None


def test_every_kind_of_value_is_read() -> None:
    values = {
        "rate": 1,
        "kind": "b",
        "name": "x",
        "flag": True,
        "items": [1, {"size": 2}],
        "inner": {"size": 4},
        "table": {"a": 1, "b": 2.5},
    }
    built = build(Outer, values, "p.yaml")
    assert built == Outer(1.0, "b", "x", True, (1, Inner(2)), Inner(4), {"a": 1.0, "b": 2.5})
    assert isinstance(built.rate, float)
    with pytest.raises(FrozenInstanceError):
        built.rate = 2.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rat": 1.0}, "p.yaml: s.rat is not a known key (did you mean 'rate'?). Allowed: rate, "),
        ({}, "p.yaml: s.rate is missing; expected a number."),
        ({"rate": "fast"}, "p.yaml: s.rate is 'fast'; expected a number."),
        ({"rate": True}, "p.yaml: s.rate is True; expected a number."),
        ({"rate": float("nan")}, "p.yaml: s.rate is nan; expected a number."),
        ({"rate": 1, "kind": "c"}, "p.yaml: s.kind is 'c'; expected one of a, b."),
        ({"rate": 1, "name": 3}, "p.yaml: s.name is 3; expected a text or null."),
        ({"rate": 1, "flag": 1}, "p.yaml: s.flag is 1; expected true or false."),
        ({"rate": 1, "items": 3}, "p.yaml: s.items is 3; expected a list, "),
        ({"rate": 1, "items": [1, {"sise": 2}]}, "p.yaml: s.items[1].sise is not a known key"),
        ({"rate": 1, "inner": {"size": 1.5}}, "s.inner.size is 1.5; expected a whole number."),
        ({"rate": 1, "inner": {"size": 0}}, "p.yaml: s.inner.size: is 0; expected 1 or more."),
        ({"rate": 1, "table": {1: 2.0}}, "p.yaml: s.table: the key 1 must be a text"),
        ([1], "p.yaml: s is [1]; expected a section with the keys rate, kind"),
    ],
)
def test_a_mistake_is_one_line_with_file_key_value_and_what_is_allowed(
    values: object, message: str
) -> None:
    with pytest.raises(HCLError, match=re.escape(message)) as caught:
        build(Outer, values, "p.yaml", "s")
    assert "\n" not in str(caught.value)


@dataclass(frozen=True)
class Circle:
    kind: Literal["circle"] = "circle"
    radius: float = 1.0

    def __post_init__(self) -> None:
        if not self.radius > 0:
            raise ValueError(f"radius: is {self.radius:g}; expected a number above 0.")


@dataclass(frozen=True)
class Square:
    kind: Literal["square"] = "square"
    side: float = 1.0


@dataclass(frozen=True)
class Drawing:
    shape: Circle | Square
    frame: Circle | Square | None = None
    shapes: tuple[Circle | Square, ...] = ()


def test_the_kind_tells_which_dataclass_is_meant() -> None:
    values = {
        "shape": {"kind": "square", "side": 2},
        "frame": None,
        "shapes": [{"kind": "circle"}, {"kind": "square"}],
    }
    drawing = build(Drawing, values, "p.yaml")
    assert drawing == Drawing(Square(side=2.0), None, (Circle(), Square()))
    assert build(Circle | Square, {"kind": "circle", "radius": 3}, "p.yaml") == Circle(radius=3.0)
    assert [kind_of(each) for each in (Circle, Square, Inner)] == ["circle", "square", None]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({}, "p.yaml: s.shape.kind is missing; expected one of circle, square."),
        ({"radius": 1}, "p.yaml: s.shape.kind is missing; expected one of circle, square."),
        (
            {"kind": "sqare"},
            "p.yaml: s.shape.kind is 'sqare' (did you mean 'square'?); expected one of circle, ",
        ),
        ({"kind": 3}, "p.yaml: s.shape.kind is 3; expected one of circle, square."),
        ({"kind": ["circle"]}, "p.yaml: s.shape.kind is ['circle'] (did you mean "),
        (
            {"kind": "circle", "side": 1},
            "p.yaml: s.shape.side is not a known key of kind circle. Allowed: kind, radius.",
        ),
        (
            {"kind": "square", "sid": 1},
            "p.yaml: s.shape.sid is not a known key of kind square (did you mean 'side'?). Allow",
        ),
        ({"kind": "circle", "radius": 0}, "p.yaml: s.shape.radius: is 0; expected a number above"),
        ({"kind": "circle", "radius": "x"}, "p.yaml: s.shape.radius is 'x'; expected a number."),
        ("circle", "p.yaml: s.shape is 'circle'; expected a section"),
    ],
)
def test_a_mistake_in_one_of_several_kinds_is_said_of_that_kind(
    shape: object, message: str
) -> None:
    with pytest.raises(HCLError, match=re.escape(message)):
        build(Drawing, {"shape": shape}, "p.yaml", "s")
    inside = message.replace("s.shape", "s.shapes[1]", 1)
    with pytest.raises(HCLError, match=re.escape(inside)):
        values = {"shape": {"kind": "circle"}, "shapes": [{"kind": "circle"}, shape]}
        build(Drawing, values, "p.yaml", "s")


def layered(*layers: tuple[str, object]) -> Layered:
    made = Layered()
    for key, values in layers:
        made.lay(values, key, "p.yaml")
    return made


def test_mappings_are_merged_key_by_key_and_all_else_is_replaced() -> None:
    below = {"rate": 1, "items": [1, 2], "inner": {"size": 4}, "table": {"a": 1, "b": 2}}
    above = {"rate": 2, "items": [3], "table": {"b": 3}}
    made = layered(("one", below), ("two", above))
    assert made.values == {
        "rate": 2,
        "items": [3],
        "inner": {"size": 4},
        "table": {"a": 1, "b": 3},
    }
    assert made.build(Outer, "p.yaml") == Outer(
        2.0, items=(3,), inner=Inner(4), table={"a": 1.0, "b": 3.0}
    )
    assert below["table"] == {"a": 1, "b": 2}  # what was laid stays as it was


def test_another_kind_stands_in_the_place_of_what_was_there() -> None:
    below = {"shape": {"kind": "circle", "radius": 3}}
    for above, expected in (
        ({"kind": "square"}, Square()),
        ({"kind": "circle"}, Circle(radius=3.0)),
        ({"radius": 4}, Circle(radius=4.0)),
    ):
        made = layered(("one", below), ("two", {"shape": above}))
        assert made.build(Drawing, "p.yaml").shape == expected
    nothing = layered(("one", {**below, "frame": {"kind": "circle"}}), ("two", {"frame": None}))
    assert nothing.build(Drawing, "p.yaml").frame is None


@pytest.mark.parametrize(
    ("above", "message"),
    [
        ({"frame": {}}, "p.yaml: tuned.a.frame.kind is missing; expected one of circle, square."),
        ({"shape": {"radius": -2}}, "p.yaml: tuned.a.shape.radius: is -2; expected a number abo"),
        ({"shape": {"radius": "x"}}, "p.yaml: tuned.a.shape.radius is 'x'; expected a number."),
        ({"shape": {"side": 1}}, "p.yaml: tuned.a.shape.side is not a known key of kind circle."),
        ({"shape": {"kind": "oval"}}, "p.yaml: tuned.a.shape.kind is 'oval'; expected one of"),
        ({"shape": 3}, "p.yaml: tuned.a.shape is 3; expected a section"),
        ({"shap": 3}, "p.yaml: tuned.a.shap is not a known key (did you mean 'shape'?)."),
        ({"shapes": [{"kind": "circle"}, 3]}, "p.yaml: tuned.a.shapes[1] is 3; expected a section"),
        (
            {"shapes": [{"kind": "circle", "radius": 0}]},
            "p.yaml: tuned.a.shapes[0].radius: is 0; expected a number above 0.",
        ),
    ],
)
def test_a_mistake_is_named_where_it_was_written(above: object, message: str) -> None:
    below = {"shape": {"kind": "circle", "radius": 1}}
    made = layered(("methods.a", below), ("tuned.a", above))
    with pytest.raises(HCLError, match=re.escape(message)):
        made.build(Drawing, "p.yaml")


def test_a_mistake_below_is_named_there_whatever_is_laid_over_it() -> None:
    below = {"shape": {"kind": "circle", "radius": -1}, "shapes": [{"kind": "circle"}]}
    made = layered(("methods.a", below), ("tuned.a", {"frame": {"kind": "square"}}))
    message = "p.yaml: methods.a.shape.radius: is -1; expected a number above 0."
    with pytest.raises(HCLError, match=re.escape(message)):
        made.build(Drawing, "p.yaml")
    empty = layered(("methods.a", {}), ("tuned.a", {"frame": {"kind": "square"}}))
    with pytest.raises(HCLError, match=re.escape("p.yaml: methods.a.shape is missing; expected")):
        empty.build(Drawing, "p.yaml")


def test_what_was_laid_before_keeps_its_place_when_it_is_laid_over_others() -> None:
    """A benchmark's ``tuned`` may come from another one that it is like."""
    benchmark = layered(
        ("benchmarks.a", {"tuned": {"m": {"shape": {"radius": -1}}}}),
        ("benchmarks.b", {"tuned": {"m": {"frame": {"kind": "square"}}}}),
    )
    made = layered(("methods.m", {"shape": {"kind": "circle"}}))
    made.lay(benchmark.values["tuned"]["m"], "tuned.m", "p.yaml", origins=benchmark.origins)
    assert made.origins["shape.kind"] == "methods.m.shape.kind"
    assert made.origins["frame.kind"] == "benchmarks.b.tuned.m.frame.kind"
    message = "p.yaml: benchmarks.a.tuned.m.shape.radius: is -1; expected a number above 0."
    with pytest.raises(HCLError, match=re.escape(message)):
        made.build(Drawing, "p.yaml")


def test_what_is_left_out_is_not_laid_and_a_layer_is_a_section() -> None:
    made = Layered()
    made.lay({"like": "other", "rate": 1}, "methods.m", "p.yaml", leave_out=("like",))
    assert made.build(Outer, "p.yaml") == Outer(1.0)
    with pytest.raises(HCLError, match=re.escape("p.yaml: methods.m is 3; expected a section.")):
        made.lay(3, "methods.m", "p.yaml")
    with pytest.raises(HCLError, match=re.escape("p.yaml: benchmarks.a.tuned.m is 3; expected")):
        made.lay(3, "tuned.m", "p.yaml", origins={"tuned.m": "benchmarks.a.tuned.m"})


def test_numbers_and_truth_values_are_those_that_dvc_reads(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("a: 1e-4\nb: -2E+3\nc: 1.5e2\nd: 1e-4x\n")
    assert load_yaml(path) == {"a": 1e-4, "b": -2000.0, "c": 150.0, "d": "1e-4x"}
    path.write_text("on: true\nno: False\nyes: off\n")
    assert load_yaml(path) == {"on": True, "no": False, "yes": "off"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3: not valid YAML: the key 'a' stands twice"),
        ("a: [1\nb: 2\n", "line 2: not valid YAML"),
        ("- 1\n", "expected sections"),
        ("", "expected sections (key: value), found null"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(HCLError, match=re.escape(message)) as caught:
        load_yaml(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(HCLError, match=r"nowhere\.yaml: no such parameter file"):
        load_yaml(tmp_path / "nowhere.yaml")


def test_merged_anchors_are_not_duplicates(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\n")
    assert load_yaml(path)["b"] == {"x": 1, "y": 3}


def test_a_section_is_found_or_its_neighbours_are_named() -> None:
    values = {"methods": {"adam": {"alpha": 1}, "hcl-fr": {}}}
    assert section(values, "methods.adam.alpha", "p.yaml") == 1
    with pytest.raises(HCLError, match=re.escape("there is no 'methods.hcl-rf' (did you mean")):
        section(values, "methods.hcl-rf", "p.yaml")
    with pytest.raises(HCLError, match=re.escape("In the file: methods.")):
        section(values, "seeds", "p.yaml")


def _nested(line: str) -> str:
    """Ten levels, each of them ten times the one before."""
    names = "abcdefghijk"
    lines = [f"{names[0]}: &{names[0]} {{x: 1}}"]
    for below, name in pairwise(names):
        lines.append(f"{name}: &{name} " + line.format(", ".join([f"*{below}"] * 10)))
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: !!timestamp foo", "line 1: not valid YAML: this is no timestamp"),
        ("a: 2001-12-14t25:59:43", "line 1: not valid YAML: this is no timestamp (hour must be in"),
        ("a: 1\n{a: b}: c", "line 2: not valid YAML: a key must be a text"),
        ("a: !!map [1]", "line 1: not valid YAML: expected a mapping"),
        ("a: " + "9" * 5_000, "line 1: not valid YAML: this is no int"),
        pytest.param("%YAML " + "9" * 5_000, "not valid YAML (Exceeds the limit", id="version"),
        ("a: !!float foo", "line 1: not valid YAML: this is no float"),
        ("a: !!bool maybe", "line 1: not valid YAML: this is no bool ('maybe')"),
        ("a: &a [*a]", "line 1: not valid YAML: this holds itself"),
        ("a: &a {<<: *a}", "line 1: not valid YAML: this holds itself"),
        ("a: " + "[" * 100_000, "line 1: not valid YAML: sections lie more than 50 deep"),
        (_nested("[{}]"), "not valid YAML: aliases make more than 100,000 values of this"),
        (_nested("{{<<: [{}]}}"), "not valid YAML: aliases make more than 100,000 values of this"),
        ("# " + "x" * (1 << 18), "has more than 262,144 bytes, which are no parameters"),
    ],
)
def test_what_the_reader_of_yaml_stumbles_over_is_one_line_within_a_second(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    start = time.process_time()
    with pytest.raises(HCLError, match=re.escape(message)) as caught:
        load_yaml(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    assert time.process_time() - start < 1


def test_aliases_that_stay_small_are_read(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]")
    assert load_yaml(path)["b"] == {"x": 1, "y": 2}


@dataclass(frozen=True)
class Limited:
    count: Annotated[int, Range(1, 1_000)] = 1
    rate: Annotated[float, Range(0, 10, above=True)] | None = None
    widths: tuple[Annotated[int, Range(1, 64)], ...] = ()
    name: Name = "a"
    size: int = 1
    share: float = 1.0

    def __post_init__(self) -> None:
        check_limits(self)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("count", 1_001, "count: is 1001; expected a whole number from 1 to 1,000."),
        ("count", 0, "count: is 0; expected a whole number from 1 to 1,000."),
        (
            "count",
            1 << 64,
            "count is 18446744073709551616; expected a whole number from 1 to 1,000.",
        ),
        pytest.param("rate", 10**400, "; expected a number above 0, up to 10 or null.", id="huge"),
        pytest.param(
            "count", 16**6_000, "count is int with too many digits; expected", id="digits"
        ),
        ("count", True, "count is True; expected a whole number."),
        ("rate", 0, "rate: is 0; expected a number above 0, up to 10 or null."),
        ("rate", -0.05, "rate: is -0.05; expected a number above 0, up to 10 or null."),
        ("rate", 1e29, "rate: is 1e+29; expected a number above 0, up to 10 or null."),
        ("widths", [1, 65], "widths: is (1, 65); expected a list, each item a whole number from"),
        ("name", "a/b", "name: is 'a/b'; expected a text of at most 100 letters (a to z), "),
        ("name", "..", "name: is '..'; expected a text of"),
        ("name", "-a", "name: is '-a'; expected a text of"),
        ("name", "", "name: is ''; expected a text of"),
        ("name", "a\n", "name: is 'a\\n'; expected a text of"),
        ("name", "a" * 101, "expected a text of at most 100 letters"),
        ("name", "<img src=x onerror=alert(1)>m", "expected a text of at most 100 letters"),
        ("size", 1 << 63, "size is 9223372036854775808; expected a whole number."),
        ("share", 1 << 2_000, "; expected a number."),
    ],
)
def test_a_value_beyond_its_limits_is_refused_and_the_limits_are_named(
    key: str, value: Any, message: str
) -> None:
    with pytest.raises(HCLError, match=re.escape(message)) as caught:
        build(Limited, {key: value}, "p.yaml")
    assert "\n" not in str(caught.value)


def test_limits_hold_in_the_library_too() -> None:
    with pytest.raises(ValueError, match=r"^count: is 1001; expected a whole number from 1 to"):
        Limited(count=1_001)
    with pytest.raises(ValueError, match=r"^widths: is "):
        Limited(widths=(65,))
    with pytest.raises(ValueError, match=r"^rate: is nan"):
        Limited(rate=float("nan"))
    assert Limited(count=1_000, rate=10, widths=(64,), name="v1.5-a_b", share=1).rate == 10


def test_a_name_with_dots_is_found() -> None:
    values = {"methods": {"v1.5": {"kind": "flow"}}}
    assert section(values, "methods.v1.5", "p.yaml") == {"kind": "flow"}


def test_an_error_is_one_line_whatever_a_file_is_named() -> None:
    assert str(HCLError("a\nb\x1b[31m\udcff.png: broken")) == "a b [31m .png: broken"
