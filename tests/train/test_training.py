"""The loop: same seed same bytes, the store, scaling, divergence, every method to a run file."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hcl.detect.settings import CalibratedSettings
from hcl.errors import HCLError
from hcl.learn.closed_form.settings import NearestMeanMethod, RanPACMethod, StreamingLDAMethod
from hcl.learn.curl.settings import CurlMethod
from hcl.learn.fitting import scaling_of
from hcl.learn.flow.detection import DetectionSettings
from hcl.learn.flow.settings import (
    AllData,
    BufferSettings,
    FlowMethod,
    FunctionalSettings,
    GenerativeSettings,
)
from hcl.learn.joint.settings import JointMethod
from hcl.learn.plus.settings import LearnsAll, PlusMethod
from hcl.learn.settings import TrainingSettings
from hcl.model.settings import FlowSettings
from hcl.records import embeddings as embedding_files
from hcl.records.runs import read_run
from hcl.records.tasks import Segment
from hcl.settings import build
from hcl.train import jobs, loop, store
from hcl.train.jobs import train
from hcl.train.loop import Job, build_learner, train_seed
from hcl.train.saving import read_learner
from tests.support.blobs import benchmark, blobs_in_64_dimensions

FLOW = FlowSettings(couplings=2, hidden_layers=1, hidden=8)
TRAINING = TrainingSettings(learning_rate=1e-3)
DETECTION = DetectionSettings(window=4, minimum=2)
METHODS = {
    "adam": FlowMethod(),
    "mtl": FlowMethod(memory=AllData()),
    "er": FlowMethod(memory=BufferSettings(size=20)),
    "curl": CurlMethod(encoder=(8,), decoder=(8,), latents=2),
    "hcl-gr": FlowMethod(memory=GenerativeSettings()),
    "hcl-fr": FlowMethod(memory=FunctionalSettings()),
    "hcl-gr-ta": FlowMethod(memory=GenerativeSettings(), detection=DETECTION),
    "hcl-fr-ta": FlowMethod(memory=FunctionalSettings(), detection=DETECTION),
    "ncm": NearestMeanMethod(),
    "slda": StreamingLDAMethod(),
    "ranpac": RanPACMethod(projections=50),
    "hcl-plus": PlusMethod(projections=9),
    "hcl-fr-auto-ta": FlowMethod(memory=FunctionalSettings(), detection=CalibratedSettings()),
    "hcl-plus-ta": PlusMethod(projections=9, detection=CalibratedSettings()),
}
EMBEDDINGS, TASKS = benchmark(blobs_in_64_dimensions(3, 64, 20), (0, 1, 0, 2))


def job(name: str, seed: int = 0, **changes: object) -> Job:
    return Job(TASKS, EMBEDDINGS, name, METHODS[name], FLOW, TRAINING, seed, **changes)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_answers_after_every_segment(name):
    run, learner = train_seed(job(name))
    assert run.predicted_class.shape == run.predicted_task.shape == run.pair_class.shape == (4, 60)
    assert set(np.unique(run.predicted_class)) <= {0, 1}
    assert set(np.unique(run.pair_class)) <= {0, 1}
    blind = name.endswith("-ta")
    assert (run.trace is not None) == blind
    without_steps = ("ncm", "slda", "ranpac", "hcl-plus", "hcl-plus-ta")
    assert (run.loss is None) == (name in without_steps)
    if run.loss is not None:
        assert run.loss.shape == (8,)
    if name == "curl":
        assert (run.predicted_task == -1).all()
        assert len(run.added_in) == 0
        np.testing.assert_array_equal(run.pair_class, run.predicted_class)
    elif not blind:
        assert run.added_in.tolist() == [0, 1, 3]  # the third segment shows the first task again
        assert run.predicted_task[0].max() == 0  # nothing else is known then
        assert run.predicted_task.max() <= 2
    else:
        assert len(run.trace.verdict) == 8
        assert run.trace.segment.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        assert run.trace.true_task.tolist() == [0, 0, 1, 1, 0, 0, 2, 2]
    assert learner.num_tasks == len(run.added_in)


@pytest.mark.parametrize("name", ["ncm", "slda", "ranpac", "hcl-plus"])
def test_learners_by_sums_see_each_sample_once_and_learn_pairs(name):
    once, _ = train_seed(job(name))
    repeated = dataclasses.replace(TASKS, stream=tuple(Segment(s.task, 5) for s in TASKS.stream))
    often, _ = train_seed(dataclasses.replace(job(name), benchmark=repeated))
    np.testing.assert_array_equal(once.predicted_task, often.predicted_task)
    y = np.concatenate([task.test.y for task in TASKS.tasks])
    task = np.repeat([0, 1, 2], 20)
    right = (once.predicted_class[-1] == y) & (once.predicted_task[-1] == task)
    assert right.mean() > 0.95


@pytest.mark.parametrize("name", ["hcl-plus", "hcl-plus-ta"])
def test_hcl_plus_sums_each_sample_once_however_often_it_is_shown(name):
    repeated = dataclasses.replace(TASKS, stream=tuple(Segment(s.task, 5) for s in TASKS.stream))
    _, learner = train_seed(dataclasses.replace(job(name), benchmark=repeated))
    shown = len(learner.measured.seen.state()) + sum(len(y) for _, y in learner.measured.waiting)
    if learner.detector is not None:
        shown += sum(len(x) for x, _ in learner.detector.waiting)
    assert shown == (
        4 * 64 if learner.detector is None else 5 * 4 * 64
    )  # as the stream is, or once
    learner.measured.end_task(learner.moments)
    assert learner.moments.counts.sum() == 3 * 64  # the third segment shows the first task again
    assert sum(learner.measured.spreads.counts) == 3 * 64


@pytest.mark.parametrize("name", ["er", "curl", "hcl-fr-ta"])
def test_same_seed_same_run_other_seed_other_run(name):
    first, again = (train_seed(job(name))[0] for _ in range(2))
    other, _ = train_seed(job(name, seed=1))
    np.testing.assert_array_equal(first.predicted_class, again.predicted_class)
    np.testing.assert_array_equal(first.loss, again.loss)
    assert not np.array_equal(first.loss, other.loss)


def test_methods_of_one_seed_start_from_the_same_weights():
    losses = [train_seed(job(name))[0].loss[0] for name in ("adam", "mtl", "hcl-fr", "hcl-fr-ta")]
    assert len(set(losses)) == 1


def test_seeds_side_by_side_equal_seeds_alone(tmp_path):
    args = (TASKS, EMBEDDINGS, "hcl-fr", METHODS["hcl-fr"], FLOW, TRAINING)
    train(*args, seeds=(0, 1, 2), out=tmp_path / "together", kept=tmp_path / "store-a")
    train(*args, seeds=(1,), out=tmp_path / "alone", kept=tmp_path / "store-b")
    files = sorted(path.name for path in (tmp_path / "together").iterdir())
    assert files == ["seed-0.h5", "seed-1.h5", "seed-2.h5"]
    together, alone = (tmp_path / d / "seed-1.h5" for d in ("together", "alone"))
    assert together.read_bytes() == alone.read_bytes()
    assert read_run(together).seed == 1


def test_a_finished_seed_is_not_trained_again(tmp_path):
    args = (TASKS, EMBEDDINGS, "adam", METHODS["adam"], FLOW)
    kept, out = tmp_path / "store", tmp_path / "out"

    def finished() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in kept.glob("*/run.h5")}

    assert train(*args, TRAINING, (0, 1), out, kept) == 0
    two = finished()
    assert train(*args, TRAINING, (0, 1, 2), out, kept) == 2
    three = finished()
    assert (len(two), len(three)) == (2, 3)
    assert two.items() <= three.items()
    assert sorted(path.name for path in out.iterdir()) == ["seed-0.h5", "seed-1.h5", "seed-2.h5"]
    assert train(*args, TRAINING, (2,), out, kept) == 1
    assert [path.name for path in out.iterdir()] == ["seed-2.h5"]  # one taken out leaves the folder
    assert finished() == three
    other = dataclasses.replace(TRAINING, learning_rate=2e-3)
    assert train(*args, other, (2,), out, kept) == 0
    assert len(finished()) == 4
    assert not list(kept.rglob("checkpoint*"))


def test_everything_that_determines_a_result_is_in_its_fingerprint(monkeypatch):
    base = job("hcl-fr")
    others = {
        "seed": job("hcl-fr", seed=1),
        "name": dataclasses.replace(base, name="x"),
        "method": dataclasses.replace(
            base, method=FlowMethod(memory=FunctionalSettings(alpha=2.0))
        ),
        "flow": dataclasses.replace(base, flow=dataclasses.replace(FLOW, hidden=9)),
        "training": dataclasses.replace(
            base, training=dataclasses.replace(TRAINING, weight_decay=0.5)
        ),
        "stream": dataclasses.replace(
            base, benchmark=dataclasses.replace(TASKS, stream=TASKS.stream[:2])
        ),
    }
    keys = {name: other.fingerprint() for name, other in others.items()}
    assert len({*keys.values(), base.fingerprint()}) == len(keys) + 1
    unimportant = dataclasses.replace(TRAINING, checkpoint_every=7)
    assert dataclasses.replace(base, training=unimportant).fingerprint() == base.fingerprint()
    key = base.fingerprint()
    monkeypatch.setattr(loop, "versions", lambda: {"torch": "other"})
    assert base.fingerprint() != key
    key = base.fingerprint()
    monkeypatch.setattr(store, "source_digest", lambda *modules: "other source")
    assert base.fingerprint() != key


def test_what_a_method_never_reads_is_not_in_its_fingerprint():
    wide = dataclasses.replace(FLOW, hidden=9)
    slow = dataclasses.replace(TRAINING, learning_rate=1e-5)
    ignored = {"curl": ({"flow": wide},), "hcl-plus": ({"flow": wide},)}
    ignored |= dict.fromkeys(("ncm", "slda", "ranpac"), ({"flow": wide}, {"training": slow}))
    for name, each in ignored.items():
        for changes in each:
            changed = dataclasses.replace(job(name), **changes)
            assert changed.fingerprint() == job(name).fingerprint(), name
    for name, changes in (("curl", {"training": slow}), ("adam", {"flow": wide})):
        changed = dataclasses.replace(job(name), **changes)
        assert changed.fingerprint() != job(name).fingerprint(), name


def test_another_learner_can_be_tried_without_touching_the_loop():
    """Whoever tries a memory of their own hands over what builds the learner."""

    class Silent:
        """A memory that answers as the one below it does, and counts."""

        def __init__(self, memory):
            self.memory, self.draws = memory, 0

        def draw(self):
            self.draws += 1
            return self.memory.draw()

        def __getattr__(self, name):
            return getattr(self.memory, name)

    def build(job, stream):
        made = build_learner(job, stream)
        made.memory = Silent(made.memory)
        return made

    usual, _ = train_seed(job("hcl-fr"))
    tried, learner = train_seed(job("hcl-fr"), build=build)
    assert learner.memory.draws == 8
    np.testing.assert_array_equal(tried.loss, usual.loss)


def test_source_digest_follows_imports(tmp_path):
    package = tmp_path / "hcl"
    sources = {
        "__init__": "",
        "room/__init__": "",
        "room/loop": '"""Loop."""\nfrom hcl import first\nfrom hcl.other.second import x\n',
        "first": "import os\n",
        "other/__init__": "",
        "other/second": "from hcl.other import third\nimport hcl.fourth\n",
        "other/third": "y = 1\n",
        "fourth": "y = 1\n",
        "apart": "z = 1\n",
    }
    for name, text in sources.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / f"{name}.py").write_text(text)

    def digest() -> str:
        return store.source_digest.__wrapped__("hcl.room.loop", package=package)

    before = digest()
    (package / "apart.py").write_text("z = 2\n")
    (package / "room/loop.py").write_text(sources["room/loop"].replace("Loop", "The loop  # !"))
    assert digest() == before
    for name in ("first", "other/third", "fourth"):
        (package / f"{name}.py").write_text("changed = True\n")
        after = digest()
        assert after != before
        before = after


LEARNERS = {
    method.learner.split(".")[2]: method.learner
    for method in (*METHODS.values(), JointMethod())  # which answers at the end alone: test_joint
}


def digests(package: Path) -> dict[str, str]:
    """Of the source of each learner's jobs, by the learner's room."""
    digest = store.source_digest.__wrapped__
    return {
        room: digest("hcl.train.loop", learner, package=package)
        for room, learner in LEARNERS.items()
    }


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """A copy of the package, and the digests of its learners' jobs."""
    package = tmp_path_factory.mktemp("copy") / "hcl"
    shutil.copytree(store.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    return package, digests(package)


@pytest.mark.parametrize(
    ("edit", "changed"),
    [
        ("learn/curl/learner.py", {"curl"}),
        ("learn/curl/settings.py", {"curl"}),
        ("learn/plus/learner.py", {"plus"}),
        ("learn/flow/memory.py", {"flow"}),
        ("learn/closed_form/forms.py", {"closed_form"}),
        ("learn/joint/learner.py", {"joint"}),
        ("learn/linear.py", {"curl", "joint"}),
        ("learn/kinds.py", set()),  # where who adds a learner names it
        ("learn/moments.py", {"flow", "plus"}),
        ("train/loop.py", {"flow", "curl", "plus", "closed_form", "joint"}),
    ],
)
def test_a_change_to_one_learner_trains_no_other_again(edit, changed, copied):
    package, before = copied
    text = (package / edit).read_text(encoding="utf-8")
    (package / edit).write_text(f"{text}\nadded = True\n", encoding="utf-8")
    after = digests(package)
    (package / edit).write_text(text, encoding="utf-8")
    assert {room for room in before if before[room] != after[room]} == changed
    assert len(set(before.values())) == len(before) == 5


def test_the_digest_of_a_job_is_that_of_the_loop_and_its_learner(monkeypatch):
    asked = []
    monkeypatch.setattr(store, "source_digest", lambda *modules: asked.append(modules) or "")
    for name in METHODS:
        job(name).fingerprint()
    assert asked == [("hcl.train.loop", METHODS[name].learner) for name in METHODS]


def test_source_digest_of_a_module_that_is_not_there_is_an_error():
    with pytest.raises(ModuleNotFoundError, match=r"hcl\.train\.lop"):
        store.source_digest("hcl.train.lop")


def test_the_model_is_kept_if_asked_for(tmp_path):
    saving = dataclasses.replace(TRAINING, save_model=True)
    train(
        TASKS, EMBEDDINGS, "adam", METHODS["adam"], FLOW, saving, (0,), tmp_path / "out", tmp_path
    )
    about, learner, _ = read_learner(tmp_path / "out" / "seed-0.safetensors")
    assert (about.benchmark, about.name, about.seed) == ("blobs", "adam", 0)
    run = read_run(tmp_path / "out" / "seed-0.h5")
    x = EMBEDDINGS["blobs"].x[np.concatenate([task.test.rows for task in TASKS.tasks])]
    answers = learner.predict(torch.from_numpy(x))
    np.testing.assert_array_equal(answers.predicted_class, run.predicted_class[-1])


AFTER_OTHER_WORK = """
import sys
from dataclasses import replace
from pathlib import Path
import torch
from tests.train.test_training import EMBEDDINGS, FLOW, METHODS, TASKS, TRAINING, train

torch.set_num_threads(2)
torch.rand(1_000_000).exp().sum()  # on both
wide, kept = replace(FLOW, hidden_layers=2, hidden=256), replace(TRAINING, save_model=True)
out = Path(sys.argv[1])
train(TASKS, EMBEDDINGS, "adam", METHODS["adam"], wide, kept, (0, 1), out / "runs", out / "kept")
"""


@pytest.mark.slow
def test_it_does_not_wait_for_threads_of_the_process_that_called_it(tmp_path):
    subprocess.run([sys.executable, "-c", AFTER_OTHER_WORK, str(tmp_path)], check=True, timeout=300)
    assert len(list((tmp_path / "runs").glob("*.safetensors"))) == 2


def test_embeddings_stay_mapped_in_the_workers(tmp_path, monkeypatch):
    """Workers map the file again instead of taking a copy of it."""
    made = EMBEDDINGS["blobs"]
    provenance = dict.fromkeys(embedding_files.PROVENANCE[1:], "{}")
    provenance["classes"] = '["0"]'
    embedding_files.write(tmp_path / "blobs.h5", made.x, made.y, made.split, provenance)
    mapped = embedding_files.read(tmp_path / "blobs.h5")
    assert isinstance(mapped.x, np.memmap)
    kinds = jobs.joblib.Parallel(n_jobs=2, backend="multiprocessing")(
        jobs.joblib.delayed(_kind)(mapped) for _ in range(2)
    )
    assert kinds == ["memmap", "memmap"]


def _kind(embeddings: embedding_files.Embeddings) -> str:
    return type(embeddings.x).__name__


def test_a_loss_that_is_not_finite_stops_the_run():
    x = EMBEDDINGS["blobs"].x.copy()
    x[TASKS.tasks[1].train.rows] = 1e30
    broken = {"blobs": dataclasses.replace(EMBEDDINGS["blobs"], x=x)}
    with pytest.raises(HCLError) as caught:
        train_seed(dataclasses.replace(job("hcl-fr", seed=4), embeddings=broken))
    message = str(caught.value)
    for part in (
        "hcl-fr on blobs, seed 4, step 2, segment 2",
        "task 2",
        "learning_rate below 0.001",
    ):
        assert part in message


def test_the_rate_that_a_diverged_run_names_is_the_one_it_had():
    methods = {
        "flow": FlowMethod(learning_rate=9.5),
        "curl": dataclasses.replace(METHODS["curl"], learning_rate=9.5),
        "plus": PlusMethod(projections=0, flow=LearnsAll(learning_rate=9.5)),
    }
    embeddings, tasks = benchmark(blobs_in_64_dimensions(2, 320, 10))
    deep = dataclasses.replace(FLOW, hidden_layers=30)
    for name, method in methods.items():
        with pytest.raises(HCLError, match=r"learning_rate below 9\.5"):
            train_seed(Job(tasks, embeddings, name, method, deep, TRAINING, seed=0))


def test_scaling_is_fitted_on_the_first_task_alone():
    x = torch.tensor([[0.0, 100.0, 5.0], [2.0, 300.0, 5.0]])
    shift, scale = scaling_of(x, "standard")
    overall = ((1 + 100**2) / 3) ** 0.5
    assert shift.tolist() == [1.0, 200.0, 5.0]
    assert scale.tolist() == pytest.approx([0.1 * overall, 100.0, 0.1 * overall])
    shift, scale = scaling_of(x, "global")
    assert shift.tolist() == [1.0, 200.0, 5.0]
    assert scale.tolist() == pytest.approx([overall] * 3)
    shift, scale = scaling_of(x, "none")
    assert (shift.tolist(), scale.tolist()) == ([0.0] * 3, [1.0] * 3)
    _, learner = train_seed(job("adam"))
    first = EMBEDDINGS["blobs"].x[TASKS.tasks[0].train.rows]
    np.testing.assert_allclose(learner.model.flow.scaling.shift, first.mean(0), atol=1e-5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_size": 0}, "training.batch_size"),
        ({"learning_rate": 0.0}, "training.learning_rate"),
        ({"weight_decay": -1.0}, "training.weight_decay"),
        ({"mean_scale": 0.0}, "training.mean_scale"),
        ({"scaling": "minmax"}, "global, standard, none"),
    ],
)
def test_impossible_settings_are_named(values, message):
    with pytest.raises(HCLError, match=message):
        build(TrainingSettings, values, "params.yaml", "training")
