"""A run that is killed at random points ends with the same bytes as one never stopped."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from hcl.detect.settings import CalibratedSettings
from hcl.learn.curl.settings import CurlMethod
from hcl.learn.flow.detection import DetectionSettings
from hcl.learn.flow.settings import AllData, BufferSettings, FlowMethod, FunctionalSettings
from hcl.learn.plus.settings import LearnsAll, PlusMethod
from hcl.learn.settings import TrainingSettings
from hcl.model.settings import FlowSettings
from hcl.records.runs import read_run
from hcl.train.jobs import train_into
from hcl.train.loop import Job
from hcl.train.store import Entry
from tests.support.blobs import benchmark, blobs_in_64_dimensions
from tests.support.digits import pixel_benchmark
from tests.support.held import hold

pytestmark = pytest.mark.slow

METHODS = {
    "hcl-fr": FlowMethod(memory=FunctionalSettings()),
    "hcl-fr-ta": FlowMethod(
        memory=FunctionalSettings(), detection=DetectionSettings(window=12, minimum=5)
    ),
    "hcl-plus-ta": PlusMethod(
        flow=LearnsAll(alpha=1.0), projections=20, detection=CalibratedSettings()
    ),
    "hcl-plus-kernel-ta": PlusMethod(lift="kernel", projections=20, detection=CalibratedSettings()),
    "hcl-fr-auto": FlowMethod(memory=FunctionalSettings(), detection=CalibratedSettings()),
    "hcl-fr-measured": FlowMethod(memory=FunctionalSettings(draws="measured")),
    "er": FlowMethod(memory=BufferSettings(size=30)),
    "mtl": FlowMethod(memory=AllData()),
    "curl": CurlMethod(encoder=(16,), decoder=(16,), latents=4),
}
KILLS = 3
HELD = 4  # new checkpoints of the 14 or more that a run may write before it waits to be killed


def make_job(name: str) -> Job:
    embeddings, tasks = benchmark(blobs_in_64_dimensions(3, 160, 20), (0, 1, 0, 2), epochs=5)
    flow = FlowSettings(couplings=4, hidden_layers=1, hidden=32)
    training = TrainingSettings(learning_rate=2e-3, checkpoint_every=4, save_model=True)
    return Job(tasks, embeddings, name, METHODS[name], flow, training, seed=5)


def start(job: Job, folder: Path, target: Any = train_into) -> multiprocessing.Process:
    """A real process; forked, because torch is imported here already."""
    process = multiprocessing.get_context("fork").Process(target=target, args=(job, folder))
    process.start()
    return process


def train_for_a_while(job: Job, folder: Path) -> None:
    """However fast the machine, the run is not finished before it is killed."""
    hold(pytest.MonkeyPatch(), HELD)
    train_into(job, folder)


def kill_after_a_new_checkpoint(job: Job, folder: Path, delay: float) -> bool:
    """Let the run come past its next checkpoint and kill it; whether it was caught unfinished."""
    checkpoint = Entry(folder).checkpoint
    before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
    process = start(job, folder, train_for_a_while)
    while process.is_alive():
        if checkpoint.exists() and checkpoint.stat().st_mtime_ns != before:
            time.sleep(delay)
            break
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    return process.exitcode == -signal.SIGKILL


def kill_and_go_on(job: Job, name: str, tmp_path: Path) -> Entry:
    """A run that was killed a few times, and ended with the bytes of one that never was."""
    whole, stopped = Entry(tmp_path / "whole"), Entry(tmp_path / "stopped")
    process = start(job, whole.folder)
    process.join()
    assert process.exitcode == 0
    chance = random.Random(name)
    for _ in range(KILLS):
        assert kill_after_a_new_checkpoint(job, stopped.folder, chance.uniform(0.0, 0.05))
        assert stopped.checkpoint.exists()
        assert not stopped.is_finished
    process = start(job, stopped.folder)
    process.join()
    assert process.exitcode == 0
    assert stopped.run.read_bytes() == whole.run.read_bytes()
    if name not in ("curl", "hcl-plus-ta", "hcl-plus-kernel-ta"):
        assert stopped.model.read_bytes() == whole.model.read_bytes()
    assert not stopped.checkpoint.exists()
    return stopped


@pytest.mark.parametrize("name", METHODS)
def test_a_killed_run_ends_with_the_same_bytes(name, tmp_path):
    stopped = kill_and_go_on(make_job(name), name, tmp_path)
    if name not in (
        "hcl-plus-ta",
        "hcl-plus-kernel-ta",
        "hcl-fr-auto",
    ):  # which let batches under suspicion wait
        assert len(read_run(stopped.run).loss) == 100
    if name.endswith("-ta"):
        assert read_run(stopped.run).trace.verdict.any()


@pytest.mark.parametrize("name", ["er", "hcl-fr"])
def test_a_killed_run_on_pixels_ends_with_the_same_bytes(name, tmp_path):
    """The noise goes on where it was, ER's bytes are there again, and so are the samples."""
    embeddings, tasks = pixel_benchmark(epochs=3)
    flow = FlowSettings(kind="glow", couplings=2, hidden_layers=1, hidden=4)
    training = TrainingSettings(learning_rate=2e-3, checkpoint_every=4, save_model=True)
    job = Job(tasks, embeddings, name, METHODS[name], flow, training, seed=5)
    samples = read_run(kill_and_go_on(job, name, tmp_path).run).samples
    assert samples.shape[:2] == (2, 2)


def test_a_checkpoint_goes_on_from_where_it_was(tmp_path, monkeypatch):
    """Batches before the checkpoint are not shown again."""
    job = make_job("hcl-fr")
    entry = Entry(tmp_path / "run")
    assert kill_after_a_new_checkpoint(job, entry.folder, 0.0)
    from hcl.train import loop

    shown = []
    real = loop.Stream.batches

    def watched(self, segment, first=0, epochs=None):
        for batch in real(self, segment, first, epochs):
            shown.append(batch)
            yield batch

    monkeypatch.setattr(loop.Stream, "batches", watched)
    loop.train_seed(job, entry.checkpoint)
    assert 0 < len(shown) <= 96
