"""A user's folder of small images as pixels, through every door from fetch to the report."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result
from PIL import Image

from hcl.records.embeddings import read
from hcl.records.runs import read_run
from stages.cli import main
from tests.support.projects import CLASSES, draw_pictures

METHODS = ("mtl", "hcl-fr-ta", "curl", "slda")
PARAMS = {
    "grid": {"datasets": ["trees-8"], "benchmarks": ["trees"], "methods": list(METHODS)},
    "seeds": [0],
    "datasets": {"trees-8": {"source": "folder", "path": "pictures", "pixels": [3, 8, 8]}},
    "extract": {},
    "benchmarks": {
        "trees": {
            "stream": {
                "tasks": {"dataset": "trees-8", "classes_per_task": 2},
                "validation": 0.25,
                "samples_per_class": 10,
                "test_per_class": 4,
            },
            "flow": {"kind": "realnvp-image", "couplings": 2, "hidden_layers": 1, "hidden": 4},
            "training": {"batch_size": 8, "learning_rate": 1.0e-3, "save_model": True},
            "tuned": {"curl": {"likelihood": "bernoulli"}},
        }
    },
    "methods": {
        "mtl": {"kind": "flow", "memory": {"kind": "all"}},
        "hcl-fr-ta": {
            "kind": "flow",
            "memory": {"kind": "functional"},
            "detection": {"window": 12},
        },
        "curl": {"kind": "curl", "encoder": [8], "decoder": [8], "latents": 2},
        "slda": {"kind": "slda"},
    },
}
EMBEDDINGS = ("--embeddings", "data/embeddings")


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which every stage has run."""
    folder = tmp_path_factory.mktemp("project")
    draw_pictures(folder / "pictures")
    (folder / "params.yaml").write_text(yaml.safe_dump(PARAMS, sort_keys=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        raw = "data/raw/trees-8.h5"
        run("fetch", "--dataset", "trees-8", "--out", raw)
        out = "data/embeddings/trees-8.h5"
        said = run("extract", "--dataset", "trees-8", "--raw", raw, "--out", out)
        assert "84 images of 3×8×8 pixels" in said.output
        run("settings", "--out", "data/settings")
        stream = "data/settings/streams/trees.json"
        run("split", "--settings", stream, *EMBEDDINGS, "--out", "data/tasks/trees.h5")
        for method in METHODS:
            settings = ("--settings", f"data/settings/runs/trees/{method}.json")
            inputs = (*settings, "--tasks", "data/tasks/trees.h5", *EMBEDDINGS)
            runs = f"results/runs/trees/{method}"
            run("train", *inputs, "--out", runs)
            scores = f"results/scores/trees/{method}"
            run("evaluate", *inputs, "--runs", runs, "--scores", scores)
        run("report", "--scores", "results/scores", "--out", "report")
        yield folder


def test_extract_writes_bytes_and_says_so(project: Path) -> None:
    found = read("data/embeddings/trees-8.h5")
    assert found.x.dtype == np.uint8
    assert found.pixels == (3, 8, 8)
    assert found.classes == list(CLASSES)
    first = Image.open("pictures/train/ash/0.png").resize((8, 8), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(found.x[0].reshape(3, 8, 8), np.asarray(first).transpose(2, 0, 1))


def test_runs_and_scores_keep_what_was_drawn(project: Path) -> None:
    for method in METHODS:
        kept = read_run(f"results/runs/trees/{method}/seed-0.h5").samples
        scores = Path(f"results/scores/trees/{method}/samples.npz")
        assert (kept is None) == (method == "slda") == (not scores.exists())
        if kept is not None:
            with np.load(scores) as arrays:
                assert arrays["real"].shape == (2, 2, 4, 3, 8, 8)
                tasks = 1 if method == "curl" else 2
                assert arrays["drawn"].shape == (2, tasks, 2, 4, 3, 8, 8)


def test_real_samples_are_of_their_class_and_task(project: Path) -> None:
    found = read("data/embeddings/trees-8.h5")
    with np.load("results/scores/trees/mtl/samples.npz") as arrays:
        real = arrays["real"]
    for task in range(2):
        for label in range(2):
            of_class = found.x[(found.y == 2 * task + label) & (found.split == 1)]
            for image in real[task, label].reshape(4, -1):
                assert (of_class == image).all(1).any()


def test_the_page_shows_them_as_images_of_its_own(project: Path) -> None:
    page = Path("report/index.html").read_text()
    assert "What each method draws" in page
    assert "trees-8 as pixels [3, 8, 8]" in page
    drawn = re.split(r"<h[23]", page.split("What each method draws")[1])[0]
    images = re.findall(r"data:image/png;base64,\s*([A-Za-z0-9+/=\s]+)", drawn)
    assert len(images) == 3
    widths = [Image.open(io.BytesIO(base64.b64decode(data))).width for data in images]
    assert min(widths) > 8
    assert Path("report/figures/trees/samples-mtl.png").exists()
    assert not Path("report/figures/trees/samples-slda.png").exists()
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)


@pytest.mark.parametrize("shape", [[8, 8], [2, 8, 8], [3, 0, 8], "small"])
def test_a_shape_that_no_image_has_is_named(project: Path, tmp_path: Path, shape: object) -> None:
    values = PARAMS | {"datasets": {"trees-8": PARAMS["datasets"]["trees-8"] | {"pixels": shape}}}
    params = tmp_path / "params.yaml"
    params.write_text(yaml.safe_dump(values))
    for command in (
        ("fetch", "--dataset", "trees-8"),
        ("extract", "--dataset", "trees-8", "--raw", "data/raw/trees-8.h5"),
    ):
        out = str(tmp_path / "out.h5")
        result = CliRunner().invoke(main, [*command, "--out", out, "--params", str(params)])
        assert result.exit_code == 1
        assert f"{params}: datasets.trees-8.pixels" in result.output
        assert len(result.output.strip().splitlines()) == 1
