"""``hcl evaluate`` from the command line."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import torch
from click.testing import CliRunner, Result

from hcl.model.flows import FlowSettings
from hcl.model.hybrid import build_model
from hcl.records.embeddings import write
from hcl.records.runs import Run
from hcl.records.tasks import Benchmark, Source
from stages.cli import main
from tests.support.made_runs import BATCHES, make_benchmark, make_run, write_runs
from tests.support.model_files import save_flow

FEATURES = 6


def evaluate(folder: Path, *more: str, benchmark: str = "toy", seeds: str = "[0, 1]") -> Result:
    (folder / "params.yaml").write_text(f"seeds: {seeds}\n")
    runs = str(folder / "runs/toy/hcl-fr-ta")
    return CliRunner().invoke(
        main,
        [
            *("evaluate", "--params", str(folder / "params.yaml")),
            *("--benchmark", benchmark, "--method", "hcl-fr-ta"),
            *("--tasks", str(folder / "tasks/toy.h5"), "--runs", runs),
            *("--scores", str(folder / "scores")),
            *more,
        ],
    )


def prepare(folder: Path) -> Benchmark:
    benchmark = make_benchmark(order=(0, 1))
    write_runs(folder, made_runs(benchmark), benchmark)
    return benchmark


def made_runs(benchmark: Benchmark) -> list[Run]:
    said = {BATCHES + 2: 1}
    return [make_run(benchmark, "hcl-fr-ta", s, [(1, 0)] * s, verdicts=said) for s in (0, 1)]


def add_embeddings(folder: Path, benchmark: Benchmark) -> None:
    """An embedding file that the tasks point into, and the first seed's model."""
    generator = np.random.default_rng(0)
    names = ("dataset", "classes", "backbone", "weights", "weights_sha256", "transform")
    provenance = dict.fromkeys((*names, "data_sha256", "versions", "settings"), "text")
    provenance |= {"dataset": "pictures", "classes": json.dumps(list("abcd")), "backbone": "lite0"}
    path = folder / "embeddings/pictures.h5"
    x = generator.normal(size=(10, FEATURES)).astype(np.float32)
    write(path, x, np.arange(10) % 4, np.zeros(10, np.uint8), provenance)
    with h5py.File(path) as file:
        digest = file.attrs["content_sha256"]
    tasks = replace(benchmark, sources=(Source("pictures", digest),))
    write_runs(folder, made_runs(tasks), tasks)
    draw = torch.Generator().manual_seed(0)
    model = build_model(FlowSettings(couplings=2, hidden=4), (FEATURES,), 2, draw)
    model.add_task(draw)
    model.add_task(draw)
    save_flow(folder / "runs/toy/hcl-fr-ta/seed-0.safetensors", model)


def test_summary_and_scores_are_written(tmp_path: Path) -> None:
    prepare(tmp_path)
    result = evaluate(tmp_path)
    assert result.exit_code == 0, result.output
    summary = json.loads((tmp_path / "scores/summary.json").read_text())
    # Seed 1 loses one of the four samples of task 1, one of six in all.
    assert summary["average_accuracy"] == {"mean": 93.75, "std": 6.25}
    assert summary["overall_accuracy"] == {"mean": 91.6667, "std": 8.3333}
    assert summary["changes"]["delay"] == {"mean": 2.0, "std": 0.0}
    assert (
        "scores: average accuracy 93.75 ± 6.25 %, overall accuracy 91.67 ± 8.33 %, "
        "forgetting 12.50 ± 12.50 %, 1 of 1 changes found, 0 false (2 seeds)"
    ) in result.output
    written = sorted(path.name for path in (tmp_path / "scores").iterdir())
    tables = ["accuracy.csv", "classes.csv", "confusion.csv", "metrics.csv"]
    assert written == ["about.json", *tables, "summary.json", "trace.csv"]


def test_embeddings_add_provenance_and_a_view_of_the_latent_space(tmp_path: Path) -> None:
    add_embeddings(tmp_path, prepare(tmp_path))
    result = evaluate(tmp_path, "--embeddings", str(tmp_path / "embeddings"))
    assert result.exit_code == 0, result.output
    about = json.loads((tmp_path / "scores/about.json").read_text())
    assert about["sources"][0]["backbone"] == "lite0"
    with open(tmp_path / "scores/latent.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["kind"] for row in rows] == ["mean"] * 4 + ["sample"] * 6
    assert [(row["task"], row["class"]) for row in rows[:4]] == [
        ("1", "0"),
        ("1", "1"),
        ("2", "0"),
        ("2", "1"),
    ]


def test_embeddings_of_another_split_are_refused(tmp_path: Path) -> None:
    benchmark = prepare(tmp_path)
    add_embeddings(tmp_path, benchmark)
    write_runs(tmp_path, made_runs(benchmark), benchmark)  # with another digest
    result = evaluate(tmp_path, "--embeddings", str(tmp_path / "embeddings"))
    assert result.exit_code == 1
    assert "the embeddings are not those that toy was split from" in result.output
    assert not (tmp_path / "scores").exists()


def test_tasks_of_another_benchmark_are_refused(tmp_path: Path) -> None:
    prepare(tmp_path)
    result = evaluate(tmp_path, benchmark="other")
    assert result.exit_code == 1
    assert "toy.h5: holds the tasks of toy, expected other; name" in result.output


def test_a_missing_seed_is_named(tmp_path: Path) -> None:
    prepare(tmp_path)
    result = evaluate(tmp_path, seeds="[0, 4]")
    assert result.exit_code == 1
    assert "seed-4.h5: no such run" in result.output
    assert not (tmp_path / "scores").exists()


def test_no_seeds_are_refused(tmp_path: Path) -> None:
    prepare(tmp_path)
    result = evaluate(tmp_path, seeds="[]")
    assert result.exit_code == 1
    assert "seeds is []; expected one or more" in result.output
