"""What the service does, without HTTP."""

from __future__ import annotations

import shutil
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hcl.errors import HCLError
from hcl.records.raw import decode_image
from hcl.serve import service as module
from hcl.serve.service import NotSaved, Service, Unknown
from hcl.use.trained import load
from tests.support import served
from tests.support.every_learner import BATCH


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return served.on_blobs(tmp_path_factory.mktemp("blobs") / "blobs.safetensors")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state.safetensors"


@pytest.fixture
def service(model: Path, state: Path) -> Service:
    return Service(model, state)


def test_answers_are_the_model_s(service: Service, model: Path) -> None:
    x, names = served.blobs(0, 5)
    answers = service.predict(x)
    expected = load(model).predict(x)
    assert [a.name for a in answers] == expected.name == names
    assert [a.probability for a in answers] == expected.probability.tolist()
    assert [a.task for a in answers] == [int(t) + 1 for t in expected.task]
    assert [a.id for a in answers] == [1, 2, 3, 4, 5]


def test_a_lesson_is_saved_and_the_first_model_stays(
    service: Service, model: Path, state: Path
) -> None:
    before = model.read_bytes()
    x, names = served.blobs(0)
    assert not state.exists()
    point = service.learn(x, names)
    assert (point.count, point.right) == (BATCH, BATCH)
    assert model.read_bytes() == before
    apart = load(model)
    apart.learn(x, names)
    apart.save(state.with_name("apart.safetensors"))
    assert state.read_bytes() == state.with_name("apart.safetensors").read_bytes()


def test_samples_that_wait_for_a_batch_are_saved_too(
    service: Service, model: Path, state: Path
) -> None:
    x, names = served.blobs(1)
    samples = service.state()["samples"]
    service.learn(x[:20], names[:20])
    assert (service.state()["samples"], service.state()["waiting"]) == (samples, 20)
    again = Service(model, state)
    assert again.resumed
    again.learn(x[20:], names[20:])
    assert (again.state()["samples"], again.state()["waiting"]) == (samples + BATCH, 0)


def test_what_was_answered_can_be_labelled_later(service: Service) -> None:
    x, names = served.blobs(2, 4)
    answers = service.predict(x)
    wrong = [names[0], *(_other(name) for name in names[1:3])]
    point = service.learn_answered([answers[i].id for i in (0, 1, 2)], wrong)
    assert (point.count, point.right) == (3, 1)
    assert service.state()["labelled"] == {"samples": 3, "right": 1}
    assert service.state()["waiting"] == 3
    with pytest.raises(Unknown, match="no answer is remembered under 1: it was labelled already"):
        service.learn_answered([answers[0].id, answers[3].id], names[:2])
    with pytest.raises(HCLError, match="an id stands twice"):
        service.learn_answered([4, 4], names[:2])
    assert service.state()["waiting"] == 3


def _other(name: str) -> str:
    place = served.NAMES.index(name)
    return served.NAMES[place + 1 if place % 2 == 0 else place - 1]


def test_old_answers_are_forgotten(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 3)
    x, names = served.blobs(0, 4)
    service.predict(x)
    with pytest.raises(Unknown, match="under 1:"):
        service.learn_answered([1], names[:1])
    assert service.learn_answered([2], names[1:2]).count == 1


def test_the_stream_is_there_after_a_restart_and_a_torn_line_is_not(
    service: Service, model: Path, state: Path
) -> None:
    x, names = served.blobs(0, 6)
    service.learn(x[:3], names[:3])
    service.learn(x[3:], [_other(names[3]), *names[4:]])
    lessons = [p for p in service.state()["stream"] if p["kind"] == "learn"]
    with open(service.stream_file, "a", encoding="utf-8") as file:
        file.write('{"kind": "learn", "cou')
    again = Service(model, state)
    assert again.state()["stream"] == lessons
    assert again.state()["labelled"] == {"samples": 6, "right": 5}
    again.learn(x[:1], names[:1])
    assert Service(model, state).state()["labelled"] == {"samples": 7, "right": 6}


