"""What the store hands out is the user's own, and whole: what is damaged is made anew."""

from __future__ import annotations

import logging
import os
import random
from pathlib import Path

import pytest
import torch

from hcl.learn.flow.settings import FlowMethod, FunctionalSettings
from hcl.learn.settings import TrainingSettings
from hcl.model.settings import FlowSettings
from hcl.train.jobs import run_jobs, train, train_into
from hcl.train.loop import Job
from hcl.train.store import Entry, read_checkpoint, write_checkpoint
from tests.support.blobs import benchmark, blobs_in_64_dimensions
from tests.test_files import dead_pid


def finished_entry(folder: Path) -> Entry:
    entry = Entry(folder)
    folder.mkdir()
    entry.run.write_bytes(b"a run")
    entry.model.write_bytes(b"a model")
    return entry


def test_an_output_edited_in_place_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    entry = finished_entry(tmp_path / "entry")
    entry.deliver(tmp_path, "seed-0")
    outputs = {"seed-0.h5": b"a run", "seed-0.safetensors": b"a model"}
    for name, content in outputs.items():
        with (tmp_path / name).open("r+b") as file:
            assert file.read() == content
            file.write(b", edited")
    assert entry.run.read_bytes() == b"a run"
    assert entry.model.read_bytes() == b"a model"


def test_an_output_has_the_mode_that_the_umask_gives(tmp_path: Path) -> None:
    entry = finished_entry(tmp_path / "entry")
    entry.run.chmod(0o600)
    (tmp_path / "any").touch()
    entry.deliver(tmp_path, "seed-0")
    assert (tmp_path / "seed-0.h5").stat().st_mode == (tmp_path / "any").stat().st_mode


# Damage

METHOD = FlowMethod(memory=FunctionalSettings())
FLOW = FlowSettings(couplings=2, hidden_layers=1, hidden=8)
TRAINING = TrainingSettings(learning_rate=2e-3, checkpoint_every=4, save_model=True)


@pytest.fixture(scope="module")
def inputs():
    embeddings, tasks = benchmark(blobs_in_64_dimensions(2, 64, 8), (0, 1))
    return tasks, embeddings, "hcl-fr", METHOD, FLOW, TRAINING


@pytest.fixture(scope="module")
def job(inputs) -> Job:
    return Job(*inputs, seed=5)


@pytest.fixture(scope="module")
def whole(job: Job, tmp_path_factory) -> tuple[bytes, bytes]:
    """The run and the model of a run to which nothing happened."""
    entry = Entry(tmp_path_factory.mktemp("whole"))
    train_into(job, entry.folder)
    assert entry.is_finished
    return entry.run.read_bytes(), entry.model.read_bytes()


def flipped(data: bytes, place: int | None = None) -> bytes:
    changed = bytearray(data)
    changed[len(data) // 2 if place is None else place] ^= 4
    return bytes(changed)


DAMAGE = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) * 2 // 3],
    "cut by a byte": lambda data: data[:-1],
    "a flipped bit": flipped,
    "nothing of ours": lambda data: b"x" * len(data),
}
EACH = pytest.mark.parametrize("damage", DAMAGE)


@EACH
@pytest.mark.parametrize("name", ["run", "model"])
def test_a_damaged_run_or_model_is_made_anew(damage, name, inputs, whole, tmp_path, caplog) -> None:
    assert train(*inputs, [5], tmp_path / "out", tmp_path / "store") == 0
    (folder,) = (tmp_path / "store").iterdir()
    entry = Entry(folder)
    file = getattr(entry, name)
    file.write_bytes(DAMAGE[damage](file.read_bytes()))
    with caplog.at_level(logging.WARNING):
        assert train(*inputs, [5], tmp_path / "out", tmp_path / "store") == 0  # from the store
    assert (entry.run.read_bytes(), entry.model.read_bytes()) == whole
    delivered = tmp_path / "out" / "seed-5.h5", tmp_path / "out" / "seed-5.safetensors"
    assert tuple(path.read_bytes() for path in delivered) == whole
    assert file.with_name(f"{file.name}.damaged").exists()
    assert f"{file}: " in caplog.text
    assert "Set aside as" in caplog.text
    assert train(*inputs, [5], tmp_path / "out", tmp_path / "store") == 1


def test_a_model_that_is_gone_is_made_anew(job, whole, tmp_path) -> None:
    (entry,) = run_jobs([job], tmp_path)
    entry.model.unlink()
    assert not entry.is_finished
    (entry,) = run_jobs([job], tmp_path)
    assert (entry.run.read_bytes(), entry.model.read_bytes()) == whole


class Stopped(Exception):
    pass


@pytest.fixture(scope="module")
def checkpoint(job: Job, tmp_path_factory) -> bytes:
    """What a run left that was stopped in its middle."""
    from hcl.train import loop

    entry = Entry(tmp_path_factory.mktemp("stopped"))
    saved = []

    def write(path: Path, state: dict) -> None:
        write_checkpoint(path, state)
        saved.append(path)
        if len(saved) == 2:
            raise Stopped

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(loop.store, "write_checkpoint", write)
        train_into(job, entry.folder)
    return entry.checkpoint.read_bytes()


@EACH
def test_a_damaged_checkpoint_is_set_aside(damage, job, whole, checkpoint, tmp_path, caplog):
    entry = Entry(tmp_path)
    entry.checkpoint.write_bytes(DAMAGE[damage](checkpoint))
    with caplog.at_level(logging.WARNING):
        train_into(job, tmp_path)
    assert (entry.run.read_bytes(), entry.model.read_bytes()) == whole
    assert f"{entry.checkpoint}: damaged checkpoint" in caplog.text
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "checkpoint.pt.damaged",
        "model.safetensors",
        "run.h5",
    ]


def test_every_flipped_bit_of_a_checkpoint_is_noticed(checkpoint, tmp_path, caplog) -> None:
    path = tmp_path / "checkpoint.pt"
    chance = random.Random(0)
    for _ in range(100):
        path.write_bytes(flipped(checkpoint, chance.randrange(len(checkpoint))))
        assert read_checkpoint(path) is None
        assert not path.exists()


def test_a_whole_checkpoint_of_something_else_is_set_aside(job, whole, tmp_path, caplog) -> None:
    entry = Entry(tmp_path)
    for state in ({}, {"learner": {"model": {"x": torch.zeros(3)}}}):
        write_checkpoint(entry.checkpoint, state)
        train_into(job, tmp_path)
        assert entry.run.read_bytes() == whole[0]
        assert "not a checkpoint of this run" in caplog.text
        caplog.clear()


def test_a_checkpoint_that_is_gone_when_it_is_read_is_no_checkpoint(tmp_path) -> None:
    assert read_checkpoint(tmp_path / "checkpoint.pt") is None


def test_what_a_killed_run_left_is_removed_by_the_next(job, tmp_path) -> None:
    left = tmp_path / f".checkpoint.pt.{dead_pid()}.part"
    at_work = tmp_path / f".checkpoint.pt.{os.getppid()}.part"
    left.touch()
    at_work.touch()
    train_into(job, tmp_path)
    assert not left.exists()
    assert at_work.exists()
