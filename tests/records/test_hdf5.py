"""Files that lie about themselves: every format refuses them in one line, at once."""

from __future__ import annotations

import dataclasses
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from hcl.errors import HCLError
from hcl.records import embeddings, hdf5
from hcl.records.raw import Block, Content, Raw, write_raw
from hcl.records.runs import Run, Trace, read_run, write_run
from hcl.records.tasks import (
    Benchmark,
    Part,
    Segment,
    Source,
    Task,
    read_benchmark,
    write_benchmark,
)
from tests.fuzz.verdicts import in_time
from tests.support.tampering import tampered

CLASSES = ("ash", "birch")


def make_raw(path: Path) -> None:
    y, split = np.arange(12) % 2, (np.arange(12) >= 8).astype(np.uint8)
    images = np.random.default_rng(0).integers(0, 256, (12, 4, 4, 1), np.uint8)
    blocks = [Block(images, y, split)]
    write_raw(
        path, Content("images", CLASSES, 12, (4, 4, 1), blocks), dataset="d", source="pictures"
    )


def make_embeddings(path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    y, split = np.arange(12) % 2, (np.arange(12) >= 8).astype(np.uint8)
    provenance = dict.fromkeys(embeddings.PROVENANCE[1:], "{}")
    provenance["classes"] = json.dumps(CLASSES)
    embeddings.write(path, x, y, split, provenance)


def make_tasks(path: Path) -> None:
    part = Part(np.arange(8), np.arange(8) % 2)
    task = Task("d", (0, 1), part, Part(np.arange(0), np.arange(0)), part)
    stream = (Segment(0, 1), Segment(1, 2))
    made = Benchmark("b", (task, task), stream, (Source("d", "abc"),), {"epochs": 1})
    write_benchmark(path, made)


def make_run(path: Path) -> None:
    trace = Trace(
        *(np.zeros(3, np.int16) for _ in range(3)),
        verdict=np.zeros(3, np.int8),
        statistics={"log_px": np.arange(9, dtype=np.float32).reshape(3, 3)},
    )
    answers = np.arange(24, dtype=np.int16).reshape(2, 12) % 2
    run = Run("b", "m", 3, {"a": [1]}, "t", "f", {"torch": "2"}, *[answers] * 3, np.zeros(2))
    write_run(path, dataclasses.replace(run, trace=trace, loss=np.ones(4, np.float32)))


def read_all_of_raw(path: Path) -> None:
    Raw(path).verify()


FORMATS: dict[str, tuple[Callable, Callable, str]] = {  # with a dataset to tamper with
    "raw": (make_raw, read_all_of_raw, "y"),
    "embeddings": (make_embeddings, embeddings.read, "y"),
    "tasks": (make_tasks, read_benchmark, "task-1/train/rows"),
    "run": (make_run, read_run, "trace/verdict"),
}
EACH = pytest.mark.parametrize("form", FORMATS)


def outside(file: h5py.File, name: str) -> None:
    """The same values, in a file of its own."""
    values = file[name][...]
    stored = Path(file.filename).with_name("outside")
    stored.write_bytes(values.tobytes())
    del file[name]
    external = [(str(stored), 0, values.nbytes)]
    file.create_dataset(name, values.shape, values.dtype, external=external)


def virtual(file: h5py.File, name: str) -> None:
    values = file[name][...]
    other = Path(file.filename).with_name("other.h5")
    with h5py.File(other, "w") as there:
        there["values"] = values
    layout = h5py.VirtualLayout(values.shape, values.dtype)
    layout[...] = h5py.VirtualSource(str(other), "values", values.shape)
    del file[name]
    file.create_virtual_dataset(name, layout)


def elsewhere(file: h5py.File, name: str) -> None:
    other = Path(file.filename).with_name("other.h5")
    with h5py.File(other, "w") as there:
        there["values"] = file[name][...]
    put(file, name, h5py.ExternalLink(str(other), "/values"))


def put(file: h5py.File, name: str, value: object) -> None:
    del file[name]
    file[name] = value


def moved(file: h5py.File, name: str) -> None:
    file["kept"] = file[name]
    put(file, name, h5py.SoftLink("/kept"))


def long(file: h5py.File, name: str, length: int = 1 << 40) -> None:
    dtype = file[name].dtype
    del file[name]
    file.create_dataset(name, (length,), dtype)


def chunked(file: h5py.File, name: str) -> None:
    dtype = file[name].dtype
    del file[name]
    file.create_dataset(name, (1 << 33,), dtype, chunks=(1 << 20,), compression="gzip")


def as_group(file: h5py.File, name: str) -> None:
    del file[name]
    file.create_group(name)


LIES: dict[str, Callable[[h5py.File, str], None]] = {
    "missing": lambda file, name: file.__delitem__(name),
    "a group": as_group,
    "a named type": lambda file, name: put(file, name, np.dtype("int64")),
    "a scalar": lambda file, name: put(file, name, 3),
    "empty": lambda file, name: put(file, name, h5py.Empty("int64")),
    "text": lambda file, name: put(file, name, "text"),
    "of another type": lambda file, name: put(file, name, file[name][...].astype("float64")),
    "of another rank": lambda file, name: put(file, name, file[name][...][:, None]),
    "too long": long,
    "in chunks": chunked,
    "stored outside": outside,
    "virtual": virtual,
    "a link out of the file": elsewhere,
    "a soft link": moved,
    "a link in a circle": lambda file, name: put(file, name, h5py.SoftLink(f"/{name}")),
    "a link to nothing": lambda file, name: put(file, name, h5py.SoftLink("/nowhere")),
}


@EACH
@pytest.mark.parametrize("lie", LIES)
def test_a_dataset_that_lies_is_refused(tmp_path: Path, form: str, lie: str) -> None:
    make, read, name = FORMATS[form]
    path = tmp_path / "file.h5"
    make(path)
    read(path)
    with tampered(path) as file:
        LIES[lie](file, name)
    with pytest.raises(HCLError, match=r"Make it again with `hcl \w+`\.$") as caught:
        read(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: not a whole ")
    assert name in said
    assert "\n" not in said


TEXTS = {"raw": "classes", "embeddings": "classes", "tasks": "sources", "run": "settings"}


@EACH
@pytest.mark.parametrize(
    "value", ["[" * 100_000, "[" * 70 + "]" * 70, "{", 3, np.arange(3), h5py.Empty("f4"), b"\xff"]
)
def test_an_attribute_that_is_no_text_of_json_is_refused(tmp_path: Path, form: str, value) -> None:
    make, read, _ = FORMATS[form]
    path = tmp_path / "file.h5"
    make(path)
    with tampered(path) as file:
        del file.attrs[TEXTS[form]]
        file.attrs.create(TEXTS[form], value) if not isinstance(value, str) else _long_text(
            file, TEXTS[form], value
        )
    with pytest.raises(HCLError, match=r"Make it again with `hcl \w+`\.$"):
        read(path)


def _long_text(file: h5py.File, name: str, value: str) -> None:
    file.attrs.create(name, value, dtype=h5py.string_dtype())


@EACH
def test_a_file_that_was_changed_by_other_means_is_refused_before_it_is_read(
    tmp_path: Path, form: str, monkeypatch
) -> None:
    make, read, _ = FORMATS[form]
    path = tmp_path / "file.h5"
    make(path)
    with open(path, "r+b") as file:
        file.seek(100)
        file.write(b"!")
    monkeypatch.setattr(h5py, "File", None)
    with pytest.raises(HCLError, match="its bytes are not those that were written"):
        read(path)
    path.write_bytes(path.read_bytes()[:-7])
    monkeypatch.undo()
    make(path)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(HCLError, match="its end, the seal, is missing"):
        read(path)


@EACH
def test_a_pipe_is_not_waited_for(tmp_path: Path, form: str) -> None:
    path = tmp_path / "file.h5"
    os.mkfifo(path)
    with pytest.raises(HCLError, match="it is not a plain file"):
        FORMATS[form][1](path)


@EACH
def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path: Path, form: str) -> None:
    """What is read is what was written: in padding and the like a bit does not matter."""
    make, read, _ = FORMATS[form]
    path = tmp_path / "file.h5"
    make(path)
    good, known = path.read_bytes(), describe(form, path)
    chance = random.Random(form)
    refused = 0
    for _ in range(150):
        data = bytearray(good)
        place = chance.randrange(len(data))
        data[place] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        try:
            read(path)
        except HCLError:
            refused += 1
        else:
            assert describe(form, path) == known, f"a flipped bit at {place} goes unnoticed"
    assert refused > 100


def describe(form: str, path: Path) -> str:
    """All that a reader is told."""
    if form == "raw":
        raw = Raw(path)
        told = [raw.dataset, raw.source, raw.classes, raw.kind, raw.data, raw.y, raw.split]
        return "\n".join(str(one.tolist() if hasattr(one, "tolist") else one) for one in told)
    found = FORMATS[form][1](path)
    if form == "embeddings":
        return f"{found.x.tolist()} {found.y.tolist()} {found.split.tolist()} {found.attributes}"
    with np.printoptions(threshold=100_000):
        return repr(found)


@EACH
def test_a_changed_value_is_refused_though_the_seal_fits(tmp_path: Path, form: str) -> None:
    make, read, name = FORMATS[form]
    path = tmp_path / "file.h5"
    make(path)
    with tampered(path) as file:
        file[name][0] = 1 - file[name][0]
    with pytest.raises(HCLError, match="does not have the SHA-256 that it names"):
        read(path)


@pytest.fixture
def unsealed(tmp_path: Path, monkeypatch) -> Path:
    """An embedding file from before there was a seal."""
    monkeypatch.setattr(embeddings, "FORMAT", "hcl-embeddings/1")
    path = tmp_path / "file.h5"
    make_embeddings(path)
    os.truncate(path, path.stat().st_size - hdf5._SEAL_LENGTH)
    return path


def test_embeddings_from_before_there_was_a_seal_are_read(unsealed: Path) -> None:
    assert len(embeddings.read(unsealed).y) == 12


def endless(data: bytes) -> bytes:
    """The same file with a piece of its heap that is empty and of no length: HDF5 walks on it."""
    place = data.index(b"GCOL") + 16
    return data[:place] + bytes(16) + data[place + 16 :]


def test_an_older_file_over_which_hdf5_does_not_end(unsealed: Path, monkeypatch) -> None:
    monkeypatch.setattr(hdf5, "PATIENCE", 3.0)
    unsealed.write_bytes(endless(unsealed.read_bytes()))
    with in_time(60), pytest.raises(HCLError, match="HDF5 does not come to an end with it"):
        embeddings.read(unsealed)


def test_without_its_seal_a_newer_file_is_no_older_one(tmp_path: Path, monkeypatch) -> None:
    """The library never sees it: over this one it would read without end."""
    make_embeddings(tmp_path / "file.h5")
    data = bytearray(endless((tmp_path / "file.h5").read_bytes()))
    data[-60] = ord("!")
    (tmp_path / "file.h5").write_bytes(data)
    monkeypatch.setattr(h5py, "File", None)
    with pytest.raises(HCLError, match="its end, the seal, is missing or changed"):
        embeddings.read(tmp_path / "file.h5")
