"""Methods' settings: a class for each kind, and one line for what a kind can't be."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import typing

import pytest

from hcl.detect.settings import CalibratedSettings
from hcl.errors import HCLError
from hcl.learn.closed_form.settings import NearestMeanMethod, RanPACMethod, StreamingLDAMethod
from hcl.learn.curl.settings import CurlMethod
from hcl.learn.flow.detection import DetectionSettings
from hcl.learn.flow.settings import (
    AllData,
    BufferSettings,
    FlowMethod,
    FunctionalSettings,
    GenerativeSettings,
    NoMemory,
)
from hcl.learn.kinds import AnyMethod
from hcl.learn.plus.settings import GaussianRule, LearnsAll, PlusMethod
from hcl.learn.settings import TrainingSettings, used_settings
from hcl.model.settings import FlowSettings
from hcl.settings import build, kind_of

KINDS = typing.get_args(AnyMethod)


def read(**values: object) -> AnyMethod:
    """A method as it stands in a parameter file under ``methods.m``."""
    return build(AnyMethod, values, "params.yaml", "m")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_names_the_module_that_builds_its_learner(kind):
    made = importlib.import_module(kind.learner).build
    first, second = inspect.signature(made).parameters.values()
    assert kind in typing.get_args(hint := typing.get_type_hints(made)[first.name]) or hint is kind
    assert second.name == "start"
    assert read(kind=kind_of(kind)) == kind()


def test_no_two_kinds_have_one_name():
    names = [kind_of(kind) for kind in KINDS]
    assert None not in names
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_all_that_the_training_loop_asks(kind):
    method = kind()
    assert method.detection is None
    for name in ("takes_images", "closed_form", "reads_flow", "sees_once"):
        assert isinstance(getattr(method, name), bool), name
    method.check(TrainingSettings())
    used = used_settings(method, FlowSettings(), TrainingSettings())
    assert used["method"] == dataclasses.asdict(method)
    assert ("flow" in used) == method.reads_flow
    assert ("training" in used) != method.closed_form


def test_what_a_parameter_file_says_is_what_is_built():
    memory = {"kind": "functional", "alpha": 5, "draws": "measured"}
    made = read(kind="flow", memory=memory, learning_rate=1e-3, detection={"window": 30})
    assert made == FlowMethod(
        memory=FunctionalSettings(alpha=5.0, draws="measured"),
        learning_rate=1e-3,
        detection=DetectionSettings(window=30),
    )
    made = read(kind="plus", rule={"kind": "gaussian"}, flow={"kind": "all"}, detection={})
    assert made == PlusMethod(rule=GaussianRule(), flow=LearnsAll(), detection=CalibratedSettings())


def test_a_method_is_task_agnostic_because_it_has_a_detection_section():
    for kind in ("flow", "plus"):
        assert read(kind=kind).detection is None
        assert read(kind=kind, detection={}).detection is not None


INERT = [  # a key that another kind has, and what the message says of it
    ({"kind": "flow", "alpha": 1}, "m.alpha is not a known key of kind flow."),
    ({"kind": "flow", "ridge": 1e-2}, "m.ridge is not a known key of kind flow."),
    ({"kind": "flow", "projections": 10}, "m.projections is not a known key of kind flow (did"),
    ({"kind": "flow", "tasks": "detected"}, "m.tasks is not a known key of kind flow."),
    ({"kind": "curl", "memory": {"kind": "none"}}, "m.memory is not a known key of kind curl."),
    ({"kind": "curl", "detection": {}}, "m.detection is not a known key of kind curl."),
    (
        {"kind": "curl", "learning_rate_decay": 1},
        "m.learning_rate_decay is not a known key",
    ),
    ({"kind": "ncm", "shrinkage": 0.1}, "m.shrinkage is not a known key of kind ncm."),
    ({"kind": "ncm", "learning_rate": 1}, "m.learning_rate is not a known key of kind ncm."),
    ({"kind": "slda", "ridge": 0.1}, "m.ridge is not a known key of kind slda."),
    ({"kind": "slda", "detection": {}}, "m.detection is not a known key of kind slda."),
    ({"kind": "ranpac", "shrinkage": 0.1}, "m.shrinkage is not a known key of kind ranpac."),
    ({"kind": "plus", "memory": {"kind": "all"}}, "m.memory is not a known key of kind plus."),
    ({"kind": "joint", "memory": {"kind": "all"}}, "m.memory is not a known key of kind joint."),
    ({"kind": "plus", "learning_rate": 1}, "m.learning_rate is not a known key of kind plus."),
]
INERT_MEMORY = [
    ({"kind": "none", "alpha": 1}, "m.memory.alpha is not a known key of kind none."),
    ({"kind": "all", "size": 10}, "m.memory.size is not a known key of kind all."),
    ({"kind": "buffer", "draws": "measured"}, "m.memory.draws is not a known key of kind buffer."),
    ({"kind": "buffer", "alpha": 1}, "m.memory.alpha is not a known key of kind buffer."),
    ({"kind": "generative", "alpha": 1}, "m.memory.alpha is not a known key of kind generative."),
    ({"kind": "functional", "weighing": "terms"}, "m.memory.weighing is not a known key of kind"),
    ({"kind": "functional", "size": 10}, "m.memory.size is not a known key of kind functional."),
]
INERT_PARTS = [
    ({"rule": {"kind": "ridge", "shrinkage": 1}}, "m.rule.shrinkage is not a known key of kind r"),
    ({"rule": {"kind": "gaussian", "penalty": 1}}, "m.rule.penalty is not a known key of kind g"),
    ({"flow": {"kind": "first", "alpha": 1}}, "m.flow.alpha is not a known key of kind first."),
    ({"detection": {"trim": 1}}, "m.detection.trim is not a known key"),
]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        *INERT,
        *(({"kind": "flow", "memory": memory}, said) for memory, said in INERT_MEMORY),
        *(({"kind": "plus", **parts}, said) for parts, said in INERT_PARTS),
    ],
)
def test_a_key_that_the_kind_never_reads_is_an_error_that_names_it(values, message):
    with pytest.raises(HCLError, match=re.escape(f"params.yaml: {message}")) as caught:
        read(**values)
    assert "Allowed: " in str(caught.value)


RATED = [  # every place where a method has rates of its own
    {"kind": "flow"},
    {"kind": "curl"},
    {"kind": "joint"},
    {"kind": "plus", "flow": {"kind": "first"}},
    {"kind": "plus", "flow": {"kind": "all"}},
]


@pytest.mark.parametrize("place", RATED)
@pytest.mark.parametrize(
    ("rate", "said"),
    [
        ({"learning_rate": 0}, "is 0; expected a number above 0, up to 10"),
        ({"learning_rate": -0.05}, "is -0.05; expected a number above 0, up to 10"),
        ({"learning_rate": 11}, "is 11; expected a number above 0, up to 10"),
        ({"weight_decay": -1}, "is -1; expected a number from 0 to 1,000"),
    ],
)
def test_a_rate_of_0_or_minus_1_is_refused_wherever_a_method_has_one(place, rate, said):
    values, said = {**place, **rate}, f"{next(iter(rate))}: {said}"
    if "flow" in place:
        values, said = {**place, "flow": {**place["flow"], **rate}}, f"flow.{said}"
    with pytest.raises(HCLError, match=f"^params.yaml: m.{re.escape(said)}"):
        read(**values)


def test_no_weight_decay_and_the_benchmark_s_own_are_not_the_same():
    assert read(kind="flow", weight_decay=0).weight_decay == 0
    assert read(kind="flow").weight_decay is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"memory": {"kind": "none"}}, "m.kind is missing; expected one of flow, curl, ncm, slda,"),
        ({"kind": "flw"}, "m.kind is 'flw' (did you mean 'flow'?); expected one of flow, curl,"),
        ({"kind": "vae"}, "m.kind is 'vae'; expected one of flow, curl, ncm, slda, ranpac, plus,"),
        ({"kind": "flow", "memory": "functional"}, "m.memory is 'functional'; expected a section"),
        (
            {"kind": "flow", "memory": {"kind": "functinal"}},
            "m.memory.kind is 'functinal' (did you mean 'functional'?); expected one of none, all,",
        ),
        ({"kind": "flow", "memory": {"alpha": 1}}, "m.memory.kind is missing; expected one of"),
        (
            {"kind": "flow", "memory": {"kind": "all"}, "detection": {}},
            "m.memory.kind: is all, which has to be told its tasks",
        ),
        (
            {"kind": "flow", "memory": {"kind": "functional", "alpha": -1.0}},
            "m.memory.alpha: is -1; expected a number from 0 to 1,000,000,000.",
        ),
        (
            {"kind": "flow", "memory": {"kind": "generative", "replay": 0}},
            "m.memory.replay: is 0; expected a whole number",
        ),
        (
            {"kind": "flow", "memory": {"kind": "functional", "replay": 0}},
            "m.memory.replay: is 0; expected a whole number",
        ),
        (
            {"kind": "flow", "memory": {"kind": "buffer", "size": 0}},
            "m.memory.size: is 0; expected a whole number from 1 to 1,000,000,000.",
        ),
        (
            {"kind": "flow", "learning_rate_decay": -1.0},
            "m.learning_rate_decay: is -1; expected a number from 0 to 1,000.",
        ),
        ({"kind": "flow", "detection": {"window": 1}}, "m.detection.window: is 1; expected at"),
        ({"kind": "ranpac", "projections": 0}, "m.projections: is 0; expected a whole number"),
        ({"kind": "ranpac", "ridge": 0.0}, "m.ridge: is 0; expected a number above 0, up to"),
        ({"kind": "slda", "shrinkage": 2.0}, "m.shrinkage: is 2; expected a number from 0 to 1."),
        ({"kind": "curl", "latents": 0}, "m.latents: is 0; expected a whole number"),
        ({"kind": "joint", "epochs": 0}, "m.epochs: is 0; expected a whole number"),
        ({"kind": "joint", "dropout": 1.0}, "m.dropout: is 1; expected a number from 0 to 0.99"),
        ({"kind": "joint", "smoothing": -0.1}, "m.smoothing: is -0.1; expected a number from"),
        ({"kind": "joint", "noise": -1.0}, "m.noise: is -1; expected a number from 0"),
        ({"kind": "joint", "power": 0.0}, "m.power: is 0; expected a number above 0"),
    ],
)
def test_impossible_methods_are_named(values, message):
    with pytest.raises(HCLError, match=re.escape(f"params.yaml: {message}")):
        read(**values)


def test_a_batch_that_trimming_would_empty_is_refused():
    method = read(kind="flow", detection={"trim": 4})
    method.check(TrainingSettings(batch_size=9))
    with pytest.raises(ValueError, match=r"^detection.trim: is 4 .* a batch of 8; expected 3 or"):
        method.check(TrainingSettings(batch_size=8))


def test_who_learns_by_sums_is_shown_each_sample_once_unless_it_has_to_notice_changes():
    for method in (NearestMeanMethod(), StreamingLDAMethod(), RanPACMethod(), PlusMethod()):
        assert method.sees_once
    for method in (
        PlusMethod(detection=CalibratedSettings()),
        PlusMethod(flow=LearnsAll()),
        CurlMethod(),
        *(FlowMethod(memory=memory()) for memory in (NoMemory, AllData, BufferSettings)),
        FlowMethod(memory=GenerativeSettings()),
    ):
        assert not method.sees_once
