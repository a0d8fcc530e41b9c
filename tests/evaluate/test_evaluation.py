"""From run files to scores, on runs whose every answer is known."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hcl.errors import HCLError
from hcl.evaluate import scoring
from hcl.records.embeddings import Embeddings
from hcl.records.scores import headline, write_scores
from hcl.records.tasks import Shown
from tests.support.made_runs import BATCHES, make_benchmark, make_run, write_runs

# After the last segment, samples 0 and 1 (task 0) and 6 (task 2) are wrong; after the first, 0.
WRONG = [(0, 0), (2, 0), (2, 1), (2, 6)]


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_scores_of_one_run() -> None:
    benchmark = make_benchmark()
    scores = scoring.score(make_run(benchmark, wrong=WRONG), benchmark)
    expected = [[3 / 4, 1, 2 / 4], [1, 1, 1], [1, 1, 5 / 6]]
    np.testing.assert_allclose(scores.accuracy, expected)
    assert scores.average_accuracy == pytest.approx((0.5 + 1 + 5 / 6) / 3)
    assert scores.forgetting == pytest.approx((0.25 + 0) / 2)
    assert scores.overall_accuracy == pytest.approx(9 / 12)
    assert scores.changes is None


def test_where_tasks_bring_new_classes_all_that_came_are_scored_together(tmp_path: Path) -> None:
    plain = make_benchmark()
    benchmark = replace(plain, shown=Shown(labels="own"))
    scores = scoring.score(make_run(benchmark, wrong=WRONG), benchmark)
    assert scores.so_far is not None
    np.testing.assert_allclose(scores.so_far, [3 / 4, 1, 9 / 12])
    summary = scoring.summarise([scores])
    own = summary["class_incremental"]
    assert own["final_accuracy"]["mean"] == 75
    assert own["incremental_accuracy"]["mean"] == pytest.approx(
        100 * (3 / 4 + 1 + 3 / 4) / 3, abs=1e-3
    )
    assert headline(summary)["final"] == 75
    assert "final accuracy 75.00 %, incremental accuracy 83.33 %" in scoring.in_words(summary)
    about = scoring.about([make_run(benchmark)], benchmark, {})
    write_scores(tmp_path / "s", [make_run(benchmark)], [scores], summary, about)
    (row,) = rows(tmp_path / "s" / "metrics.csv")
    assert (row["final_accuracy"], row["incremental_accuracy"]) == ("75.0", "83.3333")
    domain = scoring.score(make_run(plain), plain)
    assert domain.so_far is None
    assert "class_incremental" not in scoring.summarise([domain])


def test_the_pair_decides_the_overall_accuracy() -> None:
    # The class of the likeliest pair may differ from the class that is likeliest over all tasks.
    benchmark = make_benchmark()
    run = make_run(benchmark)
    run.pair_class[-1, 3] = 1 - run.pair_class[-1, 3]
    run.predicted_task[-1, 8] = 0
    scores = scoring.score(run, benchmark)
    assert scores.average_accuracy == 1
    assert scores.overall_accuracy == pytest.approx(10 / 12)


def test_a_learner_that_meets_tasks_in_another_order_is_understood() -> None:
    benchmark = make_benchmark(order=(2, 0, 1))
    run = make_run(benchmark)
    assert run.predicted_task[-1, 0] == 1  # its second task is the benchmark's first
    assert scoring.score(run, benchmark).overall_accuracy == 1


def test_changes_of_a_task_agnostic_run() -> None:
    benchmark = make_benchmark(order=(0, 1, 0, 2))
    said = {BATCHES + 1: 1, 2 * BATCHES: 2, 3 * BATCHES + 5: 1, 3 * BATCHES + 7: 1}
    changes = scoring.score(make_run(benchmark, verdicts=said), benchmark).changes
    assert changes is not None
    assert [changes[name] for name in ("true", "found", "missed", "false")] == [3, 3, 0, 1]
    assert changes["delay"] == pytest.approx(2.0)
    assert (changes["recurring"], changes["recurring_named"]) == (1, 1)


def test_summary_is_in_percent_over_seeds() -> None:
    benchmark = make_benchmark()
    runs = [make_run(benchmark, seed=0), make_run(benchmark, seed=1, wrong=WRONG)]
    summary = scoring.summarise([scoring.score(run, benchmark) for run in runs])
    assert summary["overall_accuracy"] == {"mean": 87.5, "std": 12.5}
    assert summary["forgetting"] == {"mean": 6.25, "std": 6.25}
    assert summary["task_accuracy"]["1"] == {"mean": 75.0, "std": 25.0}
    assert list(summary["task_accuracy"]) == ["1", "2", "3"]
    assert summary["seeds"] == 2
    assert "changes" not in summary


def test_what_is_not_defined_is_null_and_an_empty_cell(tmp_path: Path) -> None:
    benchmark = make_benchmark()
    run = make_run(benchmark, "curl", tasks_known=False)
    scores = [scoring.score(run, benchmark)]
    assert scoring.summarise(scores)["overall_accuracy"] == {"mean": None, "std": None}
    write_scores(tmp_path / "scores", [run], scores, {}, scoring.about([run], benchmark, {}))
    assert rows(tmp_path / "scores/metrics.csv")[0]["overall_accuracy"] == ""


def test_changes_are_summed_up_and_a_delay_of_nothing_is_null() -> None:
    benchmark = make_benchmark()
    runs = [make_run(benchmark, seed=0, verdicts={BATCHES: 1}), make_run(benchmark, verdicts={})]
    summary = scoring.summarise([scoring.score(run, benchmark) for run in runs])
    changes = summary["changes"]
    assert changes["true"] == 2
    assert changes["found"] == {"mean": 0.5, "std": 0.5}
    assert changes["delay"] == {"mean": 0.0, "std": 0.0}  # of the one run that found any
    nothing = scoring.summarise([scoring.score(runs[1], benchmark)])
    assert nothing["changes"]["delay"] == {"mean": None, "std": None}


def test_the_headline_is_a_handful_of_means() -> None:
    benchmark = make_benchmark()
    told = [make_run(benchmark, seed=0), make_run(benchmark, seed=1, wrong=WRONG)]
    summary = scoring.summarise([scoring.score(run, benchmark) for run in told])
    average = summary["average_accuracy"]["mean"]
    assert headline(summary) == {
        "average": average,
        "forgetting": 6.25,
        "overall": 87.5,
    }
    seeking = [make_run(benchmark, verdicts=v) for v in ({BATCHES: 1, BATCHES + 1: 1}, {})]
    summary = scoring.summarise([scoring.score(run, benchmark) for run in seeking])
    shown = headline(summary)
    assert list(shown)[3:] == ["found", "false"]
    assert (shown["found"], shown["false"]) == (0.5, 0.5)
    blind = scoring.score(make_run(benchmark, "curl", tasks_known=False), benchmark)
    assert headline(scoring.summarise([blind]))["overall"] is None


def test_files_are_tidy_complete_and_counted_from_one(tmp_path: Path) -> None:
    benchmark = make_benchmark(order=(0, 1, 0))
    runs = [make_run(benchmark, "hcl-fr-ta", s, [(2, 0)], verdicts={BATCHES: 1}) for s in (0, 5)]
    scores = [scoring.score(run, benchmark) for run in runs]
    described = scoring.about(runs, benchmark, {})
    write_scores(tmp_path / "scores", runs, scores, {}, described)

    accuracy = rows(tmp_path / "scores/accuracy.csv")
    assert len(accuracy) == 2 * 3 * 2
    assert accuracy[0] == {"seed": "0", "segment": "1", "task": "1", "accuracy": "100.0"}
    last = {"seed": "5", "segment": "3", "task": "1", "accuracy": "75.0"}
    assert accuracy[-2] == last

    by_seed = rows(tmp_path / "scores/metrics.csv")
    assert [row["seed"] for row in by_seed] == ["0", "5"]
    assert by_seed[0]["changes_found"] == "1"
    assert by_seed[0]["changes_missed"] == "1"
    assert by_seed[0]["changes_delay"] == "0.0"

    trace = rows(tmp_path / "scores/trace.csv")
    assert len(trace) == 2 * 3 * BATCHES
    change = trace[BATCHES]
    assert (change["batch"], change["segment"], change["true_task"]) == ("13", "2", "2")
    assert (change["learner_task"], change["verdict"]) == ("2", "1")
    assert list(change)[6:] == [
        f"{name}{bound}"
        for name in ("log_px", "log_pz", "log_det")
        for bound in ("", "_low", "_high")
    ]
    assert (change["log_px_low"], change["log_px_high"]) == ("-125", "-75")
    assert (change["log_det_low"], trace[0]["log_px_low"]) == ("", "")
    value = runs[0].trace.statistics["log_pz"][BATCHES, 0]
    assert float(change["log_pz"]) == pytest.approx(value, rel=1e-5)


def test_a_detector_s_own_statistics_are_columns_in_its_order(tmp_path: Path) -> None:
    benchmark = make_benchmark(order=(0, 1))
    run = make_run(benchmark, "mine", 0, verdicts={BATCHES: 1})
    batches = len(run.trace.verdict)
    statistics = {
        "surprise": np.full((batches, 3), [1.5, -np.inf, 2], np.float32),
        "age": np.full((batches, 3), [7, np.nan, np.nan], np.float32),
    }
    run = replace(run, trace=replace(run.trace, statistics=statistics))
    scores = [scoring.score(run, benchmark)]
    write_scores(tmp_path / "scores", [run], scores, {}, scoring.about([run], benchmark, {}))
    change = rows(tmp_path / "scores/trace.csv")[BATCHES]
    assert list(change.items())[6:] == [
        *(("surprise", "1.5"), ("surprise_low", ""), ("surprise_high", "2")),
        *(("age", "7"), ("age_low", ""), ("age_high", "")),
    ]


def test_classes_go_by_their_names_and_say_what_they_were_taken_for(tmp_path: Path) -> None:
    benchmark = make_benchmark(order=(0, 1))  # four samples of task 1, two of task 2
    runs = [make_run(benchmark, seed=0, wrong=[(1, 0)]), make_run(benchmark, seed=1)]
    attributes = {"pictures": {"classes": json.dumps(["cat", "dog", "ewe", "fox"])}}
    scores = [scoring.score(run, benchmark) for run in runs]
    described = scoring.about(runs, benchmark, attributes)
    write_scores(tmp_path / "scores", runs, scores, {}, described)
    found = rows(tmp_path / "scores/classes.csv")
    assert [row["name"] for row in found] == ["cat", "dog", "ewe", "fox"] * 2
    assert found[0] == {
        **{"seed": "0", "task": "1", "class": "1", "name": "cat"},
        **{"accuracy": "50.0", "named": "50.0"},
    }
    assert {row["named"] for row in found[1:]} == {"100.0"}
    counts = {
        (r["name"], r["named"]): r["samples"] for r in rows(tmp_path / "scores/confusion.csv")
    }
    assert counts == {
        **{("cat", "cat"): "3", ("cat", "dog"): "1"},  # both seeds together
        **{("dog", "dog"): "4", ("ewe", "ewe"): "2", ("fox", "fox"): "2"},
    }


def test_a_method_without_tasks_has_an_accuracy_by_class_alone(tmp_path: Path) -> None:
    benchmark = make_benchmark(order=(0, 1))
    runs = [make_run(benchmark, "curl", wrong=[(1, 0)], tasks_known=False)]
    scores = [scoring.score(run, benchmark) for run in runs]
    write_scores(tmp_path / "scores", runs, scores, {}, scoring.about(runs, benchmark, {}))
    found = rows(tmp_path / "scores/classes.csv")
    assert [(row["name"], row["accuracy"], row["named"]) for row in found] == [
        *(("0", "50.0", ""), ("1", "100.0", ""), ("2", "100.0", ""), ("3", "100.0", "")),
    ]
    assert not (tmp_path / "scores/confusion.csv").exists()


def test_about_says_what_was_run() -> None:
    benchmark = make_benchmark(order=(0, 1, 0))
    runs = [make_run(benchmark, seed=s) for s in (0, 1)]
    attributes = {"pictures": {"backbone": "lite0", "weights_sha256": "cd"}}
    attributes["pictures"]["classes"] = json.dumps(["cat", "dog", "ewe", "fox"])
    about = scoring.about(runs, benchmark, attributes)
    assert json.loads(json.dumps(about)) == about
    assert about["stream"] == [{"task": t, "epochs": 3} for t in (1, 2, 1)]
    assert about["tasks"][1] == {
        "dataset": "pictures",
        "classes": [2, 3],
        "class_names": ["ewe", "fox"],
        "train": 8,
        "validation": 2,
        "test": 2,
    }
    source = {"dataset": "pictures", "content_sha256": "ab" * 32}
    assert about["sources"] == [source | {"backbone": "lite0", "weights_sha256": "cd"}]
    assert about["settings"]["flow"] == {"hidden": 8}
    assert list(about["fingerprints"]) == ["0", "1"]
    assert about["task_agnostic"] is False
    assert "class_names" not in scoring.about(runs, benchmark, {})["tasks"][1]


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    benchmark = make_benchmark()
    runs = [make_run(benchmark, "hcl-fr-ta", verdicts={BATCHES: 1})]
    for name in ("one", "two"):
        scores = [scoring.score(run, benchmark) for run in runs]
        write_scores(tmp_path / name, runs, scores, {}, scoring.about(runs, benchmark, {}))
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    csv_files = ["accuracy.csv", "classes.csv", "confusion.csv", "metrics.csv"]
    assert files == ["about.json", *csv_files, "summary.json", "trace.csv"]
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": [0, 3]}, "seed-3.h5: no such run. Make it with `hcl train` of hcl-fr on toy"),
        ({"method": "er"}, "seed-0.h5: no such run"),
        ({"order": (0, 1)}, r"answers are \(3, 12\), but toy has \(2, 6\)"),
        ({"order": (0, 2, 1)}, "seed-0.h5: was trained on tasks of toy that are not those of the"),
        ({"epochs": 4}, "their order, epochs, classes or samples differ"),
        ({"name": "other"}, "is a run of hcl-fr on toy with seed 0, expected hcl-fr on other"),
    ],
)
def test_runs_that_do_not_belong_are_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    benchmark = make_benchmark()
    write_runs(tmp_path, [make_run(benchmark)], benchmark)
    asked = make_benchmark(
        change.get("name", "toy"), change.get("order", (0, 1, 2)), change.get("epochs", 3)
    )
    method = change.get("method", "hcl-fr")
    with pytest.raises(HCLError, match=message):
        folder = tmp_path / "runs" / "toy" / method
        scoring.read_runs(folder, asked, method, change.get("seeds", [0]))


def test_a_summary_in_words_leaves_out_what_there_is_not() -> None:
    benchmark = make_benchmark(order=(0, 1))
    blind = make_run(benchmark, "curl", tasks_known=False)
    summary = scoring.summarise([scoring.score(blind, benchmark)])
    words = scoring.in_words(summary)
    assert words == "average accuracy 100.00 %, forgetting 0.00 % (1 seed)"


def test_a_summary_in_words_says_what_was_taken_for_another_task() -> None:
    benchmark = make_benchmark(order=(0, 1, 2))
    said = {BATCHES: 1, 2 * BATCHES: 2}  # the third task is new
    summary = scoring.summarise([scoring.score(make_run(benchmark, verdicts=said), benchmark)])
    assert "2 of 2 changes found, 0 false, 1 taken for another task (1 seed)" in (
        scoring.in_words(summary)
    )


def test_what_is_drawn_stands_under_the_true_task_beside_real_samples() -> None:
    """The second task went unnoticed: black. The first stands for itself, though found twice."""
    benchmark = make_benchmark()
    x = np.arange(8 * 4, dtype=np.uint8).reshape(8, 4)
    attributes = {"content_sha256": "", "pixels": "[1, 2, 2]"}
    embeddings = {"pictures": Embeddings(x, np.zeros(8, int), np.zeros(8, np.uint8), attributes)}
    drawn = np.random.default_rng(0).integers(1, 256, (3, 3, 2, 2, 1, 2, 2), dtype=np.uint8)
    run = replace(make_run(benchmark), samples=drawn, added_in=np.array([0, 0, 2], np.int16))
    found = scoring.samples(run, benchmark, embeddings)
    np.testing.assert_array_equal(found.drawn[:, 0], drawn[:, 0])
    np.testing.assert_array_equal(found.drawn[:, 2], drawn[:, 2])
    assert not found.drawn[:, 1].any()
    assert found.real.shape == (3, 2, 2, 1, 2, 2)
    np.testing.assert_array_equal(found.real[0, 1].reshape(2, 4), x[[1, 3]])  # labels: 0 1 0 1
    assert not found.real[1, 0, 1].any()  # the task has one test sample of the class
    nameless = replace(run, samples=drawn[:, :1], added_in=np.zeros(0, np.int16))
    np.testing.assert_array_equal(
        scoring.samples(nameless, benchmark, embeddings).drawn, drawn[:, :1]
    )
    assert scoring.samples(run, benchmark, {}) is None
    assert scoring.samples(make_run(benchmark), benchmark, embeddings) is None
