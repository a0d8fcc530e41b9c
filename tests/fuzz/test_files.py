"""Mutated files of every format: refused in one line, or read as what they were."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hcl.estimator import HCLPlusClassifier
from hcl.extract.partial import Partial
from hcl.files import canonical_json, remove
from hcl.learn.closed_form.settings import StreamingLDAMethod
from hcl.learn.flow.settings import FlowMethod, FunctionalSettings
from hcl.learn.settings import TrainingSettings
from hcl.model.model_file import read_model, write_model
from hcl.model.settings import FlowSettings
from hcl.records import embeddings
from hcl.records.raw import Block, Content, Raw, write_raw
from hcl.records.runs import read_run, write_run
from hcl.records.tasks import read_benchmark, write_benchmark
from hcl.train.jobs import train_into
from hcl.train.loop import Job, train_seed
from hcl.train.saving import about_run, read_learner, write_learner
from hcl.train.store import Entry
from hcl.use.loading import load
from tests.fuzz.mutations import BYTES, FRACTION, NASTY, STRUCTURE, mutated, replaced, restructure
from tests.fuzz.verdicts import fuzzed, refused_or
from tests.support.blobs import benchmark, blobs_in_the_plane
from tests.support.made_runs import make_benchmark, make_run
from tests.support.tampering import tampered


def flat(value: Any) -> Any:
    """Anything that a reader gives, as something that compares by its bytes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: flat(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: flat(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [flat(inner) for inner in value]
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, np.ascontiguousarray(value).tobytes())
    return value


class Target(NamedTuple):
    """A format: how a good file is made, and how all of a file is read."""

    make: Callable[[Path], None]
    read: Callable[[Path], Any]


def make_embeddings(path: Path) -> None:
    rng = np.random.default_rng(0)
    provenance = dict.fromkeys(embeddings.PROVENANCE[1:], "{}") | {"classes": '["a", "b"]'}
    x = rng.normal(size=(12, 4)).astype(np.float32)
    embeddings.write(path, x, np.arange(12) % 2, (np.arange(12) > 7).astype(np.uint8), provenance)


def raw_content(kind: str) -> Content:
    rng = np.random.default_rng(0)
    y, split = np.arange(6) % 2, (np.arange(6) > 3).astype(np.uint8)
    if kind == "encoded":
        files = [rng.bytes(20 + i) for i in range(6)]
        return Content("encoded", ("a", "b"), 6, (sum(map(len, files)),), [Block(files, y, split)])
    data = rng.integers(0, 256, (6, 4, 4, 3), np.uint8)
    return Content("images", ("a", "b"), 6, (4, 4, 3), [Block(data, y, split)])


def read_raw(path: Path) -> Any:
    raw = Raw(path)
    raw.verify()
    return flat([raw.dataset, raw.source, raw.classes, raw.y, raw.split, raw.read_samples(0, 6)])


HDF5 = {
    "embeddings": Target(make_embeddings, lambda path: flat(embeddings.read(path))),
    "raw images": Target(
        lambda path: write_raw(path, raw_content("images"), dataset="d", source="s"), read_raw
    ),
    "raw files": Target(
        lambda path: write_raw(path, raw_content("encoded"), dataset="d", source="s"), read_raw
    ),
    "tasks": Target(
        lambda path: write_benchmark(path, make_benchmark()),
        lambda path: flat(read_benchmark(path)),
    ),
    "run": Target(
        lambda path: write_run(path, make_run(make_benchmark(), verdicts={12: 1})),
        lambda path: flat(read_run(path)),
    ),
}


def job(method: Any = None, name: str = "slda") -> Job:
    found, tasks = benchmark(blobs_in_the_plane(16, 4))
    training = TrainingSettings(batch_size=8, device="cpu", checkpoint_every=2)
    flow = FlowSettings(couplings=2, hidden_layers=1, hidden=4)
    return Job(tasks, found, name, method or StreamingLDAMethod(), flow, training, 0)


def make_model(path: Path) -> None:
    made = job(FlowMethod(memory=FunctionalSettings()), "hcl-fr")
    run, learner = train_seed(made)
    write_learner(path, about_run(made, run, learner), learner)


def make_classifier(path: Path) -> None:
    random = np.random.default_rng(0)
    classifier = HCLPlusClassifier(random_state=0, projections=4)
    for _ in range(4):
        y = random.integers(0, 2, 16)
        classifier.partial_fit(random.normal(size=(16, 3)) + 5 * y[:, None], y, classes=[0, 1])
    classifier.save(path)


MODEL = Target(make_model, lambda path: flat(read_model(path)))
CLASSIFIER = Target(make_classifier, lambda path: flat(read_model(path)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@cache
def good(folder: Path, name: str, target: Target) -> tuple[Path, bytes, Any]:
    """Where mutations go, the bytes of a whole file, and what is read from it: made once."""
    path = folder / f"{name.replace(' ', '-')}.good"
    target.make(path)
    return folder / f"{name.replace(' ', '-')}.h5", path.read_bytes(), target.read(path)


@pytest.mark.parametrize("name", HDF5)
@fuzzed(of=2)
@given(changes=BYTES)
def test_bytes_of_hdf5_files(folder: Path, name: str, changes: Any) -> None:
    path, data, original = good(folder, name, HDF5[name])
    path.write_bytes(mutated(data, changes))
    refused_or(HDF5[name].read, path, original)


@pytest.mark.parametrize("name", HDF5)
@fuzzed(of=2)
@given(change=STRUCTURE)
def test_structure_of_hdf5_files_that_are_sealed_again(
    folder: Path, name: str, change: Any
) -> None:
    path, data, original = good(folder, name, HDF5[name])
    path.write_bytes(data)
    with tampered(path) as file:
        restructure(file, change)
    refused_or(HDF5[name].read, path, original)


@fuzzed(of=3)
@given(changes=BYTES)
def test_bytes_of_model_files(folder: Path, changes: Any) -> None:
    path, data, original = good(folder, "model", MODEL)
    path.write_bytes(mutated(data, changes))
    refused_or(MODEL.read, path, original)


@pytest.mark.parametrize(
    ("name", "target", "read"),
    [("model", MODEL, read_learner), ("classifier", CLASSIFIER, load)],
    ids=["model", "classifier"],
)
@fuzzed(of=3)
@given(where=FRACTION, value=NASTY, part=st.sampled_from(["about", "state"]))
def test_values_of_model_files_that_are_sealed_again(
    folder: Path, name: str, target: Target, read: Any, where: float, value: Any, part: str
) -> None:
    path, data, _ = good(folder, name, target)
    path.write_bytes(data)
    content = read_model(path)
    about, state = content.about, content.state
    try:
        if part == "about":
            about = replaced(about, where, value)
            canonical_json(about).encode()
        else:
            state = replaced(state, where, value)
        write_model(path, about, state)
    except (TypeError, ValueError, OverflowError):
        return  # what no model file can hold
    refused_or(read, path)


@fuzzed()
@given(changes=BYTES)
def test_bytes_of_checkpoints(folder: Path, changes: Any) -> None:
    """A damaged checkpoint costs time, never the result."""
    made = job()
    whole, entry = Entry(folder / "whole"), Entry(folder / "damaged")
    if not whole.run.exists():
        train_into(made, whole.folder)
        kept = _stopped(made, folder)
        (folder / "checkpoint.good").write_bytes(kept)
    entry.folder.mkdir(exist_ok=True)
    entry.run.unlink(missing_ok=True)
    entry.checkpoint.write_bytes(mutated((folder / "checkpoint.good").read_bytes(), changes))

    def read(path: Path) -> bytes:
        train_into(made, path)
        return entry.run.read_bytes()

    refused_or(read, entry.folder, whole.run.read_bytes())


def _stopped(made: Job, folder: Path) -> bytes:
    """The checkpoint of a run that was stopped after its first task."""
    entry = Entry(folder / "stopped")
    first = dataclasses.replace(
        made, benchmark=dataclasses.replace(made.benchmark, stream=made.benchmark.stream[:1])
    )
    entry.folder.mkdir()
    train_seed(first, entry.checkpoint)
    return entry.checkpoint.read_bytes()


@pytest.mark.parametrize("name", ["run", "model"])
@fuzzed(of=2)
@given(changes=BYTES)
def test_bytes_of_what_the_store_holds(folder: Path, name: str, changes: Any) -> None:
    """A damaged run or model is made again, with the same bytes, or was not damaged."""
    training = dataclasses.replace(job().training, save_model=True)
    made = dataclasses.replace(job(), training=training)
    entry = Entry(folder / f"kept-{name}")
    whole = [folder / f"{name}-{part}.good" for part in ("run", "model")]
    if not entry.folder.exists():
        train_into(made, entry.folder)
        assert entry.is_finished
        for kept, file in zip(whole, (entry.run, entry.model), strict=True):
            kept.write_bytes(file.read_bytes())
    original = [kept.read_bytes() for kept in whole]
    entry.run.write_bytes(original[0])
    entry.model.write_bytes(original[1])
    file = getattr(entry, name)
    file.write_bytes(mutated(file.read_bytes(), changes))

    def read(folder: Path) -> list[bytes]:
        if not entry.is_finished:
            train_into(made, folder)
        return [entry.run.read_bytes(), entry.model.read_bytes()]

    assert not refused_or(read, entry.folder, original)


@fuzzed()
@given(changes=BYTES, name=st.sampled_from(["rows", "finished"]))
def test_bytes_of_unfinished_rows_of_extract(folder: Path, changes: Any, name: str) -> None:
    """What was embedded before a stop, and has changed since, is embedded again."""
    rows = np.random.default_rng(0).normal(size=(21, 3)).astype(np.float32)
    blocks = {i: rows[4 * i : 4 * i + 4] for i in range(6)}
    place = folder / "rows.part"
    remove(place)
    with Partial(place, 21, 3, 4) as partial:
        partial.write({i: blocks[i] for i in range(4)})
    (place / name).write_bytes(mutated((place / name).read_bytes(), changes))

    def read(place: Path) -> bytes:
        with Partial(place, 21, 3, 4) as partial:
            partial.write({int(i): blocks[i] for i in partial.pending()})
            return partial.rows().tobytes()

    assert not refused_or(read, place, rows.tobytes())
