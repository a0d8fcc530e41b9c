"""Both classifiers: scikit-learn's own checks, streams without task labels, files, pickles."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import hcl
from hcl.errors import HCLError
from hcl.estimator import HCLClassifier, HCLPlusClassifier
from hcl.learn.flow.learner import falling_rate
from hcl.model.model_file import read_model, write_model
from tests.support.blobs import blobs_in_64_dimensions

SMALL = HCLClassifier(
    couplings=4, hidden=32, epochs=20, learning_rate=5e-3, weight_decay=0.0, random_state=0
)
# Checks that need what is not installed here: the first is for estimators that compute with arrays
# of other libraries, which this one turns into tensors; the second does its part without pandas
# and then asks for pandas.
NOT_APPLICABLE = {"check_array_api_input", "check_classifier_data_not_an_array"}


@pytest.mark.slow
def test_scikit_learns_own_checks():
    results = check_estimator(SMALL, on_skip=None, on_fail="raise")
    skipped = {result["check_name"] for result in results if result["status"] == "skipped"}
    assert skipped <= NOT_APPLICABLE
    assert len(results) > 50


def stream(order=(0, 1, 2, 0, 3)):
    """The training parts of the tasks, in this order, twelve times each; and their test parts."""
    embeddings, tasks, _ = blobs_in_64_dimensions(train=640, test=100)
    x = embeddings["blobs"].x
    shown = [(x[tasks[t].train.rows], np.array(["no", "yes"])[tasks[t].train.y]) for t in order]
    tests = [(x[t.test.rows], np.array(["no", "yes"])[t.test.y]) for t in tasks]
    return shown, tests


def streamed() -> HCLClassifier:
    classifier = HCLClassifier(couplings=4, hidden=64, alpha=1.0, weight_decay=0.0, random_state=0)
    for X, y in stream()[0]:
        for _ in range(6):
            classifier.partial_fit(X, y)
    return classifier


@pytest.fixture(scope="module")
def classifier() -> HCLClassifier:
    return streamed()


def test_a_stream_without_task_labels_is_learned_and_its_changes_found(classifier):
    assert [tuple(change) for change in classifier.task_changes_] == [
        (122, "new", 1),  # three batches are enough to be sure
        (242, "new", 2),
        (362, "recurring", 0),
        (482, "new", 3),
    ]
    assert classifier.n_tasks_ == 4
    assert classifier.task_ == 3
    assert classifier.n_batches_ == 600
    for task, (X, y) in enumerate(stream()[1]):
        assert classifier.score(X, y) > 0.9
        assert (classifier.predict_task(X) == task).mean() > 0.9


def test_probabilities_and_densities_are_bayes_rule(classifier):
    X, _ = stream()[1][1]
    model = classifier._learner.model.snapshot().double()
    log_pxs = model.log_likelihoods(torch.from_numpy(X).double()).numpy()  # (n, T, K)
    joint = logsumexp(log_pxs, axis=1)
    expected = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
    np.testing.assert_allclose(classifier.predict_proba(X), expected, atol=1e-6)
    np.testing.assert_allclose(
        classifier.score_samples(X), logsumexp(log_pxs, axis=(1, 2)) - np.log(8), rtol=1e-8
    )


def test_samples_look_like_what_was_learned(classifier):
    for task, (X, y) in enumerate(stream()[1]):
        drawn, labels = classifier.sample(200, y="yes", task=task, random_state=1)
        assert drawn.shape == (200, 64)
        assert set(labels) == {"yes"}
        own = np.linalg.norm(drawn.mean(0) - X[y == "yes"].mean(0))
        assert own < 0.5 * np.linalg.norm(X[y == "no"].mean(0) - X[y == "yes"].mean(0))
    mixed, labels = classifier.sample(100, random_state=1)
    assert set(labels) == {"no", "yes"}
    np.testing.assert_array_equal(mixed, classifier.sample(100, random_state=1)[0])
    for wrong in ({"y": "maybe"}, {"task": 4}, {"n_samples": 0}):
        with pytest.raises(ValueError, match="expected"):
            classifier.sample(**wrong)


def test_a_pickle_goes_on_like_the_original(classifier):
    X, y = stream()[0][1]
    copy = pickle.loads(pickle.dumps(classifier))
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(copy.predict_proba(X), classifier.predict_proba(X))
    for other in (copy, again):
        other.partial_fit(X, y)
    np.testing.assert_array_equal(copy.predict_proba(X), again.predict_proba(X))
    assert copy.task_changes_ == again.task_changes_
    assert copy.task_changes_[:-1] == classifier.task_changes_
    assert copy.task_changes_[-1].batch < 605
    assert copy.task_changes_[-1][1:] == ("recurring", 1)


def test_labels_are_those_of_the_first_call():
    X = np.random.default_rng(0).normal(size=(40, 3))
    y = np.arange(40) % 2
    made = HCLClassifier(couplings=2, hidden=4, random_state=0).partial_fit(X, y, classes=[0, 1, 2])
    assert made.classes_.tolist() == [0, 1, 2]
    made.partial_fit(X, y + 1)
    with pytest.raises(ValueError, match=r"not among the classes.*\[3\]"):
        made.partial_fit(X, y + 2)
    with pytest.raises(ValueError, match="not the same as on last call"):
        made.partial_fit(X, y, classes=[0, 1])
    assert clone(made).partial_fit(X, y).classes_.tolist() == [0, 1]


def test_fit_is_one_task_and_the_stream_goes_on_from_it():
    embeddings, tasks, _ = blobs_in_64_dimensions(train=640, test=10)
    x = embeddings["blobs"].x
    first, second = ((x[t.train.rows], t.train.y) for t in tasks[:2])
    made = HCLClassifier(couplings=4, hidden=32, epochs=6, random_state=0).fit(*first)
    assert made.n_tasks_ == 1
    assert made.task_changes_ == []
    made_by_fit = made.n_batches_
    made.partial_fit(*second)
    changes = made.task_changes_
    assert [(change.verdict, change.task) for change in changes] == [("new", 1)]
    assert made_by_fit < changes[0].batch <= made_by_fit + 5
    measured = clone(made).set_params(draws="measured").fit(*first).partial_fit(*second)
    assert measured.task_changes_ == changes
    typical = clone(made).set_params(detection="typical", window=40).fit(*first)
    made_by_fit = typical.n_batches_  # a fifth was shown once alone
    typical.partial_fit(*second)
    assert [tuple(change) for change in typical.task_changes_] == [(made_by_fit, "new", 1)]
    made.fit(*second)  # starts afresh
    assert made.n_tasks_ == 1


def test_settings_are_checked_when_fitting():
    X, y = np.zeros((10, 3)), np.arange(10) % 2
    with pytest.raises(ValueError, match="threshold"):
        HCLClassifier(threshold=-1.0).fit(X, y)
    with pytest.raises(ValueError, match="statistics"):
        HCLClassifier(statistics=()).fit(X, y)
    with pytest.raises(ValueError, match="draws: measured needs"):
        HCLClassifier(memory="buffer", draws="measured").fit(X, y)
    with pytest.raises(ValueError, match=r"trim: is 4 .* leaves nothing of a batch of 8; .* 3 or"):
        HCLClassifier(trim=4, batch_size=8).fit(X, y)
    with pytest.raises(ValueError, match=r"window: is 40, which only detection='typical' reads"):
        HCLClassifier(window=40).fit(X, y)
    for classifier in (HCLClassifier, HCLPlusClassifier):
        with pytest.raises(
            ValueError, match="false_alarm_every: is 5; expected a whole number from 100"
        ):
            classifier(false_alarm_every=5).fit(X, y)


@pytest.mark.parametrize("learner", [HCLClassifier, HCLPlusClassifier])
def test_a_batch_has_a_sample(learner):
    with pytest.raises(ValueError, match="batch_size: is 0; expected a whole number from 1"):
        learner(batch_size=0).fit(np.zeros((10, 3)), np.arange(10) % 2)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("learning_rate", -1e-3, "learning_rate: is -0.001; expected a number above 0"),
        ("learning_rate", 0.0, "learning_rate: is 0; expected a number above 0"),
        ("learning_rate", np.nan, "learning_rate: is nan"),
        ("weight_decay", -1.0, "weight_decay: is -1; expected a number from 0"),
        ("weight_decay", np.nan, "weight_decay: is nan"),
        ("mean_scale", -1.0, "mean_scale: is -1; expected a number above 0"),
        ("alpha", np.nan, "alpha: is nan"),
        ("bound", 0.0, "bound: is 0; expected a number above 0"),
        ("spread", np.nan, "spread: is nan; expected a number from 0"),
        ("epochs", 0, "epochs: is 0; expected 1 or more"),
        ("minimum", 500, "minimum: is 500; expected from 2 to the window of 100"),
    ],
)
def test_values_that_the_pipeline_refuses_are_refused(name, value, message):
    with pytest.raises(ValueError, match=message):
        HCLClassifier(**{name: value}).fit(np.zeros((10, 3)), np.arange(10) % 2)


def test_the_flow_starts_and_its_rate_falls_as_asked():
    X, y = stream()[0][0]
    spreads = []
    for spread in (0.0, 2.0):  # of the identity all samples have one log-determinant
        classifier = HCLClassifier(spread=spread, learning_rate=1e-12, epochs=1, random_state=0)
        flow = classifier.set_params(bound=0.5).fit(X, y)._learner.model.flow
        assert flow.bound == 0.5
        spreads.append(float(flow(torch.from_numpy(X).float())[1].detach().std()))
    assert spreads[0] < 1e-4
    assert spreads[1] > 0.1
    falling = HCLClassifier(learning_rate=1e-3, learning_rate_decay=0.5, epochs=1).fit(X, y)
    steps = falling.n_batches_
    assert falling._learner.optimiser.learning_rate == falling_rate(1e-3, steps - 1, 0.5)
    assert steps > 5


def test_a_few_samples_far_out_do_not_stop_a_flow_from_learning():
    random = np.random.default_rng(0)
    centres = random.normal(scale=5, size=(2, 2, 16))
    classifier = HCLClassifier(random_state=0)
    for task in (0, 1):
        for number in range(60):
            y = random.integers(0, 2, 32)
            X = centres[task, y] + random.normal(size=(32, 16))
            if number in (30, 50):
                X[0] *= 1000
            classifier.partial_fit(X, y, classes=[0, 1])
    for centre in centres:
        X = np.repeat(centre, 100, 0) + random.normal(size=(200, 16))
        assert classifier.score(X, np.repeat([0, 1], 100)) > 0.95


PLUS = HCLPlusClassifier(projections=64, power=1.0, random_state=0)


def test_hcl_plus_passes_scikit_learns_own_checks():
    results = check_estimator(PLUS, on_skip=None, on_fail="raise")
    skipped = {result["check_name"] for result in results if result["status"] == "skipped"}
    assert skipped <= NOT_APPLICABLE
    assert len(results) > 50


@pytest.fixture(scope="module")
def plus() -> HCLPlusClassifier:
    made = clone(PLUS)
    for X, y in stream()[0]:
        for _ in range(2):
            made.partial_fit(X, y)
    return made


def test_hcl_plus_finds_changes_and_tasks_that_come_back(plus):
    assert [(change.verdict, change.task) for change in plus.task_changes_] == [
        ("new", 1),
        ("new", 2),
        ("recurring", 0),
        ("new", 3),
    ]
    for change, true in zip(plus.task_changes_, (40, 80, 120, 160), strict=True):
        assert true <= change.batch < true + 6  # `gather` batches at least, few more
    for task, (X, y) in enumerate(stream()[1]):
        assert plus.score(X, y) > 0.9
        assert (plus.predict_task(X) == task).mean() > 0.9


def test_scores_of_hcl_plus_follow_the_sign_and_the_largest(plus):
    X, _ = stream()[1][2]
    signs = plus.decision_function(X) > 0
    np.testing.assert_array_equal(plus.classes_[signs.astype(int)], plus.predict(X))
    y = np.arange(len(X)) % 3
    three = clone(PLUS).set_params(rule="gaussian").partial_fit(X, y, classes=[0, 1, 2, 3])
    scores = three.decision_function(X)
    assert scores.shape == (len(X), 4)
    assert np.isneginf(scores[:, 3]).all()  # not seen yet
    np.testing.assert_array_equal(scores.argmax(1), three.predict(X))


def test_hcl_plus_gives_probabilities_densities_and_samples(plus):
    for task, (X, _) in enumerate(stream()[1]):
        probabilities = plus.predict_proba(X)
        np.testing.assert_allclose(probabilities.sum(1), 1)
        np.testing.assert_array_equal(plus.classes_[probabilities.argmax(1)], plus.predict(X))
        drawn, labels = plus.sample(200, task=task, random_state=0)
        assert drawn.shape == (200, X.shape[1])
        assert set(labels) == set(plus.classes_)
        assert plus.score(drawn, labels) > 0.9
        assert (plus.predict_task(drawn) == task).mean() > 0.9
        far = plus.score_samples(X + 100)
        assert far.max() < np.quantile(plus.score_samples(X), 0.01)
        gap = np.median(plus.score_samples(X)) - np.median(plus.score_samples(drawn))
        assert abs(gap) < 3 * plus.score_samples(drawn).std()
    same, _ = plus.sample(5, y=plus.classes_[1], random_state=3)
    again, labels = plus.sample(5, y=plus.classes_[1], random_state=3)
    np.testing.assert_array_equal(same, again)
    assert (labels == plus.classes_[1]).all()


def test_what_hcl_plus_can_not_draw_is_said():
    X, y = stream()[1][0]
    made = clone(PLUS).partial_fit(X, y, classes=[*np.unique(y), "perhaps"])
    with pytest.raises(ValueError, match="y 'perhaps': no sample has been seen"):
        made.sample(y="perhaps")
    with pytest.raises(ValueError, match="task: is 4; expected from 0 to 0"):
        made.sample(task=4)
    with pytest.raises(ValueError, match="n_samples: is 0"):
        made.sample(0)
    assert not hasattr(HCLPlusClassifier(rule="ridge"), "predict_proba")
    assert np.isfinite(clone(PLUS).set_params(rule="ridge").fit(X, y).score_samples(X)).all()


def test_a_pickle_of_hcl_plus_goes_on_like_the_original(plus):
    X, y = stream()[0][1]
    copies = [pickle.loads(pickle.dumps(plus)) for _ in range(2)]
    np.testing.assert_array_equal(copies[0].decision_function(X), plus.decision_function(X))
    for copy in copies:
        copy.partial_fit(X, y)
    np.testing.assert_array_equal(copies[0].decision_function(X), copies[1].decision_function(X))
    assert (copies[0].task_changes_[-1].verdict, copies[0].task_) == ("recurring", 1)


def test_the_stream_of_hcl_plus_goes_on_from_fit():
    shown, _ = stream(order=(0, 1))
    made = clone(PLUS).fit(*shown[0])
    assert (made.n_tasks_, made.n_batches_, made.task_changes_) == (1, 20, [])
    made.partial_fit(*shown[1])
    assert [(change.verdict, change.task) for change in made.task_changes_] == [("new", 1)]
    with pytest.raises(ValueError, match="power"):
        clone(PLUS).set_params(power=2.0).fit(*shown[0])


@pytest.mark.parametrize(
    ("classifier", "message"),
    [
        (
            HCLClassifier(draws="mesured"),
            "draws: is 'mesured'; expected one of prior, measured",
        ),
        (HCLClassifier(scaling="standrd"), "scaling: is 'standrd'; expected one of global, "),
        (HCLClassifier(statistics="log_px"), "statistics: is 'log_px'; expected a list, each"),
        (
            HCLClassifier(statistics=["log_py"]),
            "statistics: is .*; expected a list, each item one",
        ),
        (HCLClassifier(alpha="x"), "alpha: is 'x'; expected a number"),
        (HCLClassifier(learning_rate=None), "learning_rate: is None; expected a number"),
        (HCLClassifier(mean_scale="car"), "mean_scale: is 'car'; expected a number or one of auto"),
        (HCLClassifier(device="gpu"), "device: is 'gpu'; expected one of"),
        (
            HCLPlusClassifier(rule="Ridge"),
            "rule: is 'Ridge'; expected one of gaussians, ridge, gaussian",
        ),
        (HCLPlusClassifier(projections=10.5), "projections: is 10.5; expected a whole number"),
        (HCLPlusClassifier(ridge=True), "ridge: is True; expected a number"),
    ],
)
def test_a_parameter_that_is_not_of_its_type_is_refused_by_name(classifier, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        classifier.fit(np.eye(4), [0, 1, 0, 1])


def test_numbers_of_numpy_are_numbers():
    classifier = HCLPlusClassifier(projections=np.int64(5), ridge=np.float32(0.1))
    assert classifier.fit(np.eye(4), [0, 1, 0, 1]).predict(np.eye(4)).tolist() == [0, 1, 0, 1]


def test_a_kernel_tells_a_ball_from_the_shell_around_it_and_is_saved(tmp_path):
    X = np.random.default_rng(0).normal(size=(1200, 6))
    length = np.linalg.norm(X, axis=1)
    y = (length > np.median(length)).astype(int)
    right = {}
    for projections in (0, 200):
        made = HCLPlusClassifier(
            rule="ridge",
            lift="kernel",
            ridge=1e-3,
            power=1.0,
            projections=projections,
            random_state=0,
        )
        right[projections] = made.fit(X[:800], y[:800]).score(X[800:], y[800:])
    assert right[0] < 0.6
    assert right[200] > 0.9
    made.save(tmp_path / "kernel.safetensors")
    again = HCLPlusClassifier.load(tmp_path / "kernel.safetensors")
    np.testing.assert_array_equal(again.decision_function(X), made.decision_function(X))
    np.testing.assert_array_equal(
        again.partial_fit(X[800:], y[800:]).decision_function(X),
        made.partial_fit(X[800:], y[800:]).decision_function(X),
    )


def test_a_state_from_before_a_parameter_was_there_has_its_default():
    X = np.random.default_rng(0).normal(size=(64, 4))
    made = HCLPlusClassifier(projections=9, random_state=0).fit(X, X[:, 0] > 0)
    state = made.__getstate__()
    del state["lift"]
    old = HCLPlusClassifier.__new__(HCLPlusClassifier)
    old.__setstate__(state)
    assert old.lift == "random"
    np.testing.assert_array_equal(old.predict(X), made.predict(X))


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["gaussians", "ridge", "gaussian"])
@pytest.mark.parametrize("at_once", [1, 2, 3])
@pytest.mark.parametrize(("size", "apart"), [(16, 5), (16, 50), (2, 1000)])
def test_hcl_plus_learns_from_few_samples_a_call(size, apart, at_once, rule):
    # The first call, which the scaling is fitted on, tells next to nothing of it.
    random = np.random.default_rng(0)
    y = random.integers(2, size=120)
    X = random.normal(size=(120, size)) + apart * (1 + y[:, None])
    classifier = HCLPlusClassifier(projections=200, rule=rule, random_state=0)
    for start in range(0, len(X), at_once):
        part = slice(start, start + at_once)
        classifier.partial_fit(X[part], y[part], classes=[0, 1])
    assert (classifier.predict(X) == y).mean() > 0.85


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("classifier", [HCLClassifier, HCLPlusClassifier])
def test_fit_then_more_of_the_same_is_no_change_and_another_task_is_one(classifier, seed):
    """What ``fit`` learned in many passes must not be what fresh samples are measured by."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(X))
    first, more, test = order[:1000], order[1000:1400], order[1400:]
    made = classifier(random_state=seed).fit(X[first], y[first])
    before = made.score(X[test], y[test])
    made.partial_fit(X[more], y[more])
    assert made.task_changes_ == []
    assert made.score(X[test], y[test]) > max(0.9, before - 0.01)
    batches = made.n_batches_
    moved = X[:, np.random.default_rng(9).permutation(64)]
    made.partial_fit(moved[more], y[more])
    assert [c.verdict for c in made.task_changes_] == ["new"]
    assert batches < made.task_changes_[0].batch <= batches + 5


