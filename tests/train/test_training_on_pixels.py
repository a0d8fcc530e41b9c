"""A benchmark on pixels: bytes stay bytes, noise is fresh, and every method learns from them."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from hcl.errors import HCLError
from hcl.learn.closed_form.settings import NearestMeanMethod, RanPACMethod, StreamingLDAMethod
from hcl.learn.contract import Batch, TaskBatch
from hcl.learn.curl.settings import CurlMethod
from hcl.learn.flow.detection import DetectionSettings
from hcl.learn.flow.settings import (
    AllData,
    BufferSettings,
    FlowMethod,
    FunctionalSettings,
    GenerativeSettings,
)
from hcl.learn.plus.settings import PlusMethod
from hcl.learn.settings import TrainingSettings
from hcl.model.settings import FlowSettings
from hcl.records.runs import read_run, write_run
from hcl.records.tasks import Benchmark
from hcl.train.jobs import train_into
from hcl.train.loop import DRAWN, Job, build_learner, train_seed
from hcl.train.store import Entry
from hcl.train.streams import Stream, check_sources
from tests.support.blobs import benchmark, blobs_in_64_dimensions
from tests.support.digits import SHAPE, pixel_benchmark

FLOW = FlowSettings(kind="glow", couplings=4, hidden_layers=1, hidden=8, scales=2)
TRAINING = TrainingSettings(learning_rate=4e-3)
DETECTION = DetectionSettings(window=12, minimum=5, threshold=8)
METHODS = {
    "adam": FlowMethod(),
    "mtl": FlowMethod(memory=AllData()),
    "er": FlowMethod(memory=BufferSettings(size=30)),
    "hcl-gr": FlowMethod(memory=GenerativeSettings()),
    "hcl-fr": FlowMethod(memory=FunctionalSettings(alpha=1.0)),
    "hcl-gr-ta": FlowMethod(memory=GenerativeSettings(), detection=DETECTION),
    "hcl-fr-ta": FlowMethod(memory=FunctionalSettings(alpha=1.0), detection=DETECTION),
    "curl": CurlMethod(encoder=(32,), decoder=(32,), latents=4, likelihood="bernoulli"),
    "ncm": NearestMeanMethod(),
    "slda": StreamingLDAMethod(),
    "ranpac": RanPACMethod(projections=50),
    "hcl-plus": PlusMethod(projections=30),
}
CLOSED = ("ncm", "slda", "ranpac", "hcl-plus")
EMBEDDINGS, TASKS = pixel_benchmark(epochs=8)
ONCE = pixel_benchmark()[1]


def job(name: str, seed: int = 0, flow: FlowSettings = FLOW, tasks: Benchmark = TASKS) -> Job:
    return Job(tasks, EMBEDDINGS, name, METHODS[name], flow, TRAINING, seed)


def stream(images: bool = True) -> Stream:
    return Stream(
        TASKS, EMBEDDINGS, batch_size=32, seed=0, device=torch.device("cpu"), images=images
    )


@pytest.mark.parametrize("name", METHODS)
def test_every_method_learns_from_pixels(name):
    run, _ = train_seed(job(name))
    sizes = np.cumsum([0, *(len(task.test.y) for task in TASKS.tasks)])
    last = slice(sizes[-2], sizes[-1])
    assert (run.predicted_class[-1, last] == TASKS.tasks[-1].test.y).mean() > 0.8
    if name in CLOSED and name != "hcl-plus":
        assert run.samples is None
        return
    tasks = 1 if name == "curl" else len(run.added_in)
    assert run.samples.dtype == np.uint8
    assert run.samples.shape == (2, tasks, 2, DRAWN, *SHAPE)
    assert run.samples[0, 0].any()
    if tasks > 1:
        assert not run.samples[0, -1].any()  # it did not know the second task yet


@pytest.mark.parametrize("name", ["hcl-fr", "er", "curl"])
def test_the_same_seed_gives_the_same_bytes(name, tmp_path):
    for folder in ("one", "two"):
        train_into(job(name, tasks=ONCE), tmp_path / folder)
    one, two = (Entry(tmp_path / folder).run for folder in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    assert read_run(one).samples.shape[-3:] == SHAPE
    other, _ = train_seed(job(name, seed=1, tasks=ONCE))
    write_run(tmp_path / "other", other)
    assert (tmp_path / "other").read_bytes() != one.read_bytes()


def test_drawing_pictures_moves_no_other_random_numbers(monkeypatch):
    with_them, _ = train_seed(job("hcl-gr", tasks=ONCE))
    monkeypatch.setattr("hcl.train.loop.DRAWN", 1)
    with_fewer, _ = train_seed(job("hcl-gr", tasks=ONCE))
    assert with_fewer.samples.shape[3] == 1
    np.testing.assert_array_equal(with_them.loss, with_fewer.loss)


def test_bytes_stay_bytes_in_batches_and_in_the_buffer():
    batch = next(iter(stream().batches(0)))
    assert batch.x.dtype == torch.uint8
    assert batch.x.shape[1:] == SHAPE
    _, learner = train_seed(job("er", tasks=ONCE))
    assert [x.dtype for x in learner.memory.reservoirs.x] == [torch.uint8] * 2
    assert learner.memory.draw().x.dtype == torch.uint8


def test_a_method_on_vectors_sees_values_from_0_to_1():
    flat = next(iter(stream(images=False).batches(0))).x
    assert flat.dtype == torch.float32
    assert flat.shape[1:] == (64,)
    assert (flat.min(), flat.max()) == (0, 1)
    whole = next(iter(stream().batches(0))).x
    torch.testing.assert_close(255 * flat, whole.flatten(1).float())


def watched(learner, monkeypatch):
    """What the flow of ``learner`` is shown from now on."""
    shown = []
    flow = learner.model.flow
    real = type(flow).forward

    def forward(self, x):
        shown.append(x.detach().clone())
        return real(self, x)

    monkeypatch.setattr(type(flow), "forward", forward)
    return shown


@pytest.mark.parametrize("name", ["mtl", "er"])
def test_noise_is_fresh_whenever_a_training_sample_is_shown(name, monkeypatch):
    """For the batch, and for bytes that are shown again beside it."""
    samples = stream()
    learner = build_learner(job(name), samples)
    first, second = (next(iter(samples.batches(segment))) for segment in (0, 1))
    learner.observe(first)
    learner.observe(second)  # from here on the first task is replayed
    shown = watched(learner, monkeypatch)
    for _ in range(2):
        learner.observe(second)
    one, two = (x[: len(second.x)] for x in shown)
    torch.testing.assert_close(one.floor(), second.x.float())
    torch.testing.assert_close(two.floor(), second.x.float())
    assert not torch.equal(one, two)
    replayed = shown[0][len(second.x) :]
    assert len(replayed) == 32
    assert 0.4 < (replayed - replayed.floor()).mean() < 0.6


def test_a_second_look_after_a_verdict_draws_noise_anew(monkeypatch):
    samples = stream()
    learner = build_learner(job("hcl-fr-ta"), samples)
    batches = list(samples.batches(0))
    for batch in batches:
        learner.observe(Batch(batch.x, batch.y))
    strange = Batch(255 - batches[0].x, batches[0].y)
    shown = watched(learner, monkeypatch)
    assert learner.observe(strange).evidence.verdict
    n = len(strange.x)
    assert not torch.equal(shown[0][:n], shown[1][:n])


def test_answers_repeat_and_come_from_the_middle_of_a_byte(monkeypatch):
    samples = stream()
    learner = build_learner(job("adam"), samples)
    batch = next(iter(samples.batches(0)))
    learner.observe(TaskBatch(*batch))
    state = learner.generator.get_state()
    shown = watched(learner, monkeypatch)
    one, two = learner.predict(batch.x), learner.predict(batch.x)
    np.testing.assert_array_equal(one[:3], two[:3])
    torch.testing.assert_close(shown[0], batch.x + 0.5)
    assert torch.equal(learner.generator.get_state(), state)


def test_a_flow_on_vectors_and_pixels_don_t_fit():
    with pytest.raises(HCLError, match=r"pixels: flow.kind is realnvp.*\[1, 8, 8\].*glow"):
        train_seed(job("adam", flow=FlowSettings()))
    embeddings, tasks = benchmark(blobs_in_64_dimensions(2, 32, 10))
    with pytest.raises(HCLError, match=r"flow.kind is glow.*vectors of 64 .*realnvp"):
        train_seed(Job(tasks, embeddings, "adam", METHODS["adam"], FLOW, TRAINING, seed=0))
    with pytest.raises(HCLError, match="bernoulli, for values from 0 to 1"):
        train_seed(Job(tasks, embeddings, "curl", METHODS["curl"], FLOW, TRAINING, seed=0))


def test_data_sets_of_one_benchmark_are_seen_alike():
    here = EMBEDDINGS["digits-8"]
    flat = {k: v for k, v in here.attributes.items() if k != "pixels"}
    two = dataclasses.replace(
        TASKS, sources=(*TASKS.sources, dataclasses.replace(TASKS.sources[0], dataset="other"))
    )
    wide = here.attributes | {"pixels": json.dumps([1, 4, 16])}
    for attributes, said in ((flat, "a backbone"), (wide, r"\[1, 4, 16\]")):
        other = dataclasses.replace(here, attributes=attributes)
        with pytest.raises(HCLError, match=f"digits-8 .*1, 8, 8.*other {said}.*pixels"):
            check_sources(two, {"digits-8": here, "other": other})
