"""``make gpu-test`` where there is no GPU: it says so; what it compares is tried on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks import gpu_check
from tests.support.every_learner import job
from tests.support.fake_cuda import AnyGenerator

pytestmark = pytest.mark.slow


def test_without_a_gpu_it_says_so_in_one_line_and_fails(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main() == 1
    assert capsys.readouterr().out == "gpu-test: torch finds no GPU here, so nothing was checked.\n"


def test_a_failed_check_is_named_and_the_others_go_on(capsys):
    def fails() -> str:
        raise ValueError("a reason\nand more")

    assert gpu_check.run(iter([("one", fails), ("other", lambda: "well")])) == 1
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.split() == ["FAIL", "one", "a", "reason"]
    assert second.split() == ["ok", "other", "well"]
    assert last == "1 of 2 checks passed."


def test_every_learner_is_compared_watched_and_its_checks_have_names():
    names = [name for name, _ in gpu_check.checks("cuda")]
    assert len(set(names)) == len(names)
    for kind in ("losses of", "waits of"):
        assert {f"{kind} {name}" for name in gpu_check.EVERY} <= set(names)


@pytest.mark.parametrize("name", ["hcl-fr", "hcl-plus-ta"])
def test_the_comparison_finds_a_device_that_computes_something_else(name, monkeypatch):
    assert "100.0% of the answers" in gpu_check.same_losses(name, "cpu")
    real = gpu_check.job

    def other(name, *arguments):  # the second run, the GPU's, sees other values
        made = real(name, *arguments)
        monkeypatch.setattr(gpu_check, "job", wrong)
        return made

    def wrong(name, *arguments):
        made = real(name, *arguments)
        made.embeddings["blobs"].x[::2] *= 1.5
        return made

    monkeypatch.setattr(gpu_check, "job", other)
    with pytest.raises(gpu_check.Failed, match=r"apart|agree"):
        gpu_check.same_losses(name, "cpu")


def test_a_run_is_stopped_and_taken_up(monkeypatch):
    assert gpu_check.resumes("hcl-fr", "cpu") == "the same answers and losses as never stopped"
    learners = []

    def forgets(learner, state):
        learners.append(learner)

    monkeypatch.setattr("hcl.learn.flow.learner.FlowLearner.restore", forgets)
    with pytest.raises(gpu_check.Failed):
        gpu_check.resumes("hcl-fr", "cpu")
    assert len(learners) == 1


def test_embeddings_are_compared():
    assert gpu_check.same_embeddings("cpu").startswith("within 0e+00 of the CPU's")


def test_draws_are_those_of_the_cpu():
    """A generator elsewhere, here on torch's device without values, is replaced by its twin."""
    generator = AnyGenerator("meta")
    generator.manual_seed(3)
    with gpu_check.SameDraws() as draws:
        made = torch.rand(4, generator=generator, device="meta")
        torch.randint(5, (3,), generator=generator, device="meta")
    assert made.device.type == "meta"
    expected = torch.Generator().manual_seed(3)
    torch.rand(4, generator=expected)
    torch.randint(5, (3,), generator=expected)
    (twin,) = draws.twins.values()
    np.testing.assert_array_equal(twin.get_state(), expected.get_state())


def test_a_job_on_a_device_keeps_the_rest():
    made = gpu_check.on(job("er"), "cpu", checkpoint_every=4)
    assert made.training.device == "cpu"
    assert made.training.learning_rate == job("er").training.learning_rate
