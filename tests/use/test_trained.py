"""A learner out of its model file: its answers by name, and learning as if never stopped."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hcl.errors import HCLError
from hcl.learn.contract import Posterior, shares
from hcl.model.model_file import read_model, write_model
from hcl.train.loop import Job, train_seed
from hcl.train.machine import one_thread
from hcl.train.saving import About, about_run, read_learner, write_learner
from hcl.train.streams import Stream
from hcl.use.loading import load as load_any
from hcl.use.trained import Answers, Trained, _Pairs, load
from tests.support.own_labels import own_labels
from tests.support.trained import DETECTING, NAMES, ON_IMAGES, TOLD, job, train_model

EVERY = (*TOLD, *DETECTING, *ON_IMAGES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def model(folder: Path, name: str) -> tuple[Path, Job]:
    """A model file, trained once for all tests of the module."""
    path = folder / f"{name}.safetensors"
    return path, job(name) if path.exists() else train_model(path, name)


def samples(made: Job) -> NDArray[Any]:
    return made.embeddings["blobs"].x


def stream(made: Job, count: int) -> tuple[NDArray[Any], list[str]]:
    """Training samples of the second task, and their names."""
    task = made.benchmark.tasks[1]
    rows = np.resize(task.train.rows, count)
    labels = np.resize(task.train.y, count)
    return samples(made)[rows], [NAMES[task.classes[y]] for y in labels]


@pytest.mark.parametrize("name", EVERY)
def test_a_learner_read_is_the_one_that_was_written(folder: Path, name: str) -> None:
    path, _ = model(folder, name)
    load(path).save(folder / "again")
    assert (folder / "again").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", EVERY)
def test_answers_are_the_learner_s_own_by_name(folder: Path, name: str) -> None:
    path, made = model(folder, name)
    trained = load(path)
    rows = np.concatenate([task.test.rows for task in made.benchmark.tasks])
    answers = trained.predict(samples(made)[rows])
    with one_thread():
        run, _ = train_seed(made)
    pairs = list(zip(run.predicted_task[-1], run.pair_class[-1], strict=True))
    shown = trained.names
    assert answers.name == [shown[max(t, 0)][k] for t, k in pairs]
    np.testing.assert_array_equal(answers.task, run.predicted_task[-1])
    assert isinstance(trained.learner, Posterior)
    assert ((answers.probability > 0) & (answers.probability <= 1)).all()
    assert set(answers.error) == {""}


@pytest.mark.parametrize("name", EVERY)
def test_probabilities_of_all_pairs_sum_to_one(folder: Path, name: str) -> None:
    path, made = model(folder, name)
    trained = load(path)
    learner: Any = trained.learner
    log_posterior = learner.posterior(trained._prepared(samples(made)[:50]))
    assert log_posterior.shape == (50, max(learner.num_tasks, 1), 2)
    torch.testing.assert_close(log_posterior.double().exp().sum((1, 2)), torch.ones(50).double())


def test_tasks_that_share_names_are_summed_over() -> None:
    posterior = torch.tensor([[[0.3, 0.35], [0.25, 0.1]]]).log()
    own = _Pairs([["a", "b"], ["c", "d"]])
    assert [v.tolist() for v in own.likeliest(posterior)] == [[1], [pytest.approx(0.35)], [0]]
    shared = _Pairs([["a", "b"], ["a", "b"]])
    assert [v.tolist() for v in shared.likeliest(posterior)] == [[0], [pytest.approx(0.55)], [0]]
    swapped = _Pairs([["a", "b"], ["b", "a"]])
    assert [v.tolist() for v in swapped.likeliest(posterior)] == [[1], [pytest.approx(0.6)], [0]]


def test_scores_of_a_regression_are_shared_out() -> None:
    scores = torch.tensor([[0.6, 0.2, -0.3], [-1.0, -2.0, -torch.inf]])
    assert shares(scores).tolist() == [[pytest.approx(0.75), pytest.approx(0.25), 0], [0.5, 0.5, 0]]


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("mtl", "joint")])
@pytest.mark.parametrize("cuts", [(), (1, 33, 64, 130)])
def test_a_stream_cut_anywhere_leaves_the_same_bytes(
    folder: Path, name: str, cuts: tuple[int, ...]
) -> None:
    path, made = model(folder, name)
    before = path.read_bytes()
    whole, cut = folder / "whole", folder / "cut"
    trained = load(path)
    task = 2 if trained.is_told else None
    x, y = stream(made, 150)
    noticed = trained.learn(x, y, task)
    assert trained.waiting == 150 % 32
    trained.save(whole)
    cut.write_bytes(before)
    found = []
    for start, stop in zip((0, *cuts), (*cuts, 150), strict=True):
        part = load(cut)
        found += part.learn(x[start:stop], y[start:stop], task)
        part.save(cut)
    assert cut.read_bytes() == whole.read_bytes() != before
    assert found == noticed
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", DETECTING)
def test_learning_on_is_what_the_training_loop_does(folder: Path, name: str) -> None:
    """Task 1, saved, loaded, then task 2: the state of a run over both without a stop."""
    both = job(name)
    two = dataclasses.replace(both.benchmark, stream=both.benchmark.stream[:2])
    first = dataclasses.replace(both.benchmark, stream=both.benchmark.stream[:1])
    both = dataclasses.replace(both, benchmark=two)
    begun = dataclasses.replace(both, benchmark=first)
    with one_thread():
        _, expected = train_seed(both)
        run, learner = train_seed(begun)
        write_learner(folder / "begun", about_run(begun, run, learner), learner)
    trained = load(folder / "begun")
    shown = Stream(two, both.embeddings, batch_size=32, seed=both.seed, device=torch.device("cpu"))
    for batch in shown.batches(1):
        names = [NAMES[2 + int(y)] for y in batch.y]
        trained.learn(batch.x.numpy(), names, places={NAMES[2]: NAMES[0], NAMES[3]: NAMES[1]})
    trained.predict(samples(both)[:2])  # as the loop does behind each segment: sums are taken
    write_model(folder / "one", {}, expected.state())
    write_model(folder / "other", {}, trained.learner.state())
    assert (folder / "one").read_bytes() == (folder / "other").read_bytes()


def test_a_new_task_s_classes_take_the_places_of_known_ones(folder: Path) -> None:
    path, made = model(folder, "slda")
    trained = load(path)
    centre = samples(made).mean(0)
    x = np.concatenate([centre + 9 + np.eye(64)[i % 2] * (i % 2) * 30 for i in range(64)])
    x = x.reshape(64, 64).astype(np.float32)
    y = ["gorse" if i % 2 else "hazel" for i in range(64)]
    with pytest.raises(HCLError, match="'hazel' is not known"):
        trained.learn(x, y, task=4)
    assert trained.num_tasks == 3
    trained.learn(x, y, task=4, places={"hazel": "ash", "gorse": "fir"})
    assert trained.names[3] == ["hazel", "gorse"]
    assert set(trained.predict(x).name) == {"hazel", "gorse"}
    trained.save(folder / "more")
    assert load(folder / "more").label_of("gorse") == 1
    assert load(folder / "more").about.given == (0, 1, 2, 3)


def test_a_pair_has_the_name_that_most_of_its_samples_had(folder: Path) -> None:
    path, made = model(folder, "hcl-plus-ta")
    trained = load(path)
    x, _ = stream(made, 32)
    before = trained.names[trained.task - 1][:]
    places = {"yew": before[0]}
    for _ in range(12):
        trained.learn(x, ["yew"] * 32, places=places)
    assert "yew" in trained.classes


def test_samples_of_another_task_do_not_share_a_batch(folder: Path) -> None:
    path, made = model(folder, "slda")
    trained = load(path)
    x, y = stream(made, 40)
    trained.learn(x, y, task=2)
    assert trained.waiting == 8
    trained.learn(x[:3], y[:3], task=1)
    assert trained.waiting == 3
    assert trained.about.samples - load(path).about.samples == 40


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("slda", {}, "slda must be told its tasks: name one by its number, 1 to 3"),
    ("slda", {"task": 0}, "task 0: slda knows the tasks 1 to 3; 4 begins a new one"),
    ("slda", {"task": 5}, "4 begins a new one"),
    ("hcl-fr-ta", {"task": 1}, "hcl-fr-ta finds its tasks itself"),
    ("hcl-fr-ta", {"y": ["oak"] * 40}, "the class 'oak' is not known to this model"),
    ("hcl-fr-ta", {"y": ["birhc"] * 40}, "(did you mean 'birch'?)"),
    ("hcl-fr-ta", {"y": ["ash"]}, "40 samples, but 1 labels"),
    ("hcl-fr-ta", {"x": np.zeros((40, 63))}, "trained on samples of 64 numbers"),
    ("hcl-fr-ta", {"x": np.full((40, 64), np.nan)}, "sample 0 has values that are not finite"),
    ("hcl-fr-ta", {"x": np.full((40, 64), "a")}, "samples are numbers"),
    ("glow", {"task": 1, "x": np.zeros((40, 64))}, "trained on pixels, bytes of shape [1, 8, 8]"),
    ("joint", {"task": 1}, "it can't go on learning"),
    ("mtl", {"task": 2, "y": ["cedar", "dogwood"] * 20}, "mtl looks at all data of old tasks"),
]


@pytest.mark.parametrize(("name", "changes", "message"), MISTAKES)
def test_mistakes_are_one_line(
    folder: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    path, made = model(folder, name)
    trained = load(path)
    x, y = samples(made)[:40], ["ash", "birch"] * 20
    arguments = {"x": x, "y": y, **changes}
    with pytest.raises(HCLError) as error:
        trained.learn(**arguments)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_learner_without_a_posterior_still_answers(folder: Path) -> None:
    path, made = model(folder, "slda")
    about, learner, _ = read_learner(path)

    class Silent:
        num_tasks = learner.num_tasks
        predict = staticmethod(learner.predict)

    expected = load(path).predict(samples(made)[:20])
    found = Trained(about, Silent(), (), load(path).images).predict(samples(made)[:20])  # type: ignore[arg-type]
    assert found.name == expected.name
    np.testing.assert_array_equal(found.task, expected.task)
    assert np.isnan(found.probability).all()


def test_a_learner_that_knows_novelty_is_asked(folder: Path) -> None:
    path, made = model(folder, "slda")
    trained = load(path)
    assert np.isnan(trained.predict(samples(made)[:3]).novelty).all()
    trained.learner.novelty = lambda x: torch.linspace(0, 1, len(x))  # type: ignore[attr-defined]
    assert trained.predict(samples(made)[:3]).novelty.tolist() == [0, 0.5, 1]


def test_a_calibrated_detector_says_what_is_new(folder: Path) -> None:
    path, made = model(folder, "hcl-plus-ta")
    trained = load(path)
    x, y = samples(made)[made.benchmark.tasks[0].train.rows], ["ash", "birch"]
    for _ in range(20):  # until it has something to go by
        trained.learn(x, [y[k] for k in made.benchmark.tasks[0].train.y])
    far = np.concatenate([x[:20], x[:20] + 50])
    novelty = trained.predict(far).novelty
    assert (novelty[20:] < 0.05).all()
    assert (novelty[:20] > 0.05).mean() > 0.8


def test_no_samples_have_no_answers(folder: Path) -> None:
    path, _ = model(folder, "slda")
    found: Answers = load(path).predict(np.zeros((0, 64), np.float32))
    assert [len(column) for column in found] == [0] * 5


def spoilt(content: Any, **changes: Any) -> tuple[dict[str, Any], Any]:
    return {**content.about, **changes}, content.state


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "HCLClassifier"}, "holds a HCLClassifier that was saved from Python"),
        ({"shape": [63]}, "its state doesn't fit its settings"),
        ({"shape": []}, "its header is not whole (ValueError('a sample of shape []'))"),
        ({"num_classes": 10**9}, "1000000000 classes, and names of another number"),
        ({"names": 3}, "its header is not whole"),
        ({"settings": {"method": {"kind": "slda", "shrink": 1}}}, "settings.method.shrink"),
        ({"settings": {}}, "its header is not whole (KeyError('method'))"),
    ],
)
def test_a_file_that_contradicts_itself_is_named(
    folder: Path, changes: dict[str, Any], message: str
) -> None:
    path, _ = model(folder, "hcl-fr-ta")
    write_model(folder / "spoilt", *spoilt(read_model(path), **changes))
    with pytest.raises(HCLError) as error:
        load(folder / "spoilt")
    assert message in str(error.value)
    assert str(folder / "spoilt") in str(error.value)
    assert "\n" not in str(error.value)


def test_a_kind_that_is_no_text_is_named(folder: Path) -> None:
    path, _ = model(folder, "slda")
    write_model(folder / "spoilt", *spoilt(read_model(path), kind=[]))
    with pytest.raises(HCLError, match=r"holds a \[\] that was saved from Python"):
        load_any(folder / "spoilt")


def test_a_number_that_no_tensor_can_hold_is_named(folder: Path) -> None:
    path, _ = model(folder, "hcl-fr-ta")
    about, state = read_model(path)
    state["learner"]["optimiser"]["steps"][0] = 10**400
    write_model(folder / "spoilt", about, state)
    with pytest.raises(HCLError, match="its state doesn't fit its settings"):
        load(folder / "spoilt")


def train_with_own_labels(folder: Path, name: str) -> Job:
    """A model of which each task brought two classes more."""
    embeddings, benchmark = own_labels(train=96, test=20)
    attributes = {**embeddings["blobs"].attributes, "classes": json.dumps(NAMES)}
    named = {"blobs": dataclasses.replace(embeddings["blobs"], attributes=attributes)}
    made = dataclasses.replace(job(name), benchmark=benchmark, embeddings=named)
    with one_thread():
        run, learner = train_seed(made)
        write_learner(folder / "own", about_run(made, run, learner), learner)
    return made


@pytest.mark.parametrize("name", ["hcl-fr", "hcl-fr-ta", "hcl-plus", "slda"])
def test_classes_that_come_with_their_tasks_have_their_own_names(folder: Path, name: str) -> None:
    made = train_with_own_labels(folder, name)
    benchmark = made.benchmark
    trained = load(folder / "own")
    assert [trained.label_of(each) for each in NAMES] == list(range(6))
    assert set(trained.classes) <= set(NAMES)
    rows = np.concatenate([task.test.rows for task in benchmark.tasks])
    answers = trained.predict(samples(made)[rows])
    assert set(answers.name) <= set(NAMES)
    trained.save(folder / "again")
    assert (folder / "again").read_bytes() == (folder / "own").read_bytes()


@pytest.mark.parametrize("name", ["hcl-gr", "hcl-fr-auto", "hcl-plus", "ncm", "slda", "ranpac"])
def test_a_class_that_was_never_seen_is_one_more(folder: Path, name: str) -> None:
    made = train_with_own_labels(folder, name)
    x = samples(made)[made.benchmark.tasks[0].train.rows[:80]] + 30
    x[1::2] -= 60
    y = ["hazel", "gorse"] * 40
    whole = load(folder / "own")
    task = 4 if whole.is_told else None
    before = whole.predict(samples(made)[:60])
    for _ in range(4):
        whole.learn(x, y, task)
    whole.save(folder / "whole")
    (folder / "cut").write_bytes((folder / "own").read_bytes())
    for start, stop in ((0, 1), (1, 31), (31, 70), (70, 320)):
        part = load(folder / "cut")
        some = np.arange(start, stop) % 80
        part.learn(x[some], [y[i] for i in some], task)
        part.save(folder / "cut")
    assert (folder / "cut").read_bytes() == (folder / "whole").read_bytes()
    trained = load(folder / "whole")
    assert (trained.about.num_classes, trained.label_of("hazel")) == (8, 6)
    assert trained.classes[-2:] == ["hazel", "gorse"]
    if name in ("hcl-gr", "hcl-fr-auto"):  # ten steps are too few for a flow
        return
    assert trained.predict(x).name == y
    after = trained.predict(samples(made)[:60])
    assert np.mean(np.array(after.name) == before.name) > 0.9
    with pytest.raises(HCLError, match="'birhc' is not known"):
        trained.learn(x, y, task, places={"gorse": "birhc"})


def test_a_network_of_a_fixed_size_takes_no_more_classes(folder: Path) -> None:
    train_with_own_labels(folder, "curl")
    with pytest.raises(HCLError, match="'gorse' is not known"):
        load(folder / "own").learn(np.zeros((2, 64)), ["gorse", "ash"], 1)


def test_about_says_what_the_learner_saw(folder: Path) -> None:
    path, made = model(folder, "hcl-fr")
    about = load(path).about
    assert isinstance(about, About)
    assert about.names[1] == ({"cedar": 48}, {"dogwood": 48})
    assert about.given == (0, 1, 2)
    assert about.samples == 4 * 2 * 96
    assert about.seed == made.seed
    assert about.input.backbone == "none"
