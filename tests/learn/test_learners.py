"""Methods: what each minimises, remembers and forgets; detected tasks on synthetic streams."""

from __future__ import annotations

import copy
import dataclasses
import functools

import numpy as np
import pytest
import torch

from hcl.learn.adam import Adam
from hcl.learn.contract import Batch, TaskBatch
from hcl.learn.curl.learner import CurlLearner
from hcl.learn.curl.settings import CurlMethod
from hcl.learn.curl.vae import SupervisedCURL
from hcl.learn.flow.detection import DetectionSettings
from hcl.learn.flow.learner import FlowLearner, batch_sums
from hcl.learn.flow.memory import Passed, Replay, Reservoirs, build_memory, dealt
from hcl.learn.flow.settings import (
    AllData,
    BufferSettings,
    FlowMethod,
    FunctionalSettings,
    GenerativeSettings,
)
from hcl.learn.settings import TrainingSettings
from hcl.model.hybrid import Statistics, build_model
from hcl.model.losses import functional_loss, likelihood_loss, replay_loss
from hcl.model.settings import FlowSettings
from hcl.records.runs import NEW, RECURRING, SAME, Run
from hcl.records.tasks import Benchmark
from hcl.train.loop import Job, train_seed
from hcl.train.machine import one_thread
from tests.support.blobs import benchmark, blobs_in_64_dimensions, blobs_in_the_plane

METHODS = {
    "adam": FlowMethod(),
    "mtl": FlowMethod(memory=AllData()),
    "er": FlowMethod(memory=BufferSettings(size=200)),
    "hcl-gr": FlowMethod(memory=GenerativeSettings()),
    "hcl-fr": FlowMethod(memory=FunctionalSettings(alpha=1.0)),
}
DETECTED = {
    name: dataclasses.replace(METHODS[name], detection=DetectionSettings(window=50))
    for name in ("hcl-gr", "hcl-fr")
}
STREAMS = {  # data, order of the task-agnostic stream, epochs, flow, training
    "64": (
        blobs_in_64_dimensions(train=640),
        (0, 1, 2, 0, 3),
        6,
        FlowSettings(couplings=4, hidden_layers=2, hidden=64),
        TrainingSettings(learning_rate=1e-3, weight_decay=0.0),
    ),
    "plane": (
        blobs_in_the_plane(train=640),
        (0, 1, 0),
        12,
        FlowSettings(couplings=8, hidden_layers=2, hidden=32),
        TrainingSettings(learning_rate=2e-3, weight_decay=0.0, mean_scale=4.0),
    ),
}


@functools.cache
def run(stream: str, name: str, detected: bool = False) -> tuple[Run, Benchmark]:
    made, order, epochs, flow, training = STREAMS[stream]
    embeddings, tasks = benchmark(made, order if detected else None, epochs)
    method = (DETECTED if detected else METHODS)[name]
    with one_thread():
        trained, _ = train_seed(Job(tasks, embeddings, name, method, flow, training, seed=7))
    return trained, tasks


def accuracy(trained: Run, tasks: Benchmark, segment: int = -1) -> np.ndarray:
    y = np.concatenate([task.test.y for task in tasks.tasks])
    right = (trained.predicted_class[segment] == y).reshape(len(tasks.tasks), -1)
    return right.mean(1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["er", "hcl-gr", "hcl-fr"])
@pytest.mark.parametrize("stream", ["64", "plane"])
def test_old_tasks_are_kept_where_adam_forgets_them(stream, name):
    forgetful = accuracy(*run(stream, "adam"))
    kept = accuracy(*run(stream, name))
    assert kept[:-1].mean() > forgetful[:-1].mean() + 0.15
    assert kept[:-1].mean() > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hcl-gr", "hcl-fr"])
@pytest.mark.parametrize("stream", ["64", "plane"])
def test_blind_learners_find_all_changes_and_name_the_task_that_comes_back(stream, name):
    trained, tasks = run(stream, name, detected=True)
    trace = trained.trace
    found = np.flatnonzero(trace.verdict)
    starts = np.flatnonzero(np.diff(trace.segment)) + 1
    np.testing.assert_array_equal(found, starts)  # at the first batch of each, and no other
    again = [segment.task for segment in tasks.stream].index(0, 1)
    expected = [RECURRING if segment == again else NEW for segment in range(1, len(tasks.stream))]
    np.testing.assert_array_equal(trace.verdict[found], expected)
    np.testing.assert_array_equal(trace.learner_task, trace.true_task)
    np.testing.assert_array_equal(
        trained.added_in, [j for j in range(len(tasks.stream)) if j != again]
    )
    forgetful = accuracy(*run(stream, "adam"))
    assert accuracy(trained, tasks)[:-1].mean() > forgetful[:-1].mean() + 0.15


