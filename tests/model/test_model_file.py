"""The model file: what goes in comes out, equal contents are equal bytes, a fault is noticed."""

from __future__ import annotations

import json
import math
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch

from hcl.errors import HCLError
from hcl.model import model_file
from hcl.model.flows import FlowSettings
from hcl.model.hybrid import HybridModel, build_model
from hcl.model.model_file import (
    FORMAT,
    hybrid_model,
    read_about,
    read_model,
    write_model,
)
from tests.support.model_files import save_flow

SETTINGS = FlowSettings(couplings=3, hidden=8, hidden_layers=2)


def state() -> dict[str, Any]:
    """One of everything that a learner's state may hold."""
    shared = torch.arange(6.0)
    return {
        "task": -1,
        "evidence": 0.1,
        "bounds": [math.inf, -math.inf, math.nan],
        "flags": (True, None, "text"),
        "given": [],
        "nested": {"deep": [{"list": [(1, torch.tensor([1.5]))]}]},
        "by number": {0: torch.zeros(2), 10: torch.ones(2)},
        "0": {"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}},
        "by columns": torch.arange(6.0).view(2, 3).T,
        "images": torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "view": shared[::2],
        "also": shared[:3],
        "scalar": torch.tensor(3.0),
        "empty": torch.zeros(0, 4),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "mask": torch.tensor([True, False]),
        "double": torch.tensor([1 / 3], dtype=torch.float64),
        "numpy": np.arange(6, dtype=np.int16).reshape(2, 3).T,
        "one number": np.float64(1 / 3),
        "one count": np.int64(2**60),
        "labels": np.array(["köter", "cat"]),
        "objects": np.array(["a", "long name"], dtype=object),
    }


def equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other or (one != one and other != other)


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    about = {"seed": 7, "nested": {"b": [1, 2.5], "a": None}}
    write_model(tmp_path / "m", about, state())
    found = read_model(tmp_path / "m")
    assert found.about == about
    assert equal(found.state, state())
    assert not equal(found.state, {**state(), "task": 0})
    assert read_about(tmp_path / "m") == about


def test_tensors_lie_in_memory_as_they_did(tmp_path: Path) -> None:
    write_model(tmp_path / "m", {}, state())
    found = read_model(tmp_path / "m").state
    assert found["by columns"].stride() == (1, 3)
    assert found["images"].stride() == state()["images"].stride()
    assert found["view"].stride() == (1,)


def test_equal_contents_give_equal_bytes(tmp_path: Path) -> None:
    for index in range(4):
        about = {"b": 1, "a": 2} if index % 2 else {"a": 2, "b": 1}
        write_model(tmp_path / f"{index}", about, state())
    contents = {(tmp_path / f"{index}").read_bytes() for index in range(4)}
    assert len(contents) == 1
    write_model(tmp_path / "again", {"a": 2, "b": 1}, read_model(tmp_path / "0").state)
    assert (tmp_path / "again").read_bytes() in contents
    write_model(tmp_path / "other", {"a": 2, "b": 1}, {**state(), "evidence": 0.2})
    assert (tmp_path / "other").read_bytes() not in contents


def test_the_header_is_one_key_of_sorted_json(tmp_path: Path) -> None:
    write_model(tmp_path / "m", {"z": 1, "a": 2}, state())
    with safetensors.safe_open(tmp_path / "m", framework="pt") as file:
        metadata = file.metadata()
        assert "nested.deep.0.list.0.1" in file.keys()  # noqa: SIM118
    assert list(metadata) == ["hcl"]
    header = json.loads(metadata["hcl"])
    assert header["format"] == FORMAT
    assert list(header) == sorted(header)
    assert list(header["about"]) == ["a", "z"]


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_file_has_the_mode_that_the_umask_gives(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_model(tmp_path / "model.safetensors", {}, {})
    finally:
        os.umask(before)
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, {2.5: 1}]}, "a.1: the key 2.5"),
        ({"a": {"b": object()}}, "a.b: a model file can't hold a object"),
        ({"a": np.array([1, "x"], dtype=object)}, "a: an array of objects"),
        ({"a": {1, 2}}, "a: a model file can't hold a set"),
    ],
)
def test_what_can_not_be_held_is_refused_and_leaves_no_file(
    tmp_path: Path, value: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        write_model(tmp_path / "m", {}, value)
    assert list(tmp_path.iterdir()) == []


def test_a_state_without_end_or_without_bound_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="more than 32 levels"):
        write_model(tmp_path / "m", {}, endless)
    monkeypatch.setattr(model_file, "LARGEST_HEADER", 1000)
    with pytest.raises(ValueError, match="keep arrays as tensors"):
        write_model(tmp_path / "m", {}, list(range(1000)))
    assert list(tmp_path.iterdir()) == []


# Files that are not what they should be


