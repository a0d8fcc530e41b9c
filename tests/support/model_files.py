"""A model file of a flow alone, as a run of a flow method leaves it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from hcl.model.hybrid import HybridModel
from hcl.model.model_file import write_model


def about_flow(model: HybridModel) -> dict[str, Any]:
    """What such a file says, as far as it is read from there."""
    assert model.settings is not None
    return {
        "settings": {
            "method": {"kind": "flow"},
            "flow": dataclasses.asdict(model.settings),
            "training": {"mean_scale": model.latent.mean_scale},
        },
        "shape": model.flow.shape,
        "num_classes": model.latent.num_classes,
    }


def save_flow(path: Path, model: HybridModel, **changes: Any) -> None:
    """Write the model; ``changes`` are laid over what the file says."""
    write_model(path, {**about_flow(model), **changes}, {"learner": {"model": model.state_dict()}})
