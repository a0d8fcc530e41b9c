"""HCL+: its rule, its objective, what it replays, and how it takes a change of task."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from hcl.detect.settings import CalibratedSettings
from hcl.errors import HCLError
from hcl.learn.closed_form.forms import StreamingLDA
from hcl.learn.contract import Batch, TaskBatch
from hcl.learn.plus.learner import PlusLearner, tukey
from hcl.learn.plus.settings import (
    GaussianRule,
    GaussiansRule,
    LearnsAll,
    LearnsFirst,
    PlusMethod,
    RidgeRule,
)
from hcl.learn.settings import TrainingSettings
from hcl.model.hybrid import build_model
from hcl.model.settings import FlowSettings
from hcl.records.runs import NEW, RECURRING, SAME
from hcl.settings import build
from hcl.train.loop import Job, build_learner, train_seed
from hcl.train.machine import one_thread
from hcl.train.streams import Stream
from tests.support.blobs import benchmark, blobs_in_64_dimensions

SIZE, CLASSES = 6, 2


def learner(**settings) -> PlusLearner:
    generator = torch.Generator().manual_seed(0)
    model = build_model(
        FlowSettings(couplings=4, hidden_layers=1, hidden=16), (SIZE,), CLASSES, generator
    )
    with torch.no_grad():  # not the identity that it starts as
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return PlusLearner(
        model,
        PlusMethod(
            **{
                "power": 1.0,
                "projections": 0,
                "flow": LearnsAll(alpha=3.0),
                "rule": GaussianRule(),
                **settings,
            }
        ),
        learning_rate=1e-3,
        weight_decay=0.0,
        generator=generator,
    )


def samples(task: int, count: int = 32, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * seed + task)
    y = torch.randint(CLASSES, (count,), generator=generator)
    places = torch.randn(4, CLASSES, SIZE, generator=torch.Generator().manual_seed(5))
    x = torch.randn(count, SIZE, generator=generator) + 4 * places[task][y]
    return x, y


def taught(tasks: int = 3, batches: int = 6, **settings) -> PlusLearner:
    made = learner(**settings)
    for task in range(tasks):
        for seed in range(batches):
            made.observe(TaskBatch(*samples(task, seed=seed), task))
    return made


def test_tukey_keeps_the_sign():
    x = torch.tensor([-4.0, 0.0, 9.0])
    torch.testing.assert_close(tukey(x, 0.5), torch.tensor([-2.0, 0.0, 3.0]))
    assert tukey(x, 1) is x


def test_a_flow_that_never_learns_gives_streaming_lda_on_its_latents():
    made = taught(flow=None, rule=GaussianRule(shrinkage=1e-2))
    form = StreamingLDA(SIZE, 1e-2)
    for task in range(3):
        for seed in range(6):
            x, y = samples(task, seed=seed)
            form.observe(made.flow(x)[0].detach().numpy(), CLASSES * task + y.numpy())
    x = torch.cat([samples(task, seed=50)[0] for task in range(3)])
    scores = form.scores(made.flow(x)[0].detach().numpy())
    found = made.predict(x)
    np.testing.assert_array_equal(
        CLASSES * found.predicted_task + found.pair_class, scores.argmax(1)
    )
    summed = np.logaddexp.reduce(scores.reshape(len(x), 3, CLASSES), axis=1).argmax(1)
    np.testing.assert_array_equal(found.predicted_class, summed)


def test_the_ridge_is_that_of_the_closed_form():
    made = taught(flow=None, rule=RidgeRule(penalty=0.1), projections=7)
    z, y = [], []
    for task in range(3):
        for seed in range(6):
            x, label = samples(task, seed=seed)
            z.append(made.lifted(made.flow(x)[0]).detach().double())
            y.append(CLASSES * task + label)
    z, targets = torch.cat(z), torch.nn.functional.one_hot(torch.cat(y)).double()
    gram = z.T @ z
    penalty = 0.1 * gram.diagonal().mean() * torch.eye(len(gram))
    weights = torch.linalg.solve(gram + penalty, z.T @ targets)
    x = torch.cat([samples(task, seed=50)[0] for task in range(3)])
    expected = (made.lifted(made.flow(x)[0]).detach().double() @ weights).argmax(1).numpy()
    found = made.predict(x)
    np.testing.assert_array_equal(CLASSES * found.predicted_task + found.pair_class, expected)
    np.testing.assert_array_equal(found.predicted_class, found.pair_class)


def test_the_lift_stands_beside_the_latents():
    made = taught(flow=None, projections=7)
    z = torch.randn(5, SIZE)
    lifted = made.lifted(z)
    torch.testing.assert_close(lifted[:, :SIZE], z)
    torch.testing.assert_close(lifted[:, SIZE:], (z @ made.lift.weights).clamp(min=0))
    assert made.moments.gram.shape == (SIZE + 7, SIZE + 7)


def test_the_objective_is_the_likelihood_of_the_measured_gaussians_and_functional_regularisation():
    made = taught(flow=LearnsAll(alpha=3.0))
    x, y = samples(2, seed=9)
    state = made.generator.get_state()
    drawn = made.draw_replay()
    made.generator.set_state(state)
    loss, _ = made.objective(x, y)
    z, log_det = made.flow(x)
    first = 2 * CLASSES
    sums, counts = made.moments.sums[first:].clone(), made.moments.counts[first:].clone()
    for label, latent in zip(y, z.detach(), strict=True):
        sums[label] += latent
        counts[label] += 1
    means = (sums / counts[:, None]).float()
    gaussian = torch.distributions.MultivariateNormal(
        torch.zeros(SIZE), precision_matrix=made.metric.of(made.moments, 1e-2, SIZE)
    )
    constant = gaussian.log_prob(torch.zeros(SIZE))
    likelihood = (gaussian.log_prob(z - means[y]) - constant + log_det).mean()
    apart = (made.flow(drawn[0])[0] - drawn[1]).square().sum(1).mean()
    torch.testing.assert_close(loss, -likelihood + 3.0 * apart)


def test_replay_comes_from_the_gaussians_of_the_other_tasks():
    made = taught(flow=LearnsAll(alpha=3.0, replay=4000))
    assert made.task == 2
    x, z = made.draw_replay()
    torch.testing.assert_close(made.snapshot.flow(x)[0], z, atol=1e-3, rtol=1e-3)
    means = made.moments.means().float()[: 2 * CLASSES]
    distance = torch.cdist(z, means)
    near = distance.argmin(1)
    shares = torch.bincount(near, minlength=2 * CLASSES) / len(z)
    assert (shares - 0.25).abs().max() < 0.05
    within = torch.cov((z - means[near]).T)
    expected = made.replay_factor @ made.replay_factor.T
    assert (within - expected).abs().max() < 0.15 * expected.diagonal().max()


def test_the_flow_learns_when_it_is_told_to():
    weights = {}
    for name, flow in (("all", LearnsAll()), ("first", LearnsFirst()), ("never", None)):
        made = learner(flow=flow)
        start = made.flow.weights.detach().clone()
        for seed in range(6):
            made.observe(TaskBatch(*samples(0, seed=seed), 0))
        after_first = made.flow.weights.detach().clone()
        for seed in range(6):
            made.observe(TaskBatch(*samples(1, seed=seed), 1))
        moved = not torch.equal(start, after_first), not torch.equal(after_first, made.flow.weights)
        weights[name] = moved
    assert weights == {"all": (True, True), "first": (True, False), "never": (False, False)}


def test_what_waits_is_a_test_when_the_task_changes():
    made = taught(tasks=1, batches=20, flow=None, rule=GaussiansRule(rank=2))
    trials = made.measured.choice.trials
    assert len(made.measured.waiting) > 1
    made.observe(TaskBatch(*samples(1, seed=0), 1))
    assert made.measured.choice.trials == trials + 1
    assert sum(made.measured.spreads.counts) == 20 * 32
    assert sum(len(y) for _, y in made.measured.waiting) == 32  # the new task's


def watching(batches: int = 60) -> PlusLearner:
    """A learner that has seen one task and suspects nothing."""
    made = learner(flow=None, detection=CalibratedSettings())
    for seed in range(batches):
        made.observe(Batch(*samples(0, seed=seed)))
    while made.detector.waiting:
        batches += 1
        made.observe(Batch(*samples(0, seed=batches)))
    return made


def test_nothing_is_learned_from_a_batch_under_suspicion():
    made = watching()
    known = made.moments.counts.clone()
    seed = 0
    while (seen := made.observe(Batch(*samples(1, seed=seed)))).evidence.verdict == SAME:
        assert torch.equal(made.moments.counts, known)
        assert len(made.detector.waiting) == seed + 1
        seed += 1
    assert 1 <= seed < 5
    assert seen.evidence.verdict == NEW
    assert torch.equal(made.moments.counts[:CLASSES], known)
    assert made.moments.counts[CLASSES:].sum() == 32 * (seed + 1)


def test_a_suspicion_that_passes_costs_nothing():
    made = watching()
    known = made.moments.counts.sum()
    made.observe(Batch(*samples(1)))
    assert len(made.detector.waiting) == 1
    batches = 1
    while made.detector.waiting:
        assert made.observe(Batch(*samples(0, seed=100 + batches))).evidence.verdict == SAME
        batches += 1
    assert batches < 20
    assert made.num_tasks == 1
    assert made.moments.counts.sum() == known + 32 * batches


PLUS = PlusMethod(flow=LearnsAll(alpha=50.0), power=1.0, projections=50)


def trained(detection: CalibratedSettings | None, order: tuple[int, ...]):
    embeddings, stream = benchmark(blobs_in_64_dimensions(train=640), order, epochs=2)
    method = dataclasses.replace(PLUS, detection=detection)
    flow = FlowSettings(couplings=4, hidden_layers=2, hidden=64)
    settings = TrainingSettings(learning_rate=1e-4, weight_decay=0.0)
    with one_thread():
        run, _ = train_seed(Job(stream, embeddings, "hcl-plus", method, flow, settings, seed=7))
    y = np.concatenate([task.test.y for task in stream.tasks])
    return run, (run.predicted_class[-1] == y).mean()


@pytest.mark.parametrize("learns", [None, LearnsAll()], ids=["never", "all"])
def test_it_starts_from_the_identity_whatever_the_benchmark_s_flow(learns):
    embeddings, stream = benchmark(blobs_in_64_dimensions())
    method = PlusMethod(flow=learns, power=1.0)
    flow = FlowSettings(couplings=2, hidden_layers=1, hidden=8, spread=4.0)
    job = Job(stream, embeddings, "hcl-plus", method, flow, TrainingSettings(), seed=0)
    batches = Stream(stream, embeddings, batch_size=32, seed=0, device=torch.device("cpu"))
    x = batches.first_samples(32).x
    flow = build_learner(job, batches).flow
    torch.testing.assert_close(flow(x)[0], flow.scaling(x)[0])


def test_told_its_tasks_it_keeps_all_of_them():
    run, accuracy = trained(None, (0, 1, 2, 3))
    assert accuracy > 0.97
    assert run.added_in.tolist() == [0, 1, 2, 3]


def test_it_finds_all_changes_and_names_the_task_that_comes_back():
    run, accuracy = trained(CalibratedSettings(), (0, 1, 2, 0, 3))
    starts = np.flatnonzero(np.diff(run.trace.segment)) + 1
    found = np.flatnonzero(run.trace.verdict)
    assert len(found) == len(starts)
    assert set(found - starts) <= {1, 2, 3, 4}
    assert run.trace.verdict[found].tolist() == [NEW, NEW, RECURRING, NEW]
    assert run.added_in.tolist() == [0, 1, 2, 4]
    assert accuracy > 0.97


def test_only_a_learner_that_is_told_its_tasks_is_handed_them():
    with pytest.raises(TypeError, match="must not be handed"):
        learner(detection=CalibratedSettings()).observe(TaskBatch(*samples(0), 0))
    with pytest.raises(TypeError, match="needs a TaskBatch"):
        learner().observe(Batch(*samples(0)))


def test_the_trace_names_what_the_detector_looks_at():
    """The shift of the class means, their spread and the evidence, with their bounds."""
    made = watching()
    seen = made.observe(Batch(*samples(1))).evidence.statistics
    assert list(seen) == ["mean_shift", "common_shift", "spread", "evidence"]
    assert seen["mean_shift"].value > seen["mean_shift"].high  # so far is the other task
    assert seen["spread"].value > seen["spread"].high > seen["spread"].low
    assert 4 < seen["evidence"].value < seen["evidence"].high


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"power": 0}, "m.power: is 0; expected a number above 0, up to 1"),
        ({"projections": -1}, "m.projections: is -1; expected a whole number from 0 to"),
        ({"rule": {"kind": "gaussian", "shrinkage": 0}}, "m.rule.shrinkage: is 0; expected a"),
        ({"rule": {"kind": "ridge", "penalty": 0}}, "m.rule.penalty: is 0; expected a number ab"),
        ({"flow": {"kind": "all", "replay": 0}}, "m.flow.replay: is 0; expected a whole number"),
        ({"flow": {"kind": "all", "alpha": -1}}, "m.flow.alpha: is -1; expected a number from 0"),
        ({"flow": {"kind": "first", "shrinkage": 2}}, "m.flow.shrinkage: is 2; expected a number"),
    ],
)
def test_impossible_settings_are_named(values, message):
    with pytest.raises(HCLError, match=f"^params.yaml: {message}"):
        build(PlusMethod, values, "params.yaml", "m")


def measured_learner(**settings) -> PlusLearner:
    """Three tasks with the measured Gaussians, enough batches for a trial."""
    return taught(batches=8, flow=None, rule=GaussiansRule(rank=2), projections=7, **settings)


def test_classes_are_summed_over_tasks_and_probabilities_are_theirs():
    made = measured_learner()
    x = torch.cat([samples(task, seed=50)[0] for task in range(3)])
    scores = made.scores(x)
    assert scores.shape == (96, 3, CLASSES)
    found = made.predict(x)
    np.testing.assert_array_equal(found.predicted_class, scores.logsumexp(1).argmax(1))
    joint = scores.flatten(1).softmax(1).unflatten(1, (3, CLASSES)).sum(1)
    np.testing.assert_allclose(found.confidence, joint.amax(1), rtol=1e-5)
    y = torch.cat([samples(task, seed=50)[1] for task in range(3)])
    assert (found.predicted_class == y.numpy()).mean() > 0.9
    assert taught(flow=None, rule=RidgeRule()).predict(x).confidence is None


def test_the_log_density_is_one_over_all_space():
    """Numerically, in two features: the flow's scale is in it."""
    generator = torch.Generator().manual_seed(0)
    model = build_model(FlowSettings(couplings=1, hidden_layers=1, hidden=1), (2,), 2, generator)
    model.flow.set_scaling(torch.tensor([0.5, -0.5]), torch.tensor([2.0, 2.0]))
    settings = PlusMethod(power=1.0, projections=5, rule=GaussiansRule())
    made = PlusLearner(model, settings, learning_rate=0.0, weight_decay=0.0, generator=generator)
    for task in range(2):
        for _ in range(4):
            y = torch.randint(2, (32,), generator=generator)
            x = torch.randn(32, 2, generator=generator) + 3 * y[:, None] - 2 * task
            made.observe(TaskBatch(x, y, task))
    axis = torch.linspace(-14, 14, 281).double()
    plane = torch.cartesian_prod(axis, axis).float()
    assert float(made.log_density(plane).exp().sum() * 0.1**2) == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize("rule", [GaussiansRule(rank=2), RidgeRule(), GaussianRule()])
def test_draws_look_like_what_was_learned(rule):
    made = taught(batches=8, flow=None, rule=rule, power=0.5)
    drawn = made.draw(200, torch.Generator().manual_seed(1))
    assert drawn.shape == (3, CLASSES, 200, SIZE)
    for task in range(3):
        x, y = samples(task, count=400, seed=3)
        for label in range(CLASSES):
            real = tukey(x[y == label], 0.5)
            gap = tukey(drawn[task, label], 0.5).mean(0) - real.mean(0)
            assert gap.abs().max() < 0.6 * real.std(0).mean() + 0.2
    made._change_to(3)  # a task without samples
    assert made.draw(2, torch.Generator())[3].isnan().all()


def test_a_run_that_was_stopped_has_the_same_gaussians():
    made, other = measured_learner(), learner(flow=None, rule=GaussiansRule(rank=2), projections=7)
    other.restore(made.state())
    x, y = samples(1, seed=70)
    for one in (made, other):
        one.observe(TaskBatch(x, y, 1))
    assert torch.equal(made.scores(x), other.scores(x))
    assert made.measured.choice.trials > 0