def test_a_change_is_told_and_drawn(service: Service, model: Path) -> None:
    """New samples far from all that was learned, under the names of task 1."""
    random = np.random.default_rng(0)
    centre = {name: 20 * random.normal(size=64) for name in served.NAMES[:2]}
    names = [served.NAMES[i % 2] for i in range(BATCH)]
    found = []
    for _ in range(8):
        x = np.stack([centre[name] for name in names]) + random.normal(size=(BATCH, 64))
        found += service.learn(x, names).changes
    assert found
    assert found[0][1] == "new"
    told = service.state()
    assert told["changes"][-len(found) :][0]["task"] == found[0][2]
    assert len(told["tasks"]) == load(model).num_tasks + len({task for _, _, task in found})


@pytest.mark.parametrize("what", ["hcl.use.trained.write_learner", "os.replace"])
def test_where_the_file_can_t_be_written_nothing_is_learned(
    service: Service, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    x, names = served.blobs(0)
    service.learn(x[:5], names[:5])
    before = service.state()

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(what, full)
        with pytest.raises(NotSaved, match=r"no space left on the disk.*Nothing was learned"):
            service.learn(x, names)
    assert service.state() == before
    assert service.learn(x[:1], names[:1]).samples == before["samples"] + 6


def test_a_mistake_changes_nothing(service: Service, state: Path) -> None:
    x, names = served.blobs(0, 3)
    before = service.state()
    for labels, said in (
        (["ant", "bat", "cat"], "'bat' is not known to this model"),
        (names[:2], "3 samples, but 2 labels"),
    ):
        with pytest.raises(HCLError, match=said):
            service.learn(x, labels)
    with pytest.raises(HCLError, match="finds its tasks itself"):
        service.learn(x, names, task=1)
    with pytest.raises(HCLError, match="samples of 64 numbers"):
        service.predict(x[:, :3])
    assert service.state() == before
    assert not state.exists()


def test_a_new_name_takes_the_place_of_a_known_one(service: Service) -> None:
    x, names = served.blobs(0, 4)
    service.learn(x, ["wasp" if name == "ant" else name for name in names], {"wasp": "ant"})
    with pytest.raises(
        HCLError, match=r"'rabbit' is not known .*whose place it takes: as rabbit=CLASS"
    ):
        service.learn(x, ["hare"] * 4, {"hare": "rabbit"})


def test_the_model_to_begin_with_is_not_written_to(model: Path) -> None:
    with pytest.raises(HCLError, match="is the model to begin with"):
        Service(model, model)


# Images


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return served.on_pictures(tmp_path_factory.mktemp("pictures"))


def test_images_are_seen_and_a_broken_one_has_its_error(
    pictures: tuple[Path, Path], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(pictures[0], state, str(pictures[1]), "cpu")
    files = [served.picture(served.SHOWN[i], 1000) for i in range(4)]
    answers = service.predict_images([*files[:2], b"text", *files[2:]])
    assert [a.name for a in answers if not a.error] == list(served.PICTURED)
    assert answers[2].error is not None
    assert (answers[2].id, answers[2].name) == (None, None)
    with pytest.raises(HCLError, match=r"image 2: not one of PNG.*Nothing was learned"):
        service.learn_images([files[0], b"text"], served.PICTURED[:2])
    assert service.learn_images(files, served.PICTURED).right == 4

    monkeypatch.setattr(module, "LARGEST_PICTURE", 10_000)
    large = BytesIO()
    Image.new("RGB", (101, 100)).save(large, "png")
    decode = "hcl.use.images.decode_image"
    monkeypatch.setattr(decode, lambda data: pytest.fail("decoded") if data else decode_image(data))
    (answer,) = service.predict_images([large.getvalue()])
    assert answer.error is not None
    assert answer.error.startswith("101×100 pixels, more than")


def test_embeddings_without_a_backbone_take_no_images(service: Service) -> None:
    with pytest.raises(HCLError, match="takes embeddings, not images"):
        service.predict_images([served.picture(0, 0)])


def test_a_model_that_is_told_its_tasks(tmp_path: Path) -> None:
    model = served.on_blobs(tmp_path / "told.safetensors", "hcl-plus-ridge")
    service = Service(model, tmp_path / "state.safetensors")
    x, names = served.blobs(0)
    with pytest.raises(HCLError, match="must be told its tasks"):
        service.learn(x, names)
    assert service.learn(x, names, task=1).count == BATCH
    shutil.rmtree(tmp_path / "run")
