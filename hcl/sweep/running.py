"""The sweep: find what is missing in the store, train it, and say what came of it."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TextIO

from hcl.errors import HCLError
from hcl.files import replacing, sha256_of
from hcl.records.runs import read_run
from hcl.sweep.events import Ended, Engine, Event, Failure, Moved, Started
from hcl.sweep.planning import Order, Paces, longest_first, time_left
from hcl.train import store
from hcl.train.store import Entry

PACES = Path(".hcl") / "paces.json"
STORY = "error.txt"  # in a run's folder of the store: the traceback of what stopped it
REFRESH = 1.0  # seconds between two looks at the display


class Outcome(NamedTuple):
    """What a sweep did: runs found finished, runs trained, and why others failed."""

    found: int
    trained: int
    failures: list[tuple[Order, Failure]]


def sweep(
    orders: Sequence[Order],
    engine: Engine,
    kept: Path = store.STORE,
    paces: Path | None = PACES,
    runs: Path | None = None,
) -> Outcome:
    """Train every run that the store does not hold, the longest first.

    A failed run does not stop the others. What is stopped, goes on from the runs' checkpoints.

    Args:
        orders: all runs that are asked for.
        engine: trains them.
        kept: the store.
        paces: a small file that remembers how long runs take.
        runs: folder of ``train``'s outputs; what is finished there is taken into the store.
    """
    kept = kept.absolute()
    distinct = {order.fingerprint: order for order in orders}
    missing = []
    for order in distinct.values():
        entry = Entry(kept / order.fingerprint)
        if not entry.is_finished and not (runs and _adopt(order, entry, runs)):
            missing.append(order)
    known = Paces(paces)
    planned = longest_first(missing, known)
    display = Display([(order.key, cost) for order, cost in planned], known, engine.slots)
    failures = []
    try:
        for event in engine.run([order for order, _ in planned], kept):
            display.note(event)
            if isinstance(event, Ended):
                order = planned[event.number][0]
                failure = _checked(event.failure, Entry(kept / order.fingerprint))
                if failure is not None:
                    failures.append((order, failure))
    finally:
        display.close()
        if planned:
            with suppress(HCLError):  # of a full disk: the next sweep guesses less well
                known.keep()
    trained = len(planned) - len(failures)
    return Outcome(len(distinct) - len(planned), trained, failures)


def _checked(failure: Failure | None, entry: Entry) -> Failure | None:
    """The failure, with its story told in the run's folder; an old story goes."""
    story = entry.folder / STORY
    if failure is None:
        story.unlink(missing_ok=True)
        return None if entry.is_finished else Failure(f"{entry.run} is missing all the same.")
    if not failure.story:
        return failure
    try:
        with replacing(story) as partial:
            partial.write_text(failure.story, encoding="utf-8")
    except HCLError as error:
        return Failure(f"{failure.why} ({error})")
    return Failure(f"{failure.why} The traceback is in {story}.")


def _adopt(order: Order, entry: Entry, runs: Path) -> bool:
    """Take a finished run from the outputs of ``train``, if it is this very one.

    So that what lies there, from another clone's cache or with a store that was emptied, is not
    trained again.
    """
    made = runs / order.job.benchmark.name / order.job.name / f"seed-{order.job.seed}.h5"
    model = made.with_suffix(".safetensors")
    try:
        run = read_run(made)
        if run.fingerprint != order.fingerprint or (run.model and sha256_of(model) != run.model):
            return False
        for source, place in ((model, entry.model), (made, entry.run)):  # the run last: the sign
            if source.exists():
                with replacing(place) as partial:
                    shutil.copyfile(source, partial)
    except (HCLError, OSError):  # not there, damaged, or being written at this moment
        return False
    return entry.is_finished


@dataclass
class _Run:
    """What the display knows of a run."""

    key: str
    cost: float
    began: float | None = None
    start: float | None = None  # the fraction that was done when it went on from its checkpoint
    fraction: float = 0.0


