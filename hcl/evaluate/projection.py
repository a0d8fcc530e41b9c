"""A plane of the latent space: the Gaussians' means and test points as the final model maps them.

The plane is spanned by the first two principal axes of the means, because it shows what decides
the class: how near a point lies to which mean. It is the same for every point, so a point that
lies far from its own Gaussian here lies at least as far in the whole space.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hcl.model.images import midpoints
from hcl.model.model_file import hybrid_model, read_about, read_model
from hcl.records.embeddings import Embeddings
from hcl.records.tasks import Benchmark

POINTS = 500  # test points in all, about: more would hide each other


def latent_view(
    path: str | Path,
    benchmark: Benchmark,
    embeddings: Mapping[str, Embeddings],
    added_in: Sequence[int],
) -> list[tuple[str, int, int, str, str]] | None:
    """Rows (kind, task, class, x, y): ``mean`` for each Gaussian, ``sample`` for test points.

    The task of a mean is the true task that its learner task stands for. ``None`` where fewer
    than three means span no plane, and for a learner that has no Gaussians with fixed means.

    Args:
        path: the model file.
        benchmark: whose test points are shown.
        embeddings: of its data sets.
        added_in: the stream segment in which each learner task was added.
    """
    if read_about(path)["settings"]["method"]["kind"] != "flow":
        return None
    model = hybrid_model(read_model(path), path)
    learner_tasks, classes, size = model.latent.means.shape
    means = model.latent.means.double().numpy().reshape(-1, size)
    if len(means) < 3:
        return None
    centre, axes = _plane(means)
    stream = [segment.task for segment in benchmark.stream]
    rows = [
        _row("mean", stream[added_in[t]], k, place)
        for (t, k), place in zip(
            np.ndindex(learner_tasks, classes), (means - centre) @ axes.T, strict=True
        )
    ]
    each = max(2, POINTS // (len(benchmark.tasks) * benchmark.num_classes))
    for index, task in enumerate(benchmark.tasks):
        for k in range(benchmark.num_classes):
            chosen = task.test.rows[task.test.y == k][:each]
            x = torch.from_numpy(np.array(embeddings[task.dataset].x[chosen]))
            x = midpoints(x) if x.dtype == torch.uint8 else x
            with torch.no_grad():
                z = model.flow(x.reshape(len(x), *model.flow.shape))[0].double().numpy()
            rows += [_row("sample", index, k, place) for place in (z - centre) @ axes.T]
    return rows


def _plane(means: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Centre and the first two principal axes (2, D), each with its largest entry positive."""
    centre = means.mean(0)
    axes = np.linalg.svd(means - centre, full_matrices=False)[2][:2]
    largest = np.abs(axes).argmax(1)
    return centre, axes * np.sign(axes[np.arange(2), largest])[:, None]


def _row(
    kind: str, task: int, label: int, place: NDArray[np.float64]
) -> tuple[str, int, int, str, str]:
    # Four significant digits are more than a figure shows, and hide how a processor rounds.
    return kind, task + 1, label, f"{place[0]:.4g}", f"{place[1]:.4g}"
