"""``hcl detect`` from its command line: what it prints, writes and refuses."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from stages.cli import main
from tests.support.blobs import benchmark, blobs_in_64_dimensions, write_project

PARAMS = {
    "seeds": [0, 1],
    "benchmarks": {"blobs": {"training": {"batch_size": 10}}},
    "methods": {"ncm": {"kind": "ncm"}},
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    embeddings, whole = benchmark(blobs_in_64_dimensions(2, 600, 10), order=(0, 1, 0))
    write_project(tmp_path, embeddings, whole, PARAMS)
    return tmp_path


def run(*more: str) -> Result:
    options = ["--benchmark", "blobs", "--tasks", "tasks.h5", "--embeddings", "embeddings"]
    return CliRunner().invoke(main, ["detect", *options, *more])


def test_every_change_is_printed_with_its_delay_and_who_came_back(project):
    result = run()
    assert result.exit_code == 0, result.output
    assert "blobs, seed 0: 180 batches" in result.output
    assert "blobs, seed 1: 180 batches" in result.output
    assert "task 2, a new task; true task 2" in result.output
    assert "task 1, has come back; true task 1" in result.output
    assert "changes: 4 of 4 found" in result.output
    assert "came back: 2 of 2 named rightly" in result.output
    assert "false alarms: 0 in" in result.output
    assert "MISSED" not in result.output


def test_a_row_for_each_batch_is_written(project):
    result = run("--out", "watch.csv")
    assert result.exit_code == 0, result.output
    with Path("watch.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 360
    first = [row for row in rows if row["seed"] == "0"]
    assert [row["segment"] for row in first] == ["1"] * 60 + ["2"] * 60 + ["3"] * 60
    assert [row["true_task"] for row in first[::60]] == ["1", "2", "1"]
    said = [row["verdict"] for row in first if row["verdict"] != "same"]
    assert said == ["new", "recurring"]
    assert first[-1]["task"] == "1"
    assert all(np.isfinite(float(row["evidence"])) for row in first)


def test_a_stream_that_is_too_short_is_said_to_be(project):
    result = run("--batch-size", "200")
    assert result.exit_code == 0, result.output
    assert "Note: the shortest segment of the stream has 3 batches" in result.output
    assert "changes: 0 of 4 found" in result.output
    assert "MISSED, true task 2; only 0 of its 3 batches could be judged" in result.output
    assert "0 of 9 batches could be judged: the stream is too short" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--false-alarm-every", "5"), "--false-alarm-every: is 5; expected a whole"),
        (("--batch-size", "1"), "--batch-size: is 1; expected from 2"),
        (("--embeddings", "tasks.h5"), "tasks.h5: is a file; --embeddings names the folder"),
    ],
)
def test_what_can_not_be_is_refused_in_one_line(project, options, message):
    result = run(*options)
    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output