@dataclass
class Display:
    """One line on a terminal: how many runs are done, running and waiting, and the time left.

    Attributes:
        planned: key and cost of each run, in the order in which they are trained.
        paces: how long runs take, which is learned on the way.
        slots: runs at once.
        file: where the line is written; nothing is, unless it is a terminal.
    """

    planned: Sequence[tuple[str, float]]
    paces: Paces
    slots: int
    file: TextIO = field(default_factory=lambda: sys.stderr)

    def __post_init__(self) -> None:
        self._runs = [_Run(key, cost) for key, cost in self.planned]
        self._running: dict[int, _Run] = {}
        self._waiting = dict(enumerate(self._runs))
        self._done = self._failed = 0
        self._shown = 0.0

    def note(self, event: Event, now: float | None = None) -> None:
        """Take in what happened, and show it."""
        now = time.monotonic() if now is None else now
        if isinstance(event, Started):
            run = self._waiting.pop(event.number)
            run.began = now
            self._running[event.number] = run
        elif isinstance(event, Moved):
            self._learn(self._runs[event.number], event.fraction, now)
        elif isinstance(event, Ended):
            run = self._running.pop(event.number)
            self._done += 1
            if event.failure is None:
                self._learn(run, 1.0, now)
            else:
                self._failed += 1
        if self.file.isatty() and now - self._shown >= REFRESH:
            self._shown = now
            self.file.write(f"\r\x1b[K{self.line(now)}")
            self.file.flush()

    def _learn(self, run: _Run, fraction: float, now: float) -> None:
        """A run that came so far in this time takes so long in all."""
        if run.start is None and fraction < 1:
            run.start, run.began = fraction, now  # what comes before, is not training
            return
        run.fraction = fraction
        gained = fraction - (run.start or 0.0)
        if run.began is not None and gained > 0.01:
            self.paces.note(run.key, run.cost * gained, now - run.began)

    def left(self, now: float) -> float | None:
        """Seconds until all is done; ``None`` where nothing was timed yet."""
        running = []
        for run in self._running.values():
            seconds = self.paces.seconds(run.key, run.cost)
            if seconds is None or run.began is None:
                return None
            passed = run.fraction * seconds if run.fraction else now - run.began
            running.append(max(seconds - passed, 0.0))
        waiting = [self.paces.seconds(run.key, run.cost) for run in self._waiting.values()]
        known = [seconds for seconds in waiting if seconds is not None]
        if len(known) < len(waiting):
            return None
        return time_left(running, known, max(self.slots, len(running), 1))

    def line(self, now: float) -> str:
        """What is shown."""
        left = self.left(now)
        parts = [
            f"{self._done} of {len(self._runs)} runs done",
            *([f"{self._failed} failed"] if self._failed else []),
            f"{len(self._running)} running",
            f"{len(self._waiting)} waiting",
            "time left unknown" if left is None else f"about {in_words(left)} left",
        ]
        return ", ".join(parts)

    def close(self) -> None:
        """Leave the line empty."""
        if self.file.isatty():
            self.file.write("\r\x1b[K")
            self.file.flush()


def in_words(seconds: float) -> str:
    """A time as one reads it: the two largest units at most."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return (
        f"{minutes} min" if minutes >= 5 else f"{minutes} min {rest} s" if minutes else f"{rest} s"
    )


def summary(outcome: Outcome, kept: Path) -> str:
    """What a sweep did, in one line."""
    total = outcome.found + outcome.trained + len(outcome.failures)
    parts: Mapping[str, int] = {
        "trained": outcome.trained,
        "there already": outcome.found,
        "failed": len(outcome.failures),
    }
    told = ", ".join(f"{count} {what}" for what, count in parts.items() if count)
    return f"{kept}: {total} run{'' if total == 1 else 's'}" + (f" ({told})" if told else "")
