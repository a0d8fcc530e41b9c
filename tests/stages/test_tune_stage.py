"""``hcl tune`` from its command line: what it writes, prints and refuses."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from stages.cli import main
from stages.resolve import Resolved
from tests.support.blobs import benchmark, blobs_in_64_dimensions, with_validation, write_project

PARAMS = {
    "benchmarks": {
        "blobs": {
            "flow": {"couplings": 2, "hidden_layers": 1, "hidden": 8},
            "training": {"learning_rate": 1e-3},
        }
    },
    "methods": {
        "hcl-fr": {"kind": "flow", "memory": {"kind": "functional", "alpha": 10}},
        "ncm": {"kind": "ncm"},
    },
}
VALUES = {"memory": {"alpha": [1, 100]}, "learning_rate": [3e-5], "weight_decay": []}
FEW = {**PARAMS, "tune": {"values": VALUES}}
EMBEDDINGS, WHOLE = benchmark(blobs_in_64_dimensions(2, 52, 10))
OUT = Path("tuning/blobs/hcl-fr.csv")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_project(tmp_path, EMBEDDINGS, with_validation(WHOLE, 20), FEW)
    return tmp_path


def run(method: str = "hcl-fr") -> Result:
    options = ["--benchmark", "blobs", "--method", method, "--tasks", "tasks.h5"]
    options += ["--embeddings", "embeddings", "--out", str(OUT)]
    return CliRunner().invoke(main, ["tune", *options])


def rows() -> list[dict[str, str]]:
    with OUT.open(newline="") as file:
        return list(csv.DictReader(file))


def test_what_was_tried_is_written_and_the_best_printed_as_parameters(project):
    result = run()
    assert result.exit_code == 0, result.output
    tried = rows()
    points = [(row["memory.alpha"], row["learning_rate"]) for row in tried]
    assert points[:2] == [("10", "0.001"), ("10", "3e-05")]  # in the order of the file
    assert [alpha for alpha, _ in points[2:]] == ["1", "100"]
    (best,) = [row for row in tried if row["chosen"] == "1"]
    assert best["average"] == max(row["average"] for row in tried)

    line, _, text = result.output.partition(" with ")
    assert line == f"best of 4 trials: average accuracy {best['average']}"
    assert result.output.count("\n") == 1
    chosen = yaml.safe_load(text)["benchmarks"]["blobs"]["tuned"]["hcl-fr"]
    assert chosen == {
        "memory": {"alpha": float(best["memory.alpha"])},
        "learning_rate": float(best["learning_rate"]),
    }
    # As it is printed it can be merged into the file, and is what a run then takes.
    values = {**FEW, "benchmarks": {"blobs": {**PARAMS["benchmarks"]["blobs"]}}}
    values["benchmarks"]["blobs"]["tuned"] = {"hcl-fr": chosen}
    Path("params.yaml").write_text(yaml.safe_dump(values))
    method = Resolved(Path("params.yaml")).run("blobs", "hcl-fr").method
    assert method.memory.alpha == float(best["memory.alpha"])
    assert method.learning_rate == float(best["learning_rate"])


def test_the_same_inputs_give_the_same_bytes(project):
    printed = run().output
    first = OUT.read_bytes()
    shutil.rmtree(".hcl")
    assert run().output == printed
    assert OUT.read_bytes() == first


def test_the_section_may_be_left_out(project):
    Path("params.yaml").write_text(yaml.safe_dump(PARAMS))
    result = run()
    assert result.exit_code == 0, result.output
    tried = rows()
    assert [row["memory.alpha"] for row in tried[:4]] == ["10", "1", "5", "100"]
    assert [row["learning_rate"] for row in tried[4:7]] == ["3e-05", "0.0001", "0.0003"]
    assert [row["weight_decay"] for row in tried[7:]] == ["0.001", "0.01"]  # 1e-4 was tried


def refuse(message: str, method: str = "hcl-fr") -> None:
    result = run(method)
    assert result.exit_code == 1
    assert message in result.output
    assert result.output.startswith("Error: ")
    assert result.output.count("\n") == 1
    assert not OUT.exists()


def test_mistakes_are_one_line_and_leave_nothing(project):
    refuse("there is no 'methods.hcl-ft' (did you mean 'hcl-fr'?)", "hcl-ft")
    refuse("ncm: there is nothing to tune", "ncm")
    Path("params.yaml").write_text(yaml.safe_dump({**PARAMS, "tune": {"valeus": {}}}))
    refuse("tune.valeus is not a known key (did you mean 'values'?)")
    slip = {**PARAMS, "tune": {"values": {"memory": {"alhpa": [1]}}}}
    Path("params.yaml").write_text(yaml.safe_dump(slip))
    refuse("tune.values.memory.alhpa")
    Path("params.yaml").write_text(yaml.safe_dump({**PARAMS, "tunee": {}}))
    refuse("there is no section 'tunee' (did you mean 'tune'?)")
    write_project(project, EMBEDDINGS, WHOLE, FEW)
    refuse("benchmarks.blobs.stream.validation")


def test_a_folder_in_place_of_the_file_is_refused_before_any_trial(project):
    OUT.mkdir(parents=True)
    result = run()
    assert result.exit_code == 1
    assert "is a folder; --out names the file" in result.output
    assert not (project / ".hcl").exists()
