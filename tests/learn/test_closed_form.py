"""Closed-form learners: equal to the same estimator computed at once, whatever the order."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.neighbors import NearestCentroid

from hcl.learn.closed_form.forms import (
    ClosedForm,
    NearestMean,
    RandomProjectionRidge,
    StreamingLDA,
)

SIZE = 6


def build(name: str) -> ClosedForm:
    if name == "ncm":
        return NearestMean(SIZE)
    if name == "slda":
        return StreamingLDA(SIZE, shrinkage=1e-3)
    return RandomProjectionRidge(SIZE, 40, 1e-3, np.random.default_rng(0))


def blobs(seed: int = 0, classes: int = 4, count: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=count)
    mixing = rng.normal(size=(SIZE, SIZE))
    means = 2.0 * rng.normal(size=(classes, SIZE))
    x = means[labels] + rng.normal(size=(count, SIZE)) @ mixing
    return x.astype(np.float32), labels


def stream(learner: ClosedForm, x: np.ndarray, labels: np.ndarray, size: int) -> ClosedForm:
    for start in range(0, len(x), size):
        learner.observe(x[start : start + size], labels[start : start + size])
    return learner


@pytest.mark.parametrize("name", ["ncm", "slda", "ranpac"])
def test_order_and_batch_size_do_not_matter(name):
    x, labels = blobs()
    order = np.argsort(labels, kind="stable")  # class after class, as tasks come
    one = stream(build(name), x, labels, 300).scores(x)
    other = stream(build(name), x[order], labels[order], 7).scores(x)
    np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-4)


def test_nearest_mean_agrees_with_scikit_learn():
    x, labels = blobs()
    ours = stream(NearestMean(SIZE), x, labels, 32).scores(x).argmax(1)
    np.testing.assert_array_equal(ours, NearestCentroid().fit(x, labels).predict(x))


def test_lda_is_the_shrunk_gaussian_rule_computed_at_once():
    x, labels = blobs()
    shrinkage = 0.2
    scores = stream(StreamingLDA(SIZE, shrinkage), x, labels, 32).scores(x)
    means = np.stack([x[labels == c].mean(0) for c in range(4)]).astype(float)
    within = np.cov((x - means[labels]).T, bias=True)
    within = (1 - shrinkage) * within + shrinkage * np.trace(within) / SIZE * np.eye(SIZE)
    expected = np.stack(
        [-0.5 * np.einsum("nd,nd->n", x - m, np.linalg.solve(within, (x - m).T).T) for m in means],
        1,
    )
    # Equal up to a term that all classes share.
    np.testing.assert_allclose(
        scores - scores[:, :1], expected - expected[:, :1], rtol=1e-3, atol=1e-3
    )


def test_lda_uses_the_covariance_that_nearest_mean_ignores():
    rng = np.random.default_rng(3)
    labels = np.arange(600) % 2
    x = rng.normal(size=(600, SIZE)) * np.array([20.0, 1, 1, 1, 1, 1])
    x[:, 1] += 3.0 * labels
    lda = stream(StreamingLDA(SIZE, 1e-4), x, labels, 50).scores(x).argmax(1)
    ncm = stream(NearestMean(SIZE), x, labels, 50).scores(x).argmax(1)
    assert (lda == labels).mean() > 0.9
    assert (lda == labels).mean() > (ncm == labels).mean() + 0.1


def test_ranpac_is_ridge_regression_on_its_features():
    x, labels = blobs()
    learner = RandomProjectionRidge(SIZE, 40, 0.05, np.random.default_rng(0))
    scores = stream(learner, x, labels, 32).scores(x)
    features = np.maximum(x @ learner._projection, 0).astype(float)
    penalty = 0.05 * (features**2).sum(0).mean()
    ridge = Ridge(alpha=penalty, fit_intercept=False).fit(features, np.eye(4)[labels])
    np.testing.assert_allclose(scores, ridge.predict(features), rtol=1e-3, atol=1e-3)
    assert (scores.argmax(1) == labels).mean() > 0.8


@pytest.mark.parametrize("name", ["ncm", "slda", "ranpac"])
def test_a_class_without_samples_never_wins(name):
    x, labels = blobs()
    kept = labels != 1
    scores = stream(build(name), x[kept], labels[kept], 32).scores(x)
    assert not (scores.argmax(1) == 1).any()
    assert scores.shape == (300, 4)


@pytest.mark.parametrize("name", ["ncm", "slda", "ranpac"])
def test_features_that_never_vary_do_no_harm(name):
    x, labels = blobs()
    x[:, 2] = 0.0
    assert np.isfinite(stream(build(name), x, labels, 32).scores(x)).all()


@pytest.mark.parametrize("name", ["slda", "ranpac"])
def test_scores_follow_what_was_observed_since(name):
    x, labels = blobs()
    learner = stream(build(name), x[:100], labels[:100], 32)
    before = learner.scores(x)
    learner.observe(x[100:], labels[100:])
    assert not np.allclose(before, learner.scores(x))


@pytest.mark.parametrize("name", ["ncm", "slda", "ranpac"])
def test_state_continues_the_stream(name):
    x, labels = blobs()
    whole = stream(build(name), x, labels, 50)
    half = stream(build(name), x[:150], labels[:150], 50)
    half.scores(x)  # weights solved before are not kept
    other = build(name)
    other.restore(half.state())
    stream(other, x[150:], labels[150:], 50)
    np.testing.assert_array_equal(other.scores(x), whole.scores(x))
