"""The detector: whose batch is it? For any learner, from the samples alone.

It streams moments of its own of the samples as they come in, so that no model that learns can move
what it judges by, and it can be run without one. A batch is judged before it is learned; batches
under suspicion wait, and are handed back when their verdict is known (``Verdict.released``): a
learner learns what is released, in that order, as the task that the verdict names.
"""

from __future__ import annotations

from math import nan
from typing import Any

import torch
from torch import Tensor

from hcl.detect.measure import ClassMeans, Features, Measured, Scatter, known_size, shifts
from hcl.detect.sequential import ENOUGH, MATURE, YOUNG, Scores, Sequential, limit_of
from hcl.detect.settings import CalibratedSettings
from hcl.detect.verdict import Verdict, Watched
from hcl.records.runs import NEW, RECURRING, SAME

RENEWALS = (2, 8, 32, 128, 512)  # batches into a task at which the metric is taken anew …
GROWN = 1.1  # … if so many times the samples stand behind it
WRONG_NAME = 0.01  # chance that a task which has come back is taken for a new one
FURTHEST = 3.0  # lags that a drift may go on by while batches wait
EXPLAINED = 0.5  # of a shift that may be left when it is one
KEPT = 2048  # distances of samples that ``novelty`` goes by, at most
KEPT_OF_EACH = 32  # samples of a batch
AT_ONCE = 1024  # samples that ``novelty`` is asked of at once


