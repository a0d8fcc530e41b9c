"""When batches are suspected, how long they wait, and when a change of task is declared.

All that goes in are two numbers of each batch, and all that is done with them is to rank them: on
batches that are alike, the run length between two false alarms depends on nothing but the constants
here and the limit, and can be simulated from uniform numbers. ``benchmarks/run_length.py`` does
that with this very class; ``limit_of`` is read from its table.

The reference are the last ``LENGTH`` batches of the task that are not under suspicion, each scored
before it was learned. A task that has fewer than ``ENOUGH`` of them is judged by those of the tasks
before it as well: the shift is scaled so that tasks are comparable. The spread is not, and is judged
by the task's own alone. Before there are ``ENOUGH``, nothing is judged.
"""

from __future__ import annotations

from itertools import accumulate
from math import log
from statistics import fmean
from typing import Any, NamedTuple

from hcl.detect.ranks import Reference

LENGTH = 256  # batches of the reference
ENOUGH = 16  # batches that a verdict needs
SUSPECT = 4.0  # the evidence at which batches begin to wait; they do until it is 1 again
WAITING = 48  # batches that wait at most: then they are learned as the task's own
MATURE = 5  # batches of a task before it is judged: means of fewer are hardly known


class Scores(NamedTuple):
    """Two numbers of a batch; NaN where they can't be taken."""

    shift: float  # of the class means: high after a change
    spread: float  # of samples around them: high or low after a change


def limit_of(false_alarm_every: int) -> float:
    """The evidence at which false alarms are ``false_alarm_every`` batches apart on average."""
    return float(false_alarm_every)


class Sequential:
    """References, evidence, and the batches that wait, by their scores."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.own = Reference(LENGTH)  # the shift, in this task
        self.carried = Reference(LENGTH)  # the shift, in this task and those before it
        self.spread = Reference(LENGTH)  # in this task
        self.evidence = [1.0, 1.0]  # C of the shift and of the spread
        self.waiting: list[tuple[Scores, tuple[float, float]]] = []  # with their factors
        self.age = 0  # batches of the task

    @property
    def can_judge(self) -> bool:
        """Whether the reference and the task are large enough."""
        return self.age >= MATURE and len(self.carried) >= ENOUGH

    @property
    def strongest(self) -> float:
        """C, the stronger of the two."""
        return max(self.evidence)

    @property
    def alarm(self) -> bool:
        """Whether the task has changed."""
        return self.strongest >= self.limit

    def raised(self) -> float:
        """How much the values of the tasks before are raised for a young task.

        Samples that are shown in a second pass lie nearer to the means, to which they belong: the
        shift is below 0 then, on average. A new task's samples are fresh.
        """
        return max(0.0, -self.carried.quantile(0.5))

    def factors(self, scores: Scores) -> tuple[float, float]:
        """What the evidence is multiplied by: f of the shift and of the spread."""
        shift = spread = 1.0
        if self.can_judge and scores.shift == scores.shift:
            if len(self.own) >= ENOUGH:
                shift = self.own.factor(scores.shift)
            else:
                shift = self.carried.factor(scores.shift, self.raised())
        if self.can_judge and len(self.spread) >= ENOUGH and scores.spread == scores.spread:
            spread = self.spread.factor_of_either_side(scores.spread)
        return shift, spread

    def update(self, scores: Scores) -> int:
        """Take in one more batch; how many of those that wait may be learned as the task's own.

        After an alarm those are the ones from before the change, which ``reset`` then completes.
        """
        factors = self.factors(scores)
        self.evidence = [max(1.0, c) * f for c, f in zip(self.evidence, factors, strict=True)]
        self.waiting.append((scores, factors))
        if self.alarm:
            return self._release(self._beginning())
        calm = 1.0 if len(self.waiting) > 1 else SUSPECT
        if self.strongest > calm and len(self.waiting) < WAITING:
            return 0
        if len(self.waiting) >= WAITING:
            self.evidence = [1.0, 1.0]
        return self._release(len(self.waiting))

    def _beginning(self) -> int:
        """At which of the batches that wait the change began.

        A batch by chance under suspicion may wait when the change comes. The batches after a change
        bring about as much evidence each as the last ones have; where the sum of what each brings
        above half of that is largest, it began.
        """
        which = self.evidence.index(self.strongest)
        gains = [log(max(factors[which], 1e-12)) for _, factors in self.waiting]
        half = 0.5 * fmean(gains[-3:])
        sums = list(accumulate(gain - half for gain in reversed(gains)))
        return len(gains) - 1 - max(range(len(sums)), key=sums.__getitem__)

    def _release(self, count: int) -> int:
        """The first that wait are the task's own: they go into the reference."""
        for scores, _ in self.waiting[:count]:
            self.accept(scores)
        del self.waiting[:count]
        return count

    def accept(self, scores: Scores) -> None:
        """A batch of the task, and what it says of its typical batches."""
        self.age += 1
        if scores.shift == scores.shift:
            self.own.add(scores.shift)
            self.carried.add(scores.shift)
        if scores.spread == scores.spread:
            self.spread.add(scores.spread)

    def reset(self, age: int) -> None:
        """Another task begins, of which ``age`` batches were learned before."""
        self.age = age + len(self.waiting)
        self.waiting.clear()
        self.own.clear()
        self.spread.clear()
        self.evidence = [1.0, 1.0]

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "own": list(self.own.values),
            "carried": list(self.carried.values),
            "spread": list(self.spread.values),
            "evidence": list(self.evidence),
            "waiting": [[list(scores), list(factors)] for scores, factors in self.waiting],
            "age": self.age,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        for name in ("own", "carried", "spread"):
            reference: Reference = getattr(self, name)
            reference.clear()
            for value in state[name]:
                reference.add(value)
        self.evidence = list(state["evidence"])
        self.waiting = [(Scores(*s), (f[0], f[1])) for s, f in state["waiting"]]
        self.age = state["age"]