def test_trace_holds_the_bounds_that_the_verdict_used():
    trace = run("64", "hcl-fr", detected=True)[0].trace
    assert list(trace.statistics) == ["log_px", "log_pz", "log_det"]
    value, low, high = trace.statistics["log_px"].T
    inside = (value >= low) & (value <= high)
    known = ~np.isnan(low)
    assert known.any()
    np.testing.assert_array_equal(inside[known], trace.verdict[known] == 0)
    assert not trace.verdict[~known].any()
    log_px, log_pz, log_det = (values[:, 0] for values in trace.statistics.values())
    np.testing.assert_allclose(log_px, log_pz + log_det, rtol=1e-4)
    for name in ("log_pz", "log_det"):  # the verdict does not look at them
        assert np.isnan(trace.statistics[name][:, 1:]).all()


def make_learner(method: FlowMethod, size: int = 6, **options: object) -> FlowLearner:
    """A learner in float64 whose flow is not the identity."""
    torch.manual_seed(0)
    weights = torch.Generator().manual_seed(1)
    model = build_model(FlowSettings(couplings=4, hidden_layers=1, hidden=8), (size,), 2, weights)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=weights)
    model.double()
    generator = torch.Generator().manual_seed(2)
    made = {"learning_rate": 1e-2, "weight_decay": 0.0, **options}
    return FlowLearner(
        model,
        build_memory(method.memory, model, 16, generator),
        detection=method.detection,
        batch_size=16,
        generator=generator,
        learning_rate_decay=method.learning_rate_decay,
        clip=method.clip,
        **made,
    )


def batch(task: int = 0, seed: int = 0, count: int = 16) -> TaskBatch:
    generator = torch.Generator().manual_seed(100 * task + seed)
    x = torch.randn(count, 6, generator=generator, dtype=torch.float64) + 3.0 * task
    return TaskBatch(x, torch.arange(count) % 2, task)


@pytest.mark.parametrize(
    "memory",
    [
        GenerativeSettings(weighing="samples"),
        GenerativeSettings(weighing="terms"),
        FunctionalSettings(alpha=10.0),
    ],
    ids=["samples", "terms", "functional"],
)
def test_the_objective_is_the_papers(memory):
    """L_ll + L_GR and L_ll + α L_FR, by the functions that mirror the equations.

    Weighed by samples, each of two old tasks counts in GR as much as the batch.
    """
    learner = make_learner(FlowMethod(memory=memory))
    for task in (0, 1, 2):
        for seed in range(3):
            learner.observe(batch(task, seed))
    x, y, _ = batch(2, 9)
    before = learner.generator.get_state()
    loss, statistics, _ = learner.objective(x, y)
    learner.generator.set_state(before)
    model = learner.model
    labels = torch.randint(2, (32,), generator=learner.generator)
    t = torch.tensor([0] * 16 + [1] * 16)  # a batch's worth of each old task
    replayed, z = learner.memory.snapshot.sample(labels, t, learner.generator)
    extra = (
        replay_loss(model.statistics(replayed, labels, t).log_px)
        if memory.kind == "generative"
        else 10.0 * functional_loss(model.flow(replayed)[0], z)
    )
    assert extra.item() > 0.01
    expected = likelihood_loss(model.statistics(x, y, 2).log_px) + extra
    if memory == GenerativeSettings(weighing="samples"):
        expected = (expected + extra) / 3
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(statistics.log_px, model.statistics(x, y, 2).log_px)


FIXED = [
    GenerativeSettings(weighing="samples"),
    GenerativeSettings(weighing="terms"),
    FunctionalSettings(alpha=10.0),
]


