"""What would need more memory than there is says so before it starts, and what to lower."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import pytest

from hcl.errors import HCLError
from hcl.estimator import HCLClassifier, HCLPlusClassifier
from hcl.learn.closed_form.settings import RanPACMethod
from hcl.learn.curl.settings import CurlMethod
from hcl.learn.flow.settings import FlowMethod
from hcl.learn.plus.settings import LearnsFirst, PlusMethod
from hcl.model.settings import FlowSettings
from hcl.train.loop import train_seed
from tests.support.every_learner import job

LARGE = FlowSettings(couplings=1_000, hidden_layers=100, hidden=65_536)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (FlowMethod(), "such a flow would need about .* Lower flow.hidden or flow.couplings"),
        (PlusMethod(flow=LearnsFirst()), "such a flow would need about .* Lower flow.hidden"),
        (PlusMethod(projections=1_000_000), "1,000,000 random features would need about .* Lower"),
        (RanPACMethod(projections=1_000_000), "features would need about .* Lower projections"),
        (CurlMethod(encoder=(65_536,) * 9), "such an autoencoder would need about .* encoder"),
    ],
)
def test_more_than_there_is(method: Any, said: str) -> None:
    start = time.process_time()
    with pytest.raises(HCLError, match=rf"{said}"):
        train_seed(dataclasses.replace(job("adam"), method=method, flow=LARGE))
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("classifier", "said"),
    [
        (HCLPlusClassifier(projections=1_000_000), "1,000,000 random features would need about"),
        (HCLClassifier(hidden=65_536, couplings=100), "such a flow would need about"),
    ],
    ids=["plus", "flow"],
)
def test_a_classifier_that_is_too_large(classifier: Any, said: str) -> None:
    x = np.random.default_rng(0).normal(size=(64, 8))
    with pytest.raises(HCLError, match=said):
        classifier.partial_fit(x, np.arange(64) % 2)


def test_an_image_flow_that_is_too_large() -> None:
    made = job("glow")
    large = dataclasses.replace(made.flow, hidden=65_536, hidden_layers=100)
    with pytest.raises(HCLError, match="such a flow would need about"):
        train_seed(dataclasses.replace(made, flow=large))
