"""Every stage from the command line, as ``dvc.yaml`` calls it, with what it writes checked.

Each stage gets a parameter file with nothing in it but what ``dvc.yaml`` declares for it: a stage
that reads another section stops with an error.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result

from stages.cli import COMMANDS, main
from tests.support.imports import ROOT
from tests.support.projects import CLASSES, draw_pictures, environment, small_params, write_params

STAGES: dict[str, Any] = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
ITEM = {"dataset": "pictures", "benchmark": "trees", "method": "hcl-fr-ta"}
PIPELINE = ("settings", "fetch", "extract", "split", "train", "evaluate")
IN_ORDER = (*PIPELINE, "moons", "toy-losses", "report")


def filled(text: str) -> str:
    """A template of ``dvc.yaml`` with the values of the one item that these tests run."""
    return re.sub(r"\$\{item\.(\w+)\}", lambda match: ITEM[match[1]], text)


def declared(stage: str, values: dict[str, Any]) -> dict[str, Any]:
    """The part of the parameters that ``dvc.yaml`` declares for a stage."""
    if "params.yaml" in STAGES[stage]["deps"]:
        return values
    kept: dict[str, Any] = {}
    for key in map(filled, STAGES[stage].get("params", [])):
        source, target = values, kept
        *parents, last = key.split(".")
        for part in parents:
            source, target = source[part], target.setdefault(part, {})
        target[last] = source[last]
    return kept


def run(stage: str, *more: str, params: str | None = None, by_name: bool = False) -> Result:
    """Run a stage as ``dvc.yaml`` calls it or, ``by_name``, as one does by hand."""
    arguments = shlex.split(filled(STAGES[stage]["cmd"]))[1:]
    if by_name and "--settings" in arguments:
        at = arguments.index("--settings")
        names = ["--benchmark", ITEM["benchmark"]]
        names += [] if stage == "split" else ["--method", ITEM["method"]]
        arguments[at : at + 2] = names
    return CliRunner().invoke(main, [*arguments, "--params", params or "params.yaml", *more])


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which every stage has run once."""
    folder = tmp_path_factory.mktemp("project")
    draw_pictures(folder / "pictures")
    values = small_params()
    values["grid"]["methods"] = [ITEM["method"]]
    values["seeds"] = [0, 1]
    write_params(folder, values)
    before = Path.cwd()
    os.chdir(folder)
    try:
        for stage in IN_ORDER:
            Path(f"{stage}.yaml").write_text(yaml.safe_dump(declared(stage, values)))
            result = run(stage, params=f"{stage}.yaml")
            assert result.exit_code == 0, f"{stage}: {result.output}"
        yield folder
    finally:
        os.chdir(before)


def test_fetch_keeps_the_pictures_as_they_are(project: Path) -> None:
    with h5py.File("data/raw/pictures.h5") as file:
        start, stop = file["offsets"][:2]
        assert bytes(file["encoded"][start:stop]) == Path("pictures/train/ash/0.png").read_bytes()
        assert json.loads(file.attrs["classes"]) == list(CLASSES)
        assert np.bincount(file["split"]).tolist() == [64, 20]
        assert np.bincount(file["y"]).tolist() == [21] * 4


def test_extract_writes_embeddings_and_says_what_made_them(project: Path) -> None:
    with h5py.File("data/embeddings/pictures.h5") as file:
        x, attributes = file["x"][:], dict(file.attrs)
        assert x.dtype == np.float32
        assert file["x"].chunks is None
        with h5py.File("data/raw/pictures.h5") as raw:
            assert (file["y"][:] == raw["y"][:]).all()
            assert (file["split"][:] == raw["split"][:]).all()
            assert attributes["data_sha256"] == raw.attrs["content_sha256"]
    assert x.shape == (84, 1280)
    assert np.isfinite(x).all()
    assert len(np.unique(x[:, :50], axis=0)) == 84
    assert attributes["backbone"] == "tf_efficientnet_lite0.in1k"
    assert attributes["dataset"] == "pictures"
    assert re.fullmatch("[0-9a-f]{64}", attributes["weights_sha256"])
    assert {"torch", "timm"} <= set(json.loads(attributes["versions"]))
    assert json.loads(attributes["transform"])


