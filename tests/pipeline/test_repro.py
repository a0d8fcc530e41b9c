"""A real ``dvc repro`` on a user's own folder of images: each edit runs just what it touches."""

from __future__ import annotations

from pathlib import Path

import h5py
import pytest

from hcl.files import sha256_of
from tests.support.projects import dvc, make_project, repro, small_params, write_params

pytestmark = pytest.mark.slow


def runs_of(*pairs: str) -> set[str]:
    """The stages that a benchmark and method pass through, and the report."""
    return {f"{stage}@{pair}" for stage in ("train", "evaluate") for pair in pairs} | {"report"}


def test_each_edit_runs_just_what_it_touches(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    values = small_params()
    trees = runs_of("trees-hcl-fr")

    embedded = {"extract@pictures", "split@trees", *trees}
    assert repro(project) == {"settings", "fetch@pictures", *embedded, "moons", "toy-losses"}
    with h5py.File(project / "data/embeddings/pictures.h5") as file:
        assert file["x"].shape == (84, 1280)
    assert (project / "report/index.html").stat().st_size > 5_000
    first = (project / "dvc.lock").read_text()

    assert repro(project) == set()

    backbone = values["extract"]["backbone"]
    values["extract"]["backbone"] = "tf_efficientnet_lite1.in1k"
    write_params(project, values)
    assert repro(project) == {"settings", *embedded}
    values["extract"]["backbone"] = backbone
    write_params(project, values)
    assert repro(project) == set()
    assert (project / "dvc.lock").read_text() == first

    run = project / "results/runs/trees/hcl-fr/seed-0.h5"
    before = sha256_of(run)
    values["seeds"] = [0, 1]
    write_params(project, values)
    assert repro(project) == {"settings", *trees}
    assert sha256_of(run) == before
    assert run.with_name("seed-1.h5").exists()

    values["grid"]["methods"] = ["adam", "hcl-fr"]
    write_params(project, values)
    assert repro(project) == {"settings", *runs_of("trees-adam")}

    values["grid"]["methods"] = ["hcl-fr"]
    values["grid"]["benchmarks"] = ["trees", "again"]
    values["benchmarks"]["again"] = {"like": "trees", "stream": {"order": [2, 1, 2]}}
    write_params(project, values)
    assert repro(project) == {"settings", "split@again", *runs_of("again-hcl-fr")}

    # A change for one benchmark touches no stage of the others.
    values["benchmarks"]["again"]["tuned"] = {"hcl-fr": {"memory": {"alpha": 2.0}}}
    write_params(project, values)
    assert repro(project) == {"settings", *runs_of("again-hcl-fr")}
    values["benchmarks"]["again"]["stream"]["epochs"] = 3
    write_params(project, values)
    assert repro(project) == {"settings", "split@again", *runs_of("again-hcl-fr")}

    values["methods"]["hcl-fr"]["memory"]["alpha"] = 3.0  # on "again" it is tuned
    write_params(project, values)
    assert repro(project) == {"settings", *trees}
    values["grid"]["benchmarks"] = ["trees"]

    # The report lists the grid of the parameters, not what lies on disk.
    values["grid"] = {"datasets": ["pictures"], "benchmarks": ["trees"], "methods": ["adam"]}
    write_params(project, values)
    assert repro(project) == {"settings", "report"}
    page = (project / "report/tables.csv").read_text()
    assert "trees" in page
    assert "adam" in page.lower()
    assert "again" not in page
    assert "hcl-fr" not in page.lower()

    shown = dvc(project, "metrics", "show")
    assert "adam.average" in shown
    assert len(shown.splitlines()[0].split()) <= 6  # the path and a handful of numbers a method
    plots = dvc(project, "plots", "show", "--json")
    assert "average accuracy" in plots
    assert "accuracy on the tasks so far" in plots
    assert not dvc(project, "status").count("modified")
