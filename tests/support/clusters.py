"""A Ray cluster on this machine, on loopback alone, and nothing of it left afterwards."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.sweeps import is_alive, wait_for

WITHOUT_RAY = "Ray is not installed: `make test-ray` installs it and runs this"
BESIDE_OTHERS = "a cluster needs the cores to itself: `make test-ray` runs this"


def skip_where_it_cannot_run() -> None:
    """Skip, and say why: Ray is an extra, and its processes do not share two cores with others."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip(BESIDE_OTHERS)
    pytest.importorskip("ray", reason=WITHOUT_RAY)


@contextmanager
def three_nodes() -> Iterator[Any]:
    """A head without a core and two nodes with one each; the cluster as Ray's own tests have it."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120"}
    from ray.cluster_utils import Cluster

    Path("/tmp/ray").mkdir(exist_ok=True)  # Ray notes its address there in any case
    folder = tempfile.mkdtemp(prefix="hcl-ray-", dir="/tmp")  # a socket's path is short
    cluster = Cluster()
    processes = []
    try:
        for cores in (0, 1, 1):
            add_node(cluster, folder, cores)
        cluster.wait_for_nodes(timeout=120)
        yield cluster
    finally:
        for node in cluster.list_all_nodes():
            for group in node.all_processes.values():
                processes += [info.process.pid for info in group]
        cluster.shutdown()
        wait_for(lambda: not any(is_alive(pid) for pid in processes))
        shutil.rmtree(folder, ignore_errors=True)


def add_node(cluster: Any, folder: str | None, cores: int = 1) -> Any:
    """One more node of the cluster.

    127.0.0.2 is loopback like 127.0.0.1, which Ray takes for another name of the outer address.
    """
    options = {"temp_dir": folder} if folder and not cluster.list_all_nodes() else {}
    return cluster.add_node(
        num_cpus=cores,
        node_ip_address="127.0.0.2",
        include_dashboard=False,
        object_store_memory=100 << 20,
        **options,
    )
