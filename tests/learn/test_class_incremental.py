"""Tasks that bring new classes: only pairs that came stand in Bayes' rule, replay and verdicts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hcl.detect.settings import CalibratedSettings
from hcl.evaluate.scoring import score
from hcl.learn.closed_form.settings import NearestMeanMethod, RanPACMethod, StreamingLDAMethod
from hcl.learn.contract import Batch
from hcl.learn.flow.detection import DetectionSettings
from hcl.learn.flow.learner import FlowLearner
from hcl.learn.flow.memory import Generative, build_memory
from hcl.learn.flow.settings import FlowMethod, FunctionalSettings, GenerativeSettings
from hcl.learn.plus.settings import PlusMethod
from hcl.learn.settings import TrainingSettings
from hcl.model.hybrid import build_model
from hcl.model.latent import LatentMixture
from hcl.model.settings import FlowSettings
from hcl.train.loop import Job, train_seed
from tests.support.own_labels import own_labels

FLOW = FlowSettings(couplings=4, hidden_layers=1, hidden=32)
DETECTION = DetectionSettings(window=15, minimum=8)
METHODS = {
    "hcl-fr": FlowMethod(memory=FunctionalSettings(alpha=10)),
    "hcl-gr": FlowMethod(memory=GenerativeSettings()),
    "hcl-fr-ta": FlowMethod(memory=FunctionalSettings(alpha=10), detection=DETECTION),
    "hcl-fr-auto": FlowMethod(memory=FunctionalSettings(alpha=10), detection=CalibratedSettings()),
    "hcl-gr-measured": FlowMethod(memory=GenerativeSettings(draws="measured")),
    "hcl-plus": PlusMethod(projections=50),
    "hcl-plus-ta": PlusMethod(projections=50, detection=CalibratedSettings()),
    "ncm": NearestMeanMethod(),
    "slda": StreamingLDAMethod(),
    "ranpac": RanPACMethod(projections=200),
}


def job(name: str) -> Job:
    embeddings, tasks = own_labels()
    training = TrainingSettings(32, learning_rate=3e-3)
    return Job(tasks, embeddings, name, METHODS[name], FLOW, training, seed=0)


def made_latent() -> LatentMixture:
    latent = LatentMixture(4, 3, only_seen=True).double()
    generator = torch.Generator().manual_seed(0)
    for came in ([0, 1], [1, 3, 3]):
        latent.mark(torch.tensor(came), latent.add_task(generator))
    return latent


def test_a_pair_that_never_came_has_no_score():
    latent = made_latent()
    z = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    came = torch.tensor([[1, 1, 0, 0], [0, 1, 0, 1]]).bool()
    assert torch.equal(latent.scores(z).isinf(), ~came.expand(5, 2, 4))
    all_of_them = LatentMixture(4, 3).double()
    all_of_them.means = latent.means
    assert torch.equal(latent.scores(z)[:, came], all_of_them.scores(z)[:, came])
    assert torch.equal(latent.unseen(torch.tensor([0, 2]), 0), torch.tensor([False, True]))
    assert not all_of_them.unseen(torch.tensor([0, 2]), 0).any()


def test_replay_draws_the_classes_that_came_in_a_task():
    latent = made_latent()
    t = torch.tensor([0, 1]).repeat_interleave(400)
    y = latent.sample_classes(t, torch.Generator().manual_seed(0))
    counts = [torch.bincount(y[t == task], minlength=4).tolist() for task in (0, 1)]
    assert counts[0] == pytest.approx([200, 200, 0, 0], abs=40)
    assert counts[1] == pytest.approx([0, 200, 0, 200], abs=40)
    latent.add_task(torch.Generator())  # left before it had a sample: nothing to choose by
    assert len(latent.sample_classes(torch.tensor([2] * 50), torch.Generator()).unique()) > 1


def test_a_class_that_is_added_leaves_the_others_where_they_are():
    latent = made_latent()
    before = latent.means.clone()
    latent.add_classes(2, torch.Generator().manual_seed(3))
    assert latent.num_classes == 6
    assert torch.equal(latent.means[:, :4], before)
    assert latent.means[:, 4:].std() > 0.3
    assert latent.seen is not None
    assert not latent.seen[:, 4:].any()


@pytest.mark.parametrize("name", METHODS)
def test_classes_of_all_tasks_are_told_apart(name):
    made = job(name)
    run, _ = train_seed(made)
    assert set(np.unique(run.predicted_class[0])) <= {0, 1}  # the first task's alone
    assert set(np.unique(run.predicted_class[1])) <= {0, 1, 2, 3}
    y = np.concatenate([task.test.y for task in made.benchmark.tasks])
    assert (run.predicted_class[-1] == y).mean() > 0.8  # chance: one in six
    changes = score(run, made.benchmark).changes
    if changes is not None:
        assert (changes["found"], changes["false"]) == (2, 0)


def test_a_run_goes_on_with_the_pairs_that_it_saw(tmp_path):
    made = job("hcl-gr")
    whole, learner = train_seed(made)
    state = learner.state()
    assert (
        state["model"]["latent.seen"].tolist() == np.kron(np.eye(3), [1, 1]).astype(bool).tolist()
    )

    class Stopped(Exception):
        pass

    import hcl.train.loop as loop

    noted, original = 0, loop._note

    def stop(*arguments):
        nonlocal noted
        original(*arguments)
        noted += 1
        if noted == 50:
            raise Stopped

    made = Job(**{**vars(made), "training": TrainingSettings(32, 3e-3, checkpoint_every=7)})
    loop._note = stop
    try:
        with pytest.raises(Stopped):
            train_seed(made, tmp_path / "c.pt")
    finally:
        loop._note = original
    again, _ = train_seed(made, tmp_path / "c.pt")
    assert np.array_equal(again.predicted_class, whole.predicted_class)
    assert np.array_equal(again.loss, whole.loss)


def test_a_task_in_which_a_class_never_came_does_not_come_back_with_it():
    generator = torch.Generator().manual_seed(0)
    model = build_model(FLOW, (2,), 4, generator, only_seen=True)
    memory = build_memory(GenerativeSettings(), model, 32, generator)
    assert isinstance(memory, Generative)
    learner = FlowLearner(
        model,
        memory,
        detection=DETECTION,
        batch_size=32,
        learning_rate=1e-3,
        weight_decay=0.0,
        generator=generator,
    )
    x = torch.randn(32, 2, generator=generator)
    for task, labels in enumerate(([0, 1], [2, 3])):
        learner.change_to(None)
        learner.observe(Batch(x + 10 * task, torch.tensor(labels * 16)), watch=False)
    y = torch.tensor([0, 1] * 16)
    _, statistics, z = learner.objective(x, y)
    sums = learner._sums_for_all(y, statistics, z)
    assert np.isfinite(sums[0]).all()
    assert (sums[1, :2] == -np.inf).all()  # S1 and S2
