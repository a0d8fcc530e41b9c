"""The search over parameters: what it tries, what it scores on, what it refuses."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from hcl.errors import HCLError
from hcl.learn.closed_form.settings import NearestMeanMethod, RanPACMethod, StreamingLDAMethod
from hcl.learn.curl.settings import CurlMethod
from hcl.learn.flow.detection import DetectionSettings
from hcl.learn.flow.settings import FlowMethod, FunctionalSettings
from hcl.learn.joint.settings import JointMethod
from hcl.learn.kinds import AnyMethod
from hcl.learn.plus.settings import GaussianRule, LearnsAll, LearnsFirst, PlusMethod
from hcl.learn.settings import TrainingSettings
from hcl.model.hybrid import NonFiniteError
from hcl.model.settings import FlowSettings
from hcl.records.runs import read_run
from hcl.records.tasks import Part
from hcl.settings import Layered, build, load_yaml
from hcl.train import jobs
from hcl.tune.search import (
    Point,
    Trial,
    Tuning,
    best_of,
    nested,
    on_validation,
    search,
    tune,
    with_values,
    write_tuning,
)
from hcl.tune.settings import TuneSettings
from tests.support.blobs import benchmark, blobs_in_64_dimensions, with_validation

FLOW = FlowSettings(couplings=2, hidden_layers=1, hidden=8)
TRAINING = TrainingSettings(learning_rate=1e-3, save_model=True)
FR = FlowMethod(memory=FunctionalSettings(alpha=5))
CURL = CurlMethod(encoder=(8,), decoder=(8,), latents=2)
EMBEDDINGS, WHOLE = benchmark(blobs_in_64_dimensions(2, 84, 20))
TASKS = with_validation(WHOLE, 20)


def point(alpha: float, learning_rate: float = 1e-3, weight_decay: float = 1e-4) -> Point:
    values = {"memory.alpha": alpha, "learning_rate": learning_rate, "weight_decay": weight_decay}
    return tuple(values.items())


START = point(5.0)


def trying(values: dict[str, tuple[float, ...]], **options: object) -> TuneSettings:
    """Settings that try just these values, by dotted key."""
    return TuneSettings(values=nested(values), **options)


def run(kept: Path, settings: TuneSettings, method=FR, tasks=TASKS, embeddings=EMBEDDINGS):
    return tune(tasks, embeddings, "method", method, FLOW, TRAINING, settings, kept)


def recorded(made_up, **options):
    """A search with made-up scores, and the points of each of its rounds."""
    rounds = []

    def attempt(points):
        rounds.append(list(points))
        return [Trial(point, made_up(*dict(point).values())) for point in points]

    values = {"memory.alpha": (1, 5), "learning_rate": (1e-4, 1e-3), "weight_decay": (1e-4, 1e-2)}
    return search(START, values, TuneSettings(**options), attempt), rounds


def test_coordinates_are_taken_in_turn_from_the_best_so_far_and_nothing_twice():
    trials, rounds = recorded(lambda alpha, rate, decay: alpha + 1e3 * rate - decay)
    assert rounds == [[START, point(1)], [point(5, 1e-4)], [point(5, 1e-3, 1e-2)]]
    assert [trial.point for trial in trials] == [point for points in rounds for point in points]
    assert best_of(trials, "average").point == START


def test_what_is_set_already_wins_where_nothing_in_the_list_is_better():
    rounds = []

    def attempt(points):
        rounds.append(list(points))
        return [Trial(point, 1.0 if point == START else 0.5) for point in points]

    values = {"memory.alpha": (1, 100), "weight_decay": (1e-2,)}
    trials = search(START, values, TuneSettings(), attempt)
    assert rounds[0] == [START, point(1), point(100)]
    assert rounds[1] == [point(5, weight_decay=1e-2)]
    assert best_of(trials, "average").point == START


def test_a_grid_is_every_combination_at_once():
    trials, rounds = recorded(lambda alpha, _, decay: decay - alpha, search="grid")
    assert len(rounds) == 1
    assert rounds[0][:2] == [point(1, 1e-4), point(1, 1e-4, 1e-2)]
    assert len(set(rounds[0])) == 8
    assert best_of(trials, "average").point == point(1, 1e-4, 1e-2)


def test_a_search_goes_on_where_trials_diverge():
    _, rounds = recorded(lambda _, rate, decay: math.nan if rate > 1e-4 else decay)
    # No alpha is better than another, so that it stays where it was.
    assert rounds[1:] == [[point(5, 1e-4)], [point(5, 1e-4, 1e-2)]]


def test_the_first_of_equals_is_the_best_by_the_metric_asked_for():
    trials = [Trial(START, 0.5, 0.1), Trial(START, 0.7, 0.2), Trial(START, 0.7, 0.3)]
    trials += [Trial(START), Trial(START, 0.6, 0.3)]
    assert best_of(trials, "average") is trials[1]
    assert best_of(trials, "overall") is trials[2]
    assert best_of([Trial(START)], "average") is None


def test_trials_have_the_values_that_they_say_and_keep_no_model(tmp_path):
    values = {"memory.alpha": (1, 100), "learning_rate_decay": (0.5,)}
    found = run(tmp_path, trying(values, seed=3))
    used = set()
    for path in tmp_path.glob("*/run.h5"):
        read = read_run(path)
        method = read.settings["method"]
        used.add((method["memory"]["alpha"], method["learning_rate_decay"]))
        assert read.settings["training"]["learning_rate"] == 1e-3
        assert read.seed == 3
        assert not (path.parent / "model.safetensors").exists()
    tried = [tuple(dict(trial.point).values()) for trial in found.trials]
    assert used == set(tried)
    assert tried[:-1] == [(alpha, 0.0) for alpha in (5, 1, 100)]
    assert tried[-1] in [(alpha, 0.5) for alpha in (5, 1, 100)]
    best = dict(found.best.point)
    assert found.chosen == {
        "memory": {"alpha": best["memory.alpha"]},
        "learning_rate_decay": best["learning_rate_decay"],
    }


def test_a_search_starts_from_what_the_method_takes_on_the_benchmark(tmp_path):
    method = FlowMethod(memory=FunctionalSettings(alpha=7), learning_rate=2e-3, weight_decay=0.0)
    found = run(tmp_path, trying({"memory.alpha": (1,)}), method)
    assert [trial.point for trial in found.trials] == [
        (("memory.alpha", 7.0),),
        (("memory.alpha", 1.0),),
    ]
    rates = {"learning_rate": (1e-3,), "weight_decay": (1e-2,)}
    found = run(tmp_path, trying(rates), method)
    assert dict(found.trials[0].point) == {"learning_rate": 2e-3, "weight_decay": 0.0}
    for path in tmp_path.glob("*/run.h5"):  # what is not tried stays the method's
        used = read_run(path).settings["method"]
        assert used["memory"]["alpha"] == 7 or used["learning_rate"] == 2e-3
    found = run(tmp_path, trying(rates), FR)  # where it names none, the benchmark's
    assert dict(found.trials[0].point) == {"learning_rate": 1e-3, "weight_decay": 1e-4}


def test_the_validation_part_is_scored_and_the_test_part_is_never_seen(tmp_path):
    settings = trying({"memory.alpha": (1,)})
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
    settings = TuneSettings(samples_per_task=12, seed=1)
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
    for settings in (TuneSettings(), TuneSettings(samples_per_task=1000)):
        whole = on_validation(TASKS, settings)
        for task, same in zip(TASKS.tasks, whole.tasks, strict=True):
            np.testing.assert_array_equal(task.train.rows, same.train.rows)
            np.testing.assert_array_equal(task.train.y, same.train.y)


def test_a_finished_trial_is_never_trained_again(tmp_path):
    def finished():
        return {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/run.h5")}

    run(tmp_path, trying({"memory.alpha": (1, 5)}))
    before = finished()
    more = trying({"memory.alpha": (1, 5, 100)})
    found = run(tmp_path, more)
    now = finished()
    assert (len(before), len(now)) == (2, 3)
    assert before.items() <= now.items()
    assert run(tmp_path, more) == found
    assert finished() == now


def test_a_trial_that_diverges_has_no_scores_and_ends_no_other(tmp_path, monkeypatch):
    train_into = jobs.train_into

    def overflow_at_large_rates(job, folder, position=0):
        if job.method.learning_rate > 1:  # no rate that may be asked for does on so small a set
            raise NonFiniteError("the loss is inf.")
        train_into(job, folder, position)

    monkeypatch.setattr(jobs, "train_into", overflow_at_large_rates)
    found = run(tmp_path, trying({"learning_rate": (10, 1e-3), "weight_decay": (1e-2,)}))
    assert math.isnan(found.trials[1].average)
    assert math.isnan(found.trials[1].overall)
    assert [dict(trial.point)["learning_rate"] for trial in found.trials] == [1e-3, 10, 1e-3]
    assert found.best in (found.trials[0], found.trials[2])
    with pytest.raises(HCLError, match=r"2 trials .* not finite.*tune.values.learning_rate"):
        run(tmp_path, trying({"learning_rate": (9.5, 10)}, search="grid"))


def test_only_what_a_method_has_is_tried(tmp_path):
    adam = FlowMethod()
    found = run(tmp_path, trying({"memory.alpha": (1, 5), "weight_decay": (1e-2,)}), adam)
    assert [trial.point for trial in found.trials] == [
        (("weight_decay", decay),) for decay in (1e-4, 1e-2)
    ]
    assert found.chosen == {"weight_decay": dict(found.best.point)["weight_decay"]}
    nothing = r"nothing to tune: .* kind flow has. Give values of learning_rate, .* unlabelled\.$"
    with pytest.raises(HCLError, match=nothing):
        run(tmp_path, trying({"memory.alpha": (1, 5), "weight_decay": ()}), adam)
    with pytest.raises(HCLError, match=r"method: there is nothing to tune.*kind ncm has\.$"):
        run(tmp_path, TuneSettings(), NearestMeanMethod())


SLDA = StreamingLDAMethod(shrinkage=0.05)
RANPAC = RanPACMethod(projections=30)
PLUS = PlusMethod(projections=20)
OF_SUMS = ["power", "projections", "rule.penalty", "rule.shrinkage"]


@pytest.mark.parametrize(
    ("method", "names"),
    [
        (SLDA, ["shrinkage"]),
        (RANPAC, ["projections", "ridge"]),
        (PLUS, OF_SUMS),
        (
            dataclasses.replace(PLUS, rule=GaussianRule()),
            ["power", "projections", "rule.shrinkage"],
        ),
        (
            dataclasses.replace(PLUS, flow=LearnsFirst()),
            ["flow.learning_rate", "flow.weight_decay", *OF_SUMS],
        ),
        (
            dataclasses.replace(PLUS, flow=LearnsAll(alpha=50, replay=8)),
            ["flow.alpha", "flow.learning_rate", "flow.weight_decay", *OF_SUMS],
        ),
    ],
)
def test_what_learns_by_sums_is_tuned_in_what_they_are_solved_with(method, names, tmp_path):
    changed = {
        "memory.alpha": (6,),
        "learning_rate": (5e-3,),
        "flow.alpha": (7,),
        "flow.learning_rate": (2e-3,),
        "flow.weight_decay": (3e-3,),
        "power": (0.7,),
        "projections": (24,),
        "ridge": (0.3,),
        "shrinkage": (0.4,),
        "rule.penalty": (0.3,),
        "rule.shrinkage": (0.4,),
    }
    found = run(tmp_path, trying(changed, search="grid"), method)
    (trial,) = found.trials
    assert dict(trial.point) == {name: changed[name][0] for name in names}
    (path,) = tmp_path.glob("*/run.h5")
    used = read_run(path).settings["method"]
    assert build(AnyMethod, used, "run.h5") == with_values(method, dict(trial.point))


def test_joint_training_is_tuned_in_its_rates_and_what_is_done_against_overfitting(tmp_path):
    method = JointMethod(hidden=8, epochs=2, batch_size=32)
    chosen = {"learning_rate": (5e-3,), "power": (0.7,), "dropout": (0.1,), "noise": (0.1,)}
    more = {"smoothing": (0.05,), "weight_decay": (1e-3,), "memory.alpha": (6,)}
    found = run(tmp_path, trying({**chosen, **more}, search="grid"), method)
    (trial,) = found.trials
    names = [*chosen, "smoothing", "weight_decay"]
    assert sorted(dict(trial.point)) == sorted(names)
    assert trial.average > 0.5
    assert trial.overall > 0.1
    for name in names:
        assert name in TuneSettings().listed()


def test_what_is_chosen_laid_over_the_method_is_what_was_tried(tmp_path):
    """It is the entry ``tuned.<method>`` of a benchmark, which leaves all else as it is."""
    method = FlowMethod(
        memory=FunctionalSettings(alpha=7, draws="measured"),
        detection=DetectionSettings(threshold=8.0),
    )
    values = {"memory.alpha": (3,), "detection.window": (20,), "weight_decay": (1e-2,)}
    for each, asked in ((method, values), (PLUS, {"rule.penalty": (0.3,), "power": (1,)})):
        chosen = nested({key: choices[0] for key, choices in asked.items()})
        layers = Layered()
        layers.lay(dataclasses.asdict(each), "methods.m", "params.yaml")
        layers.lay(chosen, "benchmarks.blobs.tuned.m", "params.yaml")
        expected = with_values(each, {key: choices[0] for key, choices in asked.items()})
        assert layers.build(AnyMethod, "params.yaml") == expected
    found = run(tmp_path, trying({"rule.penalty": (0.3,), "power": (1,)}, search="grid"), PLUS)
    assert found.chosen == {"rule": {"penalty": 0.3}, "power": 1.0}
    assert run(tmp_path, trying({"ridge": (0.3,)}, search="grid"), RANPAC).chosen == {"ridge": 0.3}


@pytest.mark.parametrize(
    ("method", "values", "message"),
    [
        (RANPAC, {"projections": (0,)}, r"projections: is 0; expected a whole number from 1"),
        (RANPAC, {"projections": (24.5,)}, r"projections: holds 24.5; expected whole numbers"),
        (RANPAC, {"ridge": (0.1, 0)}, r"ridge: is 0; expected a number above 0"),
        (FR, {"weight_decay": (-1e-4,)}, r"weight_decay: is -0.0001; expected a number from 0"),
        (FR, {"learning_rate": (0,)}, r"learning_rate: is 0; expected a number above 0"),
        (FR, {"memory.alpha": (-1,)}, r"memory.alpha: is -1; expected a number from 0"),
        (PLUS, {"power": (0.5, 2)}, r"power: is 2; expected a number above 0, up to 1"),
        (PLUS, {"rule.penalty": (0,)}, r"rule.penalty: is 0; expected a number above 0"),
    ],
)
def test_a_value_that_the_method_refuses_is_refused_before_any_trial(
    method, values, message, tmp_path
):
    with pytest.raises(HCLError, match=rf"^tune\.values\.{message}"):
        run(tmp_path, trying(values), method)
    assert not list(tmp_path.iterdir())


def test_a_method_that_names_no_task_has_no_overall_accuracy(tmp_path):
    found = run(tmp_path, trying({"learning_rate": (1e-3,)}), CURL)
    assert 0 < found.best.average < 1
    assert math.isnan(found.best.overall)
    with pytest.raises(HCLError, match=r"tune.metric is overall.*Take metric: average"):
        run(tmp_path, trying({"learning_rate": (1e-3,)}, metric="overall"), CURL)


def test_a_benchmark_without_validation_is_refused(tmp_path):
    with pytest.raises(HCLError, match=r"benchmarks\.blobs\.stream\.validation"):
        run(tmp_path, TuneSettings(), tasks=WHOLE)


def test_the_file_has_a_row_a_trial_in_the_order_tried(tmp_path):
    trials = [
        Trial(point(10.0, 3e-5), 0.5, 0.25),
        Trial(point(10.0, 1.0)),
        Trial(point(1.0, 1e-4, 0.0), 2 / 3, math.nan),
    ]
    chosen = {"learning_rate": 1e-4}
    write_tuning(tmp_path / "new" / "m.csv", Tuning(trials, trials[2], chosen))
    assert (tmp_path / "new" / "m.csv").read_text() == (
        "trial,memory.alpha,learning_rate,weight_decay,average,overall,chosen\n"
        "1,10,3e-05,0.0001,0.5000,0.2500,0\n"
        "2,10,1,0.0001,,,0\n"
        "3,1,0.0001,0,0.6667,,1\n"
    )
    trial = Trial((("projections", 4000), ("ridge", 0.01)), 0.5, 0.25)
    write_tuning(tmp_path / "m.csv", Tuning([trial], trial, {"ridge": 0.01}))
    assert (tmp_path / "m.csv").read_text() == (
        "trial,projections,ridge,average,overall,chosen\n1,4000,0.01,0.5000,0.2500,1\n"
    )


def test_the_defaults_are_those_of_the_documentation(tmp_path):
    text = Path(__file__).parents[2].joinpath("docs/learning.md").read_text(encoding="utf-8")
    block = text.split("## Tuning")[1].split("```yaml\n")[1].split("```")[0]
    (tmp_path / "params.yaml").write_text(block)
    values = load_yaml(tmp_path / "params.yaml")["tune"]
    assert set(values) == {field.name for field in dataclasses.fields(TuneSettings)}
    assert build(TuneSettings, values, "params.yaml", "tune") == TuneSettings()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"values": {"memory": {"alpha": [1, 5, 1]}}}, "tune.values.memory.alpha: a value stands"),
        ({"values": {"weight_decay": 1}}, "tune.values.weight_decay is 1; expected a list"),
        (
            {"values": {"weight_decay": ["x"]}},
            r"tune.values.weight_decay\[0\] is 'x'; expected a wh",
        ),
        (
            {"values": {"memory": {"alhpa": [1]}}},
            r"tune.values.memory.alhpa: no kind of method has such a key \(did you mean",
        ),
        ({"values": {"memory": {"draws": [1]}}}, "tune.values.memory.draws: no kind of method"),
        ({"values": {"memory": [1]}}, "tune.values.memory: no kind of method has such a key"),
        ({"alpha": [1]}, "tune.alpha is not a known key"),
        ({"samples_per_task": 0}, "tune.samples_per_task: is 0"),
        ({"seed": -1}, "tune.seed: is -1"),
        ({"search": "random"}, "tune.search is 'random'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values, message):
    with pytest.raises(HCLError, match=message):
        build(TuneSettings, values, "params.yaml", "tune")
