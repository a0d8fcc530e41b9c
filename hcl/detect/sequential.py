"""When batches are suspected, how long they wait, and when a change of task is declared.

All that goes in are three numbers of each batch, and all that is done with them is to rank them: on
batches that are alike, the run length between two false alarms depends on nothing but the constants
here and the limit, and can be simulated from uniform numbers. ``benchmarks/run_length.py`` does
that with this very class; ``limit_of`` is read from its table.

The reference are the last ``LENGTH`` batches of the task that are not under suspicion, each scored
before it was learned. A task that has fewer than ``ENOUGH`` of them is judged by the first
``YOUNG`` batches of the tasks before it: shifts are scaled so that tasks are comparable, but they
vary more while means rest on few samples and Σ does not know the task. The spread is judged by the
task's own batches alone. Before there are ``ENOUGH``, nothing is judged.

The evidence is that of the last m batches, for the m for which it is largest, of all that wait.
Batches wait from the moment at which it is ``SUSPECT`` until it is 1 again, which means that they
are rather typical; at most ``WAITING`` of them.
"""

from __future__ import annotations

from itertools import accumulate
from statistics import fmean
from typing import Any, NamedTuple

from hcl.detect.ranks import Reference, evidence

LENGTH = 256  # batches of the reference
ENOUGH = 16  # batches that a verdict needs
SUSPECT = 4.0  # evidence at which batches begin to wait
WAITING = 12  # batches that wait at most: more would announce slow drift; then they are learned
YOUNG = 32  # batches of a task that later tasks are judged by while they are young
MATURE = 6  # batches of a task before it is judged: means of fewer are hardly known
RUN_LENGTH = 2.5  # batches between false alarms for each unit of the limit, as simulated


class Scores(NamedTuple):
    """Three numbers of a batch; NaN where they can't be taken."""

    shift: float  # of the class means: high after a change
    common: float  # of all class means together: high after a change
    spread: float  # of samples around them: high or low after a change


class Suspicion(NamedTuple):
    """The strongest evidence that batches which wait give together."""

    evidence: float = 0.0
    of: str = "shift"  # the score that it is of


def limit_of(false_alarm_every: int) -> float:
    """The evidence at which false alarms are ``false_alarm_every`` batches apart on average."""
    return false_alarm_every / RUN_LENGTH


class Shifts:
    """The reference of one of the two shifts."""

    def __init__(self) -> None:
        self.own = Reference(LENGTH)  # in this task
        self.carried = Reference(LENGTH)  # in the first batches of all tasks

    @property
    def is_young(self) -> bool:
        """Whether the task has to be judged by those before it."""
        return len(self.own) < ENOUGH

    def raised(self) -> float:
        """How much the values of the tasks before are raised for a young task.

        Samples that are shown in a second pass lie nearer to the means, to which they belong: the
        shift is below 0 then, on average. A new task's samples are fresh.
        """
        return max(0.0, -self.carried.quantile(0.5))

    def quantile(self, share: float) -> float:
        """The value that ``share`` of typical batches of the task lie below."""
        if self.is_young:
            return self.of_young(share)
        return self.own.quantile(share)

    def of_young(self, share: float) -> float:
        """The same, of a young task."""
        return self.carried.quantile(share) + self.raised()

    def ranked(self, values: list[float]) -> tuple[list[float], int]:
        """How many of the reference lie below each value, and of how many."""
        if not self.is_young:
            return [self.own.below(value) for value in values], len(self.own)
        raised = self.raised()
        return [self.carried.below(value - raised) for value in values], len(self.carried)

    def accept(self, value: float, age: int) -> None:
        """A typical batch, the ``age``-th of its task."""
        if value == value:
            self.own.add(value)
            if age <= YOUNG:
                self.carried.add(value)