@pytest.mark.parametrize("at_once", [1, 7, 32])
def test_a_change_is_found_and_novelty_told_whatever_the_size_of_a_call(at_once):
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))[:960]
    moved = X[:, np.random.default_rng(9).permutation(64)]
    made = HCLPlusClassifier(projections=64, random_state=0)
    for data, rows in ((X, order), (moved, order)):
        for start in range(0, len(rows), at_once):
            some = rows[start : start + at_once]
            made.partial_fit(data[some], y[some], classes=range(10))
        if data is X:
            assert made.task_changes_ == []
            assert (made.novelty(X) < 0.05).mean() < 0.1
            assert np.median(made.novelty(moved)) < 0.01
    assert [change.verdict for change in made.task_changes_] == ["new"]
    assert np.median(made.novelty(moved)) > 0.05  # no longer


def test_novelty_needs_the_calibrated_detector_and_something_to_go_by():
    X, y = load_digits(return_X_y=True)
    made = HCLClassifier(detection="typical", epochs=1, random_state=0).fit(X[:64], y[:64])
    with pytest.raises(ValueError, match="novelty: needs detection='calibrated'"):
        made.novelty(X)
    early = HCLPlusClassifier(random_state=0).partial_fit(X[:32], y[:32], classes=range(10))
    assert early.novelty(X[:5]).tolist() == [1.0] * 5


