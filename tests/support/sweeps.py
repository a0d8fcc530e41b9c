"""A grid small enough to sweep in seconds, as earlier stages leave it, and ways to disturb it."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

import yaml

from hcl.learn.kinds import AnyMethod
from hcl.learn.settings import TrainingSettings
from hcl.model.settings import FlowSettings
from hcl.records.embeddings import read
from hcl.records.tasks import read_benchmark, write_benchmark
from hcl.settings import build
from hcl.sweep.planning import Order
from hcl.train.loop import Job
from tests.support.blobs import benchmark, blobs_in_64_dimensions, write_project

DEEP = 20  # hidden layers, through which large weights multiply
METHODS: dict[str, dict[str, Any]] = {
    "adam": {"kind": "flow"},
    "hcl-fr": {"kind": "flow", "memory": {"kind": "functional", "alpha": 1.0}},
    "slda": {"kind": "slda"},
}


def write_grid(folder: Path, epochs: int = 2, **training: Any) -> None:
    """Embeddings, tasks and parameters of one benchmark, two seeds and three methods."""
    params = {
        "grid": {"datasets": [], "benchmarks": ["blobs"], "methods": list(METHODS)},
        "seeds": [0, 1],
        "benchmarks": {
            "blobs": {
                "stream": {"tasks": {"dataset": "blobs", "classes_per_task": 2}, "epochs": epochs},
                "flow": {"couplings": 2, "hidden_layers": 1, "hidden": 8},
                "training": {
                    **{"learning_rate": 1e-3, "save_model": True, "checkpoint_every": 3},
                    **training,
                },
            }
        },
        "methods": METHODS,
    }
    made = blobs_in_64_dimensions(3, 96, 10)
    write_project(folder, *benchmark(made, epochs=epochs), params)
    tasks = read_benchmark(folder / "tasks.h5")
    (folder / "tasks.h5").unlink()
    (folder / "tasks").mkdir()
    write_benchmark(folder / "tasks/blobs.h5", tasks)


def orders_in(folder: Path, *methods: str, seeds: tuple[int, ...] = (0, 1)) -> list[Order]:
    """The orders for the grid of a folder, for these methods or all."""
    values = yaml.safe_load((folder / "params.yaml").read_text())
    settings = values["benchmarks"]["blobs"]
    tasks = read_benchmark(folder / "tasks/blobs.h5")
    file = folder / "embeddings/blobs.h5"
    flow = build(FlowSettings, settings["flow"], "params.yaml")
    training = build(TrainingSettings, settings["training"], "params.yaml")
    orders = []
    for name in methods or METHODS:
        method: Any = build(AnyMethod, METHODS[name], "params.yaml")  # type: ignore[arg-type]
        for seed in seeds:
            job = Job(tasks, {"blobs": read(file)}, name, method, flow, training, seed)
            orders.append(Order.of(job, {"blobs": file}))
    return orders


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder and its bytes."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def with_steps(order: Order, epochs: int) -> Order:
    """The order with a stream that shows each task for so many epochs."""
    stream = tuple(dataclasses.replace(s, epochs=epochs) for s in order.job.benchmark.stream)
    tasks = dataclasses.replace(order.job.benchmark, stream=stream)
    return Order.of(dataclasses.replace(order.job, benchmark=tasks), order.files)


def diverging(order: Order) -> Order:
    """The order with a learning rate at which the loss of a deep flow is soon not finite."""
    training = dataclasses.replace(order.job.training, learning_rate=10)
    flow = dataclasses.replace(order.job.flow, hidden_layers=DEEP)
    return Order.of(dataclasses.replace(order.job, training=training, flow=flow), order.files)


def wait_for(what: Any, seconds: float = 300.0) -> None:
    """Return when ``what()`` holds; fail the test where it never does."""
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "State:\tZ" not in status.read_text()
