"""Continual learning with one normalizing flow and a latent Gaussian for each class of each task.

The path of the data, one room after the other, each named after its stage:

    fetch → extract → split → train → evaluate → report

The map: each room, and each module that stands by itself.

==============================  =========================================
``fetch``                       a data set into one raw file
``extract``                     images to embeddings, by a backbone
``split``                       embeddings to tasks, and their stream
``model``                       flow, latent Gaussians, losses: Eq. 1 to 3
``learn``                       methods, memories, detection: Sections 4.2, 4.3
``train``                       the loop that shows a stream to a learner
``sweep``                       all runs of the grid, on every core or a cluster
``detect``                      changes of task, found from ranks; one setting
``watch``                       the detector alone over a stream
``tune``                        settings compared on the validation part
``evaluate``                    runs to the paper's metrics
``report``                      tables, figures, the page
``studies``                     Figures 2 and S1
``use``                         a trained learner: answers, another day's learning
``serve``                       a model over HTTP
``estimator``                   scikit-learn's way to HCL and HCL+
``cluster``                     a Ray cluster, where one is named
``records``                     the files between the stages; no torch
``errors``, ``files``,          the ground, on which all others stand
``progress``, ``settings``
==============================  =========================================

Glossary: the paper's symbol and its one name in the code.

==============================  =========================================
f_θ, f_θ⁻¹                      ``flow(x)``, ``flow.inverse(z)``
f_θ^(k), the snapshot           ``snapshot``
μ_{y,t}                         ``means[t, y]``
S1, S2, S3                      ``log_px``, ``log_pz``, ``log_det``
λ, l                            ``threshold``, ``window``
α                               ``alpha``
a_{i,j}                         ``accuracy[i, j]``, task i after j tasks
L_GR, L_FR                      ``replay_loss``, ``functional_loss``
==============================  =========================================

``log_…`` is a natural logarithm, per sample, summed over features.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"
__all__ = ["HCLClassifier", "HCLPlusClassifier", "__version__", "embed", "load"]
_HOMES = {
    "HCLClassifier": "hcl.estimator",
    "HCLPlusClassifier": "hcl.estimator",
    "embed": "hcl.extract.embedding",
    "load": "hcl.use.loading",
}


def __getattr__(name: str) -> Any:
    """What is offered, when it is asked for: what it imports takes seconds."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