@pytest.mark.parametrize("classifier", [HCLClassifier, HCLPlusClassifier])
def test_samples_one_at_a_time_are_learned_as_the_same_samples_in_batches(classifier):
    X, y = load_digits(return_X_y=True)
    single, batches = (classifier(random_state=0) for _ in range(2))
    for i in range(96):
        single.partial_fit(X[i : i + 1], y[i : i + 1], classes=range(10))
    for i in range(0, 96, 32):
        batches.partial_fit(X[i : i + 32], y[i : i + 32], classes=range(10))
    assert single.n_batches_ == batches.n_batches_ == 3
    np.testing.assert_array_equal(single.predict(X[:50]), batches.predict(X[:50]))
    single.partial_fit(X[96:97], y[96:97])  # waits, through a pickle too
    again = pickle.loads(pickle.dumps(single))
    for each in (single, again):
        each.partial_fit(X[97:128], y[97:128])
        assert each.n_batches_ == 4
    np.testing.assert_array_equal(single.predict(X[:50]), again.predict(X[:50]))


@pytest.mark.parametrize("classifier", [HCLClassifier, HCLPlusClassifier])
def test_an_answer_asked_for_early_is_given_by_what_there_is_and_changes_nothing(classifier):
    X, y = load_digits(return_X_y=True)
    asked, never = (
        classifier(random_state=0).partial_fit(X[:2], y[:2], classes=range(10)) for _ in range(2)
    )
    assert set(asked.predict(X[:5])) <= set(range(10))
    assert asked.n_batches_ == 0
    for each in (asked, never):
        each.partial_fit(X[2:64], y[2:64])
    assert asked.n_batches_ == 2
    np.testing.assert_array_equal(asked.predict(X[:200]), never.predict(X[:200]))


