"""Handing out blocks to actors, with a Ray of one process: what is lost, refused, bounded."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from hcl.errors import HCLError
from hcl.extract import extraction, on_ray
from hcl.extract.backbones import load_backbone
from hcl.extract.extraction import extract
from hcl.extract.forward import Cut
from hcl.extract.partial import NOTE
from hcl.extract.settings import ExtractSettings
from hcl.records.raw import Raw
from tests.support.tiny_backbone import (
    NAME,
    random_images,
    save_raw,
    save_raw_files,
    save_weights,
)

COUNT = 45  # images: six blocks of eight, the last one not full


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause):
        super().__init__(f"a traceback\nof {cause}")
        self.cause = cause


class FakeRay:
    """Ray as far as ``on_ray`` knows it: a call is made when its result is waited for.

    ``on_call`` is asked before each call of an actor, and may raise for it.
    """

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, cores=2, on_call=lambda *_: None):
        self.cores, self.on_call = cores, on_call
        self.calls, self.killed, self.most = [], [], 0

    def cluster_resources(self):
        return {"CPU": float(self.cores)}

    def put(self, value):
        return pickle.loads(pickle.dumps(value))

    def remote(self, kind):
        def hire():
            return FakeActor(self, kind())

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=hire))

    def wait(self, jobs, num_returns, timeout):
        assert jobs, "nothing to wait for"
        self.most = max(self.most, sum(job.name == "embed" for job in jobs))
        return (jobs[:1], jobs[1:]) if num_returns == 1 else (jobs[:2], jobs[2:])

    def get(self, job):
        try:
            self.on_call(job.actor, job.name, *job.arguments)
            self.calls.append((job.name, *job.arguments[:2]))
            return getattr(job.actor.body, job.name)(*job.arguments)
        except RayError:
            raise
        except Exception as error:
            raise RayTaskError(error) from error

    def kill(self, actor):
        self.killed.append(actor)


class Job(SimpleNamespace):
    __hash__ = object.__hash__
    __eq__ = object.__eq__


class FakeActor:
    def __init__(self, ray, body):
        self.ray, self.body = ray, body

    def __getattr__(self, name):
        def call(*arguments):
            sent = pickle.loads(pickle.dumps(arguments))
            return Job(actor=self, name=name, arguments=sent)

        return SimpleNamespace(remote=call)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    save_weights(folder / "tiny.pth")
    save_raw(folder / "raw.h5", random_images(COUNT))
    pictures = [image[: 12 + i % 7] for i, image in enumerate(random_images(COUNT))]
    save_raw_files(folder / "files.h5", pictures)
    return folder


@pytest.fixture(scope="module")
def settings(folder):
    return ExtractSettings(
        backbone=NAME, weights=str(folder / "tiny.pth"), device="cpu", batch_size=8
    )


@pytest.fixture(scope="module")
def whole(folder, settings):
    extract(folder / "raw.h5", folder / "whole.h5", settings)
    return (folder / "whole.h5").read_bytes()


@pytest.fixture
def run(folder, settings, tmp_path, monkeypatch):
    """Extraction on a cluster of this process."""

    def run(ray, name="raw.h5", shared=False, **changes):
        monkeypatch.setattr(extraction, "connect", lambda address: nullcontext(ray))
        changed = replace(settings, **changes)
        extract(folder / name, tmp_path / "out.h5", changed, ray="a cluster", shared=shared)
        return (tmp_path / "out.h5").read_bytes()

    return run


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("batch_size", [1, 20, 1000])
def test_the_bytes_are_those_of_one_machine(run, whole, shared, batch_size):
    ray = FakeRay()
    assert run(ray, shared=shared, batch_size=batch_size) == whole
    blocks = [b for name, *run in ray.calls if name == "embed" for b in range(*run)]
    assert sorted(blocks) == [0, 1, 2, 3, 4, 5]
    assert len(ray.killed) == len({id(actor) for actor in ray.killed}) >= 1  # none is left


@pytest.mark.parametrize("shared", [False, True])
def test_files_are_decoded_by_the_actors(run, folder, settings, tmp_path, shared):
    extract(folder / "files.h5", tmp_path / "one.h5", settings)
    assert run(FakeRay(), "files.h5", shared) == (tmp_path / "one.h5").read_bytes()


def failing(times, error):
    """The first ``times`` runs of blocks fail."""
    left = iter(range(times))

    def on_call(actor, name, *arguments):
        if name == "embed" and next(left, None) is not None:
            raise error

    return on_call


@pytest.mark.parametrize("error", [RayError("its node is gone"), ValueError("broken")])
def test_what_an_actor_leaves_is_done_by_another(run, whole, error):
    ray = FakeRay(on_call=failing(3, error))
    assert run(ray) == whole
    done = [first for name, first, _ in ray.calls if name == "embed"]
    assert sorted(done) == [0, 1, 2, 3, 4, 5]
    assert sum(name == "prepare" for name, *_ in ray.calls) >= 2 + 3  # each replaced


def test_what_fails_everywhere_is_one_line_and_the_rest_is_kept(run, tmp_path, whole):
    tried = []

    def on_call(actor, name, *arguments):
        if name == "embed" and arguments[0] == 2:
            tried.append(id(actor))
            raise ValueError("broken\nby block 2")

    with pytest.raises(HCLError) as caught:
        run(FakeRay(on_call=on_call))
    assert str(caught.value) == (
        "images 16…23 failed on 4 actors, at last with: ValueError: broken"
    )
    assert len(tried) == 4
    (finished,) = tmp_path.glob(".out.h5.*.part/finished")
    kept = set(np.frombuffer(finished.read_bytes(), NOTE)["block"].tolist())
    assert kept
    assert 2 not in kept
    ray = FakeRay()
    assert run(ray) == whole
    done = {first for name, first, _ in ray.calls if name == "embed"}
    assert done == {0, 1, 2, 3, 4, 5} - kept


def test_work_of_the_cluster_is_continued_on_one_machine(run, folder, settings, tmp_path, whole):
    calls = 0

    def stop(actor, name, *arguments):
        nonlocal calls
        calls += name == "embed"
        if calls > 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(FakeRay(cores=1, on_call=stop))
    assert sum(p.stat().st_size for p in tmp_path.glob(".*.part/finished")) >= NOTE.itemsize
    extract(folder / "raw.h5", tmp_path / "out.h5", settings)
    assert (tmp_path / "out.h5").read_bytes() == whole


def test_an_actor_of_other_versions_is_not_used(run):
    def other(actor, name, *arguments):
        if name == "prepare":
            prepare = actor.body.prepare
            actor.body.prepare = lambda *a: _changed(prepare(*a))

    def _changed(found):
        return {**found, "made": {**found["made"], "torch": "1.0"}}

    with pytest.raises(HCLError, match=r"no actor of the cluster can do the work: torch is 1\.0 t"):
        run(FakeRay(on_call=other))


def test_one_unfit_machine_does_not_stop_the_others(run, whole, caplog):
    unfit = []

    def on_call(actor, name, *arguments):
        if name == "prepare" and not unfit:
            unfit.append(actor)
            raise HCLError("raw.h5: no such raw file")

    ray = FakeRay(cores=3, on_call=on_call)
    assert run(ray, shared=True) == whole
    assert "an actor is not used: raw.h5: no such raw file" in caplog.text
    assert unfit[0] in ray.killed


def test_actors_that_never_start_are_one_line(run):
    def on_call(actor, name, *arguments):
        raise RayError("The actor died\nwith a long text")

    with pytest.raises(
        HCLError, match=r"no actor of the cluster starts: RayError: The actor died$"
    ):
        run(FakeRay(on_call=on_call))


def test_what_is_on_the_way_is_bounded(run, whole, monkeypatch):
    ray = FakeRay(cores=1)
    assert run(ray) == whole
    assert ray.most == on_ray.AHEAD
    monkeypatch.setattr(on_ray, "IN_FLIGHT", 8 * (256 * 4 + 20 * 20 * 3))  # one block of eight
    ray = FakeRay(cores=3)
    assert run(ray) == whole
    assert ray.most == 1


def test_the_raw_file_that_an_actor_sees_is_the_driver_s(folder, settings):
    backbone = load_backbone(NAME, settings.weights)
    raw = Raw(folder / "raw.h5")
    actor = on_ray.Actor()
    plan = on_ray.Plan(settings, "cpu", Cut(COUNT, 8), (raw.path, "another"))
    with pytest.raises(HCLError, match=r"raw\.h5: another file than the driver's"):
        actor.prepare(backbone, plan)


@pytest.mark.parametrize(
    ("device", "gpus", "found"),
    [
        ("auto", 0, "cpu"),
        ("auto", 2, "cuda"),
        ("cpu", 2, "cpu"),
        ("cuda", 1, "cuda"),
        ("cuda", 0, "no machine of the cluster offers a GPU"),
        ("cuda:1", 2, "is 'cuda:1', which names a device of one machine"),
        ("mps", 0, "is 'mps', which names a device of one machine"),
    ],
)
def test_the_device_is_the_cluster_s(device, gpus, found):
    ray = SimpleNamespace(cluster_resources=lambda: {"CPU": 4.0, "GPU": float(gpus)})
    if found in ("cpu", "cuda"):
        assert on_ray.device_of(ray, device) == found
    else:
        with pytest.raises(HCLError, match=found):
            on_ray.device_of(ray, device)


def test_runs_have_no_gaps():
    runs = on_ray._runs(np.array([0, 1, 2, 3, 7, 8, 11]), 3)
    assert [(run.first, run.stop) for run in runs] == [(0, 3), (3, 4), (7, 9), (11, 12)]
