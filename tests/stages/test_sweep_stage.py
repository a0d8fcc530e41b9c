"""``hcl sweep`` from its command line: what it trains, keeps, says and refuses."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from stages.settings import command as settings_command
from stages.sweep import command
from stages.train import command as train_command
from tests.support.sweeps import DEEP, METHODS, contents, write_grid


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_grid(tmp_path)
    return tmp_path


def run(*options: str) -> Result:
    places = ["--tasks", "tasks", "--embeddings", "embeddings"]
    return CliRunner().invoke(command, [*places, *options])


def train(method: str) -> Result:
    options = ["--benchmark", "blobs", "--method", method, "--tasks", "tasks/blobs.h5"]
    options += ["--embeddings", "embeddings", "--out", f"results/runs/blobs/{method}"]
    return CliRunner().invoke(train_command, options)


def edit(**values: Any) -> None:
    file = Path("params.yaml")
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **values}))


def test_train_finds_every_run_of_a_sweep_in_the_store(project: Path) -> None:
    result = run()
    assert result.exit_code == 0, result.output
    assert result.output == ".hcl/runs: 6 runs (6 trained)\n"
    for method in METHODS:
        made = f"results/runs/blobs/{method}"
        assert train(method).output == f"{made}: 2 runs, 2 from .hcl/runs\n"
    assert run().output == ".hcl/runs: 6 runs (6 there already)\n"
    edit(seeds=[0, 1, 2])
    assert run("--jobs", "1").output == ".hcl/runs: 9 runs (3 trained, 6 there already)\n"


def test_a_folder_of_settings_takes_the_place_of_the_parameters(project: Path) -> None:
    assert run().exit_code == 0
    written = CliRunner().invoke(settings_command, ["--out", "settings"])
    assert written.exit_code == 0, written.output
    Path("params.yaml").unlink()
    assert run("--settings", "settings").output == ".hcl/runs: 6 runs (6 there already)\n"


def test_another_store_and_what_train_wrote(project: Path) -> None:
    assert run("--store", "elsewhere").exit_code == 0
    assert not Path(".hcl/runs").exists()
    before = contents(Path("elsewhere"))
    assert train("adam").exit_code == 0
    result = run("--store", "third", "--runs", "results/runs")
    assert result.output == "third: 6 runs (4 trained, 2 there already)\n"
    assert contents(Path("third")) == before


def test_each_failed_run_is_one_line_and_the_status_says_so(project: Path) -> None:
    methods = {**METHODS, "adam": {"kind": "flow", "learning_rate": 10}}
    blobs = yaml.safe_load(Path("params.yaml").read_text())["benchmarks"]["blobs"]
    flow = {**blobs["flow"], "hidden_layers": DEEP}
    edit(methods=methods, benchmarks={"blobs": {**blobs, "flow": flow}})
    result = run()
    assert result.exit_code == 1
    said = result.output.splitlines()
    assert said[0] == ".hcl/runs: 6 runs (4 trained, 2 failed)"
    assert sorted(line[: len("Failed: blobs adam seed 0: adam on blobs")] for line in said[1:]) == [
        "Failed: blobs adam seed 0: adam on blobs",
        "Failed: blobs adam seed 1: adam on blobs",
    ]


def test_mistakes_are_one_line(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(message: str, *options: str) -> None:
        result = run(*options)
        assert result.exit_code == 1
        assert message in result.output
        assert len(result.output.strip().splitlines()) == 1
        assert not Path(".hcl/runs").exists()

    refuse("nowhere: no settings of runs there", "--settings", "nowhere")
    refuse("no such parameter file", "--params", "nowhere.yaml")
    refuse("no such tasks file", "--tasks", "nowhere")
    refuse("no such embedding file", "--embeddings", "nowhere")
    monkeypatch.setitem(sys.modules, "ray", None)
    refuse("A cluster needs Ray: pip install 'hcl[ray]'.", "--ray", "auto")
    edit(grid={"datasets": [], "benchmarks": ["blobs"], "methods": []})
    refuse("grid.methods is empty")
