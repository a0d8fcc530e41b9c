"""What a sweep costs: its time on one and two workers, the engine alone, and memory.

Runs of a small flow on made-up embeddings, by processes of this machine and, where Ray is
installed, as tasks of a Ray instance that is started here. Three questions:

- the time of a sweep on one and on two workers;
- what the engine costs beside the work: a sweep of runs that are as good as empty, a run, less what
  such a run takes in this very process;
- the largest memory of the driver and of a worker with few runs and with many.

    python benchmarks/sweep.py --runs 8 --epochs 40
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import hcl
from hcl.learn.closed_form.settings import NearestMeanMethod
from hcl.learn.flow.settings import FlowMethod
from hcl.learn.settings import TrainingSettings
from hcl.model.settings import FlowSettings
from hcl.records import embeddings as embedding_files
from hcl.records.tasks import Benchmark, Part, Segment, Source, Task
from hcl.sweep.events import Engine, carry_out
from hcl.sweep.local import Processes
from hcl.sweep.on_ray import Cluster
from hcl.sweep.planning import Order
from hcl.sweep.running import sweep
from hcl.train.loop import Job

ROWS, SIZE = 2000, 64


def make_orders(folder: Path, runs: int, epochs: int, empty: bool) -> list[Order]:
    """Runs that differ in their seed: of a small flow, or of a nearest mean on ten samples."""
    file = folder / "made.h5"
    if not file.exists():
        x = np.random.default_rng(0).standard_normal((ROWS, SIZE), np.float32)
        about = dict.fromkeys(embedding_files.PROVENANCE[1:], "{}") | {"classes": '["a", "b"]'}
        y = np.arange(ROWS) % 2
        embedding_files.write(file, x, y, (np.arange(ROWS) % 4 == 3).astype(np.uint8), about)
    found = embedding_files.read(file)
    rows = np.arange(10 if empty else ROWS // 2)
    part = Part(rows, rows % 2)
    tasks = (Task("made", (0, 1), part, part, part),)
    source = Source("made", found.attributes["content_sha256"])
    benchmark = Benchmark("made", tasks, (Segment(0, epochs),), (source,))
    method: Any = NearestMeanMethod() if empty else FlowMethod()
    flow = FlowSettings(couplings=4, hidden_layers=2, hidden=64)
    jobs = [
        Job(benchmark, {"made": found}, "made", method, flow, TrainingSettings(), seed)
        for seed in range(runs)
    ]
    return [Order.of(job, {"made": file}) for job in jobs]


def timed(orders: list[Order], engine: Engine, kept: Path) -> float:
    """Seconds of a sweep of which nothing is there yet."""
    began = time.perf_counter()
    outcome = sweep(orders, engine, kept, paces=None)
    assert outcome.trained == len(orders), outcome.failures
    return time.perf_counter() - began


@contextmanager
def engine_of(kind: str, workers: int) -> Iterator[Engine]:
    """The engine, with its workers there and warm."""
    if kind == "local":
        yield Processes(jobs=workers)
        return
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    package = str(Path(hcl.__file__).parent)
    ray.init(
        num_cpus=workers,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
        object_store_memory=100 << 20,
        runtime_env={"py_modules": [package]},
        _node_ip_address="127.0.0.1",
    )
    try:
        yield Cluster(ray)
    finally:
        ray.shutdown()


class Memory:
    """The largest resident memory of this process and of any worker, looked at all the time."""

    def __init__(self, kind: str) -> None:
        self._kind, self._stop = kind, threading.Event()
        self.driver = self.worker = 0

    def __enter__(self) -> Memory:
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.02):
            self.driver = max(self.driver, _resident(os.getpid()))
            for pid in self._workers():
                self.worker = max(self.worker, _resident(pid))

    def _workers(self) -> list[int]:
        if self._kind == "local":
            task = Path(f"/proc/{os.getpid()}/task")
            found = [path.read_text() for path in task.glob("*/children")]
            return [int(pid) for line in found for pid in line.split()]
        return [int(p.parent.name) for p in Path("/proc").glob("[0-9]*/cmdline") if _is_ray(p)]


def _is_ray(path: Path) -> bool:
    try:
        return path.read_bytes().startswith(b"ray::")
    except OSError:
        return False


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--engines", nargs="+", default=["local", "ray"], choices=["local", "ray"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        orders = make_orders(folder, options.runs, options.epochs, empty=False)
        nothing = make_orders(folder, 5 * options.runs, 1, empty=True)
        began = time.perf_counter()
        for order in nothing:
            assert carry_out(order, folder / "alone" / order.fingerprint) is None
        alone = (time.perf_counter() - began) / len(nothing)
        print(f"An empty run in this process: {1000 * alone:.0f} ms")
        for kind in options.engines:
            for workers in (1, 2):
                with engine_of(kind, workers) as engine:
                    place = folder / f"{kind}-{workers}"
                    timed(make_orders(folder, workers, 2, False), engine, place / "warm")
                    seconds = timed(orders, engine, place / "runs")
                    with Memory(kind) as few:
                        timed(nothing[: options.runs], engine, place / "few")
                    with Memory(kind) as many:
                        empty = timed(nothing, engine, place / "many") / len(nothing)
                print(
                    f"{kind:6}{workers} workers: {options.runs} runs {seconds:6.1f} s; engine "
                    f"{1000 * (empty - alone / workers):5.0f} ms a run; memory of driver and "
                    f"worker, MB: {options.runs} runs {few.driver >> 20} {few.worker >> 20}, "
                    f"{len(nothing)} runs {many.driver >> 20} {many.worker >> 20}"
                )


if __name__ == "__main__":
    main()
