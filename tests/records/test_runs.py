"""Run files: what is written is read, equal runs are equal bytes, damage is named."""

from __future__ import annotations

import dataclasses

import h5py
import numpy as np
import pytest

from hcl.errors import HCLError
from hcl.records.hdf5 import writing
from hcl.records.runs import NEW, SAME, Run, Trace, read_run, write_run
from tests.support.tampering import tampered


def make_run(**changes: object) -> Run:
    trace = Trace(
        segment=np.array([0, 0, 1], np.int16),
        true_task=np.array([0, 0, 1], np.int16),
        learner_task=np.array([0, 0, 1], np.int16),
        verdict=np.array([SAME, SAME, NEW], np.int8),
        statistics={
            # Not in the order of the alphabet: the first is the one to show first.
            "surprise": np.arange(9, dtype=np.float32).reshape(3, 3),
            "log_px": np.full((3, 3), [1, -np.inf, np.nan], np.float32),
        },
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
    for name in ("segment", "true_task", "learner_task", "verdict"):
        np.testing.assert_array_equal(getattr(read.trace, name), getattr(run.trace, name))
    assert list(read.trace.statistics) == ["surprise", "log_px"]
    for name, values in run.trace.statistics.items():
        assert read.trace.statistics[name].dtype == np.float32
        np.testing.assert_array_equal(read.trace.statistics[name], values)


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


@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (9, 1)])
def test_a_statistic_has_a_value_and_two_bounds_for_each_batch(tmp_path, shape):
    statistics = {"log_px": np.zeros(shape, np.float32)}
    trace = dataclasses.replace(make_run().trace, statistics=statistics)
    write_run(tmp_path / "run.h5", make_run(trace=trace))
    with pytest.raises(HCLError, match=r"trace/statistics/log_px is .*, expected \(3, 3\)"):
        read_run(tmp_path / "run.h5")


@pytest.mark.parametrize("name", ["a/b", "", "log px", "log_px_low", "t_high"])
def test_a_name_that_is_no_column_can_t_name_a_statistic(tmp_path, name):
    statistics = {name: np.zeros((3, 3), np.float32)}
    trace = dataclasses.replace(make_run().trace, statistics=statistics)
    with pytest.raises(ValueError, match="can't name a statistic"):
        write_run(tmp_path / "run.h5", make_run(trace=trace))
    assert not (tmp_path / "run.h5").exists()


def test_statistics_that_are_not_those_listed_are_refused(tmp_path):
    for removed in (["surprise"], ["surprise", "log_px"]):
        write_run(tmp_path / "run.h5", make_run())
        with tampered(tmp_path / "run.h5") as file:
            for name in removed:
                del file["trace/statistics"][name]
        with pytest.raises(HCLError, match="trace/statistics lists"):
            read_run(tmp_path / "run.h5")
    trace = dataclasses.replace(make_run().trace, statistics={})
    write_run(tmp_path / "run.h5", make_run(trace=trace))
    with pytest.raises(HCLError, match="expected one or more"):
        read_run(tmp_path / "run.h5")


def test_a_statistic_of_another_type_is_refused(tmp_path):
    write_run(tmp_path / "run.h5", make_run())
    with tampered(tmp_path / "run.h5") as file:
        del file["trace/statistics/log_px"]
        file["trace/statistics/log_px"] = np.zeros((3, 3))
    with pytest.raises(HCLError, match=r"log_px is float64 .*, expected float32"):
        read_run(tmp_path / "run.h5")


def test_a_run_of_the_format_before_is_named(tmp_path):
    write_run(tmp_path / "run.h5", make_run())
    with tampered(tmp_path / "run.h5") as file:
        file.attrs["format"] = "hcl-run/3"
    with pytest.raises(HCLError, match=r"'hcl-run/3', expected 'hcl-run/4'.*hcl train"):
        read_run(tmp_path / "run.h5")


def test_missing_foreign_and_damaged_files_are_named(tmp_path):
    with pytest.raises(HCLError, match="hcl train"):
        read_run(tmp_path / "none.h5")
    with writing(tmp_path / "foreign.h5") as (file, _):
        file.attrs["format"] = "hcl-tasks/2"
    with pytest.raises(HCLError, match="hcl-tasks/2"):
        read_run(tmp_path / "foreign.h5")
    write_run(tmp_path / "run.h5", make_run())
    (tmp_path / "run.h5").write_bytes((tmp_path / "run.h5").read_bytes()[:700])
    with pytest.raises(HCLError, match=r"not a whole run file.*hcl train"):
        read_run(tmp_path / "run.h5")


def test_a_missing_dataset_is_named(tmp_path):
    write_run(tmp_path / "run.h5", make_run())
    with tampered(tmp_path / "run.h5") as file:
        del file["predicted_task"]
    with pytest.raises(HCLError, match="predicted_task"):
        read_run(tmp_path / "run.h5")
