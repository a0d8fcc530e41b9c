"""Run files: what is written is read, equal runs are equal bytes, damage is named."""

from __future__ import annotations

import dataclasses

import h5py
import numpy as np
import pytest

from hcl.errors import HCLError
from hcl.records.runs import NEW, SAME, Run, Trace, read_run, write_run


def make_run(**changes: object) -> Run:
    trace = Trace(
        segment=np.array([0, 0, 1], np.int16),
        true_task=np.array([0, 0, 1], np.int16),
        learner_task=np.array([0, 0, 1], np.int16),
        statistics=np.arange(9, dtype=np.float32).reshape(3, 3),
        mean=np.full((3, 3), np.nan, np.float32),
        std=np.ones((3, 3), np.float32),
        verdict=np.array([SAME, SAME, NEW], np.int8),
    )
    run = Run(
        benchmark="b",
        method="hcl-fr-ta",
        seed=3,
        settings={"alpha": 1.0, "name": "µ"},
        tasks="def",
        fingerprint="abc",
        versions={"torch": "2"},
        predicted_class=np.array([[0, 1, 1], [1, 0, 1]], np.int16),
        predicted_task=np.array([[0, 0, 0], [0, 1, 1]], np.int16),
        pair_class=np.array([[0, 1, 1], [1, 1, 1]], np.int16),
        added_in=np.array([0, 1], np.int16),
        loss=np.array([1.5, 0.5], np.float32),
        trace=trace,
    )
    return dataclasses.replace(run, **changes)


def test_what_is_written_is_read(tmp_path):
    run = make_run()
    write_run(tmp_path / "seed-3.h5", run)
    read = read_run(tmp_path / "seed-3.h5")
    for field in dataclasses.fields(Run):
        if field.name != "trace":
            np.testing.assert_array_equal(getattr(read, field.name), getattr(run, field.name))
    for field in dataclasses.fields(Trace):
        np.testing.assert_array_equal(
            getattr(read.trace, field.name), getattr(run.trace, field.name)
        )


def test_loss_and_trace_may_be_absent(tmp_path):
    write_run(tmp_path / "run.h5", make_run(loss=None, trace=None))
    read = read_run(tmp_path / "run.h5")
    assert read.loss is None
    assert read.trace is None


def test_equal_runs_are_equal_bytes(tmp_path):
    write_run(tmp_path / "a.h5", make_run())
    write_run(tmp_path / "b.h5", make_run(settings={"name": "µ", "alpha": 1.0}))
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_datasets_are_contiguous(tmp_path):
    write_run(tmp_path / "run.h5", make_run())
    with h5py.File(tmp_path / "run.h5") as file:
        assert file["predicted_class"].chunks is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pair_class": np.zeros((2, 2), np.int16)}, "one shape"),
        ({"predicted_task": np.full((2, 3), 2, np.int16)}, "added_in lists 2"),
    ],
)
def test_what_does_not_agree_is_refused(tmp_path, changes, message):
    write_run(tmp_path / "run.h5", make_run(**changes))
    with pytest.raises(HCLError, match=message):
        read_run(tmp_path / "run.h5")


def test_ragged_trace_is_refused(tmp_path):
    trace = dataclasses.replace(make_run().trace, verdict=np.zeros(2, np.int8))
    write_run(tmp_path / "run.h5", make_run(trace=trace))
    with pytest.raises(HCLError, match="different lengths"):
        read_run(tmp_path / "run.h5")


def test_missing_foreign_and_damaged_files_are_named(tmp_path):
    with pytest.raises(HCLError, match="hcl train"):
        read_run(tmp_path / "none.h5")
    with h5py.File(tmp_path / "foreign.h5", "w") as file:
        file.attrs["format"] = "hcl-tasks/1"
    with pytest.raises(HCLError, match="hcl-tasks/1"):
        read_run(tmp_path / "foreign.h5")
    write_run(tmp_path / "run.h5", make_run())
    (tmp_path / "run.h5").write_bytes((tmp_path / "run.h5").read_bytes()[:700])
    with pytest.raises(HCLError, match="damaged"):
        read_run(tmp_path / "run.h5")


def test_a_missing_dataset_is_named(tmp_path):
    write_run(tmp_path / "run.h5", make_run())
    with h5py.File(tmp_path / "run.h5", "a") as file:
        del file["predicted_task"]
    with pytest.raises(HCLError, match="predicted_task"):
        read_run(tmp_path / "run.h5")
