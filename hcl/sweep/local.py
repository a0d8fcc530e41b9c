"""Runs side by side on this machine: a process for each, so that none takes another down."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

import torch

from hcl import progress
from hcl.sweep.events import Ended, Event, Failure, Moved, Started, Waited, carry_out
from hcl.sweep.planning import Order
from hcl.train.machine import available_cores

TICK = 1.0  # seconds without news after which the engine says so


@dataclass(frozen=True)
class Processes:
    """The engine of one machine: ``jobs`` processes at once, each with one run, on one thread.

    Attributes:
        jobs: runs at once; ``None`` takes a run for each core or, for runs on a GPU, ``per_gpu``
            for each GPU.
        per_gpu: runs that share a GPU.
        on_gpu: whether the runs are trained on a GPU.
    """

    jobs: int | None = None
    per_gpu: int = 1
    on_gpu: bool = False

    @property
    def slots(self) -> int:
        """How many runs it trains at once."""
        if self.jobs is not None:
            return self.jobs
        cores = available_cores()
        return min(cores, torch.cuda.device_count() * self.per_gpu) if self.on_gpu else cores

    def run(self, orders: Sequence[Order], kept: Path) -> Iterator[Event]:
        """Train all of them; what is left is stopped where the iterator is closed."""
        # Forked processes are there at once and share what is imported; a GPU survives no fork.
        context = multiprocessing.get_context("spawn" if self.on_gpu else "fork")
        waiting = list(enumerate(orders))[::-1]
        free = list(range(self.slots))[::-1]
        running: dict[Connection, _Running] = {}
        try:
            while waiting or running:
                while waiting and free:
                    number, order = waiting.pop()
                    slot = free.pop()
                    gpu = slot % torch.cuda.device_count() if self.on_gpu else None
                    ours, theirs = context.Pipe(duplex=False)
                    process = context.Process(  # type: ignore[attr-defined]
                        target=_work,
                        args=(order.sealed() if self.on_gpu else order, kept, theirs, gpu),
                        daemon=True,
                    )
                    process.start()
                    theirs.close()  # so that the end of the process is the end of the pipe
                    running[ours] = _Running(process, number, slot)
                    yield Started(number)
                heard = wait(list(running), TICK)
                if not heard:
                    yield Waited()
                for one in heard:
                    assert isinstance(one, Connection)
                    event = running[one].listen(one)
                    if isinstance(event, Ended):
                        free.append(running.pop(one).slot)
                    yield event
        finally:
            for left in running.values():
                left.process.terminate()
            for left in running.values():
                left.process.join()


@dataclass
class _Running:
    process: BaseProcess
    number: int
    slot: int
    answered: bool = False
    failure: Failure | None = None

    def listen(self, pipe: Connection) -> Event:
        """What the process says; where it says no more, how it ended."""
        try:
            said = pipe.recv()
        except (EOFError, OSError):
            pipe.close()
            self.process.join()
            if not self.answered:
                self.failure = Failure(_death(self.process.exitcode))
            return Ended(self.number, self.failure)
        if isinstance(said, float):
            return Moved(self.number, said)
        self.answered, self.failure = True, said
        return Waited()


def _death(status: int | None) -> str:
    if status is None or status >= 0:
        return f"its process ended with status {status} and said nothing."
    name = signal.Signals(-status).name
    hint = " The machine may have run out of memory: try fewer --jobs." if status == -9 else ""
    return f"its process was killed ({name}).{hint}"


def _work(order: Order, kept: Path, pipe: Connection, gpu: int | None) -> None:
    """What a process does: train the run, tell how far it is, and answer what went wrong."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it too, and ends this process
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    progress.listen(pipe.send)
    pipe.send(carry_out(order, kept / order.fingerprint))
    pipe.close()


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)  # by way of what removes partial files


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        with contextlib.suppress(Exception):
            parent.join()
        os._exit(1)