def test_split_relabels_the_classes_within_each_task(project: Path) -> None:
    with h5py.File("data/tasks/trees.h5") as file, h5py.File("data/raw/pictures.h5") as raw:
        assert file["stream"][:].tolist() == [[0, 2], [1, 2]]
        for task, classes in ((0, [0, 1]), (1, [2, 3])):
            rows, y = file[f"task-{task}/train/rows"][:], file[f"task-{task}/train/y"][:]
            assert (raw["y"][:][rows] == np.array(classes)[y]).all()
            assert len(rows) == 24
            assert len(file[f"task-{task}/validation/rows"]) == 8
            assert len(file[f"task-{task}/test/rows"]) == 10


def test_train_answers_for_every_test_sample_after_every_segment(project: Path) -> None:
    for seed in (0, 1):
        with h5py.File(f"results/runs/trees/hcl-fr-ta/seed-{seed}.h5") as file:
            assert file["predicted_class"].shape == file["predicted_task"].shape == (2, 20)
            assert set(np.unique(file["predicted_class"])) <= {0, 1}
            assert file.attrs["seed"] == str(seed)
            assert len(file["trace/verdict"]) == 2 * 2 * 24 // 8
    first, second = (Path(f"results/runs/trees/hcl-fr-ta/seed-{s}.h5") for s in (0, 1))
    assert first.read_bytes() != second.read_bytes()


def test_evaluate_writes_the_metrics_that_the_predictions_give(project: Path) -> None:
    metrics = json.loads(Path("results/metrics/trees.json").read_text())["hcl-fr-ta"]
    with h5py.File("data/tasks/trees.h5") as tasks:
        y = np.concatenate([tasks[f"task-{t}/test/y"][:] for t in (0, 1)])
    by_hand = []
    for seed in (0, 1):
        with h5py.File(f"results/runs/trees/hcl-fr-ta/seed-{seed}.h5") as file:
            right = file["predicted_class"][-1] == y
        by_hand.append(100 * (right[:10].mean() + right[10:].mean()) / 2)
    assert metrics["average"] == pytest.approx(np.mean(by_hand), abs=0.01)
    rows = Path("results/scores/trees/hcl-fr-ta/accuracy.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * 2 * 2  # a header; seeds × segments × tasks


def test_report_shows_the_metrics_and_needs_no_other_file(project: Path) -> None:
    metrics = json.loads(Path("results/metrics/trees.json").read_text())["hcl-fr-ta"]
    shown = f"{metrics['average']:.2f}"
    for name in ("tables.md", "tables.csv", "index.html"):
        assert shown in Path("report", name).read_text(), name
    page = Path("report/index.html").read_text()
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)


@pytest.mark.slow
def test_the_same_inputs_give_the_same_bytes(project: Path, tmp_path: Path) -> None:
    again = {}
    for stage in IN_ORDER:
        for out in STAGES[stage]["outs"] + [
            next(iter(m)) for m in STAGES[stage].get("metrics", [])
        ]:
            again[filled(out)] = tmp_path / filled(out).replace("/", "-")
    shutil.rmtree(".hcl", ignore_errors=True)
    for stage in IN_ORDER:
        _, name, *arguments = shlex.split(filled(STAGES[stage]["cmd"]))
        arguments = [str(again.get(word, word)) for word in arguments]
        result = CliRunner().invoke(main, [name, *arguments, "--params", f"{stage}.yaml"])
        assert result.exit_code == 0, f"{stage}: {result.output}"
    compared = 0
    for first, second in again.items():
        files = [p for p in Path(first).rglob("*") if p.is_file()] or [Path(first)]
        for file in files:
            twin = second / file.relative_to(first) if Path(first).is_dir() else second
            assert file.read_bytes() == twin.read_bytes(), file
            compared += 1
    assert compared > 10