@pytest.mark.parametrize("memory", FIXED, ids=["samples", "terms", "functional"])
@pytest.mark.parametrize("replay", [2, 7, 32])
def test_replay_that_does_not_grow_has_the_expectation_of_a_batch_for_each_task(memory, replay):
    """Exactly, over who is dealt the first draw, where a draw's loss depends on its pair alone."""
    tasks, classes = 5, 2
    of_pair = torch.arange(1.0, tasks * classes + 1, dtype=torch.float64).view(tasks, classes) ** 2
    log_px = torch.linspace(-3, -1, 16, dtype=torch.float64)

    def loss_of(made, y, t):
        z = of_pair[t, y, None].sqrt()
        passed = Passed(-of_pair[t, y], z)
        return made.loss(log_px, Replay(z, y, t, torch.zeros_like(z)), passed)

    model = make_learner(FlowMethod()).model
    papers = build_memory(memory, model, 16, torch.Generator())
    papers.enter(range(tasks), ())
    fixed = build_memory(dataclasses.replace(memory, replay=replay), model, 16, torch.Generator())
    fixed.enter(range(tasks), ())
    losses, shares = [], torch.zeros(tasks, classes)
    for first in range(tasks * classes):
        rows, y = dealt(replay, tasks, classes, torch.tensor([first]))
        t = fixed.t[rows]
        losses.append(loss_of(fixed, y, t))
        assert len(rows.unique()) == replay
        for numbers in (t, t * classes + y):
            counts = numbers.bincount(minlength=tasks if numbers is t else tasks * classes)
            assert counts.max() - counts.min() <= 1
        shares.index_put_((t, y), torch.ones(replay), accumulate=True)
    assert (shares == replay).all()
    balanced = torch.arange(len(papers.t)) % classes  # y uniform, in expectation
    torch.testing.assert_close(torch.stack(losses).mean(), loss_of(papers, balanced, papers.t))


@pytest.mark.parametrize("draws", ["prior", "measured"])
def test_replay_that_does_not_grow_draws_so_many_for_all_old_tasks(draws):
    memory = FunctionalSettings(alpha=1.0, draws=draws, replay=18)
    learner = make_learner(FlowMethod(memory=memory))
    drawn = []
    for task in range(5):
        for seed in range(2):
            learner.observe(batch(task, seed))
        drawn.append(learner.memory.draw())
    assert drawn[0] is None
    assert [len(replay.t) for replay in drawn[1:]] == [16, 18, 18, 18]
    assert [replay.t.unique().tolist() for replay in drawn[1:]] == [
        [*range(old)] for old in (1, 2, 3, 4)
    ]
    z, _ = learner.memory.snapshot.flow(drawn[-1].x)
    torch.testing.assert_close(z, drawn[-1].z, rtol=1e-6, atol=1e-6)
    if draws == "prior":  # latents lie about the means of their own pairs
        noise = drawn[-1].z - learner.model.latent.means[drawn[-1].t, drawn[-1].y]
        assert abs(noise.std().item() - 1) < 0.25
    firsts = {learner.memory.draw().t[0].item() for _ in range(40)}
    assert firsts == {0, 1, 2, 3}


@pytest.mark.parametrize("memory", FIXED, ids=["samples", "terms", "functional"])
def test_replay_for_as_many_draws_as_the_paper_has_is_the_papers(memory):
    losses = []
    for replay in (None, 32, 100):
        learner = make_learner(FlowMethod(memory=dataclasses.replace(memory, replay=replay)))
        for task in (0, 1, 2):  # two old tasks of 16 each
            for seed in range(2):
                last = learner.observe(batch(task, seed)).loss
        losses.append(last.item())
    assert losses[0] == losses[1] == losses[2]


@pytest.mark.parametrize("weighing", ["samples", "terms"])
def test_curl_weighs_replay_as_gr_does(weighing):
    settings = CurlMethod(encoder=(8,), decoder=(8,), latents=2)
    vae = SupervisedCURL(settings, 6, 2, torch.Generator().manual_seed(1))
    draws = torch.Generator().manual_seed(2)
    options = {"batch_size": 16, "learning_rate": 0.0, "weight_decay": 0.0, "generator": draws}
    learner = CurlLearner(vae, weighing=weighing, **options)
    shown = [batch(task)._replace(x=batch(task).x.float()) for task in (0, 1, 2)]
    for task in (0, 1):
        learner.observe(shown[task])
    before = draws.get_state()
    loss = learner.observe(shown[2]).loss
    draws.set_state(before)
    real = vae.loss(shown[2].x, shown[2].y, draws)
    labels = torch.randint(2, (32,), generator=draws)
    replayed = vae.loss(vae.sample(labels, draws), labels, draws)
    both = torch.cat((real, replayed)).mean()
    expected = both if weighing == "samples" else real.mean() + replayed.mean()
    torch.testing.assert_close(loss, expected.detach())


