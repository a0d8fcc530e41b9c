"""A model in one file without pickle: safetensors, with its settings in the header.

The header has one metadata key, ``hcl``, that holds JSON with sorted keys: with more than one the
order of the keys, and so the file's bytes, would differ from run to run.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from hcl.errors import HCLError
from hcl.files import canonical_json, replacing
from hcl.model.flows import FlowSettings
from hcl.model.hybrid import HybridModel, build_model
from hcl.settings import build

FORMAT = "hcl-model/1"


def save_model(path: str | Path, model: HybridModel, about: dict[str, Any]) -> None:
    """Write ``model``, and ``about`` it what JSON can say. Equal models give equal bytes."""
    if model.settings is None:
        raise ValueError("the model has no settings: build it with build_model to save it")
    header = {
        "format": FORMAT,
        "flow": dataclasses.asdict(model.settings),
        "shape": list(model.flow.shape),
        "classes": model.latent.num_classes,
        "tasks": model.latent.num_tasks,
        "mean_scale": model.latent.mean_scale,
        "about": about,
    }
    # A copy of each tensor: safetensors refuses views of shared memory.
    tensors = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in model.state_dict().items()
    }
    content = safetensors.torch.save(tensors, metadata={"hcl": canonical_json(header)})
    with replacing(path) as partial:
        partial.write_bytes(content)  # save_file would make a file that only its owner can read


def load_model(path: str | Path) -> tuple[HybridModel, dict[str, Any]]:
    """The model of a file, on the CPU, and what was said about it."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = (file.metadata() or {}).get("hcl", "{}")
            header = json.loads(metadata)
            if header.get("format") != FORMAT:
                raise HCLError(
                    f"{path}: not a model of this program (format {header.get('format')!r}, "
                    f"expected {FORMAT!r}). Train it again."
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise HCLError(f"{path}: no such model file.") from None
    except (OSError, safetensors.SafetensorError, json.JSONDecodeError) as error:
        raise HCLError(f"{path}: not a model file, or damaged ({error}).") from error
    try:
        model = build_model(
            build(FlowSettings, header["flow"], path, "flow"),
            tuple(header["shape"]),
            header["classes"],
            torch.Generator(),
            header["mean_scale"],
            only_seen="latent.seen" in tensors,
        )
        if model.latent.seen is not None:
            model.latent.seen = torch.empty(tensors["latent.seen"].shape, dtype=torch.bool)
        model.latent.means = torch.empty(header["tasks"], header["classes"], model.flow.size)
        model.to(tensors["latent.means"].dtype).load_state_dict(tensors)
        return model, header["about"]
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).replace("\n", " ")
        raise HCLError(f"{path}: its weights don't fit its settings ({reason}).") from error