OTHER_STREAM = {**small_params()["benchmarks"]["trees"]["stream"], "epochs": 3}
BAD_PARAMETERS = [
    ("fetch", "datasets.pictures.source", "floppy", "datasets.pictures.source is 'floppy'"),
    ("fetch", "datasets.pictures.path", "no-such-folder", "no-such-folder"),
    ("extract", "extract.backbone", "efficientnet_b99.ra_in1k", "efficientnet_b99.ra_in1k"),
    ("extract", "extract.bacbone", "x", "extract.bacbone is not a known key (did you mean"),
    ("split", "benchmarks.trees.stream.epochs", 0, "benchmarks.trees.stream.epochs"),
    ("split", "benchmarks.trees.stream.order", [1, 3], "benchmarks.trees.stream.order[1]"),
    ("train", "benchmarks.trees.flow.couplings", "many", "benchmarks.trees.flow.couplings"),
    ("train", "benchmarks.trees.training.learning_rate", -1, "learning_rate"),
    ("train", "methods.hcl-fr-ta.alhpa", 1, "methods.hcl-fr-ta.alhpa is not a known key"),
    ("settings", "methods.hcl-fr.memory.alpha", -1, "methods.hcl-fr.memory.alpha: is -1"),
    ("settings", "grid.methods", ["hcl-ff"], "grid.methods[0] is 'hcl-ff'"),
    ("fetch", "methods.hcl-fr.ridge", 1, "methods.hcl-fr.ridge is not a known key"),
    (
        "train",
        "benchmarks.trees.stream",
        OTHER_STREAM,
        "its epochs is 2, asked for is 3",
    ),
    ("train", "seeds", [0, "one"], "seeds[1] is 'one'"),
    ("train", "seeds", [-1], "seeds[0] is -1; expected a whole number from 0"),
    ("split", "benchmarks.trees.stream.seed", -3, "benchmarks.trees.stream.seed: is -3"),
    ("moons", "moons.seed", -1, "moons.seed: is -1"),
    ("moons", "moons.noise", -0.5, "moons.noise: is -0.5"),
    ("evaluate", "seeds", [7], "seed-7"),
    ("report", "grid.methods", ["hcl-fr-ta", "ncm"], "ncm"),
]


@pytest.mark.parametrize(("stage", "key", "value", "message"), BAD_PARAMETERS)
def test_a_bad_parameter_is_named_and_nothing_is_lost(
    project: Path, tmp_path: Path, stage: str, key: str, value: object, message: str
) -> None:
    values = yaml.safe_load(Path("params.yaml").read_text())
    *parents, last = key.split(".")
    node = values
    for part in parents:
        node = node[part]
    node[last] = value
    bad = tmp_path / "bad.yaml"
    bad.write_text(yaml.safe_dump(values))
    expect_one_line(stage, message, params=str(bad), by_name=True)


def expect_one_line(
    stage: str, message: str, params: str | None = None, by_name: bool = False
) -> None:
    """The stage stops with status 1 and one line, and its earlier output is as it was."""
    out = Path(filled(STAGES[stage]["outs"][0]))
    before = {p: p.read_bytes() for p in [out, *out.rglob("*")] if p.is_file()}
    result = run(stage, params=params or f"{stage}.yaml", by_name=by_name)
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    assert message in result.output
    assert result.output.startswith("Error: ")
    assert result.output.count("\n") == 1
    assert {p: p.read_bytes() for p in [out, *out.rglob("*")] if p.is_file()} == before


INPUTS = [
    ("extract", "data/raw/pictures.h5"),
    ("split", "data/embeddings/pictures.h5"),
    ("train", "data/embeddings/pictures.h5"),
    ("train", "data/tasks/trees.h5"),
    ("train", "data/settings/runs/trees/hcl-fr-ta.json"),
    ("split", "data/settings/streams/trees.json"),
    ("evaluate", "data/tasks/trees.h5"),
    ("evaluate", "results/runs/trees/hcl-fr-ta/seed-1.h5"),
    ("report", "results/scores/trees/hcl-fr-ta/summary.json"),
]


