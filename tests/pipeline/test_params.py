"""Every section of ``params.yaml`` is valid, those that the default grid leaves out too."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import pytest

from hcl.extract.settings import ExtractSettings
from hcl.fetch.datasets import DatasetSettings
from hcl.studies.settings import MoonsSettings, ToySettings
from stages.parameters import Grid
from stages.resolve import Resolved
from tests.support.imports import ROOT, load_script

PARAMETERS = Resolved(ROOT / "params.yaml")
VALUES = PARAMETERS.values
SECTIONS: list[tuple[str, Any]] = [
    ("extract", ExtractSettings),
    ("moons", MoonsSettings),
    ("toy_losses", ToySettings),
    *((f"datasets.{name}", DatasetSettings) for name in VALUES["datasets"]),
]


@pytest.mark.parametrize(("key", "settings"), SECTIONS)
def test_a_section_is_valid(key: str, settings: type) -> None:
    assert isinstance(PARAMETERS.build(settings, key), settings)


def test_the_whole_file_passes_the_check() -> None:
    PARAMETERS.check()


@pytest.mark.parametrize("benchmark", VALUES["benchmarks"])
def test_every_method_can_be_run_on_every_benchmark(benchmark: str) -> None:
    assert set(PARAMETERS.stream(benchmark).datasets) <= set(VALUES["datasets"])
    for method in VALUES["methods"]:
        settings = PARAMETERS.run(benchmark, method)
        assert (settings.method.detection is not None) == method.endswith(("-ta", "-auto"))


def test_there_is_no_section_that_nothing_reads() -> None:
    read = {key.split(".")[0] for key, _ in SECTIONS}
    assert set(VALUES) == read | {"grid", "seeds", "benchmarks", "methods"}


def test_the_grid_names_what_is_declared() -> None:
    assert set(VALUES["grid"]) == set(Grid._fields)
    grid = PARAMETERS.grid()
    for name in grid.benchmarks:
        assert set(PARAMETERS.stream(name).datasets) <= set(grid.datasets)


def test_the_file_can_be_read_at_one_sitting_and_has_no_anchors() -> None:
    text = PARAMETERS.path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert not [line for line in text.splitlines() if ": *" in line or ": &" in line]


@pytest.fixture(scope="module")
def page() -> ModuleType:
    return load_script(ROOT / "docs" / "parameters.py")


def test_the_table_of_parameters_is_what_the_code_says(page: ModuleType) -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run `python docs/parameters.py`"


def test_every_section_is_in_the_table_and_every_key_explained(page: ModuleType) -> None:
    assert {settings for _, settings in SECTIONS} <= set(page.SECTIONS.values())
    explained = 0
    for settings in page.SECTIONS.values():
        said = page.meanings(settings)
        if said:  # else the section is explained as a whole
            assert list(said) == [field.name for field in dataclasses.fields(settings)]
            assert all(said.values())
            explained += 1
    assert explained > 10
