"""Runs on a Ray cluster: a task for each, with a core or its share of a GPU.

A worker trains into the store's folder where it finds it, on storage that it shares with the
driver: a run whose node is lost goes on elsewhere from its checkpoint. Otherwise it trains into a
folder of its own machine, and the driver is handed the finished files. Embeddings are read by the
worker where it finds the file; otherwise they are sent along, once to each machine.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from hcl.files import replacing
from hcl.records.embeddings import Embeddings
from hcl.sweep.events import Ended, Event, Failure, Started, Waited, carry_out
from hcl.sweep.planning import Order

RETRIES = 5  # of a run whose worker or node was lost; what it raises itself is no reason to retry
AHEAD = 2  # runs handed over beyond those that fit, so that no core waits for the driver
NAME = ".name"  # in the folder of the store
TICK = 1.0  # seconds without news after which the engine says so


class Answer(NamedTuple):
    """What a worker says at the end: all went well, or why not, or what it needs first."""

    failure: Failure | None = None
    files: Mapping[str, bytes] = {}  # of a finished run that is not on shared storage
    needs_embeddings: bool = False


@dataclass(frozen=True)
class Cluster:
    """The engine of a cluster.

    Attributes:
        ray: the module, connected.
        jobs: runs at once; ``None`` takes as many as the cluster has cores or shares of a GPU.
        per_gpu: runs that share a GPU.
    """

    ray: Any
    jobs: int | None = None
    per_gpu: int = 1

    @property
    def slots(self) -> int:
        """How many runs it trains at once, with the machines that it has now."""
        if self.jobs is not None:
            return self.jobs
        return max(int(self.ray.cluster_resources().get("CPU", 0)), 1)

    def run(self, orders: Sequence[Order], kept: Path) -> Iterator[Event]:
        """Train all of them; what is left is stopped where the iterator is closed."""
        name = _name_of(kept)
        task = self.ray.remote(max_retries=RETRIES, retry_exceptions=False)(_work)
        waiting = list(enumerate(orders))[::-1]
        running: dict[Any, int] = {}
        sent: dict[str, Any] = {}  # embeddings that workers did not find, by benchmark

        def submit(number: int) -> None:
            order = orders[number]
            gpus = 1 / self.per_gpu if order.job.device.type == "cuda" else 0
            reference = task.options(num_cpus=1, num_gpus=gpus, name=str(order)).remote(
                order.sealed(), kept, name, sent.get(order.job.benchmark.name)
            )
            running[reference] = number

        try:
            while waiting or running:
                room = self.slots + (AHEAD if self.jobs is None else 0) - len(running)
                for _ in range(min(room, len(waiting))):
                    number, _order = waiting.pop()
                    submit(number)
                    yield Started(number)
                done, _ = self.ray.wait(list(running), num_returns=1, timeout=TICK)
                if not done:
                    yield Waited()
                for reference in done:
                    number = running.pop(reference)
                    order = orders[number]
                    answer = self._answer(reference)
                    if answer.needs_embeddings:
                        benchmark = order.job.benchmark.name
                        if benchmark not in sent:
                            sent[benchmark] = self.ray.put(dict(order.job.embeddings))
                        submit(number)
                        continue
                    _receive(answer.files, kept / order.fingerprint)
                    yield Ended(number, answer.failure)
        finally:
            for reference in running:
                self.ray.cancel(reference, force=True)

    def _answer(self, reference: Any) -> Answer:
        try:
            answer: Answer = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            why = str(error).strip().splitlines()[0]
            return Answer(Failure(f"its worker was lost {RETRIES + 1} times ({why})"))
        return answer


def _receive(files: Mapping[str, bytes], folder: Path) -> None:
    """Put a run that came over the network into the store; what says that it is finished, last."""
    for name in sorted(files):  # "model.…" before "run.h5"
        with replacing(folder / name) as partial:
            partial.write_bytes(files[name])


def _name_of(kept: Path) -> str:
    """A name that no other store has, kept in it: a worker that reads it there shares the store."""
    file = kept / NAME
    if not file.exists():
        with replacing(file) as partial:
            partial.write_text(uuid.uuid4().hex, encoding="utf-8")
    return file.read_text(encoding="utf-8")


def _work(
    order: Order, kept: Path, name: str, embeddings: Mapping[str, Embeddings] | None
) -> Answer:
    """What a worker does with one order, in a process of its own on any machine of the cluster."""
    if embeddings is not None:
        order = replace(order, job=replace(order.job, embeddings=embeddings))
    elif not order.files or not all(path.exists() for path in order.files.values()):
        return Answer(needs_embeddings=True)
    file = kept / NAME
    shared = file.exists() and file.read_text(encoding="utf-8") == name
    if not shared:
        kept = Path(tempfile.gettempdir()) / "hcl-runs"
    folder = kept / order.fingerprint
    failure = carry_out(order, folder)
    if shared or failure is not None:
        return Answer(failure)
    files = {path.name: path.read_bytes() for path in sorted(folder.glob("[!.]*"))}
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    return Answer(files=files)
