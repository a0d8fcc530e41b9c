"""Every learner that may live on a GPU, on a stream of three tasks; the first comes back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hcl.detect.settings import CalibratedSettings
from hcl.learn.curl.settings import CurlMethod
from hcl.learn.flow.detection import DetectionSettings
from hcl.learn.flow.settings import (
    AllData,
    BufferSettings,
    FlowMethod,
    FunctionalSettings,
    GenerativeSettings,
)
from hcl.learn.joint.settings import JointMethod
from hcl.learn.plus.settings import (
    GaussianRule,
    LearnsAll,
    LearnsFirst,
    PlusMethod,
    RidgeRule,
)
from hcl.learn.settings import TrainingSettings
from hcl.model.settings import FlowSettings
from hcl.records.embeddings import Embeddings
from hcl.train.loop import Job
from tests.support.blobs import benchmark, blobs_in_64_dimensions

DETECTION = DetectionSettings(window=12, minimum=3)
CALIBRATED = CalibratedSettings()
FLOWS = {
    "adam": FlowMethod(),
    "mtl": FlowMethod(memory=AllData()),
    "er": FlowMethod(memory=BufferSettings(size=40)),
    "hcl-gr": FlowMethod(memory=GenerativeSettings()),
    "hcl-gr-measured": FlowMethod(memory=GenerativeSettings(draws="measured")),
    "hcl-fr": FlowMethod(memory=FunctionalSettings()),
    "hcl-fr-measured": FlowMethod(memory=FunctionalSettings(draws="measured")),
    "hcl-fr-fixed": FlowMethod(memory=FunctionalSettings(replay=48)),
}
TOLD = {
    **FLOWS,
    "joint": JointMethod(hidden=16, epochs=2, batch_size=32),
    "curl": CurlMethod(encoder=(16,), decoder=(16,), latents=4),
    "hcl-plus-ridge": PlusMethod(projections=20, rule=RidgeRule()),
    "hcl-plus-kernel": PlusMethod(projections=20, lift="kernel", rule=RidgeRule(penalty=1e-3)),
    "hcl-plus-first": PlusMethod(projections=20, rule=RidgeRule(), flow=LearnsFirst()),
    "hcl-plus-all": PlusMethod(projections=20, flow=LearnsAll(alpha=1.0), rule=GaussianRule()),
}
DETECTING = {
    "er-ta": FlowMethod(memory=BufferSettings(size=40), detection=DETECTION),
    "hcl-gr-ta": FlowMethod(memory=GenerativeSettings(), detection=DETECTION),
    "hcl-fr-ta": FlowMethod(memory=FunctionalSettings(), detection=DETECTION),
    "hcl-gr-auto": FlowMethod(memory=GenerativeSettings(), detection=CALIBRATED),
    "hcl-fr-auto": FlowMethod(memory=FunctionalSettings(), detection=CALIBRATED),
    "hcl-plus-ta": PlusMethod(projections=20, rule=RidgeRule(), detection=CALIBRATED),
    "hcl-plus-all-ta": PlusMethod(
        projections=20, rule=RidgeRule(), flow=LearnsAll(alpha=1.0), detection=CALIBRATED
    ),
}
MEASURED = {"hcl-plus": PlusMethod(projections=20)}  # looks at each block of samples
IMAGE_FLOWS = {
    "glow": FlowSettings(kind="glow", couplings=2, hidden_layers=1, hidden=8),
    "realnvp-image": FlowSettings(
        kind="realnvp-image", couplings=4, hidden_layers=1, hidden=8, scales=2
    ),
}
BATCH = 32
EPOCHS = 2
BATCHES = 3 * EPOCHS  # of each segment


def as_pixels(found: Embeddings) -> Embeddings:
    """64 features as the bytes of an image."""
    low, high = found.x.min(), found.x.max()
    x = np.rint((found.x - low) / (high - low) * 255).astype(np.uint8)
    return replace(found, x=x, attributes={**found.attributes, "pixels": "[1, 8, 8]"})


def job(name: str, epochs: int = EPOCHS) -> Job:
    """A run of a learner, or of HCL-FR with a flow on images of 8 × 8."""
    made = blobs_in_64_dimensions(3, 3 * BATCH, 20)
    embeddings, tasks = benchmark(made, (0, 1, 0, 2), epochs)
    flow = IMAGE_FLOWS.get(name, FlowSettings(couplings=4, hidden_layers=1, hidden=32))
    method = {**TOLD, **DETECTING, **MEASURED}.get(name, FLOWS["hcl-fr"])
    if name in IMAGE_FLOWS:
        embeddings = {dataset: as_pixels(found) for dataset, found in embeddings.items()}
    training = TrainingSettings(BATCH, learning_rate=2e-3)
    return Job(tasks, embeddings, name, method, flow, training, seed=5)
