"""The search over parameters: what it tries, what it scores on, what it refuses."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from hcl.errors import HCLError
from hcl.learn.detection import DetectionSettings
from hcl.learn.learners import MethodChanges, MethodSettings
from hcl.learn.plus import PlusSettings
from hcl.learn.vae import VAESettings
from hcl.model.flows import FlowSettings
from hcl.records.runs import read_run
from hcl.records.tasks import Part
from hcl.settings import build, load_yaml
from hcl.train.loop import TrainingSettings
from hcl.tune import (
    Point,
    Trial,
    TuneSettings,
    Tuning,
    best_of,
    on_validation,
    search,
    tune,
    write_tuning,
)
from tests.support.blobs import benchmark, blobs_in_64_dimensions, with_validation

FLOW = FlowSettings(couplings=2, hidden_layers=1, hidden=8)
TRAINING = TrainingSettings(learning_rate=1e-3, save_model=True)
FR = MethodSettings(memory="functional", alpha=5)
CURL = MethodSettings(
    kind="vae", memory="generative", vae=VAESettings(encoder=(8,), decoder=(8,), latents=2)
)
EMBEDDINGS, WHOLE = benchmark(blobs_in_64_dimensions(2, 84, 20))
TASKS = with_validation(WHOLE, 20)
START = Point(5.0, 1e-3, 1e-4)
NONE = TuneSettings(**dict.fromkeys(Point._fields, ()))


def trying(**values: object) -> TuneSettings:
    """Settings that try just these values."""
    return dataclasses.replace(NONE, **values)


def run(kept: Path, settings: TuneSettings, method=FR, tasks=TASKS, embeddings=EMBEDDINGS):
    return tune(tasks, embeddings, "method", method, FLOW, TRAINING, settings, kept)


def recorded(made_up, **options):
    """A search with made-up scores, and the points of each of its rounds."""
    rounds = []

    def attempt(points):
        rounds.append(list(points))
        return [Trial(point, made_up(point)) for point in points]

    values = {"alpha": (1, 5), "learning_rate": (1e-4, 1e-3), "weight_decay": (1e-4, 1e-2)}
    return search(START, values, TuneSettings(**options), attempt), rounds


def test_coordinates_are_taken_in_turn_from_the_best_so_far_and_nothing_twice():
    trials, rounds = recorded(lambda p: p.alpha + 1e3 * p.learning_rate - p.weight_decay)
    assert rounds == [
        [START, Point(1, 1e-3, 1e-4)],
        [Point(5, 1e-4, 1e-4)],
        [Point(5, 1e-3, 1e-2)],
    ]
    assert [trial.point for trial in trials] == [point for points in rounds for point in points]
    assert best_of(trials, "average").point == Point(5, 1e-3, 1e-4)


def test_what_is_set_already_wins_where_nothing_in_the_list_is_better():
    rounds = []

    def attempt(points):
        rounds.append(list(points))
        return [Trial(point, 1.0 if point == START else 0.5) for point in points]

    trials = search(START, {"alpha": (1, 100), "weight_decay": (1e-2,)}, NONE, attempt)
    assert rounds[0] == [START, START._replace(alpha=1), START._replace(alpha=100)]
    assert rounds[1] == [START._replace(weight_decay=1e-2)]
    assert best_of(trials, "average").point == START


def test_a_grid_is_every_combination_at_once():
    trials, rounds = recorded(lambda p: p.weight_decay - p.alpha, search="grid")
    assert len(rounds) == 1
    assert rounds[0][:2] == [Point(1, 1e-4, 1e-4), Point(1, 1e-4, 1e-2)]
    assert len(set(rounds[0])) == 8
    assert best_of(trials, "average").point == Point(1, 1e-4, 1e-2)


def test_a_search_goes_on_where_trials_diverge():
    _, rounds = recorded(lambda p: math.nan if p.learning_rate > 1e-4 else p.weight_decay)
    # No alpha is better than another, so that it stays where it was.
    assert rounds[1:] == [[Point(5, 1e-4, 1e-4)], [Point(5, 1e-4, 1e-2)]]


def test_the_first_of_equals_is_the_best_by_the_metric_asked_for():
    trials = [Trial(START, 0.5, 0.1), Trial(START, 0.7, 0.2), Trial(START, 0.7, 0.3)]
    trials += [Trial(START), Trial(START, 0.6, 0.3)]
    assert best_of(trials, "average") is trials[1]
    assert best_of(trials, "overall") is trials[2]
    assert best_of([Trial(START)], "average") is None


def test_trials_have_the_values_that_they_say_and_keep_no_model(tmp_path):
    found = run(tmp_path, trying(alpha=(1, 100), learning_rate_decay=(0.5,), seed=3))
    used = set()
    for path in tmp_path.glob("*/run.h5"):
        read = read_run(path)
        method = read.settings["method"]
        used.add(
            Point(
                method["alpha"],
                method["learning_rate"],
                method["weight_decay"],
                method["learning_rate_decay"],
            )
        )
        assert read.seed == 3
        assert not (path.parent / "model.safetensors").exists()
    assert used == {trial.point for trial in found.trials}
    *first, last = (trial.point for trial in found.trials)
    assert first == [Point(alpha, 1e-3, 1e-4, 0.0) for alpha in (5, 1, 100)]
    assert last in [point._replace(learning_rate_decay=0.5) for point in first]
    best = found.best.point
    assert found.chosen == {"alpha": best.alpha, "learning_rate_decay": best.learning_rate_decay}


def test_a_search_starts_from_what_the_benchmark_takes(tmp_path):
    changes = MethodChanges(alpha=7, learning_rate=2e-3, weight_decay=0.0)
    method = dataclasses.replace(FR, benchmarks={"blobs": changes})
    start = Point(7, 2e-3, 0.0, 0.0)
    found = run(tmp_path, trying(alpha=(1,)), method)
    assert [trial.point for trial in found.trials] == [start, Point(1, 2e-3, 0.0, 0.0)]
    found = run(tmp_path, trying(weight_decay=(1e-2,)), method)
    assert [trial.point for trial in found.trials] == [start, Point(7, 2e-3, 1e-2, 0.0)]


def test_the_validation_part_is_scored_and_the_test_part_is_never_seen(tmp_path):
    settings = trying(alpha=(1,))
    found = run(tmp_path / "a", settings)
    assert 0 < found.best.average < 1  # so that the two checks below can tell

    x = EMBEDDINGS["blobs"].x.copy()
    for task in TASKS.tasks:
        x[task.test.rows] = np.nan
    no_test = Part(np.zeros(0, np.int64), np.zeros(0, np.int64))
    poisoned = {"blobs": dataclasses.replace(EMBEDDINGS["blobs"], x=x)}
    cut = tuple(dataclasses.replace(task, test=no_test) for task in TASKS.tasks)
    assert run(tmp_path / "b", settings, embeddings=poisoned) == found
    assert run(tmp_path / "c", settings, tasks=dataclasses.replace(TASKS, tasks=cut)) == found

    wrong = tuple(
        dataclasses.replace(t, validation=Part(t.validation.rows, 1 - t.validation.y))
        for t in TASKS.tasks
    )
    flipped = run(tmp_path / "d", settings, tasks=dataclasses.replace(TASKS, tasks=wrong))
    assert flipped.best.average == pytest.approx(1 - found.best.average)


def test_trials_train_on_the_samples_asked_for():
    settings = trying(samples_per_task=12, seed=1)
    cut, again = on_validation(TASKS, settings), on_validation(TASKS, settings)
    other = on_validation(TASKS, dataclasses.replace(settings, seed=2))
    for number, task in enumerate(TASKS.tasks):
        drawn = cut.tasks[number].train
        label_of = dict(zip(task.train.rows, task.train.y, strict=True))
        assert len(set(drawn.rows)) == 12
        assert [label_of[row] for row in drawn.rows] == drawn.y.tolist()
        np.testing.assert_array_equal(drawn.rows, again.tasks[number].train.rows)
        assert not np.array_equal(drawn.rows, other.tasks[number].train.rows)
        assert len(cut.tasks[number].test.y) == 20
    for settings in (trying(), trying(samples_per_task=1000)):
        whole = on_validation(TASKS, settings)
        for task, same in zip(TASKS.tasks, whole.tasks, strict=True):
            np.testing.assert_array_equal(task.train.rows, same.train.rows)
            np.testing.assert_array_equal(task.train.y, same.train.y)


def test_a_finished_trial_is_never_trained_again(tmp_path):
    def finished():
        return {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/run.h5")}

    run(tmp_path, trying(alpha=(1, 5)))
    before = finished()
    more = trying(alpha=(1, 5, 100))
    found = run(tmp_path, more)
    now = finished()
    assert (len(before), len(now)) == (2, 3)
    assert before.items() <= now.items()
    assert run(tmp_path, more) == found
    assert finished() == now


def test_a_trial_that_diverges_has_no_scores_and_ends_no_other(tmp_path):
    found = run(tmp_path, trying(learning_rate=(1e30, 1e-3), weight_decay=(1e-2,)))
    assert math.isnan(found.trials[1].average)
    assert math.isnan(found.trials[1].overall)
    assert [trial.point.learning_rate for trial in found.trials] == [1e-3, 1e30, 1e-3]
    assert found.best in (found.trials[0], found.trials[2])
    with pytest.raises(HCLError, match=r"each of the 2 trials .* not finite.*tune.learning_rate"):
        run(tmp_path, trying(learning_rate=(1e30, 1e31), search="grid"))


def test_only_what_a_method_has_is_tried(tmp_path):
    adam = MethodSettings()
    found = run(tmp_path, trying(alpha=(1, 5), weight_decay=(1e-2,)), adam)
    tried = [trial.point for trial in found.trials]
    assert tried == [Point(None, 1e-3, decay, 0.0) for decay in (1e-4, 1e-2)]
    assert found.chosen == {"weight_decay": found.best.point.weight_decay}
    with pytest.raises(HCLError, match=r"nothing to try.*tune.learning_rate or tune.weight_decay"):
        run(tmp_path, trying(alpha=(1, 5)), adam)
    with pytest.raises(HCLError, match=r"method: there is nothing to tune.*kind ncm"):
        run(tmp_path, TuneSettings(), MethodSettings(kind="ncm"))


SLDA = MethodSettings(kind="slda", shrinkage=0.05)
RANPAC = MethodSettings(kind="ranpac", projections=30)
PLUS = MethodSettings(
    kind="plus", memory="functional", alpha=50, plus=PlusSettings(projections=20, replay=8)
)


def with_parts(**parts: object) -> MethodSettings:
    return dataclasses.replace(PLUS, plus=dataclasses.replace(PLUS.plus, **parts))


@pytest.mark.parametrize(
    ("method", "names"),
    [
        (SLDA, ["shrinkage"]),
        (RANPAC, ["projections", "ridge"]),
        (PLUS, ["power", "projections", "ridge"]),
        (with_parts(rule="gaussian"), ["power", "projections", "shrinkage"]),
        (
            with_parts(flow="first"),
            ["learning_rate", "weight_decay", "power", "projections", "ridge"],
        ),
        (
            with_parts(flow="all"),
            ["alpha", "learning_rate", "weight_decay", "power", "projections", "ridge"],
        ),
    ],
)
def test_what_learns_by_sums_is_tuned_in_what_they_are_solved_with(method, names, tmp_path):
    changed = {
        "alpha": (7,),
        "learning_rate": (2e-3,),
        "weight_decay": (3e-3,),
        "power": (0.7,),
        "projections": (24,),
        "ridge": (0.3,),
        "shrinkage": (0.4,),
    }
    found = run(tmp_path, trying(search="grid", **changed), method)
    (trial,) = found.trials
    assert trial.point.given == {name: changed[name][0] for name in names}
    (path,) = tmp_path.glob("*/run.h5")
    settings = read_run(path).settings["method"]
    trained_with = {**settings, **settings["plus"]} if method.kind == "plus" else settings
    assert {name: trained_with[name] for name in names} == trial.point.given


def test_what_is_chosen_for_hcl_plus_is_its_section_as_a_whole(tmp_path):
    only = trying(ridge=(0.3,), search="grid")
    found = run(tmp_path, only, PLUS)
    assert found.chosen == {"plus": {"projections": 20, "replay": 8, "ridge": 0.3}}
    changes = build(MethodChanges, found.chosen, "params.yaml", "m")
    tuned = dataclasses.replace(PLUS, benchmarks={"blobs": changes}).for_benchmark("blobs")
    assert tuned.plus == dataclasses.replace(PLUS.plus, ridge=0.3)
    assert run(tmp_path, only, RANPAC).chosen == {"ridge": 0.3}


def test_what_the_benchmark_had_stays_in_what_is_chosen(tmp_path):
    changes = MethodChanges(projections=25)
    method = dataclasses.replace(RANPAC, benchmarks={"blobs": changes})
    found = run(tmp_path, trying(ridge=(0.3,), search="grid"), method)
    assert found.chosen == {"projections": 25, "ridge": 0.3}
    changes = MethodChanges(alpha=7, detection=DetectionSettings(threshold=8.0))
    method = dataclasses.replace(FR, tasks="detected", benchmarks={"blobs": changes})
    found = run(tmp_path, trying(weight_decay=(1e-2,), search="grid"), method)
    assert found.chosen == {"alpha": 7, "detection": {"threshold": 8.0}, "weight_decay": 1e-2}


def test_a_value_that_the_method_refuses_is_refused_before_any_trial(tmp_path):
    with pytest.raises(HCLError, match=r"^tune\.projections: is 0"):
        run(tmp_path, trying(projections=(0,)), RANPAC)
    assert not list(tmp_path.iterdir())


def test_a_method_that_names_no_task_has_no_overall_accuracy(tmp_path):
    found = run(tmp_path, trying(learning_rate=(1e-3,)), CURL)
    assert 0 < found.best.average < 1
    assert math.isnan(found.best.overall)
    with pytest.raises(HCLError, match=r"tune.metric is overall.*Take metric: average"):
        run(tmp_path, trying(learning_rate=(1e-3,), metric="overall"), CURL)


def test_a_benchmark_without_validation_is_refused(tmp_path):
    with pytest.raises(HCLError, match=r"benchmarks\.blobs\.stream\.validation"):
        run(tmp_path, TuneSettings(), tasks=WHOLE)


def test_the_file_has_a_row_a_trial_in_the_order_tried(tmp_path):
    trials = [
        Trial(Point(10.0, 3e-5, 1e-4), 0.5, 0.25),
        Trial(Point(10.0, 1.0, 1e-4)),
        Trial(Point(1.0, 1e-4, 0.0), 2 / 3, math.nan),
    ]
    chosen = {"learning_rate": 1e-4}
    write_tuning(tmp_path / "new" / "m.csv", Tuning(trials, trials[2], chosen))
    assert (tmp_path / "new" / "m.csv").read_text() == (
        "trial,alpha,learning_rate,weight_decay,average,overall,chosen\n"
        "1,10,3e-05,0.0001,0.5000,0.2500,0\n"
        "2,10,1,0.0001,,,0\n"
        "3,1,0.0001,0,0.6667,,1\n"
    )
    trial = Trial(Point(projections=4000, ridge=0.01), 0.5, 0.25)
    write_tuning(tmp_path / "m.csv", Tuning([trial], trial, {"ridge": 0.01}))
    assert (tmp_path / "m.csv").read_text() == (
        "trial,projections,ridge,average,overall,chosen\n1,4000,0.01,0.5000,0.2500,1\n"
    )


def test_the_defaults_are_those_of_the_documentation(tmp_path):
    text = Path(__file__).parent.parent.joinpath("docs/learning.md").read_text(encoding="utf-8")
    block = text.split("## Tuning")[1].split("```yaml\n")[1].split("```")[0]
    (tmp_path / "params.yaml").write_text(block)
    values = load_yaml(tmp_path / "params.yaml")["tune"]
    assert set(values) == {field.name for field in dataclasses.fields(TuneSettings)}
    assert build(TuneSettings, values, "params.yaml", "tune") == TuneSettings()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"alpha": [1, 5, 1]}, "tune.alpha: a value stands twice"),
        ({"weight_decay": [-1e-4]}, "tune.weight_decay: is"),
        ({"learning_rate": [0]}, "tune.learning_rate: holds 0"),
        ({"power": [0.5, 2]}, "tune.power: holds 2; expected numbers above 0, up to 1"),
        ({"ridge": [0]}, "tune.ridge: holds 0"),
        ({"samples_per_task": 0}, "tune.samples_per_task: is 0"),
        ({"seed": -1}, "tune.seed: is -1"),
        ({"search": "random"}, "tune.search is 'random'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values, message):
    with pytest.raises(HCLError, match=message):
        build(TuneSettings, values, "params.yaml", "tune")