def make_model(seed: int = 0) -> HybridModel:
    generator = torch.Generator().manual_seed(seed)
    model = build_model(SETTINGS, (5,), 3, generator, mean_scale=2.0)
    model.add_task(generator)
    model.add_task(generator)
    model.flow.initialise(3 + 2 * torch.randn(20, 5, generator=generator))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def good(path: Path) -> bytes:
    write_model(path, {"seed": 1}, {"learner": {"a": torch.arange(4.0)}, "b": 1})
    return path.read_bytes()


def foreign(path: Path) -> None:
    safetensors.torch.save_file({"weight": torch.zeros(3)}, path)


def truncated(path: Path) -> None:
    path.write_bytes(good(path)[:-3])


def cut_in_the_header(path: Path) -> None:
    path.write_bytes(good(path)[:40])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def text(path: Path) -> None:
    path.write_text("not a model")


def of_version(version: int, path: Path) -> None:
    header = {"format": f"hcl-model/{version}"}
    metadata = {"hcl": json.dumps(header)}
    safetensors.torch.save_file({"weight": torch.zeros(3)}, path, metadata=metadata)


def older(path: Path) -> None:
    of_version(1, path)


def newer(path: Path) -> None:
    of_version(9, path)


def missing(path: Path) -> None:
    path.unlink(missing_ok=True)


def folder(path: Path) -> None:
    path.mkdir()


def one_bit_of_a_tensor(path: Path) -> None:
    data = bytearray(good(path))
    data[-1] ^= 1
    path.write_bytes(data)


def one_number_of_the_header(path: Path) -> None:
    data = good(path)
    assert data.count(b'\\"seed\\":1') == 1
    path.write_bytes(data.replace(b'\\"seed\\":1', b'\\"seed\\":2'))


def announcing_a_huge_header(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 1 << 60) + b"{}")


def with_a_huge_header(path: Path) -> None:
    size = model_file.LARGEST_HEADER + 1
    path.write_bytes(struct.pack("<Q", size) + b" " * size)


def deep_json(path: Path) -> None:
    nested = "[" * 100_000
    table = json.dumps({"__metadata__": {"hcl": nested}}).encode()
    path.write_bytes(struct.pack("<Q", len(table)) + table)


def without_about(path: Path) -> None:
    metadata = {"hcl": json.dumps({"format": FORMAT, "state": None})}
    safetensors.torch.save_file({}, path, metadata=metadata)


FAULTS = [
    (foreign, "not a model of this program"),
    (truncated, "damaged"),
    (cut_in_the_header, "damaged"),
    (empty, "damaged"),
    (text, "damaged"),
    (older, "of another version of this program (format 'hcl-model/1'"),
    (newer, "hcl-model/9"),
    (missing, "no such model file"),
    (folder, "can't be read"),
    (one_bit_of_a_tensor, "SHA-256"),
    (one_number_of_the_header, "SHA-256"),
    (announcing_a_huge_header, "damaged"),
    (with_a_huge_header, "more than"),
    (deep_json, "not JSON"),
    (without_about, "lacks about"),
]


@pytest.mark.parametrize(("spoil", "message"), FAULTS)
def test_a_bad_file_is_named(tmp_path: Path, spoil: Any, message: str) -> None:
    path = tmp_path / "spoilt.safetensors"
    spoil(path)
    with pytest.raises(HCLError) as error:
        read_model(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_every_byte_that_is_changed_is_noticed(tmp_path: Path) -> None:
    data = good(tmp_path / "m")
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        (tmp_path / "m").write_bytes(changed)
        with pytest.raises(HCLError):
            read_model(tmp_path / "m")


# A flow out of the file of its learner


def test_a_flow_that_was_read_is_the_saved_one(tmp_path: Path) -> None:
    model = make_model()
    save_flow(tmp_path / "m", model)
    loaded = hybrid_model(read_model(tmp_path / "m"), tmp_path / "m")
    assert loaded.settings == SETTINGS
    assert loaded.latent.mean_scale == 2.0
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    assert torch.equal(loaded.log_likelihoods(x), model.log_likelihoods(x))
    assert loaded.add_task(torch.Generator().manual_seed(0)) == 2  # and it goes on learning


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": [1]}, "don't fit"),
        ({"num_classes": 2}, "don't fit"),
        ({"settings": {"flow": {"coupling": 3}, "training": {"mean_scale": 1.0}}}, "not a known"),
        ({"settings": {"flow": {"hidden": 4}, "training": {"mean_scale": 1.0}}}, "don't fit"),
        ({"settings": {}}, "don't fit"),
    ],
)
def test_a_flow_whose_weights_do_not_fit_is_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    save_flow(tmp_path / "m", make_model(), **changes)
    with pytest.raises(HCLError, match=message) as error:
        hybrid_model(read_model(tmp_path / "m"), tmp_path / "m")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("read", [read_model, read_about])
def test_what_is_no_plain_file_is_not_waited_for(tmp_path: Path, read: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(HCLError, match="not a plain file"):
            read(path)
