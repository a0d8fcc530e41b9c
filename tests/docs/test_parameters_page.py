"""docs/parameters.md: as the settings are, and a range beside every number."""

from __future__ import annotations

import dataclasses
import runpy
import typing
from typing import Annotated, Any

import pytest

from tests.support.imports import ROOT

SCRIPT = runpy.run_path(str(ROOT / "docs" / "parameters.py"))
SETTINGS = list(dict.fromkeys(SCRIPT["SECTIONS"].values()))


def test_the_page_is_what_the_script_writes() -> None:
    assert SCRIPT["PAGE"].read_text(encoding="utf-8") == SCRIPT["page"]()


def bare(kind: Any) -> bool:
    """Whether a type lets any number through."""
    if typing.get_origin(kind) is Annotated:
        return False
    return kind in (int, float) or any(map(bare, typing.get_args(kind)))


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.__name__)
def test_every_number_has_a_range_that_is_kept(settings: type) -> None:
    hints = typing.get_type_hints(settings, include_extras=True)
    bounded = False
    for field in dataclasses.fields(settings):
        if f"{settings.__name__}.{field.name}" == "TuneSettings.values":
            continue  # they are checked as settings of the method that takes them
        assert not bare(hints[field.name]), f"{settings.__name__}.{field.name} has no Range"
        bounded = bounded or "Annotated" in str(hints[field.name])
    if bounded:
        assert "check_limits" in settings.__post_init__.__code__.co_names, settings  # type: ignore[attr-defined]