def halfway(kind, folder, random_state):
    """A classifier that has seen a change, and has samples waiting; and what comes next."""
    shown, _ = stream((0, 1))
    made = kind(random_state=random_state)
    for X, y in shown:
        made.partial_fit(X, y, classes=["no", "yes"])
    made.partial_fit(shown[0][0][:5], shown[0][1][:5])
    made.save(folder / "model.safetensors")
    return made, shown[1]


@pytest.mark.parametrize("kind", [HCLClassifier, HCLPlusClassifier])
@pytest.mark.parametrize("random_state", [3, np.random.RandomState(3)])
def test_a_saved_classifier_goes_on_to_the_byte(kind, random_state, tmp_path):
    made, (X, y) = halfway(kind, tmp_path, random_state)
    again = kind.load(tmp_path / "model.safetensors")
    assert again.get_params().keys() == made.get_params().keys()
    assert again.task_changes_ == made.task_changes_
    again.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "model.safetensors").read_bytes()
    for name, each in (("made", made), ("again", again)):
        each.partial_fit(X[:300], y[:300]).save(tmp_path / name)
    assert (tmp_path / "made").read_bytes() == (tmp_path / "again").read_bytes()
    np.testing.assert_array_equal(made.predict(X), again.predict(X))
    assert type(hcl.load(tmp_path / "again")) is kind


