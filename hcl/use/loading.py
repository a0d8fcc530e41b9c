"""Whatever a model file holds: the learner of a run, or a classifier that was saved from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hcl.estimator import HCLClassifier, HCLPlusClassifier
from hcl.model.model_file import read_about
from hcl.use import trained

CLASSIFIERS = {kind.__name__: kind for kind in (HCLClassifier, HCLPlusClassifier)}


def load(path: str | Path, weights: str = "auto", device: str = "auto") -> Any:
    """A ``Trained`` or a classifier, ready to answer and to go on learning.

    Args:
        path: the model file.
        weights: of a run's backbone, if images are to be seen; see ``hcl.use.trained.load``.
        device: where images are embedded.
    """
    kind = str(read_about(path).get("kind"))
    if kind in CLASSIFIERS:
        return CLASSIFIERS[kind].load(path)
    return trained.load(path, weights, device)
