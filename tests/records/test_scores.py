"""The scores' folder: what evaluate writes is what report reads, and damage is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hcl.errors import HCLError
from hcl.evaluate import scoring
from hcl.records.scores import SCORE_FILES, read_result
from tests.support.made_runs import BATCHES, make_benchmark, make_run, write_result

VERDICTS = {BATCHES: 1, 2 * BATCHES + 3: 1, 30: 1}  # those that write_result gives


def written(folder: Path, method: str = "hcl-fr-ta") -> Path:
    write_result(folder, make_benchmark(), method, [[(2, 0)], []], first_seed=4)
    return folder / "scores"


def test_what_is_written_is_read(tmp_path: Path) -> None:
    result = read_result(written(tmp_path), "toy", "hcl-fr-ta")
    benchmark = make_benchmark()
    runs = [
        make_run(benchmark, "hcl-fr-ta", seed, wrong, verdicts=VERDICTS)
        for seed, wrong in ((4, [(2, 0)]), (5, []))
    ]
    scores = [scoring.score(run, benchmark) for run in runs]
    assert result.summary == scoring.summarise(scores)
    assert result.metric("forgetting") == (6.25, 6.25)
    np.testing.assert_allclose(result.accuracy, [100 * s.accuracy for s in scores], atol=1e-4)
    assert [row["seed"] for row in result.by_seed] == ["4", "5"]
    assert [row["name"] for row in result.classes] == list("abcdef") * 2
    np.testing.assert_array_equal(result.confusion, sum(s.confusion for s in scores))
    assert result.task_agnostic
    assert (result.stream, result.epochs) == ((0, 1, 2), 3)
    assert list(result.traces) == [4, 5]
    for run in runs:
        read = result.traces[run.seed]
        for name in ("segment", "true_task", "learner_task", "verdict"):
            np.testing.assert_array_equal(getattr(read, name), getattr(run.trace, name))
            assert getattr(read, name).dtype == getattr(run.trace, name).dtype
        assert list(read.statistics) == ["log_px", "log_pz", "log_det"]
        for name, values in run.trace.statistics.items():
            np.testing.assert_allclose(read.statistics[name], values, rtol=1e-5)


def test_what_was_not_answered_yet_is_an_empty_cell(tmp_path: Path) -> None:
    scores = written(tmp_path, "joint")
    lines = (scores / "toy/joint/accuracy.csv").read_text().splitlines()
    assert lines[1:4] == ["4,1,1,", "4,1,2,", "4,1,3,"]
    result = read_result(scores, "toy", "joint")
    np.testing.assert_array_equal(np.isnan(result.accuracy).all((0, 1)), [True, True, False])
    assert result.metric("forgetting") == (None, None)
    assert result.metric("average_accuracy")[0] == pytest.approx(95.8333, abs=1e-3)
    path = scores / "toy/joint/accuracy.csv"
    path.write_text("\n".join([lines[0], *(line.rpartition(",")[0] + "," for line in lines[1:])]))
    with pytest.raises(HCLError, match="not every accuracy is there"):  # in the end there is one
        read_result(scores, "toy", "joint")


def test_only_the_files_named_are_written(tmp_path: Path) -> None:
    names = {path.name for path in (written(tmp_path) / "toy/hcl-fr-ta").iterdir()}
    names |= {path.name for path in (written(tmp_path, "hcl-fr") / "toy/hcl-fr").iterdir()}
    assert names == set(SCORE_FILES) - {"samples.npz"}  # of benchmarks on pixels


@pytest.mark.parametrize(
    "file",
    ["about.json", "summary.json", "accuracy.csv", "classes.csv", "metrics.csv", "trace.csv"],
)
def test_a_missing_file_is_named_with_what_makes_it(tmp_path: Path, file: str) -> None:
    scores = written(tmp_path)
    (scores / "toy/hcl-fr-ta" / file).unlink()
    message = f"{file}: no such result; make it with `hcl evaluate` of hcl-fr-ta on toy"
    with pytest.raises(HCLError, match=message):
        read_result(scores, "toy", "hcl-fr-ta")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("about.json", "{", "about.json: not valid JSON"),
        ("about.json", "{}", "damaged scores .*'tasks'"),
        ("accuracy.csv", "seed,segment,task,accuracy\n0,1,1,much\n", "damaged scores .*much"),
        ("trace.csv", "seed,batch,segment,log_px\n0,1,1,2\n", "holds no statistic"),
        ("trace.csv", "seed,log_px,log_px_low\n0,1,1\n", "damaged scores"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, file: str, text: str, message: str) -> None:
    scores = written(tmp_path)
    (scores / "toy/hcl-fr-ta" / file).write_text(text)
    with pytest.raises(HCLError, match=message):
        read_result(scores, "toy", "hcl-fr-ta")