def test_a_file_that_is_not_the_classifier_s_is_named(tmp_path):
    halfway(HCLPlusClassifier, tmp_path, 0)
    path = tmp_path / "model.safetensors"
    with pytest.raises(HCLError, match=r"holds a HCLPlusClassifier, not a HCLClassifier"):
        HCLClassifier.load(path)
    content = read_model(path)
    del content.state["_learner"]["moments"]
    write_model(path, *content)
    with pytest.raises(HCLError, match=r"doesn't fit HCLPlusClassifier \('moments'\)"):
        HCLPlusClassifier.load(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(HCLError, match="damaged"):
        HCLPlusClassifier.load(path)


@pytest.mark.parametrize("kind", [HCLClassifier, HCLPlusClassifier])
def test_a_classifier_stands_in_a_pipeline(kind):
    (X, y), (test, answers) = (part[0] for part in stream((0,)))
    made = make_pipeline(StandardScaler(), kind(random_state=0)).fit(X, y)
    assert made.score(test, answers) > 0.95
    assert set(made.predict(test)) == {"no", "yes"}


@pytest.mark.parametrize("kind", [HCLClassifier, HCLPlusClassifier])
@pytest.mark.parametrize("dtype", ["object", "str", "category"])
def test_frames_and_series_of_pandas_are_learned_by_their_columns(kind, dtype, tmp_path):
    pandas = pytest.importorskip("pandas", reason="pandas is in the extra dev")
    X, y = stream((0,))[0][0]
    columns = [f"f{i}" for i in range(X.shape[1])]
    frame, labels = pandas.DataFrame(X, columns=columns), pandas.Series(y).astype(dtype)
    made = kind(random_state=0).partial_fit(frame, labels)
    plain = kind(random_state=0).partial_fit(X, y)
    np.testing.assert_array_equal(made.predict(frame), plain.predict(X))
    made.save(tmp_path / "m")
    again = kind.load(tmp_path / "m")
    assert list(again.feature_names_in_) == columns
    with pytest.raises(ValueError, match="feature names"):
        again.predict(frame[columns[::-1]])


def test_a_frame_is_fitted_without_a_word():
    """What pandas hands over is read-only, of which torch would warn."""
    pandas = pytest.importorskip("pandas", reason="pandas is in the extra dev")
    X, y = stream((0,))[0][0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        HCLPlusClassifier(random_state=0).fit(pandas.DataFrame(X.astype(np.float32)), y)


@pytest.mark.parametrize("missing", ["None", "nan", "NA"])
def test_a_label_that_is_missing_is_named(missing):
    pandas = pytest.importorskip("pandas", reason="pandas is in the extra dev")
    X, y = stream((0,))[0][0]
    labels = y.astype(object)
    labels[7] = {"None": None, "nan": np.nan, "NA": pandas.NA}[missing]
    classifier = HCLPlusClassifier(random_state=0)
    for learn in (classifier.fit, classifier.partial_fit):
        with pytest.raises(ValueError, match="the label of sample 7 is missing"):
            learn(X, pandas.Series(labels))


GROWN = {"random_state": 0, "couplings": 4, "hidden": 32, "learning_rate": 1e-2}


def growing(seed: int = 0):
    """Batches of a stream in which the labels "c", then "a", then "b" come."""
    random = np.random.default_rng(seed)
    centres = dict(zip("abc", random.normal(scale=6, size=(3, 16)), strict=True))
    for known in ("c", "ca", "cab"):
        for _ in range(40):
            y = random.choice(list(known), 32)
            yield np.stack([centres[label] for label in y]) + random.normal(size=(32, 16)), y


@pytest.mark.parametrize(
    "classifier",
    [
        HCLClassifier(**GROWN),
        HCLClassifier(**GROWN, memory="generative", draws="measured"),
        HCLPlusClassifier(random_state=0, projections=50),
        HCLPlusClassifier(random_state=0, projections=50, lift="kernel", ridge=1e-3),
    ],
    ids=["hcl", "hcl-measured", "hcl-plus", "hcl-plus-kernel"],
)
def test_a_label_that_was_never_seen_is_one_more_class(classifier):
    classifier = clone(classifier)
    sizes = []
    for X, y in growing():
        classifier.partial_fit(X, y)
        sizes.append(len(classifier.classes_))
    assert sizes[0] == 1
    assert classifier.classes_.tolist() == ["a", "b", "c"]
    X, y = (np.concatenate(parts) for parts in zip(*list(growing(0))[80:], strict=True))
    assert (classifier.predict(X) == y).mean() > 0.9
    again = pickle.loads(pickle.dumps(classifier))
    assert (again.predict(X) == classifier.predict(X)).all()
    again.partial_fit(X[:32], np.full(32, "d"))
    assert again.classes_.tolist() == ["a", "b", "c", "d"]
    best = classifier.classes_[classifier.predict_proba(X).argmax(1)]
    assert (best == classifier.predict(X)).all()
    if isinstance(classifier, HCLClassifier):
        drawn, labels = classifier.sample(50, y="b", random_state=0)
        assert (labels == "b").all()
        assert (classifier.predict(drawn) == "b").mean() > 0.8


def test_labels_that_are_named_at_first_are_all_that_may_come():
    X = np.random.default_rng(0).normal(size=(32, 4))
    classifier = HCLPlusClassifier(projections=0).partial_fit(X, np.zeros(32), classes=[0, 1])
    with pytest.raises(ValueError, match="leave `classes` out"):
        classifier.partial_fit(X, np.full(32, 2))


@pytest.mark.parametrize("detection", ["calibrated", "typical"])
def test_whether_a_change_could_be_noticed_is_told(detection):
    (X, y), *_ = stream()[0]
    classifier = HCLClassifier(couplings=2, hidden=16, detection=detection, random_state=0)
    classifier.partial_fit(X[:64], y[:64])
    assert not classifier.can_judge_
    for _ in range(2):
        classifier.partial_fit(X, y)
    assert classifier.can_judge_


def test_what_is_noticed_does_not_depend_on_what_learns():
    """The detector goes by the samples alone, so that no learner has a rate of its own."""
    noticed = []
    for classifier in (
        HCLClassifier(couplings=2, hidden=16, random_state=0),
        HCLClassifier(couplings=2, hidden=16, memory="generative", learning_rate=1e-4),
        HCLPlusClassifier(projections=0, random_state=0),
    ):
        for X, y in stream()[0]:
            for _ in range(2):
                classifier.partial_fit(X, y)
        noticed.append(classifier.task_changes_)
    assert len(noticed[0]) == 4
    assert noticed[0] == noticed[1] == noticed[2]
