"""``hcl predict`` from its command line: every input, every table, every mistake."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result

from hcl.records import embeddings
from hcl.use.trained import load
from stages.predict import command
from tests.support.drawn import CLASSES, make_model
from tests.support.imports import ROOT
from tests.support.projects import environment
from tests.support.tiny_backbone import SIZE
from tests.support.trained import train_model


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("made"))


def run(made: Path, *arguments: object, text: str | None = None) -> Result:
    options = ["--model", str(made / "model.safetensors"), "--weights", str(made / "weights.pth")]
    return CliRunner().invoke(command, [*options, *map(str, arguments)], input=text)


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_a_folder_is_classified_by_name(made: Path) -> None:
    result = run(made, made / "pictures/test")
    assert result.exit_code == 0, result.output
    rows = rows_of(result.stdout)
    assert list(rows[0]) == ["input", "class", "probability", "task", "novelty", "error"]
    assert [Path(row["input"]).parent.name for row in rows] == [
        c for c in CLASSES for _ in range(4)
    ]
    assert sum(Path(row["input"]).parent.name == row["class"] for row in rows) >= 14
    assert {row["task"] for row in rows} == {"1", "2"}
    assert all(0 < float(row["probability"]) <= 1 for row in rows)
    assert {(row["novelty"], row["error"]) for row in rows} == {("", "")}


def test_an_image_has_the_answer_that_its_embedding_has(made: Path) -> None:
    found = embeddings.read(made / "pictures.h5")
    test = found.split == embeddings.TEST
    expected = load(made / "model.safetensors").predict(found.x[test])
    rows = rows_of(run(made, made / "pictures/test").stdout)
    assert [row["class"] for row in rows] == expected.name
    by_image = np.array([float(row["probability"]) for row in rows])
    np.testing.assert_allclose(by_image, expected.probability, atol=1e-3)


def test_files_folders_and_a_list_on_standard_input_keep_their_order(made: Path) -> None:
    folder = made / "pictures/test"
    one, other = folder / "ash/12.png", folder / "cedar/13.png"
    result = run(made, other, "-", folder / "birch", text=f"{one}\n\n{other}\n")
    inputs = [row["input"] for row in rows_of(result.stdout)]
    listed = sorted(map(str, (folder / "birch").iterdir()))
    assert inputs == [str(other), str(one), str(other), *listed]


def test_a_broken_image_is_a_row_with_its_error(made: Path, tmp_path: Path) -> None:
    good = made / "pictures/test/ash/12.png"
    (tmp_path / "broken.png").write_bytes(good.read_bytes()[:60])
    (tmp_path / "text.jpg").write_text("hello")
    names = [tmp_path / "broken.png", good, tmp_path / "text.jpg", tmp_path / "gone.png", tmp_path]
    result = run(made, "-", text="".join(f"{name}\n" for name in names))
    assert result.exit_code == 3
    rows = rows_of(result.stdout)
    assert [bool(row["error"]) for row in rows] == [True, False, True, True, True]
    assert [row["class"] for row in rows] == ["", "ash", "", "", ""]
    assert rows[2]["error"] == "not one of PNG, JPEG, WEBP"
    assert rows[3]["error"] == "No such file or directory"
    assert rows[4]["error"] == "not a file"
    assert "4 of 5 could not be read" in result.stderr


@pytest.fixture(scope="module")
def tables(made: Path) -> dict[str, Path]:
    """The same embeddings as HDF5, NPZ (packed or not) and Parquet."""
    x = np.array(embeddings.read(made / "pictures.h5").x)
    np.savez(made / "plain.npz", x=x, unrelated=np.zeros(3))
    np.savez_compressed(made / "packed.npz", x=x.astype(np.float64))
    lists = pyarrow.table({"id": list(range(len(x))), "x": list(x)})
    columns = pyarrow.table({f"f{i}": x[:, i] for i in range(SIZE)})
    pyarrow.parquet.write_table(lists, made / "lists.parquet", row_group_size=10)
    pyarrow.parquet.write_table(columns, made / "columns.parquet")
    names = ("pictures.h5", "plain.npz", "packed.npz", "lists.parquet", "columns.parquet")
    return {name: made / name for name in names}


def test_embeddings_of_every_kind_have_the_same_answers(
    made: Path, tables: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hcl.use.inputs.BYTES_AT_ONCE", 7 * 4 * SIZE)  # some rows at a time
    found = {name: rows_of(run(made, path).stdout) for name, path in tables.items()}
    expected = [(r["class"], r["probability"], r["task"]) for r in found["pictures.h5"]]
    assert len(expected) == 64
    for name, rows in found.items():
        assert [(r["class"], r["probability"], r["task"]) for r in rows] == expected
        assert rows[9]["input"] == f"{tables[name]}:9"


def test_every_table_says_the_same(made: Path, tmp_path: Path) -> None:
    out = {suffix: tmp_path / f"t{suffix}" for suffix in (".csv", ".jsonl", ".parquet")}
    (tmp_path / "bad.png").write_text("x")
    for path in out.values():
        result = run(made, tmp_path / "bad.png", made / "pictures/test/ash", "--out", path)
        assert (result.exit_code, result.stdout) == (3, f"{path}: 5 rows\n"), result.output
    by_json = [json.loads(line) for line in out[".jsonl"].read_text().splitlines()]
    assert pyarrow.parquet.read_table(out[".parquet"]).to_pylist() == by_json
    assert [row["class"] for row in by_json] == [None, *["ash"] * 4]
    by_csv = rows_of(out[".csv"].read_text())
    assert [row["class"] or None for row in by_csv] == [row["class"] for row in by_json]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "bad.png",
        "t.csv",
        "t.jsonl",
        "t.parquet",
    ]


def test_a_row_that_is_not_finite_is_a_row_with_its_error(made: Path, tmp_path: Path) -> None:
    x = np.zeros((3, SIZE), np.float32)
    x[1, 5] = np.nan
    np.savez(tmp_path / "x.npz", x=x)
    result = run(made, tmp_path / "x.npz")
    assert result.exit_code == 3
    errors = [row["error"] for row in rows_of(result.stdout)]
    assert errors == ["", "values that are not finite", ""]


def mistakes(made: Path, folder: Path) -> list[tuple[list[Any], str]]:
    """What users type, and a part of what they get."""
    good = made / "pictures/test/ash/12.png"
    (folder / "empty").mkdir()
    (folder / "words.txt").write_text("hello")
    (folder / "cut.npz").write_bytes(b"PK\x03\x04 and no more")
    np.savez(folder / "other.npz", z=np.zeros((2, SIZE)))
    np.savez(folder / "narrow.npz", x=np.zeros((2, 7)))
    np.savez(folder / "texts.npz", x=np.full((2, SIZE), "a"))
    np.savez(folder / "columns.npz", x=np.asfortranarray(np.zeros((2, SIZE))))
    pyarrow.parquet.write_table(pyarrow.table({"a": ["b"]}), folder / "texts.parquet")
    uneven = pyarrow.table({"x": [[1.0, 2.0], [1.0]]})
    pyarrow.parquet.write_table(uneven, folder / "uneven.parquet")
    (folder / "broken.parquet").write_text("PAR1")
    (folder / "broken.h5").write_text("no")
    found = embeddings.read(made / "pictures.h5")
    said = {n: found.attributes[n] for n in embeddings.PROVENANCE if n != "format"}
    for name, change in (("backbone", "resnet18.a1_in1k"), ("weights_sha256", "0" * 64)):
        changed = {**said, name: change}
        embeddings.write(folder / f"{name}.h5", found.x, found.y, found.split, changed)
    (folder / "there.csv").write_text("precious")
    cut = folder / "cut.safetensors"
    cut.write_bytes((made / "model.safetensors").read_bytes()[:-5])
    return [
        ([folder / "gone.png"], "gone.png: no such file or folder"),
        ([folder / "empty"], "empty: no image in this folder"),
        ([folder / "words.txt"], "neither an image nor embeddings by its name"),
        (["-"], "no path on standard input"),
        (["-", "-"], "standard input can be read once"),
        ([folder / "cut.npz"], "cut.npz: can't be read"),
        ([folder / "other.npz"], "there is no array x in it"),
        ([folder / "narrow.npz"], "has 7 features a row, but the model was trained on 256"),
        ([folder / "texts.npz"], "expected numbers (n, D)"),
        ([folder / "columns.npz"], "by columns"),
        ([folder / "texts.parquet"], "the column 'a' is string"),
        ([folder / "uneven.parquet"], "lists of different lengths"),
        ([folder / "broken.parquet"], "broken.parquet: can't be read"),
        ([folder / "broken.h5"], "broken.h5"),
        ([folder / "backbone.h5"], "the backbone resnet18.a1_in1k, expected test_efficientnet"),
        ([folder / "weights_sha256.h5"], "the weights 000"),
        ([good, "--out", folder / "there.csv"], "is there already"),
        ([good, "--out", folder / "x.txt"], "--out ends in .csv, .jsonl, .parquet"),
        ([good, "--out", folder / "words.txt/x.csv"], "can't be written"),
        ([good, "--model", folder / "gone"], "gone: no such model file"),
        ([good, "--model", cut], "cut.safetensors: not a model file, or damaged"),
        ([good, "--weights", folder / "gone.pth"], "gone.pth: no such file"),
        ([good, "--device", "tpu"], "device: 'tpu'"),
    ]


def test_mistakes_are_one_line_and_lose_nothing(made: Path, tmp_path: Path) -> None:
    for arguments, message in mistakes(made, tmp_path):
        result = run(made, *arguments)
        assert result.exit_code == 1, (message, result.output)
        assert message in result.stderr
        assert not result.stdout, message
        assert len(result.stderr.splitlines()) == 1
    assert (tmp_path / "there.csv").read_text() == "precious"
    assert not (tmp_path / "x.txt").exists()


def test_weights_that_are_not_the_model_s_are_refused(made: Path, tmp_path: Path) -> None:
    import torch

    state = torch.load(made / "weights.pth")
    next(iter(state.values())).add_(1)
    torch.save(state, tmp_path / "other.pth")
    result = run(made, made / "pictures/test", "--weights", tmp_path / "other.pth")
    assert result.exit_code == 1
    assert "was trained with the weights 'file: weights.pth'" in result.stderr
    assert "Name the file of the former with --weights" in result.stderr


def test_a_model_of_ready_made_embeddings_takes_no_images(made: Path, tmp_path: Path) -> None:
    train_model(tmp_path / "m", "slda")
    good = made / "pictures/test/ash/12.png"
    result = run(made, good, "--model", tmp_path / "m")
    assert result.exit_code == 1
    assert "it takes embeddings, not images" in result.stderr


def test_a_model_on_pixels_takes_images(made: Path, tmp_path: Path) -> None:
    train_model(tmp_path / "m", "glow")
    result = run(made, made / "pictures/test", "--model", tmp_path / "m")
    assert result.exit_code == 0, result.output
    assert len(rows_of(result.stdout)) == 16


@pytest.mark.slow
def test_the_command_itself(made: Path, tmp_path: Path) -> None:
    listed = "\n".join(str(p) for p in sorted((made / "pictures/test/ash").iterdir()))
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from stages.cli import main; main()", "predict", "-"),
            *("--model", made / "model.safetensors", "--weights", made / "weights.pth"),
        ],
        input=listed,
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [row["class"] for row in rows_of(done.stdout)] == ["ash"] * 4
