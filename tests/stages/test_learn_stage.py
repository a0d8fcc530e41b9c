"""``hcl learn`` from its command line: another day's learning, and every mistake."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from hcl.records import embeddings
from hcl.train.loop import Job
from hcl.train.saving import write_learner
from hcl.use import learning
from hcl.use.trained import load
from stages.learn import command
from tests.support.drawn import draw, make_model
from tests.support.trained import NAMES, train_model


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """HCL+ that finds its tasks itself, and samples of two tasks as NPZ."""
    folder = tmp_path_factory.mktemp("blobs")
    job = train_model(folder / "model", "hcl-plus-ta")
    for task in (0, 1, 2):
        x, names = of_task(job, task)
        np.savez(folder / f"{task}.npz", x=x, y=names)
    x, _ = of_task(job, 0)
    np.savez(folder / "far.npz", x=x + 40, y=np.resize(["gorse", "hazel"], len(x)))
    return folder


def of_task(job: Job, task: int) -> tuple[np.ndarray, np.ndarray]:
    part = job.benchmark.tasks[task].train
    rows = np.resize(np.arange(len(part.y)), 500)
    names = np.array(NAMES)[np.array(job.benchmark.tasks[task].classes)[part.y[rows]]]
    return job.embeddings["blobs"].x[part.rows[rows]], names


def run(folder: Path, *arguments: object, model: str = "model") -> Result:
    options = ["--model", folder / model, *arguments]
    return CliRunner().invoke(command, list(map(str, options)))


def test_today_and_tomorrow_are_the_same_bytes_as_in_one_go(blobs: Path) -> None:
    before = (blobs / "model").read_bytes()
    one, two = ("--data", blobs / "0.npz"), ("--data", blobs / "1.npz")
    assert run(blobs, *one, *two, "--out", blobs / "both").exit_code == 0
    assert run(blobs, *one, "--out", blobs / "today").exit_code == 0
    result = run(blobs, *two, "--out", blobs / "tomorrow", model="today")
    assert result.exit_code == 0, result.output
    assert (blobs / "tomorrow").read_bytes() == (blobs / "both").read_bytes()
    assert (blobs / "model").read_bytes() == before
    assert run(blobs, *two, *one, "--out", blobs / "other").exit_code == 0
    assert (blobs / "other").read_bytes() != (blobs / "both").read_bytes()


def test_what_was_noticed_is_said_and_a_new_task_has_its_names(blobs: Path) -> None:
    out = blobs / "noticed"
    places = ("--as", "gorse=ash", "--as", "hazel=birch")
    result = run(
        blobs, "--data", blobs / "0.npz", "--data", blobs / "far.npz", "--out", out, *places
    )
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert any(": a new task, number " in line for line in lines)
    assert lines[-1].startswith(f"{out}: 992 samples learned, 8 wait for a whole batch; ")
    trained = load(out)
    assert {"gorse", "hazel"} <= set(trained.classes)
    found = trained.predict(np.load(blobs / "far.npz")["x"])
    assert set(found.name) <= {"gorse", "hazel"}
    assert load(out).about.changes[-1].batch * 32 > 500


def test_classes_of_different_tasks_are_not_shuffled_into_each_other(
    blobs: Path, tmp_path: Path
) -> None:
    train_model(tmp_path / "model", "slda")
    trained = load(tmp_path / "model")
    both = [np.load(blobs / f"{task}.npz") for task in (0, 1)]
    x, y = (np.concatenate([part[name] for part in both]) for name in ("x", "y"))
    mixed = np.random.default_rng(0).permutation(len(y))
    np.savez(tmp_path / "mixed.npz", x=x[mixed], y=y[mixed])
    data = learning.read_data(trained, tmp_path / "mixed.npz")
    shown = [name for _, names in learning._shown(trained, data, False) for name in names]
    assert [trained.home_of(name) for name in shown] == [1] * 500 + [2] * 500
    assert shown[:500] != sorted(shown[:500])  # shuffled within a task
    options = ("--data", tmp_path / "mixed.npz", "--task", "3")
    result = run(tmp_path, *options, "--out", tmp_path / "3")
    assert "has classes of the tasks 1, 2; all of it is learned as task 3." in result.stderr
    result = run(tmp_path, *options, "--out", tmp_path / "as-is", "--in-order")
    assert result.exit_code == 0
    assert "Note" not in result.stderr


def test_a_class_that_a_growing_model_never_saw_is_said(blobs: Path) -> None:
    grown = dataclasses.replace(load(blobs / "model").about, only_seen=True)
    write_learner(blobs / "growing", grown, load(blobs / "model").learner)
    x = np.load(blobs / "far.npz")["x"]
    np.savez(blobs / "news.npz", x=x, y=np.resize(["gorse", "brich"], len(x)))
    data = ("--data", blobs / "news.npz", "--in-order")
    result = run(blobs, *data, "--out", blobs / "grown", model="growing")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[:2] == [
        "a class that was never seen: brich (did you mean 'birch'?)",
        "a class that was never seen: gorse",
    ]
    assert load(blobs / "grown").about.num_classes == 4
    placed = (*data, "--as", "gorse=ash", "--as", "brich=birch", "--out", blobs / "placed")
    result = run(blobs, *placed, model="growing")
    assert "never seen" not in result.stdout
    assert load(blobs / "placed").about.num_classes == 2


def test_a_stream_that_was_recorded_is_taken_in_its_order(blobs: Path) -> None:
    both = [np.load(blobs / f"{task}.npz") for task in (0, 1)]
    x, y = (np.concatenate([part[name] for part in both]) for name in ("x", "y"))
    np.savez(blobs / "stream.npz", x=x, y=y)
    cuts = (0, 100, 777, 1000)
    model = "model"
    for start, stop in pairwise(cuts):
        np.savez(blobs / "part.npz", x=x[start:stop], y=y[start:stop])
        options = ("--data", blobs / "part.npz", "--out", blobs / f"to-{stop}", "--in-order")
        assert run(blobs, *options, model=model).exit_code == 0
        model = f"to-{stop}"
    options = ("--data", blobs / "stream.npz", "--out", blobs / "at-once", "--in-order")
    assert run(blobs, *options).exit_code == 0
    assert (blobs / "to-1000").read_bytes() == (blobs / "at-once").read_bytes()


def test_a_folder_of_class_folders_is_learned_by_a_model_that_is_told(
    made: Path, tmp_path: Path
) -> None:
    draw(tmp_path / "new", 8, first=40)
    weights = ("--weights", made / "weights.pth")
    for task, out in (("2", "known"), ("3", "new.safetensors")):
        options = ("--data", tmp_path / "new", "--out", tmp_path / out, "--task", task, *weights)
        result = run(made, *options, model="model.safetensors")
        assert result.exit_code == 0, result.output
        assert result.stdout.endswith(
            f"32 samples learned, 0 wait for a whole batch; {task} tasks\n"
        )
    assert load(tmp_path / "known").about.samples == 48 + 32
    (tmp_path / "new/ash/broken.png").write_text("x")
    options = ("--data", tmp_path / "new", "--out", tmp_path / "no", "--task", "1", *weights)
    result = run(made, *options, model="model.safetensors")
    assert result.exit_code == 1
    assert "ash/broken.png: not a readable image" in result.stderr
    assert not (tmp_path / "no").exists()


def test_of_an_embedding_file_the_training_part_is_learned(made: Path, tmp_path: Path) -> None:
    options = ("--data", made / "pictures.h5", "--out", tmp_path / "m", "--task", "1")
    result = run(made, *options, model="model.safetensors")
    assert result.exit_code == 0, result.output
    train = int((embeddings.read(made / "pictures.h5").split == embeddings.TRAIN).sum())
    assert load(tmp_path / "m").about.samples == 48 + train == 96


def test_images_are_embedded_once_for_several_passes(made: Path, tmp_path: Path) -> None:
    train_model(tmp_path / "glow", "glow")
    draw(tmp_path / "new", 4, first=40)
    options = ["--data", tmp_path / "new", "--out", tmp_path / "m", "--task", "1", "--epochs", "3"]
    result = run(tmp_path, *options, model="glow")
    assert result.exit_code == 0, result.output
    assert "32 samples learned, 16 wait" in result.stdout


def mistakes(blobs: Path, folder: Path) -> list[tuple[list[Any], str]]:
    new = ["--out", folder / "new"]
    (folder / "there").write_text("precious")
    (folder / "empty").mkdir()
    (folder / "flat").mkdir()
    (folder / "flat/a.png").write_text("x")
    np.savez(folder / "unlabelled.npz", x=np.zeros((4, 64)))
    np.savez(folder / "oak.npz", x=np.zeros((4, 64)), y=["oak"] * 4)
    np.savez(folder / "narrow.npz", x=np.zeros((4, 3)), y=["ash"] * 4)
    np.savez(folder / "uneven.npz", x=np.zeros((4, 64)), y=["ash"] * 3)
    np.savez(folder / "far.npz", x=np.zeros((4, 64)), y=[0, 1, 0, 9], classes=["ash", "birch"])
    (folder / "cut.npz").write_bytes(b"PK\x03\x04")
    (folder / "text.npz").write_text("no archive at all")
    holed = np.zeros((40, 64))
    holed[7] = np.nan
    np.savez(folder / "holed.npz", x=holed, y=["ash"] * 40)
    np.savez(folder / "test.npz", x=np.zeros((4, 64)), y=["ash"] * 4, split=["test"] * 4)
    np.savez(folder / "split.npz", x=np.zeros((4, 64)), y=["ash"] * 4, split=["train"] * 5)
    data = ["--data", blobs / "0.npz"]
    return [
        ([*data, "--out", folder / "there"], "there: is there already"),
        ([*data, "--out", blobs / "model"], "is the model that is gone on from"),
        ([*data, "--out", folder], "is a folder; --out names the file to write"),
        ([*data, *new, "--task", "1"], "finds its tasks itself"),
        ([*data, *new, "--model", folder / "gone"], "no such model file"),
        (["--data", folder / "gone", *new], "gone: no such file or folder"),
        (["--data", folder / "there", *new], "labelled data are a folder of class folders"),
        (["--data", folder / "empty", *new], "takes embeddings, not images"),
        (["--data", folder / "unlabelled.npz", *new], "holds x; expected x and y"),
        (["--data", folder / "oak.npz", *new], "the class 'oak' is not known"),
        (["--data", folder / "oak.npz", *new, "--as", "oak=elk"], "the class 'elk' is not known"),
        (["--data", folder / "narrow.npz", *new], "narrow.npz: x is float64 (4, 3), but the model"),
        (["--data", folder / "text.npz", *new], "text.npz: can't be read (it is not a zip file"),
        (["--data", folder / "holed.npz", *new], "holed.npz: row 7 has values that are not fin"),
        (["--data", folder / "test.npz", *new], "test.npz: no sample is in its train part"),
        (["--data", folder / "split.npz", *new], "split is (5,); expected (4,), as y"),
        (["--data", folder / "uneven.npz", *new], "expected (n, D) and (n,)"),
        (["--data", folder / "far.npz", *new], "y is 0…9, but there are 2 names"),
        (["--data", folder / "cut.npz", *new], "cut.npz: can't be read"),
    ]


def test_mistakes_are_one_line_and_lose_nothing(blobs: Path, tmp_path: Path) -> None:
    before = (blobs / "model").read_bytes()
    for arguments, message in mistakes(blobs, tmp_path):
        result = run(blobs, *arguments)
        assert result.exit_code == 1, (message, result.output)
        assert message in result.stderr, result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert not (tmp_path / "new").exists()
    assert (tmp_path / "there").read_text() == "precious"
    assert (blobs / "model").read_bytes() == before
    result = run(blobs, "--data", blobs / "0.npz", "--out", tmp_path / "new", "--as", "oak")
    assert result.exit_code == 2
    assert "expected NEW=KNOWN" in result.stderr


def test_a_method_that_sees_samples_once_is_not_shown_them_twice(
    made: Path, tmp_path: Path
) -> None:
    options = ("--data", made / "pictures.h5", "--out", tmp_path / "m", "--task", "1")
    result = run(made, *options, "--epochs", "2", model="model.safetensors")
    assert result.exit_code == 1
    assert "slda sees each sample once" in result.stderr