def test_a_falling_rate_begins_anew_with_each_task():
    learner = make_learner(FlowMethod(memory=FunctionalSettings(), learning_rate_decay=3.0))
    rates = []
    for task, steps in ((0, 2), (1, 3), (0, 1)):
        for seed in range(steps):
            learner.observe(batch(task, seed))
            rates.append(learner.optimiser.learning_rate)
    np.testing.assert_allclose(rates, [1e-2, 5e-3, 1e-2, 5e-3, 1e-2 / 7**0.5, 1e-2])


def test_a_falling_rate_goes_on_from_a_checkpoint():
    method = FlowMethod(memory=FunctionalSettings(), learning_rate_decay=3.0)
    learner, other = make_learner(method), make_learner(method)
    for seed in range(4):
        learner.observe(batch(0, seed))
    other.restore(copy.deepcopy(learner.state()))
    for each in (learner, other):
        each.observe(batch(0, 4))
    assert other.optimiser.learning_rate == 1e-2 / 13**0.5
    torch.testing.assert_close(other.model.flow.weights, learner.model.flow.weights)


def test_a_gradient_that_is_far_too_long_is_shortened_and_the_mean_length_hardly_moves():
    weight = torch.nn.Parameter(torch.zeros(2))
    optimiser = Adam([weight], learning_rate=1e-3, weight_decay=0.0, clip=2.0)
    for length, kept in ((5.0, 5.0), (6.0, 6.0), (1e6, 2 * 5.02), (0.0, 0.0)):
        weight.grad = length * torch.tensor([0.6, 0.8])
        optimiser.step()
        torch.testing.assert_close(weight.grad, kept * torch.tensor([0.6, 0.8]))
    torch.testing.assert_close(
        optimiser.length[0], torch.tensor(0.98 * (0.98 * 5.02 + 0.02 * 10.04))
    )


def test_a_learner_that_clips_goes_on_from_a_checkpoint():
    method = FlowMethod(memory=FunctionalSettings(), clip=1.01)
    learner, other = make_learner(method), make_learner(method)
    for seed in range(4):
        learner.observe(batch(0, seed))
    other.restore(copy.deepcopy(learner.state()))
    assert other.optimiser.length[0] == learner.optimiser.length[0] > 0
    x, y, task = batch(0, 4)
    far = TaskBatch(100 * x, y, task)
    for each in (learner, other):
        each.observe(far)
    assert torch.equal(other.model.flow.weights, learner.model.flow.weights)


MEASURED = FlowMethod(memory=FunctionalSettings(alpha=1.0, draws="measured"))


def test_measured_draws_have_the_moments_of_the_latents():
    learner = make_learner(MEASURED, learning_rate=1e-30)  # the flow stays, and so do latents
    for task in (0, 1):
        for seed in range(40):
            learner.observe(batch(task, seed, count=64))
    learner.observe(batch(2))
    memory = learner.memory
    replay = memory.sample(memory.snapshot, torch.arange(2).repeat_interleave(20_000))
    torch.testing.assert_close(learner.model.flow(replay.x)[0], replay.z, atol=1e-9, rtol=1e-9)
    for task in (0, 1):
        shown = [batch(task, seed, count=64) for seed in range(40)]
        z = learner.model.flow(torch.cat([b.x for b in shown]))[0].detach()
        y = torch.cat([b.y for b in shown])
        for k in (0, 1):
            drawn = replay.z[(replay.t == task) & (replay.y == k)]
            torch.testing.assert_close(drawn.mean(0), z[y == k].mean(0), atol=0.1, rtol=0.05)
            assert (drawn - learner.model.latent.means[task, k]).square().mean() > 1.5  # not there
        means = torch.stack([z[y == k].mean(0) for k in (0, 1)])
        found = replay.z - means[replay.y]
        own = torch.cov((z - means[y]).T)
        torch.testing.assert_close(
            torch.cov(found[replay.t == task].T).diagonal(), own.diagonal(), atol=0.2, rtol=0.15
        )


