"""The plane of the latent space, against one worked out another way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from sklearn.decomposition import PCA

from hcl.evaluate.projection import latent_view
from hcl.model.flows import FlowSettings
from hcl.model.hybrid import HybridModel, build_model
from hcl.records.embeddings import Embeddings
from tests.support.made_runs import make_benchmark
from tests.support.model_files import about_flow, save_flow

FEATURES = 7


def make_model(tasks: int) -> HybridModel:
    draw = torch.Generator().manual_seed(3)
    model = build_model(FlowSettings(couplings=2, hidden=4), (FEATURES,), 2, draw, mean_scale=4)
    with torch.no_grad():
        for parameter in model.flow.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=draw)
    for _ in range(tasks):
        model.add_task(draw)
    return model


def embeddings() -> dict[str, Embeddings]:
    x = np.random.default_rng(0).normal(size=(10, FEATURES)).astype(np.float32)
    return {"pictures": Embeddings(x, np.zeros(10, np.int64), np.zeros(10, np.uint8), {})}


def test_the_plane_is_the_means_principal_one(tmp_path: Path) -> None:
    model = make_model(tasks=3)
    save_flow(tmp_path / "model", model)
    benchmark = make_benchmark(order=(0, 1, 2))
    rows = latent_view(tmp_path / "model", benchmark, embeddings(), [0, 1, 2])
    assert rows is not None

    means = model.latent.means.double().numpy().reshape(6, FEATURES)
    pca = PCA(2).fit(means)
    places = {kind: np.array([row[3:] for row in rows if row[0] == kind], float) for kind in
              ("mean", "sample")}  # fmt: skip
    expected = pca.transform(means)
    signs = np.sign((expected * places["mean"]).sum(0))  # a principal axis has no sign of its own
    np.testing.assert_allclose(places["mean"], expected * signs, rtol=2e-3, atol=2e-3)

    with torch.no_grad():
        z = model.flow(torch.from_numpy(embeddings()["pictures"].x))[0].double().numpy()
    chosen = [
        row for task in benchmark.tasks for k in (0, 1) for row in task.test.rows[task.test.y == k]
    ]
    np.testing.assert_allclose(
        places["sample"], pca.transform(z[chosen]) * signs, rtol=2e-3, atol=5e-3
    )
    labels = [(task + 1, k) for task in range(3) for k in (0, 1)
              for _ in range(len(benchmark.tasks[task].test.y) // 2)]  # fmt: skip
    assert [row[1:3] for row in rows if row[0] == "sample"] == labels


def test_a_learner_s_extra_task_stands_for_the_one_that_was_shown(tmp_path: Path) -> None:
    save_flow(tmp_path / "model", make_model(tasks=3))
    rows = latent_view(tmp_path / "model", make_benchmark(order=(0, 1)), embeddings(), [0, 0, 1])
    assert rows is not None
    assert [row[1] for row in rows if row[0] == "mean"] == [1, 1, 1, 1, 2, 2]


def test_two_means_span_no_plane(tmp_path: Path) -> None:
    save_flow(tmp_path / "model", make_model(tasks=1))
    assert latent_view(tmp_path / "model", make_benchmark(order=(0,)), embeddings(), [0]) is None


def test_a_learner_without_fixed_means_has_no_such_view(tmp_path: Path) -> None:
    model = make_model(tasks=3)
    settings = {**about_flow(model)["settings"], "method": {"kind": "slda"}}
    save_flow(tmp_path / "model", model, settings=settings)
    view = latent_view(tmp_path / "model", make_benchmark(order=(0,)), embeddings(), [0])
    assert view is None