class Sequential:
    """References, evidence, and the batches that wait, by their scores."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.shift = Shifts()
        self.common = Shifts()
        self.spread = Reference(LENGTH)  # in this task
        self.waiting: list[Scores] = []
        self.age = 0  # batches of the task
        self.suspicion = Suspicion()

    @property
    def can_judge(self) -> bool:
        """Whether the reference and the task are large enough."""
        return self.age >= MATURE and len(self.shift.carried) >= ENOUGH

    @property
    def alarm(self) -> bool:
        """Whether the task has changed."""
        return self.suspicion.evidence >= self.limit

    def _suspicion(self) -> Suspicion:
        """The strongest evidence of the last batches that wait.

        What the two shifts say is taken together, by its mean, and so is what the two sides of the
        spread say.
        """
        if not self.can_judge:
            return Suspicion()
        shift, held = self.shift.ranked(self._values("shift"))
        common, held_common = self.common.ranked(self._values("common"))
        ranked = [(shift, held), (common, held_common)]
        if len(self.spread) >= ENOUGH:
            spread = [self.spread.below(value) for value in self._values("spread")]
            held = len(self.spread)
            ranked += [(spread, held), ([held - below for below in spread], held)]
        found = Suspicion()
        for last in range(1, len(self.waiting) + 1):
            each = [evidence(below[-last:], held) for below, held in ranked]
            of = "shift" if each[0] >= each[1] else "common"
            shifts = Suspicion(0.5 * (each[0] + each[1]), of)
            found = max(found, shifts, Suspicion(0.5 * sum(each[2:]), "spread"))
        return found

    def _values(self, name: str) -> list[float]:
        """One of the scores of all batches that wait and have it."""
        values = [getattr(scores, name) for scores in self.waiting]
        return [value for value in values if value == value]

    def _beginning(self) -> int:
        """At which of the batches that wait the change began.

        One that is of the task may be under suspicion by chance when the change comes. Here ranks
        do not say enough: the last two batches show how large the step is, and it lies where the
        squares around the two levels are least.
        """
        of = self.suspicion.of
        level = getattr(self, of).quantile(0.5)
        steps = [value - level for value in self._values(of)]
        step = fmean(steps[-2:])
        sums = list(accumulate(step * (value - 0.5 * step) for value in reversed(steps)))
        return len(self.waiting) - 1 - max(range(len(sums)), key=sums.__getitem__)

    def update(self, scores: Scores) -> int:
        """Take in one more batch; how many of those that wait may be learned as the task's own.

        After an alarm those are the ones from before the change; ``reset`` has to follow.
        """
        self.waiting.append(scores)
        self.suspicion = self._suspicion()
        if self.alarm:
            return self._release(self._beginning())
        calm = 1.0 if len(self.waiting) > 1 else SUSPECT
        if self.suspicion.evidence > calm and len(self.waiting) < WAITING:
            return 0
        return self._release(len(self.waiting))

    def part(self, scores: Scores) -> int:
        """Take in a batch that is of another task for certain; ``reset`` has to follow.

        All that wait may be learned as the task's own, and their number is returned.
        """
        released = self._release(len(self.waiting))
        self.waiting.append(scores)
        return released

    def accept_all(self) -> None:
        """After an alarm: what waits is the task's own after all."""
        self._release(len(self.waiting))
        self.suspicion = Suspicion()

    def _release(self, count: int) -> int:
        """The first that wait are the task's own: they go into the reference."""
        for scores in self.waiting[:count]:
            self.accept(scores)
        del self.waiting[:count]
        return count

    def accept(self, scores: Scores) -> None:
        """A batch of the task, and what it says of its typical batches."""
        self.age += 1
        self.shift.accept(scores.shift, self.age)
        self.common.accept(scores.common, self.age)
        if scores.spread == scores.spread:
            self.spread.add(scores.spread)

    def reset(self, age: int) -> None:
        """Another task begins, of which ``age`` batches were learned before."""
        self.age = age + len(self.waiting)
        self.waiting.clear()
        self.shift.own.clear()
        self.common.own.clear()
        self.spread.clear()
        self.suspicion = Suspicion()

    def _references(self) -> dict[str, Reference]:
        return {
            "own": self.shift.own,
            "carried": self.shift.carried,
            "own_common": self.common.own,
            "carried_common": self.common.carried,
            "spread": self.spread,
        }

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            **{name: list(held.values) for name, held in self._references().items()},
            "waiting": [list(scores) for scores in self.waiting],
            "suspicion": list(self.suspicion),
            "age": self.age,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        for name, reference in self._references().items():
            reference.clear()
            for value in state[name]:
                reference.add(value)
        self.waiting = [Scores(*scores) for scores in state["waiting"]]
        self.suspicion = Suspicion(*state["suspicion"])
        self.age = state["age"]
