"""A name in ``grid`` that is not declared, or a key that nothing reads, stops the first stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from stages.cli import main
from tests.support.imports import ROOT

PARAMS = (ROOT / "params.yaml").read_text(encoding="utf-8")
INPUTS = ["--benchmark", "split-digits", "--embeddings", "embeddings"]
COMMANDS = {
    "fetch": ["--dataset", "digits"],
    "split": INPUTS,
    "train": [*INPUTS, "--method", "adam", "--tasks", "tasks.h5"],
    "tune": [*INPUTS, "--method", "adam", "--tasks", "tasks.h5"],
}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(stage: str, grid: Any) -> Result:
    return run_with(stage, {**yaml.safe_load(PARAMS), "grid": grid})


def run_with(stage: str, values: dict[str, Any]) -> Result:
    Path("params.yaml").write_text(yaml.safe_dump(values))
    return CliRunner().invoke(main, [stage, *COMMANDS[stage], "--out", "out"])


@pytest.mark.parametrize("stage", COMMANDS)
@pytest.mark.parametrize(
    ("key", "name", "meant"),
    [
        ("methods", "hcl-frta", "hcl-fr-ta"),
        ("benchmarks", "split-digit", "split-digits"),
        ("datasets", "digts", "digits"),
    ],
)
def test_the_key_the_value_and_the_nearest_name(
    stage: str, key: str, name: str, meant: str
) -> None:
    result = run(stage, {key: [meant, name]})
    assert result.exit_code == 1
    assert f"params.yaml: grid.{key}[1] is {name!r}" in result.output
    assert f"(did you mean {meant!r}?)" in result.output
    assert result.output.count("\n") == 1
    assert not Path("out").exists()


def test_a_name_in_place_of_a_list() -> None:
    assert "grid.methods is 'adam'; expected a list" in run("split", {"methods": "adam"}).output


@pytest.mark.parametrize("grid", [None, {}, yaml.safe_load(PARAMS)["grid"]])
def test_names_that_are_declared_pass_and_so_does_no_grid(grid: Any) -> None:
    result = run("fetch", grid)
    assert result.exit_code == 0, result.output
    assert Path("out").exists()


@pytest.mark.parametrize("stage", COMMANDS)
def test_a_key_of_a_benchmark_that_nothing_reads(stage: str) -> None:
    values = yaml.safe_load(PARAMS)
    values["benchmarks"]["split-cifar10"]["trainings"] = {"batch_size": 8}
    result = run_with(stage, values)
    assert result.exit_code == 1
    assert result.output == (
        "Error: params.yaml: benchmarks.split-cifar10.trainings is not a known key (did you mean "
        "'training'?). Allowed: stream, flow, training.\n"
    )


def test_a_section_that_looks_like_a_slip_and_one_that_does_not() -> None:
    values = yaml.safe_load(PARAMS)
    result = run_with("fetch", {**values, "seed": [7]})
    assert result.exit_code == 1
    assert (
        result.output == "Error: params.yaml: there is no section 'seed' (did you mean 'seeds'?).\n"
    )
    assert run_with("fetch", {**values, "deployment": {"replicas": 2}}).exit_code == 0


def test_a_stream_of_a_data_set_that_is_not_declared() -> None:
    values = yaml.safe_load(PARAMS)
    values["benchmarks"]["split-digits"]["stream"]["tasks"]["dataset"] = "digit"
    result = run_with("split", values)
    assert result.exit_code == 1
    assert "benchmarks.split-digits.stream.tasks names the data set 'digit'" in result.output
    assert "(did you mean 'digits'?)" in result.output
    assert result.output.count("\n") == 1
