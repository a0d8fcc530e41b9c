"""The page of streams says what the CSV files of its runs say."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.imports import load_script

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def page() -> ModuleType:
    return load_script(DOCS / "streams" / "page.py")


def test_the_tables_are_those_of_the_files(page: ModuleType) -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.with_tables(text) == text
    files = {path.stem for path in (DOCS / "streams").glob("*.csv")}
    shown = set(re.findall(r"<!-- runs: (\S+) -->", text))
    assert shown == {name for name in files if not name.endswith("-validation")}


HEAD = "labelled,method,seed,average,overall,final,incremental,found,true,false\n"


def test_a_row_says_its_spread_its_seeds_and_its_changes(page: ModuleType, tmp_path: Path) -> None:
    runs = "1,slda,0,80,60,80,,,,\n1,slda,1,90,60,90,,,,\n1,hcl-plus-ta,0,95,70.06,95,,3,4,1\n"
    (tmp_path / "toy.csv").write_text(HEAD + runs)
    assert page.table("toy", tmp_path).splitlines() == [
        "| method | average | overall | changes |",
        "| --- | --- | --- | --- |",
        "| SLDA, 2 seeds | 85.0±5.0 | 60.0±0.0 ||",
        "| HCL+ (TA), 1 seed | 95.0 | 70.1 | 3/4, 1 false |",
    ]


def test_new_classes_have_their_metrics_and_shares_of_labels_their_columns(
    page: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "new.csv").write_text(HEAD + "1,slda,0,80,60,81,90,,,\n")
    assert page.table("new", tmp_path).splitlines()[::2] == [
        "| method | final | incremental |",
        "| SLDA, 1 seed | 81.0 | 90.0 |",
    ]
    (tmp_path / "few.csv").write_text(HEAD + "0.01,slda,0,50,40,50,,,,\n0.1,slda,0,80,70,80,,,,\n")
    assert page.table("few", tmp_path).splitlines()[::2] == [
        "| method | 1 % | 10 % |",
        "| SLDA, 1 seed | 50.0, 40.0 | 80.0, 70.0 |",
    ]
