"""A sweep on a real Ray cluster of three nodes: the bytes of a local one, whatever is lost."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hcl.cluster import connect
from hcl.sweep.events import Event
from hcl.sweep.local import Processes
from hcl.sweep.on_ray import NAME, Cluster
from hcl.sweep.planning import Order
from hcl.sweep.running import sweep
from hcl.train.store import Entry
from tests.support.clusters import add_node, skip_where_it_cannot_run, three_nodes
from tests.support.imports import ROOT
from tests.support.projects import environment
from tests.support.sweeps import (
    contents,
    diverging,
    orders_in,
    wait_for,
    with_steps,
    write_grid,
)

pytestmark = [pytest.mark.ray, pytest.mark.slow]

LONG = 60  # epochs: some seconds, enough to be caught in the middle


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    skip_where_it_cannot_run()
    with three_nodes() as made:
        yield made


@pytest.fixture
def folder(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_grid(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def on_ray(cluster: Any, orders: Sequence[Order], kept: Path) -> list[str]:
    """Sweep on the cluster; what failed."""
    with connect(cluster.address) as ray:
        outcome = sweep(orders, Cluster(ray), kept, paces=None)
    return [f"{order}: {failure.why}" for order, failure in outcome.failures]


def of_runs(kept: Path) -> dict[str, bytes]:
    """What lies in the store, its own name aside."""
    found = contents(kept)
    assert len(found.pop(NAME)) == 32
    return found


def trained_here(orders: Sequence[Order]) -> dict[str, bytes]:
    """What a sweep on this machine leaves."""
    assert sweep(orders, Processes(jobs=2), Path("here"), paces=None).failures == []
    return contents(Path("here"))


def test_a_sweep_on_a_cluster_leaves_the_bytes_of_a_local_one(cluster: Any, folder: Path) -> None:
    orders = orders_in(folder)
    assert on_ray(cluster, orders, Path("store")) == []
    assert of_runs(Path("store")) == trained_here(orders)


def test_workers_that_share_no_storage_hand_the_runs_back(cluster: Any, folder: Path) -> None:
    # A path that each process sees differently: the workers live in another folder.
    assert Path.cwd() != ROOT
    mine = Path("/proc/self/cwd")
    orders = []
    for order in orders_in(folder, "adam", "slda"):
        orders.append(Order.of(order.job, {"blobs": mine / "embeddings/blobs.h5"}))
    assert on_ray(cluster, orders, mine / "store") == []
    assert of_runs(Path("store")) == trained_here(orders)
    assert not (ROOT / "store").exists()


def test_a_run_that_raises_does_not_stop_the_others(cluster: Any, folder: Path) -> None:
    first, second, *others = orders_in(folder, "adam", "slda")
    broken = dataclasses.replace(second.job, seed="one")  # type: ignore[arg-type]
    orders = [diverging(first), Order.of(broken, second.files), *others]
    failures = sorted(on_ray(cluster, orders, Path("store")))
    assert len(failures) == 2
    assert "Try a learning_rate below 10" in failures[0]
    assert failures[1].startswith("blobs adam seed one: ValueError")
    assert "error.txt" in failures[1]
    assert all(Entry(Path("store") / order.fingerprint).is_finished for order in others)


@dataclasses.dataclass
class _Disturbed:
    """An engine during which something happens once, when a run has its first checkpoint.

    Not when each has one: workers begin as far apart as they like, and a finished run has none.
    """

    engine: Cluster
    what: Callable[[], Any]
    happened: bool = False

    @property
    def slots(self) -> int:
        return self.engine.slots

    def run(self, orders: Sequence[Order], kept: Path) -> Iterator[Event]:
        entries = [Entry(kept / order.fingerprint) for order in orders]
        for event in self.engine.run(orders, kept):
            if not self.happened and any(entry.checkpoint.exists() for entry in entries):
                self.what()
                self.happened = True
            yield event


def test_a_node_lost_in_the_middle(cluster: Any, folder: Path) -> None:
    orders = [with_steps(order, LONG) for order in orders_in(folder, "adam")]
    lost = cluster.list_all_nodes()[-1]
    with connect(cluster.address) as ray:
        engine = _Disturbed(Cluster(ray), lambda: cluster.remove_node(lost, allow_graceful=False))
        outcome = sweep(orders, engine, Path("store"), paces=None)
    add_node(cluster, None)
    cluster.wait_for_nodes(timeout=120)
    assert engine.happened
    assert outcome.failures == []
    # What a killed process was writing stays until the next write beside it.
    kept = {name: data for name, data in of_runs(Path("store")).items() if ".part" not in name}
    assert kept == trained_here(orders)


SCRIPT = """
import sys
from pathlib import Path
from hcl.cluster import connect
from hcl.sweep.on_ray import NAME, Cluster
from hcl.sweep.running import sweep
from tests.support.sweeps import orders_in, with_steps

orders = [with_steps(order, {long}) for order in orders_in(Path(), "adam")]
with connect(sys.argv[1]) as ray:
    sweep(orders, Cluster(ray), Path("store"), paces=None)
"""


def test_a_driver_killed_in_the_middle_and_started_again(cluster: Any, folder: Path) -> None:
    orders = [with_steps(order, LONG) for order in orders_in(folder, "adam")]
    entries = [Entry(Path("store") / order.fingerprint) for order in orders]
    command = [sys.executable, "-c", SCRIPT.format(long=LONG), cluster.address]
    driver = subprocess.Popen(command, env=environment(ROOT))
    wait_for(lambda: any(entry.checkpoint.exists() for entry in entries))
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert not all(entry.is_finished for entry in entries)
    assert on_ray(cluster, orders, Path("store")) == []
    assert of_runs(Path("store")) == trained_here(orders)
