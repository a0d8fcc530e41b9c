from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch

from hcl.errors import HCLError
from hcl.model.flows import FlowSettings
from hcl.model.hybrid import HybridModel, build_model
from hcl.model.model_file import load_model, save_model

SETTINGS = FlowSettings(couplings=3, hidden=8, hidden_layers=2)


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


def test_a_loaded_model_is_the_saved_one(tmp_path: Path) -> None:
    model = make_model()
    about = {"seed": 7, "method": "hcl-fr", "nested": {"b": [1, 2.5], "a": None}}
    save_model(tmp_path / "model.safetensors", model, about)
    loaded, loaded_about = load_model(tmp_path / "model.safetensors")
    assert loaded_about == about
    assert loaded.settings == SETTINGS
    assert loaded.latent.mean_scale == 2.0
    assert loaded.flow.shape == (5,)
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    assert torch.equal(loaded.log_likelihoods(x), model.log_likelihoods(x))
    generator = torch.Generator().manual_seed(0)
    assert loaded.add_task(generator) == 2  # and it goes on learning


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_file_has_the_mode_that_the_umask_gives(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        save_model(tmp_path / "model.safetensors", make_model(), {})
    finally:
        os.umask(before)
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_float64_model_stays_one(tmp_path: Path) -> None:
    model = make_model().double()
    save_model(tmp_path / "m", model, {})
    loaded, _ = load_model(tmp_path / "m")
    assert {p.dtype for p in loaded.parameters()} == {torch.float64}
    assert torch.equal(loaded.latent.means, model.latent.means)


def test_equal_models_give_equal_bytes(tmp_path: Path) -> None:
    for index in range(4):
        about = {"b": 1, "a": 2} if index % 2 else {"a": 2, "b": 1}
        save_model(tmp_path / f"{index}", make_model(), about)
    contents = [(tmp_path / f"{index}").read_bytes() for index in range(4)]
    assert len(set(contents)) == 1
    save_model(tmp_path / "other", make_model(seed=1), {"a": 2, "b": 1})
    assert (tmp_path / "other").read_bytes() != contents[0]


def test_the_header_is_one_key_of_sorted_json(tmp_path: Path) -> None:
    save_model(tmp_path / "m", make_model(), {"z": 1, "a": 2})
    with safetensors.safe_open(tmp_path / "m", framework="pt") as file:
        metadata = file.metadata()
    assert list(metadata) == ["hcl"]
    header = json.loads(metadata["hcl"])
    assert header["tasks"] == 2
    assert header["classes"] == 3
    assert list(header) == sorted(header)
    assert list(header["about"]) == ["a", "z"]


def foreign(path: Path) -> None:
    safetensors.torch.save_file({"weight": torch.zeros(3)}, path)


def truncated(path: Path) -> None:
    save_model(path, make_model(), {})
    path.write_bytes(path.read_bytes()[:-10])


def text(path: Path) -> None:
    path.write_text("not a model")


def other_format(path: Path) -> None:
    safetensors.torch.save_file(
        {"weight": torch.zeros(3)}, path, metadata={"hcl": json.dumps({"format": "hcl-model/9"})}
    )


def missing(path: Path) -> None:
    path.unlink(missing_ok=True)


def changed(path: Path, **changes: object) -> None:
    """A good file whose header says something else."""
    save_model(path, make_model(), {})
    with safetensors.safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["hcl"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    header.update(changes)
    safetensors.torch.save_file(tensors, path, metadata={"hcl": json.dumps(header)})


def too_narrow(path: Path) -> None:
    changed(path, flow={"couplings": 3, "hidden": 4, "hidden_layers": 2})


def without_means(path: Path) -> None:
    changed(path)
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    safetensors.torch.save_file({"weight": torch.zeros(3)}, path, metadata=metadata)


def bad_shape(path: Path) -> None:
    changed(path, shape=[1])


def unknown_setting(path: Path) -> None:
    changed(path, flow={"coupling": 3})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (foreign, "not a model of this program"),
        (truncated, "damaged"),
        (text, "damaged"),
        (other_format, "hcl-model/9"),
        (missing, "no such model file"),
        (too_narrow, "don't fit"),
        (without_means, "don't fit"),
        (bad_shape, "don't fit"),
        (unknown_setting, "flow.coupling is not a known key"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, spoil, message: str) -> None:
    path = tmp_path / "spoilt.safetensors"
    spoil(path)
    with pytest.raises(HCLError) as error:
        load_model(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_model_without_settings_is_not_saved(tmp_path: Path) -> None:
    model = make_model()
    with pytest.raises(ValueError, match="no settings"):
        save_model(tmp_path / "m", HybridModel(model.flow, model.latent), {})
    assert list(tmp_path.iterdir()) == []
