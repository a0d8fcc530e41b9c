"""``hcl train`` from its command line: what it writes, keeps and refuses."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from hcl.model.model_file import read_about
from hcl.records.runs import read_run
from hcl.records.tasks import write_benchmark
from stages.settings import command as settings_command
from stages.train import command
from tests.support.blobs import benchmark, blobs_in_64_dimensions, write_project

STREAM = {"tasks": {"dataset": "blobs", "classes_per_task": 2}}
PARAMS = {
    "seeds": [0, 1],
    "benchmarks": {
        "blobs": {
            "flow": {"couplings": 2, "hidden_layers": 1, "hidden": 8},
            "training": {"learning_rate": 1e-3, "save_model": True},
        }
    },
    "methods": {
        "adam": {"kind": "flow"},
        "hcl-fr-ta": {
            "kind": "flow",
            "memory": {"kind": "functional", "alpha": 10},
            "detection": {},
        },
        "slda": {"kind": "slda"},
    },
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_project(tmp_path, *benchmark(blobs_in_64_dimensions(2, 64, 10), epochs=2), PARAMS)
    return tmp_path


def run(method: str, *more: str) -> Result:
    options = ["--benchmark", "blobs", "--method", method, "--tasks", "tasks.h5"]
    options += ["--embeddings", "embeddings", "--out", f"runs/{method}", *more]
    return CliRunner().invoke(command, options)


@pytest.mark.parametrize("method", ["adam", "hcl-fr-ta", "slda"])
def test_a_run_file_for_each_seed(project, method):
    result = run(method)
    assert result.exit_code == 0, result.output
    expected = {"seed-0.h5", "seed-1.h5", "seed-0.safetensors", "seed-1.safetensors"}
    assert read_about(f"runs/{method}/seed-0.safetensors")["name"] == method
    assert {path.name for path in Path(f"runs/{method}").iterdir()} == expected
    for seed in (0, 1):
        read = read_run(f"runs/{method}/seed-{seed}.h5")
        assert (read.benchmark, read.method, read.seed) == ("blobs", method, seed)
        assert read.predicted_class.shape == (2, 20)
        if method == "slda":  # nothing else has any influence
            assert set(read.settings) == {"method", "training"}
            assert read.settings["training"] == {"save_model": True}
        else:
            assert read.settings["flow"]["couplings"] == 2
            assert read.settings["training"]["learning_rate"] == 1e-3
    assert (read.trace is not None) == (method == "hcl-fr-ta")


def test_an_added_seed_trains_only_itself(project):
    assert run("adam").output == "runs/adam: 2 runs\n"
    kept = {path: path.stat().st_mtime_ns for path in Path(".hcl/runs").glob("*/run.h5")}
    first = Path("runs/adam/seed-0.h5").read_bytes()
    Path("params.yaml").write_text(yaml.safe_dump({**PARAMS, "seeds": [0, 1, 7]}))
    assert run("adam").output == "runs/adam: 3 runs, 2 from .hcl/runs\n"
    now = {path: path.stat().st_mtime_ns for path in Path(".hcl/runs").glob("*/run.h5")}
    assert len(kept) == 2
    assert len(now) == 3
    assert {path: now[path] for path in kept} == kept
    assert Path("runs/adam/seed-0.h5").read_bytes() == first
    assert Path("runs/adam/seed-7.h5").exists()


def refuse(message: str, method: str = "adam", *more: str) -> None:
    result = run(method, *more)
    assert result.exit_code == 1
    assert message in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert not Path(f"runs/{method}").exists()


def test_mistakes_are_one_line_and_leave_nothing(project):
    refuse("there is no 'methods.adams' (did you mean 'adam'?)", "adams")
    Path("params.yaml").write_text(yaml.safe_dump({**PARAMS, "seeds": [1, 1]}))
    refuse("seeds is [1, 1]")
    wrong = {**PARAMS, "methods": {"adam": {"kind": "flow", "memory": "endless"}}}
    Path("params.yaml").write_text(yaml.safe_dump(wrong))
    refuse("methods.adam.memory is 'endless'")
    trimmed = {**PARAMS["methods"]["hcl-fr-ta"], "detection": {"trim": 16}}
    Path("params.yaml").write_text(yaml.safe_dump({**PARAMS, "methods": {"hcl-fr-ta": trimmed}}))
    refuse("params.yaml: methods.hcl-fr-ta.detection.trim: is 16 samples", "hcl-fr-ta")


def test_a_file_of_settings_takes_the_place_of_names(project):
    assert run("adam").exit_code == 0
    by_name = Path("runs/adam/seed-0.h5").read_bytes()
    values = {**PARAMS, "grid": {"benchmarks": ["blobs"], "methods": ["adam"]}}
    values["benchmarks"] = {"blobs": {**PARAMS["benchmarks"]["blobs"], "stream": STREAM}}
    Path("params.yaml").write_text(yaml.safe_dump(values))
    written = CliRunner().invoke(settings_command, ["--out", "settings"])
    assert written.exit_code == 0, written.output
    Path("params.yaml").unlink()
    file = "settings/runs/blobs/adam.json"
    options = ["--settings", file, "--tasks", "tasks.h5", "--embeddings", "embeddings"]
    result = CliRunner().invoke(command, [*options, "--out", "again"])
    assert result.output == "again: 2 runs, 2 from .hcl/runs\n"
    assert Path("again/seed-0.h5").read_bytes() == by_name
    Path(file).write_text("{}")
    result = CliRunner().invoke(command, [*options, "--out", "again"])
    assert result.exit_code == 1
    assert file in result.output
    result = CliRunner().invoke(command, [*options[2:], "--out", "again"])
    assert result.exit_code == 2
    assert "--benchmark and --method, or with --settings" in result.output


def test_inputs_that_do_not_belong_together_are_refused(project):
    _, tasks = benchmark(blobs_in_64_dimensions(2, 64, 10), name="others")
    write_benchmark("tasks.h5", tasks)
    refuse("holds the tasks of others, expected blobs")
    write_benchmark("tasks.h5", dataclasses.replace(tasks, name="blobs"))
    refuse("Rerun split")
    refuse("--embeddings names the folder", "adam", "--embeddings", "embeddings/blobs.h5")
    Path("embeddings/blobs.h5").unlink()
    refuse("no such embedding file")
    Path("tasks.h5").unlink()
    refuse("no such tasks file")


def test_a_window_too_wide_for_the_stream_is_said(project):
    wide = {**PARAMS["methods"]["hcl-fr-ta"], "detection": {"window": 7, "minimum": 2}}
    Path("params.yaml").write_text(yaml.safe_dump({**PARAMS, "methods": {"hcl-fr-ta": wide}}))
    result = run("hcl-fr-ta")
    assert result.exit_code == 0
    assert result.stderr.startswith("Note: hcl-fr-ta on blobs: detection.window is 7 batches, but")
    assert result.stderr.count("\n") == 1
    narrow = {**wide, "detection": {"window": 2, "minimum": 2}}
    Path("params.yaml").write_text(yaml.safe_dump({**PARAMS, "methods": {"hcl-fr-ta": narrow}}))
    assert run("hcl-fr-ta").stderr == ""
