"""The Python examples of the documents and of the docstrings run, and print what they say.

Each block stands alone: it runs in a folder and a namespace of its own. What it prints is compared
with the indented or fenced block behind it, directly or after a line such as "prints". A block that
can't run here says why in a comment on the line before it: ``<!-- not run: … -->``.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.imports import ROOT

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = [
    path.relative_to(ROOT)
    for path in sorted((ROOT / "hcl").rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]
EXAMPLE = re.compile(
    r"^(?:<!-- not run: (?P<reason>.*?) -->\n)?"
    r"```python\n(?P<code>.*?)^```\n"
    r"(?:\n*(?:[^\n]*\bprints?:?\n+)?"
    r"(?:```(?:text)?\n(?P<fenced>.*?)^```$|(?P<indented>(?:    [^\n]*\n|\n)+)))?",
    re.MULTILINE | re.DOTALL,
)


class Example(NamedTuple):
    """A block, where it begins, what it should print (None: not said) and why it is not run."""

    line: int
    code: str
    printed: str | None
    reason: str | None


def examples_in(text: str) -> list[Example]:
    """The Python blocks of a Markdown document."""
    found = []
    for match in EXAMPLE.finditer(text):
        indented = (match["indented"] or "").strip("\n")
        printed = match["fenced"]
        if indented:
            printed = "".join(f"{line[4:]}\n" for line in indented.split("\n"))
        line = text.count("\n", 0, match.start("code")) + 1
        found.append(Example(line, match["code"], printed, match["reason"]))
    return found


ALL = [
    pytest.param(example, id=f"{path.relative_to(ROOT)}:{example.line}")
    for path in DOCUMENTS
    for example in examples_in(path.read_text(encoding="utf-8"))
]


@pytest.mark.slow
@pytest.mark.parametrize("example", ALL)
def test_an_example_runs_and_prints_what_the_document_says(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if example.reason:
        pytest.skip(example.reason)
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example.code, "example", "exec"), {"__name__": "example"})
    if example.printed is not None:
        assert printed.getvalue() == example.printed


@pytest.mark.slow
@pytest.mark.parametrize("path", MODULES, ids=str)
def test_the_examples_of_a_docstring_give_what_they_show(path: Path) -> None:
    module = importlib.import_module(".".join(path.with_suffix("").parts))
    report = io.StringIO()
    with contextlib.redirect_stdout(report):
        tried = doctest.testmod(module)
    assert tried.failed == 0, report.getvalue()
    assert tried.attempted > 0


def test_there_are_examples_to_run() -> None:
    assert any("README.md" in str(case.id) for case in ALL)
    assert Path("hcl/estimator.py") in MODULES


DOCUMENT = """Text.

```python
print(1)
```

It prints

    1
      2

    3

Text.

<!-- not run: needs the data -->
```python
print(2)
```
```text
2
```

```python
print(3)
```

Text that has nothing to say of it.

    hcl fetch

```python
print(4)
```
"""


def test_blocks_and_what_they_print_are_found() -> None:
    first, second, third, fourth = examples_in(DOCUMENT)
    assert first == Example(4, "print(1)\n", "1\n  2\n\n3\n", None)
    assert second == Example(18, "print(2)\n", "2\n", "needs the data")
    assert third == Example(25, "print(3)\n", None, None)
    assert fourth == Example(33, "print(4)\n", None, None)
