"""How far draws lie from real samples: distances to the nearest training sample of the pair."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hcl.evaluate.scoring import score, summarise
from hcl.learn.plus.settings import PlusMethod
from hcl.learn.settings import TrainingSettings
from hcl.model.settings import FlowSettings
from hcl.records.runs import read_run, write_run
from hcl.train.loop import Job, train_seed
from hcl.train.nearness import COUNT, nearest
from tests.support.blobs import benchmark, blobs_in_64_dimensions

ORDER = (1, 0, 2)
EMBEDDINGS, TASKS = benchmark(blobs_in_64_dimensions(tasks=3, train=60, test=20), ORDER)
METHOD = PlusMethod(projections=9)
JOB = Job(TASKS, EMBEDDINGS, "hcl-plus", METHOD, FlowSettings(), TrainingSettings(), 0)


def rows(index: int, label: int, part: str) -> np.ndarray:
    task = JOB.benchmark.tasks[index]
    of = getattr(task, part)
    return JOB.embeddings[task.dataset].x[of.rows[of.y == label]]


class Copies:
    """Draws training samples, a tenth beside their place in the first feature."""

    def draw(self, count: int, generator: torch.Generator) -> torch.Tensor:
        drawn = [
            [torch.from_numpy(rows(index, label, "train")[:count]) for label in range(2)]
            for index in ORDER
        ]
        x = torch.stack([torch.stack(of_task) for of_task in drawn])
        x[..., 0] += 0.1
        return x


def test_distances_are_to_the_nearest_training_sample_of_the_true_pair():
    found = nearest(Copies(), JOB, [0, 1, 2])
    assert found.shape == (2, 3, 2, COUNT)
    np.testing.assert_allclose(found[0], 0.1, rtol=0.01)
    for index in range(3):
        for label in range(2):
            known, fresh = (rows(index, label, part) for part in ("train", "test"))
            gaps = np.linalg.norm(fresh[:COUNT, None] - known, axis=2).min(1)
            np.testing.assert_allclose(found[1, index, label], gaps, rtol=1e-3)


def test_a_task_that_the_learner_missed_has_no_draws():
    class Two(Copies):
        def draw(self, count, generator):
            return super().draw(count, generator)[:2]

    found = nearest(Two(), JOB, [0, 1])
    assert np.isnan(found[0, 2]).all()
    assert np.isfinite(found[0, :2]).all()
    assert np.isfinite(found[1]).all()
    assert nearest(Two(), JOB, []) is None  # a learner without tasks


def test_a_run_keeps_distances_and_its_summary_their_medians(tmp_path: Path):
    run, _ = train_seed(JOB)
    write_run(tmp_path / "run.h5", run)
    kept = read_run(tmp_path / "run.h5")
    np.testing.assert_array_equal(kept.nearest, run.nearest)
    drawn, real = (np.median(part) for part in run.nearest)
    summary = summarise([score(kept, JOB.benchmark)])
    assert summary["nearest"]["draws"]["mean"] == pytest.approx(drawn, abs=1e-4)
    assert summary["nearest"]["test_samples"]["mean"] == pytest.approx(real, abs=1e-4)
    assert 0.5 < drawn / real < 2
    without = summarise([score(replace(kept, nearest=None), JOB.benchmark)])
    assert "nearest" not in without
