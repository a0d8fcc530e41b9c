"""Parameters become frozen dataclasses, or one line that names file, key, value and remedy."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from typing import Literal

import pytest

from hcl.errors import HCLError
from hcl.settings import build, load_yaml, section


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