def test_measured_draws_keep_old_tasks_and_survive_a_task_that_comes_back():
    learner = make_learner(MEASURED)
    for task in (0, 1, 0, 2):
        for seed in range(4):
            learner.observe(batch(task, seed))
    measured = learner.memory.measured
    assert sorted(measured.gaussians) == [0, 1]
    assert len(measured.means) == 2  # of tasks 0 and 1, while 2 is learned
    assert learner.memory.draw().t.tolist() == [0] * 16 + [1] * 16


def test_mtl_learns_all_tasks_at_once():
    assert accuracy(*run("64", "mtl")).min() > 0.95


def test_er_and_mtl_take_one_mean_over_batch_and_replay():
    learner = make_learner(METHODS["er"])
    for task in (0, 1):
        learner.observe(batch(task))
    x, y, _ = batch(1, 9)
    before = learner.generator.get_state()
    loss, _, _ = learner.objective(x, y)
    learner.generator.set_state(before)
    stored = learner.memory.draw()
    assert stored.t.tolist() == [0] * 16
    both = torch.cat((x, stored.x)), torch.cat((y, stored.y)), torch.tensor([1] * 16 + [0] * 16)
    torch.testing.assert_close(loss, likelihood_loss(learner.model.statistics(*both).log_px))


def test_the_snapshot_is_renewed_at_each_change_and_only_then():
    learner = make_learner(METHODS["hcl-fr"])
    learner.observe(batch(0))
    assert learner.memory.snapshot is None  # nothing to keep yet
    at_change = [parameter.clone() for parameter in learner.model.parameters()]
    learner.observe(batch(1))
    learner.observe(batch(1, 1))
    for then, kept in zip(at_change, learner.memory.snapshot.parameters(), strict=True):
        assert torch.equal(then, kept)
    second = [parameter.clone() for parameter in learner.model.parameters()]
    learner.observe(batch(0, 2))  # a task that comes back is a change, too
    assert learner.task == 0
    assert learner.num_tasks == 2
    for then, kept in zip(second, learner.memory.snapshot.parameters(), strict=True):
        assert torch.equal(then, kept)


def test_replay_is_for_the_other_tasks():
    learner = make_learner(METHODS["hcl-gr"])
    for task in (0, 1, 2, 1):
        learner.observe(batch(task))
    replay = learner.memory.draw()
    assert replay.t.tolist() == [0] * 16 + [2] * 16
    assert set(replay.y.tolist()) == {0, 1}


def test_only_a_learner_that_is_told_its_tasks_is_handed_them():
    told, blind = make_learner(METHODS["hcl-fr"]), make_learner(DETECTED["hcl-fr"])
    with pytest.raises(TypeError, match="must not be handed"):
        blind.observe(batch(0))
    with pytest.raises(TypeError, match="needs a TaskBatch"):
        told.observe(Batch(*batch(0)[:2]))
    blind.observe(batch(0).without_task())
    assert blind.num_tasks == 1


def test_verdicts_come_before_the_step_they_are_about():
    """The statistics of a batch are those of the weights that it finds."""
    learner = make_learner(DETECTED["hcl-fr"])
    for seed in range(3):
        x, y, _ = batch(0, seed)
        if learner.num_tasks:
            expected = learner.model.statistics(x, y, 0)
        seen = learner.observe(Batch(x, y))
        if seed:
            for name, values in expected._asdict().items():
                watched = seen.evidence.statistics[name]
                assert watched.value == pytest.approx(values.sum().item())


def test_answers_are_marginal_class_and_likeliest_pair():
    """A class that two tasks share wins over one that fits a little better in one task alone."""
    learner = make_learner(METHODS["adam"])
    for task in (0, 1):
        learner.observe(batch(task))
    model = learner.model
    middle = torch.zeros(1, 6, dtype=torch.float64)
    model.latent.means = torch.stack(
        [torch.cat((middle + 1.0, middle - 0.99)), torch.cat((middle + 1.0, middle + 9.0))]
    )
    x, _ = model.flow.inverse(middle)
    answer = learner.predict(x)
    assert answer.predicted_class.tolist() == [0]
    assert (answer.pair_class.tolist(), answer.predicted_task.tolist()) == ([1], [0])


