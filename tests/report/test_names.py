"""Names of tasks are short and tell tasks apart; any text is harmless where it stands."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hcl.report import names


def task(dataset: str, *class_names: str) -> dict[str, Any]:
    numbers = list(range(len(class_names)))
    return {"dataset": dataset, "classes": numbers, "class_names": list(class_names)}


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ([task("d", "0", "1"), task("d", "2", "3")], ["0 · 1", "2 · 3"]),
        ([task("d", "airplane", "automobile")], ["airplane · automobile"]),
        (
            [task("d", *(f"animal {i}" for i in range(10)))],
            ["animal 0 … animal 9 (10)"],
        ),
        # Two are never more than they are: an ellipsis would hide nothing.
        ([task("d", "a" * 20, "b" * 20)], ["a" * 20 + " · " + "b" * 20]),
        # A whole data set is a task.
        ([task("mnist", *"0123456789"), task("svhn", *"0123456789")], ["mnist", "svhn"]),
        (
            [task("m", "0", "1"), task("m", "2", "3"), task("n", "0", "1")],
            ["m: 0 · 1", "m: 2 · 3", "n: 0 · 1"],
        ),
    ],
)
def test_tasks_are_named_by_what_tells_them_apart(
    tasks: list[dict[str, Any]], expected: list[str]
) -> None:
    assert names.task_names(tasks) == expected


def test_without_names_the_numbers_stand() -> None:
    assert names.task_names([{"dataset": "d", "classes": [4, 5]}]) == ["4 · 5"]


def test_a_class_with_a_line_break_stays_in_its_line() -> None:
    assert names.class_names(task("d", "a\nb", "c\u202ed", "e\x00f")) == ["a b", "cd", "ef"]


def test_a_slug_is_the_name_itself_or_keeps_names_apart() -> None:
    for name in ("split-digits", "Toy_2", "hcl-fr-ta"):
        assert names.slug(name) == name
    odd = ['"><svg onload=alert(2)>b', "../../b", "b b", "b.b", "", "é", "-"]
    slugs = [names.slug(name) for name in odd]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", slug) for slug in slugs), slugs
    assert len({*slugs, "b", "b-b"}) == len(odd) + 2


def test_latex_prints_what_it_is_given() -> None:
    assert names.latex("50 % & a_b") == r"50 \% \& a\_b"
    assert names.latex("\\input{x}") == r"\textbackslash{}input\{x\}"
    assert names.latex("a\nb^~<>") == (
        r"a b\textasciicircum{}\textasciitilde{}\textless{}\textgreater{}"
    )


def test_markdown_shows_what_it_is_given() -> None:
    assert names.markdown("HCL-FR (TA)") == "HCL-FR (TA)"
    assert names.markdown("a|b <i> *c*\n# d") == r"a\|b \<i\> \*c\* \# d"


@pytest.mark.parametrize(
    ("given", "width", "expected"),
    [
        (["0 · 1", "2 · 3"], 6, ["0 · 1", "2 · 3"]),
        (["bird · cat", "deer · dog"], 6, ["bird ·\ncat", "deer ·\ndog"]),
        (["bird · cat", "automobile · dog"], 6, ["", ""]),
        (["a · b · c"], 4, [""]),
    ],
)
def test_names_of_tasks_stand_where_there_is_room(
    given: list[str], width: int, expected: list[str]
) -> None:
    assert names.fitted(given, width) == expected
