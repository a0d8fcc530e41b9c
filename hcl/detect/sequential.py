"""When batches are suspected, how long they wait, and when a change of task is declared.

All that goes in are two numbers of each batch, and all that is done with them is to rank them: on
batches that are alike, the run length between two false alarms depends on nothing but the constants
here and the limit, and can be simulated from uniform numbers. ``benchmarks/run_length.py`` does
that with this very class; ``limit_of`` is read from its table.

The reference are the last ``LENGTH`` batches of the task that are not under suspicion, each scored
before it was learned. A task that has fewer than ``ENOUGH`` of them is judged by the first
``YOUNG`` batches of the tasks before it: the shift is scaled so that tasks are comparable, but it
varies more while means rest on few samples and Σ does not know the task. The spread is judged by
the task's own batches alone. Before there are ``ENOUGH``, nothing is judged.

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
    """Two numbers of a batch; NaN where they can't be taken."""

    shift: float  # of the class means: high after a change
    spread: float  # of samples around them: high or low after a change


class Suspicion(NamedTuple):
    """The strongest evidence that batches which wait give together."""

    evidence: float = 0.0
    of_spread: bool = False  # or of the shift


def limit_of(false_alarm_every: int) -> float:
    """The evidence at which false alarms are ``false_alarm_every`` batches apart on average."""
    return false_alarm_every / RUN_LENGTH


class Sequential:
    """References, evidence, and the batches that wait, by their scores."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.own = Reference(LENGTH)  # the shift, in this task
        self.carried = Reference(LENGTH)  # the shift, in the first batches of all tasks
        self.spread = Reference(LENGTH)  # in this task
        self.waiting: list[Scores] = []
        self.age = 0  # batches of the task
        self.suspicion = Suspicion()

    @property
    def can_judge(self) -> bool:
        """Whether the reference and the task are large enough."""
        return self.age >= MATURE and len(self.carried) >= ENOUGH

    @property
    def alarm(self) -> bool:
        """Whether the task has changed."""
        return self.suspicion.evidence >= self.limit

    def raised(self) -> float:
        """How much the values of the tasks before are raised for a young task.

        Samples that are shown in a second pass lie nearer to the means, to which they belong: the
        shift is below 0 then, on average. A new task's samples are fresh.
        """
        return max(0.0, -self.carried.quantile(0.5))

    def _suspicion(self) -> Suspicion:
        """The strongest evidence of the last batches that wait."""
        if not self.can_judge:
            return Suspicion()
        young = len(self.own) < ENOUGH
        reference = self.carried if young else self.own
        raised = self.raised() if young else 0.0
        shifts = [reference.below(s.shift - raised) for s in self.waiting if s.shift == s.shift]
        ranked = [(shifts, len(reference))]
        if len(self.spread) >= ENOUGH:
            spreads = [self.spread.below(s.spread) for s in self.waiting if s.spread == s.spread]
            held = len(self.spread)
            ranked += [(spreads, held), ([held - below for below in spreads], held)]
        found = Suspicion()
        for last in range(1, len(self.waiting) + 1):
            each = [evidence(below[-last:], held) for below, held in ranked]
            found = max(found, Suspicion(each[0], False), Suspicion(0.5 * sum(each[1:]), True))
        return found

    def _beginning(self) -> int:
        """At which of the batches that wait the change began.

        One that is of the task may be under suspicion by chance when the change comes. Here ranks
        do not say enough: the last two batches show how large the step is, and it lies where the
        squares around the two levels are least.
        """
        if self.suspicion.of_spread:
            level, values = self.spread.quantile(0.5), [s.spread for s in self.waiting]
        else:
            young = len(self.own) < ENOUGH
            level = self.carried.quantile(0.5) + self.raised() if young else self.own.quantile(0.5)
            values = [s.shift for s in self.waiting]
        steps = [value - level for value in values if value == value]
        step = fmean(steps[-2:])
        sums = list(accumulate(step * (value - 0.5 * step) for value in reversed(steps)))
        return len(values) - 1 - max(range(len(sums)), key=sums.__getitem__)

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

    def _release(self, count: int) -> int:
        """The first that wait are the task's own: they go into the reference."""
        for scores in self.waiting[:count]:
            self.accept(scores)
        del self.waiting[:count]
        return count

    def accept(self, scores: Scores) -> None:
        """A batch of the task, and what it says of its typical batches."""
        self.age += 1
        if scores.shift == scores.shift:
            self.own.add(scores.shift)
            if self.age <= YOUNG:
                self.carried.add(scores.shift)
        if scores.spread == scores.spread:
            self.spread.add(scores.spread)

    def reset(self, age: int) -> None:
        """Another task begins, of which ``age`` batches were learned before."""
        self.age = age + len(self.waiting)
        self.waiting.clear()
        self.own.clear()
        self.spread.clear()
        self.suspicion = Suspicion()

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "own": list(self.own.values),
            "carried": list(self.carried.values),
            "spread": list(self.spread.values),
            "waiting": [list(scores) for scores in self.waiting],
            "suspicion": list(self.suspicion),
            "age": self.age,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        for name in ("own", "carried", "spread"):
            reference: Reference = getattr(self, name)
            reference.clear()
            for value in state[name]:
                reference.add(value)
        self.waiting = [Scores(*scores) for scores in state["waiting"]]
        self.suspicion = Suspicion(*state["suspicion"])
        self.age = state["age"]
