"""Model files of every kind of learner, trained in a second on blobs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from hcl.learn.closed_form.settings import NearestMeanMethod, RanPACMethod, StreamingLDAMethod
from hcl.train.loop import Job, train_seed
from hcl.train.machine import one_thread
from hcl.train.saving import about_run, write_learner
from tests.support import every_learner

CLOSED_FORMS = {
    "ncm": NearestMeanMethod(),
    "slda": StreamingLDAMethod(),
    "ranpac": RanPACMethod(projections=50),
}
NAMES = ("ash", "birch", "cedar", "dogwood", "elm", "fir")
TOLD = (*every_learner.TOLD, *CLOSED_FORMS)
DETECTING = tuple(every_learner.DETECTING)
ON_IMAGES = tuple(every_learner.IMAGE_FLOWS)


def job(name: str) -> Job:
    """A run on three tasks of two classes with names, in 64 dimensions; the first comes back."""
    made = every_learner.job(name)
    if name in CLOSED_FORMS:
        made = dataclasses.replace(made, method=CLOSED_FORMS[name])
    (dataset, found) = next(iter(made.embeddings.items()))
    attributes = {**found.attributes, "classes": json.dumps(NAMES)}
    named = dataclasses.replace(found, attributes=attributes)
    return dataclasses.replace(made, embeddings={dataset: named})


def train_model(path: Path, name: str) -> Job:
    """Train a learner, and leave it in a model file."""
    made = job(name)
    with one_thread():
        run, learner = train_seed(made)
        write_learner(path, about_run(made, run, learner), learner)
    return made
