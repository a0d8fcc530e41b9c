"""Extraction on a real Ray cluster of three nodes on this machine, two of which have a core."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from hcl.errors import HCLError
from hcl.extract import extraction, on_ray
from hcl.extract.extraction import extract
from hcl.extract.partial import NOTE
from hcl.extract.settings import ExtractSettings
from tests.support.imports import ROOT
from tests.support.tiny_backbone import (
    NAME,
    Failing,
    Slow,
    random_images,
    save_raw,
    save_raw_files,
    save_weights,
)

if "PYTEST_XDIST_WORKER" in os.environ:
    reason = "a cluster needs the cores to itself: `make test-ray` runs this"
    pytest.skip(reason, allow_module_level=True)
pytest.importorskip("ray", reason="Ray is not installed: `make test-ray` installs it and runs this")
pytestmark = [pytest.mark.ray, pytest.mark.slow]

COUNT = 203  # images: 26 blocks of eight, the last one not full


@pytest.fixture(scope="module")
def cluster():
    """A head without a core and two nodes with one, on loopback; nothing is left running."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(ROOT))  # the workers inherit it
        environment.setenv("RAY_raylet_start_wait_time_s", "90")
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Not 127.0.0.1: a driver takes the machine's outer address for it, where nobody listens.
        node = {"object_store_memory": 80 * 2**20, "node_ip_address": "127.0.0.2"}
        Path("/tmp/ray").mkdir(exist_ok=True)  # Ray notes its address there in any case
        temporary = tempfile.mkdtemp(prefix="hcl-ray-", dir="/tmp")  # a socket's path is short
        head = {**node, "num_cpus": 0, "include_dashboard": False, "temp_dir": temporary}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        cluster.workers = [cluster.add_node(num_cpus=1, **node) for _ in range(2)]
        cluster.spare = lambda: cluster.add_node(num_cpus=1, **node)
        cluster.wait_for_nodes(timeout=120)
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
            shutil.rmtree(temporary, ignore_errors=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    save_weights(folder / "tiny.pth")
    save_raw(folder / "raw.h5", random_images(COUNT))
    pictures = [image[: 12 + i % 7] for i, image in enumerate(random_images(60))]
    save_raw_files(folder / "files.h5", pictures)
    return folder


@pytest.fixture(scope="module")
def settings(folder):
    return ExtractSettings(
        backbone=NAME, weights=str(folder / "tiny.pth"), device="cpu", batch_size=8
    )


@pytest.fixture(scope="module")
def whole(folder, settings):
    """The bytes of a run on one machine."""
    extract(folder / "raw.h5", folder / "whole.h5", settings)
    return (folder / "whole.h5").read_bytes()


@pytest.fixture
def with_model(monkeypatch):
    """The backbone's model in another one, on its way to the actors."""

    def use(wrap):
        load = extraction.load_backbone

        def loaded(*arguments):
            backbone = load(*arguments)
            return replace(backbone, model=wrap(backbone.model))

        monkeypatch.setattr(extraction, "load_backbone", loaded)

    return use


def blocks_finished(folder):
    return sum(path.stat().st_size // NOTE.itemsize for path in folder.glob(".*.part/finished"))


def wait_for(condition, seconds=300.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", ["raw.h5", "files.h5"])
def test_the_bytes_are_those_of_one_machine(cluster, folder, tmp_path, settings, name, shared):
    extract(folder / name, tmp_path / "one.h5", settings)
    extract(folder / name, tmp_path / "many.h5", settings, ray=cluster.address, shared=shared)
    assert (tmp_path / "many.h5").read_bytes() == (tmp_path / "one.h5").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["many.h5", "one.h5"]


def test_a_node_is_lost_in_the_middle(cluster, folder, tmp_path, settings, whole, with_model):
    with_model(lambda model: Slow(model, 0.4))
    out, errors = tmp_path / "out.h5", []

    def work():
        try:
            extract(folder / "raw.h5", out, settings, ray=cluster.address)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    wait_for(lambda: blocks_finished(tmp_path) >= 3 or errors)
    at_the_loss = blocks_finished(tmp_path)  # to remove a node may take the others some blocks
    cluster.remove_node(cluster.workers.pop(), allow_graceful=False)
    cluster.workers.append(cluster.spare())
    thread.join(300)
    assert errors == []
    assert not thread.is_alive()
    assert 3 <= at_the_loss < 20
    assert out.read_bytes() == whole


# As ``hcl``, with a backbone that takes its time: some seconds for all, enough for the middle.
SLOWLY = """
from dataclasses import replace
from hcl.extract import extraction
from stages.cli import main
from tests.support.tiny_backbone import Slow

load = extraction.load_backbone

def loaded(*arguments):
    backbone = load(*arguments)
    return replace(backbone, model=Slow(backbone.model, 0.2))

extraction.load_backbone = loaded
main()
"""


def test_the_driver_is_killed_in_the_middle(cluster, folder, tmp_path, settings, whole):
    params = {"backbone": NAME, "weights": settings.weights, "device": "cpu", "batch_size": 8}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"extract": params}))
    out = tmp_path / "made" / "out.h5"
    command = [sys.executable, "-c", SLOWLY, "extract"]
    command += ["--params", str(tmp_path / "params.yaml"), "--raw", str(folder / "raw.h5")]
    command += ["--out", str(out), "--ray", cluster.address, "--shared"]
    first = subprocess.Popen(command, cwd=ROOT)
    wait_for(lambda: blocks_finished(out.parent) >= 2 or first.poll() is not None)
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    before = blocks_finished(out.parent)
    assert 2 <= before < 26
    assert not out.exists()
    (part,) = out.parent.glob(".*.part")
    kept = (part / "finished").read_bytes()
    second = subprocess.Popen(command, cwd=ROOT)
    wait_for(lambda: blocks_finished(out.parent) > before or second.poll() is not None)
    if part.exists():  # what was finished is not done again
        assert (part / "finished").read_bytes().startswith(kept)
    assert second.wait(300) == 0
    assert out.read_bytes() == whole


def test_an_actor_that_raises_is_replaced(cluster, folder, tmp_path, settings, whole, with_model):
    with_model(lambda model: Failing(model, tmp_path, times=3))
    out = tmp_path / "made" / "out.h5"
    extract(folder / "raw.h5", out, settings, ray=cluster.address)
    assert len(list(tmp_path.glob("failed-*"))) == 3
    assert out.read_bytes() == whole


def test_what_fails_everywhere_is_one_line(cluster, folder, tmp_path, settings, with_model):
    with_model(lambda model: Failing(model, tmp_path, times=1000))
    with pytest.raises(
        HCLError, match=r"images \d+…\d+ failed on 4 actors, at last with: Runtime"
    ) as e:
        extract(folder / "raw.h5", tmp_path / "out.h5", settings, ray=cluster.address)
    assert str(e.value).endswith("RuntimeError: broken on purpose")
    assert len(list(tmp_path.glob("failed-*"))) <= 4 * 4


def test_an_actor_with_other_versions_is_not_used(cluster, folder, tmp_path, settings, monkeypatch):
    ours = {"timm": on_ray.versions()["timm"], "torch": "1.0"}
    monkeypatch.setattr(on_ray, "versions", lambda: ours)
    with pytest.raises(
        HCLError, match=r"no actor of the cluster can do the work: torch is .* 1\.0 here"
    ):
        extract(folder / "raw.h5", tmp_path / "out.h5", settings, ray=cluster.address)