def test_adam_is_torchs():
    ours, theirs = (torch.nn.Linear(5, 3) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    mine = Adam(ours.parameters(), 1e-2, 1e-1)
    reference = torch.optim.Adam(theirs.parameters(), lr=1e-2, weight_decay=1e-1)
    for seed in range(10):
        x = torch.randn(8, 5, generator=torch.Generator().manual_seed(seed))
        for optimiser, layer in ((mine, ours), (reference, theirs)):
            optimiser.zero_grad()
            layer(x).square().sum().backward()
            optimiser.step()
        torch.testing.assert_close(ours.weight, theirs.weight)


def test_a_reservoir_holds_every_sample_seen_with_the_same_chance():
    counts = np.zeros(40)
    generator = torch.Generator().manual_seed(0)
    for _ in range(500):
        reservoirs = Reservoirs(10)
        for start in range(0, 40, 8):
            x = torch.arange(start, start + 8.0)[:, None]
            reservoirs.remember(0, x, torch.zeros(8, dtype=torch.int64), generator)
        held = reservoirs.x[0][:, 0].int().numpy()
        assert len(set(held.tolist())) == 10
        counts[held] += 1
    assert counts.sum() == 5000
    # 125 each on average; a binomial's standard deviation is 10.
    assert counts.min() > 80
    assert counts.max() < 170


def test_reservoirs_draw_only_what_was_stored():
    reservoirs = Reservoirs(10)
    generator = torch.Generator().manual_seed(0)
    reservoirs.remember(0, torch.ones(3, 2), torch.tensor([0, 1, 0]), generator)
    drawn = reservoirs.draw([0], 50, generator)
    assert torch.equal(drawn.x, torch.ones(50, 2))
    assert set(drawn.y.tolist()) == {0, 1}


def test_memory_stays_flat_in_the_number_of_tasks():
    """HCL keeps one model and one snapshot, whatever the number of tasks; only means are added."""

    def numbers(tasks: int) -> int:
        learner = make_learner(METHODS["hcl-fr"])
        for task in range(tasks):
            learner.observe(batch(task))
        kept = [*learner.model.parameters(), *learner.memory.snapshot.parameters()]
        kept += [*learner.model.buffers(), *learner.memory.snapshot.buffers()]
        return sum(tensor.numel() for tensor in kept)

    assert numbers(9) - numbers(4) == 2 * 5 * 2 * 6  # five tasks' K × D means, in both


def watcher(trim: int) -> tuple[FlowLearner, torch.Generator]:
    """A learner that has seen 60 batches of one task."""
    generator = torch.Generator().manual_seed(0)
    flow = FlowSettings(couplings=2, hidden_layers=1, hidden=16)
    detection = DetectionSettings(window=30, trim=trim)
    model = build_model(flow, (8,), 2, generator)
    learner = FlowLearner(
        model,
        build_memory(FlowMethod().memory, model, 32, generator),
        detection=detection,
        batch_size=32,
        learning_rate=1e-3,
        weight_decay=0.0,
        generator=generator,
    )
    for _ in range(60):
        learner.observe(any_batch(generator))
    return learner, generator


def any_batch(generator: torch.Generator, size: int = 32) -> Batch:
    y = torch.randint(2, (size,), generator=generator)
    return Batch(torch.randn(size, 8, generator=generator) + y[:, None], y)


@pytest.mark.parametrize(("trim", "verdict"), [(0, NEW), (1, SAME)])
def test_one_strange_sample_is_no_change_where_the_ends_are_trimmed(trim, verdict):
    learner, generator = watcher(trim)
    batch = any_batch(generator)
    batch.x[5] += 50
    assert learner.observe(batch).evidence.verdict == verdict


def test_a_change_is_found_where_the_ends_are_trimmed():
    learner, generator = watcher(trim=1)
    batch = any_batch(generator)
    batch.x[:] += 5
    assert learner.observe(batch).evidence.verdict == NEW


def test_a_trimmed_statistic_is_that_of_the_samples_between_the_ends():
    values = torch.tensor([3.0, -90.0, 1.0, 2.0, 70.0])
    expected = 5 / 3 * (1.0 + 2.0 + 3.0)
    np.testing.assert_allclose(batch_sums(Statistics(values, values, values), 1), 3 * [expected])
    few = values[:2]  # none would be left
    np.testing.assert_allclose(batch_sums(Statistics(few, few, few), 1), 3 * [-87.0])
    with pytest.raises(ValueError, match="trim: is -1"):
        DetectionSettings(trim=-1)