class Detector:
    """One detector for every stream.

    Args:
        settings: how often it may be wrong.
        num_classes: K.
        shape: of one sample.
        device: where samples come.
        own_classes: whether tasks bring classes of their own. A batch none of whose classes came in
            the current task then is another's: no distance could tell, there being no mean.
    """

    def __init__(
        self,
        settings: CalibratedSettings,
        num_classes: int,
        shape: tuple[int, ...],
        device: torch.device | None = None,
        own_classes: bool = False,
    ) -> None:
        self.settings = settings
        self.own_classes = own_classes
        self.num_classes = num_classes
        self.device = torch.device("cpu") if device is None else device
        self.size = known_size(shape)
        self.features = Features(shape, self.device)
        self.scatter = Scatter(self.size, self.device)
        self.tasks: list[ClassMeans] = []
        self.task = -1
        self.sequential = Sequential(limit_of(settings.false_alarm_every))
        self.waiting: list[tuple[Tensor, Tensor]] = []
        self._origin: Tensor | None = None  # of the features: large means would cost digits
        self._renewed = 0  # samples behind the metric
        self._visited = 0  # batches since the task began, or came back
        self._left: int | None = None  # the task before the current one, if that was new
        self._distances = torch.zeros(KEPT, device=self.device)
        self._kept = 0
        self._stride = 1  # of the batches whose distances are kept
        self._learned = 0  # batches

    @property
    def can_judge(self) -> bool:
        """Whether enough batches are known to judge by."""
        return self.sequential.can_judge

    @property
    def num_tasks(self) -> int:
        """Tasks so far."""
        return len(self.tasks)

    def judge(self, x: Tensor, y: Tensor) -> Verdict:
        """Whose batch it is, and what may be learned now."""
        if self.task < 0:
            self._go_to_new()
        z = self._seen(x)
        measured = self._measured(z, y)
        scores = self._look(measured)
        high = self._high()
        self.waiting.append((x, y))
        is_apart = self._is_apart(measured)
        judged = self.sequential.part if is_apart else self.sequential.update
        released = judged(scores)
        evidence = self.sequential.suspicion.evidence
        batches, earlier = self.waiting[:released], []
        del self.waiting[:released]
        if len(batches) == 1 and not self.waiting:
            self._learn(measured)
        else:
            self._learn_all(batches)
        verdict = SAME
        if is_apart or self.sequential.alarm:
            earlier = batches
            verdict = self._settle()
            batches = self.waiting
            self.waiting = []
            self._learn_all(batches)
            if verdict == SAME:
                batches, earlier = earlier + batches, []
        statistics = {
            "mean_shift": Watched(scores.shift, nan, high[0]),
            "common_shift": Watched(scores.common, nan, high[1]),
            "spread": Watched(scores.spread, *self._spread_bounds()),
            "evidence": Watched(evidence, nan, self.sequential.limit),
        }
        return Verdict(verdict, self.task, batches, earlier, statistics, len(self.waiting))

    def learn(self, x: Tensor, y: Tensor) -> None:
        """A batch that is known to be of the current task: nothing is declared."""
        if self.task < 0:
            self._go_to_new()
        measured = self._measured(self._seen(x), y)
        self.sequential.accept(self._look(measured))
        self._learn(measured)

    def _seen(self, x: Tensor) -> Tensor:
        z = self.features(x)
        if self._origin is None:
            self._origin = z.mean(0)
        return z - self._origin

    def _measured(self, z: Tensor, y: Tensor) -> Measured:
        return self._measured_by(self.task, z, y)

    def _measured_by(self, task: int, z: Tensor, y: Tensor) -> Measured:
        return Measured(z, y, self.tasks[task], self.scatter.metric)

    def _is_apart(self, measured: Measured) -> bool:
        """Whether tasks have their own classes, and the batch has none of the current one's."""
        known = self.own_classes and self.tasks[self.task].age > 0
        return known and not int(measured.classes)

    def _look(self, measured: Measured) -> Scores:
        """The scores on the CPU, once a batch; NaN before a metric is known."""
        if not self._renewed:
            return Scores(nan, nan, nan)
        return Scores(*torch.stack((measured.shift, measured.common, measured.spread)).tolist())

    def _high(self) -> tuple[float, float]:
        """The shifts that no batch of the reference exceeds; NaN where nothing is judged."""
        sequential = self.sequential
        if not sequential.can_judge:
            return nan, nan
        return sequential.shift.quantile(1.0), sequential.common.quantile(1.0)

    def _spread_bounds(self) -> tuple[float, float]:
        reference = self.sequential.spread
        if not self.sequential.can_judge or len(reference) < ENOUGH:
            return nan, nan
        return reference.quantile(0.0), reference.quantile(1.0)

    def _learn_all(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        for x, y in batches:
            self._learn(self._measured(self._seen(x), y))

    def _learn(self, measured: Measured) -> None:
        means = self.tasks[self.task]
        if self._renewed and means.age >= MATURE and self._learned % self._stride == 0:
            self._keep(measured.distances[:KEPT_OF_EACH])
        self._learned += 1
        measured.learn(means, self.scatter)
        self._visited += 1
        if self._visited in RENEWALS:
            self._renew()

    def _keep(self, distances: Tensor) -> None:
        """Keep some samples' distances; of a full store every second is dropped."""
        if self._kept + len(distances) > KEPT:
            kept = self._distances[: self._kept : 2].clone()
            self._kept = len(kept)
            self._distances[: self._kept] = kept
            self._stride *= 2
        self._distances[self._kept : self._kept + len(distances)] = distances
        self._kept += len(distances)

    @torch.no_grad()
    def novelty(self, x: Tensor) -> Tensor:
        """For each sample the chance that one which is like those learned lies so far out, (n,).

        A sample lies as far out as it does from the nearest mean of all classes of all tasks. It is
        ranked among samples that were scored before they were learned, by their distance to the
        mean of their own class, which is no nearer: so the p-value is on the safe side. It is 1
        while nothing is known.
        """
        if not self._kept:
            return torch.ones(len(x), dtype=torch.float64, device=x.device)
        metric = self.scatter.metric
        known = torch.cat([means.counts for means in self.tasks]) > 0
        means = torch.cat([means.means for means in self.tasks])[known]
        squares = ((means @ metric) * means).sum(1)
        kept = self._distances[: self._kept].sort().values
        parts = []
        for part in x.split(AT_ONCE):
            z = self._seen(part)
            turned = z @ metric
            square = (turned * z).sum(1)[:, None] - 2 * turned @ means.T + squares
            below = torch.searchsorted(kept, square.amin(1))
            parts.append((1 + self._kept - below).double() / (self._kept + 1))
        return torch.cat(parts)

    def _renew(self) -> None:
        if self.scatter.rows < GROWN * self._renewed:
            return
        self.scatter.renew()
        self._renewed = self.scatter.rows
        self.tasks[self.task].forget_logs()
        self.sequential.spread.clear()

    def add_classes(self, count: int) -> None:
        """``count`` more classes may come from now on."""
        self.num_classes += count
        for means in self.tasks:
            means.add_classes(count)

    def _means(self) -> ClassMeans:
        return ClassMeans(self.num_classes, self.size, self.device)

    def _go_to_new(self) -> None:
        self.tasks.append(self._means())
        self.task = len(self.tasks) - 1

    def _settle(self) -> int:
        """The batches that wait are an earlier task's, a new one's, or show that one goes on."""
        drifted = self._drifted()
        back = self._who() if drifted is None else None
        verdict = NEW if back is None else RECURRING
        if drifted is not None:
            self.tasks[self.task] = drifted
            self.sequential.accept_all()
            return SAME
        self.tasks[self.task].rest()
        if back is not None:
            self.task, self._left = back, None
        elif self._goes_on():
            self.tasks[self.task] = self._means()
            verdict = SAME
        else:
            self._left = self.task
            self._go_to_new()
        self._visited = 0
        means = self.tasks[self.task]
        means.begin()
        self.sequential.reset(means.age)
        return verdict

    def _drifted(self) -> ClassMeans | None:
        """The current task as it is now, if it only went on along its trend.

        What drifts goes on while batches wait, by less than it lags behind.
        """
        if self.sequential.suspicion.of == "spread":
            return None
        current, metric = self.tasks[self.task], self.scatter.metric
        z, y = self._waiting()
        ahead = Measured(z, y, current, metric)
        way = ahead.seen[:, None] * (current.trend @ metric)
        steps = float((way * ahead.gaps).sum() / (way * current.trend).sum().clamp(min=1e-12))
        if not 0 < steps <= FURTHEST:
            return None
        moved = current.moved(steps)
        left = Measured(z, y, moved, metric)
        return moved if float(left.common) <= EXPLAINED * float(ahead.common) else None

    def _is_typical(self, found: Measured) -> bool:
        """Whether batches lie no further out than all but ``WRONG_NAME`` of young ones do."""
        share = 1 - WRONG_NAME
        return float(found.shift) <= self.sequential.shift.of_young(share) and float(
            found.common
        ) <= self.sequential.common.of_young(share)

    def _goes_on(self) -> bool:
        """Whether the change that brought the current task is not over yet.

        Where a new task's share of the batches rises slowly, the first of them are a mixture, and
        those that wait lie further on in the same direction. A next task lies in any other one.
        """
        if self._left is None or self.tasks[self.task].age >= YOUNG:
            return False
        left, current = self.tasks[self._left], self.tasks[self.task]
        z, y = self._waiting()
        ahead = Measured(z, y, current, self.scatter.metric)
        shared = ahead.seen * (left.counts > 0) * (current.counts > 0)
        way = (current.means - left.means) @ self.scatter.metric
        return bool((shared * (way * ahead.gaps).sum(1)).sum() > 0)

    def _waiting(self) -> tuple[Tensor, Tensor]:
        """All samples that wait."""
        z = torch.cat([self._seen(x) for x, _ in self.waiting])
        return z, torch.cat([y for _, y in self.waiting])

    def _who(self) -> int | None:
        """The earlier task of which the batches that wait, together, are typical."""
        z, y = self._waiting()
        others = [task for task in range(len(self.tasks)) if task != self.task]
        if not others:
            return None
        found = shifts(z, y, [self.tasks[task] for task in others], self.scatter.metric)
        best = others[int(found.nan_to_num(torch.inf).argmin())]
        return best if self._is_typical(self._measured_by(best, z, y)) else None

    def state(self) -> dict[str, Any]:
        """Everything that the verdicts depend on, for a checkpoint."""
        return {
            "task": self.task,
            "tasks": [means.state() for means in self.tasks],
            "scatter": self.scatter.state(),
            "sequential": self.sequential.state(),
            "waiting": [list(batch) for batch in self.waiting],
            "origin": self._origin,
            "renewed": self._renewed,
            "visited": self._visited,
            "left": self._left,
            "distances": self._distances[: self._kept].clone(),
            "stride": self._stride,
            "learned": self._learned,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.task = state["task"]
        self.tasks = []
        for held in state["tasks"]:
            means = self._means()
            means.restore(held)
            self.tasks.append(means)
        self.scatter.restore(state["scatter"])
        self.sequential.restore(state["sequential"])
        self.waiting = [(x.to(self.device), y.to(self.device)) for x, y in state["waiting"]]
        origin = state["origin"]
        self._origin = None if origin is None else origin.to(self.device)
        self._renewed, self._visited = state["renewed"], state["visited"]
        self._left = state["left"]
        self._kept = len(state["distances"])
        self._distances[: self._kept] = state["distances"]
        self._stride, self._learned = state["stride"], state["learned"]