@pytest.mark.parametrize("damage", ["missing", "foreign", "cut"])
@pytest.mark.parametrize(("stage", "path"), INPUTS)
def test_an_input_that_is_missing_or_broken_is_named(
    project: Path, stage: str, path: str, damage: str
) -> None:
    file = Path(path)
    whole = file.read_bytes()
    try:
        if damage == "missing":
            file.unlink()
        else:
            file.write_bytes(b"not at all" if damage == "foreign" else whole[: len(whole) // 2])
        expect_one_line(stage, path)
    finally:
        file.write_bytes(whole)


WRITES = {
    "settings": {"--out": "folder"},
    "fetch": {"--out": "file"},
    "extract": {"--out": "file"},
    "split": {"--out": "file"},
    "train": {"--out": "folder"},
    "evaluate": {"--scores": "folder"},
    "moons": {"--out": "folder"},
    "toy-losses": {"--out": "folder"},
    "report": {"--out": "folder", "--metrics": "folder"},
}


@pytest.mark.parametrize(("stage", "option"), [(s, o) for s, made in WRITES.items() for o in made])
def test_an_output_of_the_wrong_kind_is_refused_and_nothing_lost(
    project: Path, tmp_path: Path, stage: str, option: str
) -> None:
    assert set(WRITES) == set(STAGES)
    (tmp_path / "mine").mkdir()
    thesis = tmp_path / "mine" / "thesis.txt"
    thesis.write_text("years of work")
    is_file = WRITES[stage][option] == "file"
    for out, message in (
        (tmp_path / "mine", f"is a folder; {option}" if is_file else "did not write (thesis.txt)"),
        (thesis / "x", "can't be written"),
        *([] if is_file else [(thesis, f"is a file; {option}")]),
    ):
        result = run(stage, option, str(out), params=f"{stage}.yaml")
        assert result.exit_code == 1, result.output
        assert result.output.startswith(f"Error: {out}: ")
        assert message in result.output
        assert result.output.count("\n") == 1
    assert thesis.read_text() == "years of work"


@pytest.mark.slow
@pytest.mark.parametrize("stage", [s for s, made in WRITES.items() if "folder" in made.values()])
def test_a_folder_of_its_own_is_written_anew(project: Path, stage: str) -> None:
    for _ in range(2):
        result = run(stage, params=f"{stage}.yaml")
        assert result.exit_code == 0, result.output


def test_help_lists_the_stages_without_loading_what_they_need() -> None:
    check = (
        "import sys; from click.testing import CliRunner; from stages.cli import main\n"
        "print(CliRunner().invoke(main, ['--help']).output)\n"
        "heavy = {'torch', 'numpy', 'h5py', 'sklearn', 'timm', 'matplotlib', 'scipy'}\n"
        "sys.exit(f'loaded: {heavy & set(sys.modules)}' if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], env=environment(), cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    listed = re.findall(r"^  ([a-z][a-z-]*)  +\w", done.stdout, re.MULTILINE)
    assert listed[: len(PIPELINE) + 1] == [*PIPELINE, "report"]


def test_help_says_each_command_in_one_whole_line_of_80_columns() -> None:
    lines = CliRunner().invoke(main, ["--help"], terminal_width=80).output.splitlines()
    listed = lines[lines.index("Commands:") + 1 :]
    assert [line.split()[0] for line in listed] == list(COMMANDS)
    assert all(len(line) <= 80 and line.endswith(".") for line in listed)
    assert not any("..." in line for line in listed)


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_explains_its_options(stage: str) -> None:
    result = CliRunner().invoke(main, [shlex.split(STAGES[stage]["cmd"])[1], "--help"])
    assert result.exit_code == 0
    flags = re.findall(r"--[a-z]+", STAGES[stage]["cmd"])
    assert all(flag in result.output for flag in flags)
