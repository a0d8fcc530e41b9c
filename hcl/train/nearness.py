"""Are draws good? How far they lie from real samples, beside how far real samples lie apart.

For each draw of a (class, task) pair the distance ‖x − x'‖ to the nearest training sample x' of the
pair, and the same for test samples. Draws that are as the data have the distances of test samples;
larger ones are off it, and much smaller ones would be copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcl.learn.contract import Sampler
from hcl.records.tasks import Task

if TYPE_CHECKING:
    from hcl.train.loop import Job

COUNT = 8  # draws and test samples of each pair
DRAWS = 5  # keeps the generator of these draws apart: see Start.generator


@torch.no_grad()
def nearest(learner: Sampler, job: Job, added_in: list[int]) -> NDArray[np.float32] | None:
    """Distances (2, M, K, ``COUNT``): of draws, and of test samples; NaN where there are none.

    The first of the learner's tasks that was added while a task was shown stands for it. ``None``
    for a learner that knows no tasks.
    """
    benchmark = job.benchmark
    state = np.random.SeedSequence([job.seed, DRAWS]).generate_state(1, np.uint64)[0]
    generator = torch.Generator(job.device).manual_seed(int(state >> np.uint64(1)))
    drawn = learner.draw(COUNT, generator).flatten(3).cpu()
    if not added_in or len(drawn) != len(added_in):
        return None
    found = np.full((2, len(benchmark.tasks), drawn.shape[1], COUNT), np.nan, np.float32)
    added = [benchmark.stream[segment].task for segment in added_in]
    for index, task in enumerate(benchmark.tasks):
        x = job.embeddings[task.dataset].x
        for label in range(drawn.shape[1]):
            known = _of_class(x, task, "train", label)
            fresh = _of_class(x, task, "test", label)[:COUNT]
            if not len(known):
                continue
            found[1, index, label, : len(fresh)] = _distances(fresh, known)
            if index in added:
                found[0, index, label] = _distances(drawn[added.index(index), label], known)
    return np.where(np.isfinite(found), found, np.float32(np.nan))


def _of_class(x: NDArray[Any], task: Task, part: str, label: int) -> Tensor:
    of = getattr(task, part)
    return torch.from_numpy(x[of.rows[of.y == label]])


def _distances(samples: Tensor, known: Tensor) -> NDArray[np.float32]:
    """‖x − x'‖ of each sample to the nearest of ``known``."""
    found: NDArray[np.float32] = torch.cdist(samples.float(), known.float()).amin(1).numpy()
    return found
