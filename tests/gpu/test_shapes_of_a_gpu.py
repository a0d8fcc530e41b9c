"""Whole runs on a GPU that only knows shapes: nothing is on the wrong device, nobody waits."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NamedTuple

import pytest
import timm
import torch

from hcl.extract.backbones import Backbone, Transform, Weights
from hcl.extract.forward import Embedder
from hcl.learn.contract import Start
from hcl.model.hybrid import build_model
from hcl.train.loop import Job, build_learner, train_seed
from hcl.train.streams import Stream
from tests.support.every_learner import BATCHES, DETECTING, EPOCHS, IMAGE_FLOWS, TOLD, job
from tests.support.fake_cuda import CUDA, FakeGPU, fake_gpu

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor"),
]


class Step(NamedTuple):
    """What one batch cost."""

    changed: bool  # whether the learner went to another task
    looks: int
    uploads: int


def run(job: Job, gpu: FakeGPU, values=None) -> list[Step]:
    """The job's steps, each with what it waited for; ``values(n)`` is what the n-th one reads."""
    steps: list[Step] = []

    def build(job: Job, stream: Stream):
        learner = build_learner(job, stream)
        observe = learner.observe

        def watched(batch):
            assert batch.x.device.type == batch.y.device.type == "cuda"
            before, looks, uploads = learner.task, gpu.looks, gpu.uploads
            gpu.value = 1.0 if values is None else values(len(steps))
            seen = observe(batch)
            gpu.value = 1.0
            assert seen.loss is None or seen.loss.device.type == "cuda"
            changed = learner.task != before
            steps.append(Step(changed, gpu.looks - looks, gpu.uploads - uploads))
            return seen

        learner.observe = watched
        return learner

    train_seed(job, build=build)
    return steps


@pytest.mark.parametrize("name", [*TOLD, *IMAGE_FLOWS])
def test_a_learner_that_is_told_its_tasks_never_waits_within_one(name):
    with fake_gpu() as gpu:
        steps = run(job(name), gpu)
    once = ("hcl-plus-ridge", "hcl-plus-kernel", "joint")
    epochs = 1 if name in once else EPOCHS  # shown each sample once
    assert len(steps) == 4 * epochs * BATCHES // EPOCHS
    assert [n for n, step in enumerate(steps) if step.changed] == [
        segment * len(steps) // 4 for segment in range(4)
    ]
    assert {(s.looks, s.uploads) for s in steps if not s.changed} == {(0, 0)}
    assert max(s.looks for s in steps) <= 1


@pytest.mark.parametrize("name", DETECTING)
def test_a_learner_that_detects_its_tasks_looks_once_a_batch(name):
    with fake_gpu() as gpu:
        steps = run(job(name), gpu)
    assert len(steps) == 4 * BATCHES
    assert not any(step.changed for step in steps[1:])
    assert max(step.looks for step in steps) == 1
    assert max(step.uploads for step in steps[1:]) == 0


@pytest.mark.parametrize(("name", "most"), [("hcl-fr-ta", 3), ("hcl-gr-ta", 3)])
def test_a_change_that_is_detected_costs_a_few_looks(name, most):
    with fake_gpu() as gpu:  # statistics as before for five batches, then others
        steps = run(job(name), gpu, values=lambda n: 1.0 + n % 2 if n < 5 else 1e4)
    assert any(step.changed for step in steps[5:])
    assert max(step.looks for step in steps) == most


def test_losses_are_looked_at_once_for_many_steps():
    with fake_gpu() as gpu:
        steps = run(job("adam"), gpu)
        answers = 3 * 3 * 4  # class, task, pair; three tasks; after each of four segments
        beside = gpu.looks - sum(step.looks for step in steps) - answers
    fitting = 4  # of the scaling, once
    drawn = 1  # at the end, to be compared with samples
    assert beside - fitting - drawn == 4  # at the end of each segment


def test_mixed_devices_raise():
    with fake_gpu():
        on_gpu, on_cpu = torch.ones(3, device=CUDA), torch.ones(3)
        with pytest.raises(RuntimeError):
            on_gpu + on_cpu
        with pytest.raises(RuntimeError, match="__getitem__: tensors on cpu and cuda"):
            on_gpu[torch.tensor([0, 1])]
        with pytest.raises(RuntimeError, match="a generator on cuda, but values on cpu"):
            torch.rand(3, generator=torch.Generator("cuda"))


def test_first_weights_do_not_depend_on_the_device():
    class OnAGPU(torch.Generator):
        device = CUDA

    made = job("hcl-fr")
    seeds = (torch.Generator().manual_seed(3), OnAGPU().manual_seed(3))
    before = seeds[1].get_state()
    one, other = (build_model(made.flow, (64,), 2, seed).flow.weights for seed in seeds)
    assert torch.equal(one, other)
    assert one.abs().sum() > 0
    assert torch.equal(seeds[1].get_state(), before)  # what it would draw is another thing


def test_draws_are_made_where_samples_are_and_weights_on_the_cpu():
    with fake_gpu():
        start = Start((2,), 2, None, None, None, seed=1, device=CUDA, archive=None)
        assert start.generator("weights").device.type == "cpu"
        assert start.generator("draws").device.type == "cuda"
        assert start.generator("draws", on_cpu=True).device.type == "cpu"


@pytest.mark.parametrize("name", ["adam", "curl", "hcl-plus-ridge"])
def test_batches_go_up_from_pinned_memory(name):
    with fake_gpu() as gpu:
        run(job(name), gpu)
    assert gpu.uploads == (name == "hcl-plus-ridge")  # counts of pairs, when it draws at the end


def test_the_backbone_embeds_on_the_gpu_without_waiting():
    model = timm.create_model("tf_efficientnet_lite0", num_classes=0).eval()
    transform = Transform.of(model)
    small = dataclasses.replace(transform, height=32, width=32, crop_mode="border")
    with fake_gpu() as gpu, torch.no_grad():  # it can't copy a model that has values
        backbone = Backbone("lite0", model.to(CUDA), small, 1280, Weights(Path("none"), "none"))
        embedder = Embedder(backbone, CUDA, amp=False)
        before = gpu.looks, gpu.uploads
        for shape in ((3, 32, 32), (1, 28, 28), (3, 60, 40)):
            images = torch.zeros(2, *shape, dtype=torch.uint8).pin_memory()
            images = small.resize(images.to(CUDA, non_blocking=True))
            assert images.shape == (2, 3, 32, 32)
        embedding = embedder(images)
        assert (gpu.looks, gpu.uploads) == before
    assert embedding.shape == (2, 1280)
    assert embedding.device.type == "cuda"
