"""The examples of docs/peers.md run inside the libraries that they are for."""

from __future__ import annotations

import contextlib
import io
import re

import pytest

from tests.docs.test_examples import Example, examples_in
from tests.support.imports import ROOT

pytestmark = pytest.mark.peers

EXAMPLES = examples_in((ROOT / "docs/peers.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("library", "example"), [*zip(("river", "avalanche"), EXAMPLES, strict=True)]
)
def test_an_example_runs_and_prints_what_the_document_says(library: str, example: Example) -> None:
    assert re.search(rf"^from {library} import|^from {library}\.", example.code, re.MULTILINE)
    pytest.importorskip(
        library, reason=f"{library} is not installed: `make test-peers` installs it"
    )
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example.code, "example", "exec"), {"__name__": "example"})
    assert printed.getvalue() == example.printed
