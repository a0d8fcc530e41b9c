"""The documents keep to the house's form: their length, their lines, their words, their links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.imports import ROOT

DOCS = ROOT / "docs"
GENERATED = DOCS / "parameters.md"  # docs/parameters.py writes it, in the words of the code
PAGES = sorted({*ROOT.glob("*.md"), *DOCS.rglob("*.md")} - {GENERATED})
CODE = [path for room in ("hcl", "stages", "docs") for path in (ROOT / room).rglob("*.py")]
SOURCES = sorted({*PAGES, GENERATED, *CODE, *DOCS.rglob("*.yaml"), *ROOT.glob("*.yaml")})
WIDTH = 100
LINK = re.compile(r"\]\(([^)\s]+)\)")
SLIPS = {  # what was said before, and what is said now
    r"\bpast the paper": "beyond the paper",
    r"\b(?:value|number|one|once) an? sample\b": "per sample",
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a page that are neither code nor a table, with their numbers."""
    fenced = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith(("    ", "|")):
            yield number, line


def anchors(text: str) -> set[str]:
    """The names by which the headings of a page are linked to."""
    titles = [line.lstrip("# ") for _, line in prose(text) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_lines_of_prose_are_wrapped(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    shown = [(number, LINK.sub("]", line)) for number, line in prose(text)]  # targets can't wrap
    long = [f"{path.name}:{number}: {line}" for number, line in shown if len(line) > WIDTH]
    assert not long, "\n".join(long)


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_words_that_were_given_up_do_not_come_back(path: Path) -> None:
    text = " ".join(path.read_text(encoding="utf-8").split())  # they may stand on two lines
    for slip, instead in SLIPS.items():
        assert not re.search(slip, text, re.IGNORECASE), f"{path.name}: say {instead!r}"


def test_the_readme_is_read_in_one_go() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_results_are_read_in_one_go() -> None:
    """Tables are looked up in; what is read is the text around them."""
    lines = prose((DOCS / "results.md").read_text(encoding="utf-8"))
    assert sum(len(line.split()) for _, line in lines) <= 850


def test_every_file_and_heading_that_the_pages_name_is_there() -> None:
    named = 0
    for path in (*PAGES, GENERATED):
        for target in LINK.findall(path.read_text(encoding="utf-8")):
            if "://" in target:
                continue
            file, _, heading = target.partition("#")
            there = path.parent / file if file else path
            assert there.is_file(), f"{name_of(path)} names {target}"
            if heading:
                assert heading in anchors(there.read_text(encoding="utf-8")), (
                    f"{name_of(path)} names {target}, which is no heading of {there.name}"
                )
            named += 1
    assert named > 80


def test_the_index_of_the_notebook_names_every_page() -> None:
    index = (DOCS / "notebook" / "README.md").read_text(encoding="utf-8")
    for path in (DOCS / "notebook").glob("*.md"):
        assert path.name == "README.md" or f"]({path.name})" in index, path.name


NOTES = [path for path in PAGES if path.parent.name == "notebook" and path.name != "README.md"]


@pytest.mark.parametrize("path", NOTES, ids=name_of)
def test_a_page_of_the_notebook_says_when_what_how_and_the_answer(path: Path) -> None:
    marks = re.findall(r"^\*\*(\w+)\.\*\*", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert marks == ["Date", "Question", "Command", "Table", "Answer"]
    assert re.search(r"\*\*Date\.\*\* 20\d\d-\d\d-\d\d", path.read_text(encoding="utf-8"))
