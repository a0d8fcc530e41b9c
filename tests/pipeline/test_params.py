"""Every section of ``params.yaml`` is valid, those that the default grid leaves out too."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import pytest

from hcl.extract.extraction import ExtractSettings
from hcl.fetch.datasets import DatasetSettings
from hcl.learn.learners import MethodSettings
from hcl.model.flows import FlowSettings
from hcl.settings import build, load_yaml, section
from hcl.split import StreamSettings
from hcl.studies.moons import MoonsSettings
from hcl.studies.toy_losses import ToySettings
from hcl.train.loop import TrainingSettings
from hcl.tune import TuneSettings
from tests.support.imports import ROOT, load_script

PARAMS = ROOT / "params.yaml"
VALUES = load_yaml(PARAMS)
SECTIONS: list[tuple[str, Any]] = [
    ("extract", ExtractSettings),
    ("moons", MoonsSettings),
    ("toy_losses", ToySettings),
    ("tune", TuneSettings),
    *((f"datasets.{name}", DatasetSettings) for name in VALUES["datasets"]),
    *((f"methods.{name}", MethodSettings) for name in VALUES["methods"]),
    *((f"benchmarks.{name}.stream", StreamSettings) for name in VALUES["benchmarks"]),
    *((f"benchmarks.{name}.flow", FlowSettings) for name in VALUES["benchmarks"]),
    *((f"benchmarks.{name}.training", TrainingSettings) for name in VALUES["benchmarks"]),
]


@pytest.mark.parametrize(("key", "settings"), SECTIONS)
def test_a_section_is_valid(key: str, settings: type) -> None:
    assert isinstance(build(settings, section(VALUES, key, PARAMS), PARAMS, key), settings)


def test_there_is_no_section_that_nothing_reads() -> None:
    read = {key.split(".")[0] for key, _ in SECTIONS} | {"grid", "seeds"}
    assert set(VALUES) == read


def test_the_grid_names_what_is_declared() -> None:
    assert set(VALUES["grid"]) == {"datasets", "benchmarks", "methods"}
    for kind, names in VALUES["grid"].items():
        assert set(names) <= set(VALUES[kind])
    for name in VALUES["grid"]["benchmarks"]:
        stream = build(StreamSettings, VALUES["benchmarks"][name]["stream"], PARAMS)
        assert set(stream.datasets) <= set(VALUES["grid"]["datasets"])


def test_overrides_name_benchmarks_that_exist() -> None:
    for name, values in VALUES["methods"].items():
        method = build(MethodSettings, values, PARAMS, f"methods.{name}")
        assert set(method.benchmarks) <= set(VALUES["benchmarks"])


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
