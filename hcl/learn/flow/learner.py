"""The flow learner: one step for each batch, and whose batch it is (Sections 4.2 and 4.3).

It holds one model and, for GR and FR, one snapshot, renewed at each change of task.

Paper: silent on the optimiser at a change. Here: its state is kept; see ``docs/learning.md``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcl.detect import detector as calibrated
from hcl.detect.settings import CalibratedSettings
from hcl.detect.verdict import Watched
from hcl.learn.adam import Adam
from hcl.learn.belonging import Belonging
from hcl.learn.contract import (
    Batch,
    Evidence,
    Observation,
    Prediction,
    Start,
    TaskBatch,
    as_int16,
)
from hcl.learn.fitting import FITTING_SAMPLES, check_labels, fitted_model
from hcl.learn.flow.detection import STATISTICS, DetectionSettings, Detector
from hcl.learn.flow.memory import Memory, Passed, build_memory
from hcl.learn.flow.settings import AllData, FlowMethod
from hcl.model.hybrid import HybridModel, Statistics, check_finite
from hcl.model.images import dequantise, midpoints
from hcl.records.runs import NEW, RECURRING, SAME


def build(method: FlowMethod, start: Start) -> FlowLearner:
    """The learner of a method, with its inputs' scaling fitted on the first task."""
    check_labels(start, method.unlabelled, method.detection)
    model = fitted_model(start, start.first(FITTING_SAMPLES))
    draws = start.generator("draws", on_cpu=isinstance(method.memory, AllData))
    batch_size = start.training.batch_size
    memory = build_memory(method.memory, model, batch_size, draws, start.archive)
    return FlowLearner(
        model,
        memory,
        detection=method.detection,
        batch_size=batch_size,
        generator=draws,
        learning_rate_decay=method.learning_rate_decay,
        clip=method.clip,
        unlabelled=method.unlabelled if start.partly_labelled else None,
        belonging=Belonging() if method.belongs == "sample" else None,
        own_classes=start.only_seen,
        **start.rates(method.learning_rate, method.weight_decay),
    )


def seen(x: Tensor) -> Tensor:
    """Samples as the flow sees them outside training: bytes at their midpoint, always the same."""
    return midpoints(x) if x.dtype == torch.uint8 else x


def falling_rate(learning_rate: float, step: int, decay: float) -> float:
    """η_n = η / √(1 + d n): the rate n steps into a task, from η down, anew for each task.

    No number of steps is needed in advance, which a learner that is told nothing does not know.
    """
    return learning_rate / math.sqrt(1 + decay * step)


def batch_sums(statistics: Statistics, trim: int = 0) -> Tensor:
    """S1, S2, S3: sums over the batch, (3,), in double precision.

    Where ``trim`` samples are left out at either end, the mean of the others stands for them.
    """
    n = len(statistics.log_px)
    values = [getattr(statistics, name).detach().double() for name in STATISTICS]
    if 0 < trim < n / 2:
        values = [v.sort().values[trim : n - trim] * (n / (n - 2 * trim)) for v in values]
    return torch.stack([v.sum() for v in values])


class FlowLearner:
    """The hybrid model with a memory, told its tasks or detecting them.

    Args:
        model: without tasks yet.
        memory: what stands for old tasks.
        detection: how changes of task are noticed; ``None`` where the learner is told its tasks.
        batch_size: for which the trace's statistics are given.
        learning_rate: of Adam.
        weight_decay: of Adam (L2).
        generator: for the means of new tasks.
        learning_rate_decay: d of ``falling_rate``.
        clip: of Adam.
        unlabelled: weight of samples without a label; ``None`` where all have one.
        belonging: infers each sample's task; ``None`` where all of a batch is of one.
        own_classes: whether tasks bring classes of their own; for the calibrated detector.
    """

    def __init__(
        self,
        model: HybridModel,
        memory: Memory,
        *,
        detection: DetectionSettings | CalibratedSettings | None,
        batch_size: int,
        learning_rate: float,
        weight_decay: float,
        generator: torch.Generator,
        learning_rate_decay: float = 0.0,
        clip: float | None = None,
        unlabelled: float | None = None,
        belonging: Belonging | None = None,
        own_classes: bool = False,
    ) -> None:
        self.model = model
        self.memory = memory
        self.batch_size = batch_size
        self.generator = generator
        self.task = -1  # the current task
        self.given: list[int] = []  # given[t]: the number under which task t was given
        self.detector = Detector(detection) if isinstance(detection, DetectionSettings) else None
        self.calibrated: calibrated.Detector | None = None
        if isinstance(detection, CalibratedSettings):
            classes, size = model.latent.num_classes, model.flow.size
            self.calibrated = calibrated.Detector(
                detection, classes, (size,), generator.device, own_classes
            )
        self.learning_rate = learning_rate
        self.learning_rate_decay = learning_rate_decay
        self.steps = 0  # since the current task was begun, or came back
        self.unlabelled = unlabelled
        self.belonging = belonging
        self.optimiser = Adam(model.parameters(), learning_rate, weight_decay, clip)

    @property
    def num_tasks(self) -> int:
        """Tasks that the learner knows."""
        return self.model.latent.num_tasks

    def observe(self, batch: Batch | TaskBatch, watch: bool = True) -> Observation:
        """One step of Adam on the batch and what stands for old tasks; first, whose batch it is.

        Without ``watch``, a learner that detects its tasks takes the batch for its current one; the
        calibrated detector does not see it (``introduce`` shows it).
        """
        if isinstance(batch, TaskBatch):
            self._go_to(batch.task)
            return Observation(self._learn(batch.x, batch.y))
        if self.detector is None and self.calibrated is None:
            raise TypeError("a learner that is told its tasks needs a TaskBatch")
        if self.task < 0:
            self.change_to(None)
        if self.detector is not None:
            return self._observe_typical(batch.x, batch.y, watch)
        if watch:
            return self._observe_calibrated(batch.x, batch.y)
        return Observation(self._learn(batch.x, batch.y))

    def introduce(self, batch: Batch) -> None:
        """Let the calibrated detector know a batch of the current task, without a verdict."""
        assert self.calibrated is not None
        self.calibrated.learn(batch.x, batch.y)

    def _learn(self, x: Tensor, y: Tensor) -> Tensor:
        """A step on a batch of the current task; its loss."""
        loss, _, z = self.objective(x, y)
        self._finish(x, y, z, loss)
        return loss.detach()

    def _finish(self, x: Tensor, y: Tensor, z: Tensor, loss: Tensor) -> None:
        self.model.latent.mark(y, self.task)
        self._remember(x, y, z)
        check_finite(loss, self.model, seen(x))
        self._step(loss)

    def _observe_calibrated(self, x: Tensor, y: Tensor) -> Observation:
        """A step for each batch that the detector releases, which may be none or several."""
        assert self.calibrated is not None
        verdict = self.calibrated.judge(x, y)
        losses = [self._learn(*batch) for batch in verdict.earlier]
        if verdict.verdict != SAME:
            self.change_to(verdict.task if verdict.verdict == RECURRING else None)
        losses += [self._learn(*batch) for batch in verdict.released]
        loss = torch.stack(losses).mean() if losses else None
        return Observation(loss, Evidence(verdict.statistics, verdict.verdict))

    def _observe_typical(self, x: Tensor, y: Tensor, watch: bool) -> Observation:
        """The paper's rule: statistics of the step itself, taken before it is made."""
        assert self.detector is not None
        loss, statistics, z = self.objective(x, y)
        sums = self._look(self._sums(statistics))
        evidence = self._judge(y, statistics, z, sums) if watch else None
        if evidence is not None and evidence.verdict != SAME:
            loss, statistics, _ = self.objective(x, y)
            sums = self._look(self._sums(statistics))
        self.detector.record(self.task, sums, len(x))
        self._finish(x, y, z, loss)
        return Observation(loss.detach(), evidence)

    def objective(self, x: Tensor, y: Tensor) -> tuple[Tensor, Statistics, Tensor]:
        """The method's loss; S1, S2, S3 of the batch for the current task; and its latents.

        Batch and replay pass the flow together: one product a layer instead of two. Bytes get fresh
        noise each time that they are shown; what a snapshot draws has no bytes to be dequantised.
        """
        n = len(x)
        replay = self.memory.draw()
        shown = (x,) if replay is None else (x, replay.x)
        z, log_det = self.model.flow(torch.cat([self._dequantised(part) for part in shown]))
        t = self._task_of(z[:n].detach(), y)
        log_pz = self.log_prob(z[:n], y, t)
        statistics = Statistics(log_pz + log_det[:n], log_pz, log_det[:n])
        passed = None
        if replay is not None:
            passed = Passed(self.log_prob(z[n:], replay.y, replay.t) + log_det[n:], z[n:])
        loss = self.memory.loss(self._weighed(statistics.log_px, y, t), replay, passed)
        return loss, statistics, z[:n].detach()

    def log_prob(self, z: Tensor, y: Tensor, t: Tensor | int) -> Tensor:
        """log p̂_Z(z | y, t), (B,); of a sample without a label log 1/K Σ_y p̂_Z(z | y, t)."""
        latent = self.model.latent
        return (latent.log_prob if self.unlabelled is None else latent.log_prob_of_any)(z, y, t)

    def _weighed(self, log_px: Tensor, y: Tensor, t: Tensor | int) -> Tensor:
        """log p̂_X of each sample times its weight in L_ll, which is a mean over the batch.

        Of a mixed batch, only samples of the current task count: for the others stands the memory,
        and a sample that is taken for an old task's would be drawn there. Samples without a label
        weigh ``unlabelled`` times as much as those with one, as two means, however few have one.
        """
        if self.belonging is None and self.unlabelled is None:
            return log_px
        own = torch.as_tensor(t, device=y.device).expand(len(y)) == self.task
        weight = torch.zeros_like(log_px)
        for share, which in ((1.0, own & (y >= 0)), (self.unlabelled or 0.0, own & (y < 0))):
            weight = torch.where(which, share * len(y) / which.sum().clamp(min=1), weight)
        return weight * log_px

    def _task_of(self, z: Tensor, y: Tensor) -> Tensor | int:
        """The task of each sample, or the current one for all."""
        if self.belonging is None or self.num_tasks < 2:
            return self.task
        each = torch.stack([self.log_prob(z, y, task) for task in range(self.num_tasks)], 1)
        return self.belonging.task_of(each, self.task)

    @torch.no_grad()
    def _remember(self, x: Tensor, y: Tensor, z: Tensor) -> None:
        """What the memory keeps of a batch: the current task's samples, those with a label."""
        kept = None
        if self.belonging is not None:
            t = torch.as_tensor(self._task_of(z, y), device=y.device).expand(len(y))
            self.belonging.learned(self.log_prob(z, y, t), t)
            kept = t == self.task
        if self.unlabelled is not None:
            kept = y >= 0 if kept is None else kept & (y >= 0)
        if kept is not None:
            x, y, z = x[kept], y[kept], z[kept]
        self.memory.learned(self.task, x, y, z)

    def _dequantised(self, x: Tensor) -> Tensor:
        return dequantise(x, self.generator) if x.dtype == torch.uint8 else x

    def _step(self, loss: Tensor) -> None:
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.learning_rate = falling_rate(
            self.learning_rate, self.steps, self.learning_rate_decay
        )
        self.optimiser.step()
        self.steps += 1

    def _judge(
        self, y: Tensor, statistics: Statistics, z: Tensor, sums: NDArray[np.float64]
    ) -> Evidence:
        """The verdict on a batch (Section 4.2), from statistics taken before it is learned."""
        assert self.detector is not None
        n = len(y)
        low, high = self.detector.bounds(self.task, n)
        verdict = SAME
        if self.detector.has_left(self.task, sums, n):
            back = self.detector.came_back(self._sums_for_all(y, statistics, z), n, self.task)
            verdict = NEW if back is None else RECURRING
            self.change_to(back)
        scale = self.batch_size / n
        watched: dict[str, Watched] = {
            name: Watched(*(float(scale * values[i]) for values in (sums, low, high)))
            for i, name in enumerate(STATISTICS)
        }
        return Evidence(watched, verdict)

    def _sums_for_all(self, y: Tensor, statistics: Statistics, z: Tensor) -> NDArray[np.float64]:
        """S1, S2, S3 of the batch for each task, (T, 3); −∞ where a class never came in it."""
        log_det = statistics.log_det
        rows = []
        for task in range(self.num_tasks):
            unseen = self.model.latent.unseen(y, task)
            log_pz = self.log_prob(z, y, task).masked_fill(unseen, -torch.inf)
            rows.append(self._sums(Statistics(log_pz + log_det, log_pz, log_det)))
        return self._look(torch.stack(rows))

    def _sums(self, statistics: Statistics) -> Tensor:
        assert self.detector is not None
        return batch_sums(statistics, self.detector.settings.trim)

    @staticmethod
    def _look(sums: Tensor) -> NDArray[np.float64]:
        """The statistics on the CPU: once a batch while a task lasts, three times at a change."""
        return sums.cpu().numpy()

    def _go_to(self, number: int) -> None:
        """The batch is of the task that was given under ``number``."""
        if self.detector is not None or self.calibrated is not None:
            raise TypeError("a learner that detects its tasks must not be handed them")
        if self.task < 0 or self.given[self.task] != number:
            self.change_to(self.given.index(number) if number in self.given else None)
            if self.num_tasks > len(self.given):
                self.given.append(number)

    def change_to(self, task: int | None) -> None:
        """Go to an earlier task, or (``None``) add one; the memory keeps what was learned."""
        if self.task >= 0:
            self.memory.leave(self.task)
        if task is None:
            task = self.model.add_task(self.generator)
            if self.detector is not None:
                self.detector.add_task()
        self.task = task
        self.steps = 0
        self._enter()

    def add_classes(self, count: int) -> None:
        """``count`` more classes may come from now on, in every task."""
        self.model.latent.add_classes(count, self.generator)
        self.memory.add_classes(count)
        if self.calibrated is not None:
            self.calibrated.add_classes(count)

    def _enter(self) -> None:
        others = [task for task in range(self.num_tasks) if task != self.task]
        self.memory.enter(others, [self.given[task] for task in others if self.given])

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        """Bayes' rule: the class marginalised over tasks, and the likeliest pair."""
        predicted, pair_class, pair_task = self.model.classify_both(seen(x))
        return as_int16(predicted, pair_task, pair_class)

    @torch.no_grad()
    def posterior(self, x: Tensor) -> Tensor:
        """log p̂(y, t | x) by Bayes' rule, every class of every task as likely before, (n, T, K)."""
        scores = self.model.latent.scores(self.model.flow(seen(x))[0])
        return scores.flatten(1).log_softmax(1).view_as(scores)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """x ~ p̂_X(x | y, t), ``count`` for each class of each task: (T, K, count, …)."""
        tasks, classes = self.num_tasks, self.model.latent.num_classes
        pairs = torch.arange(tasks * classes, device=generator.device).repeat_interleave(count)
        x, _ = self.model.sample(pairs % classes, pairs // classes, generator)
        return x.view(tasks, classes, count, *x.shape[1:])

    def state(self) -> dict[str, Any]:
        """Model, optimiser, generator, memory, and windows or detector."""
        state: dict[str, Any] = {
            "task": self.task,
            "steps": self.steps,
            "given": list(self.given),
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
            "memory": self.memory.state(),
        }
        if self.belonging is not None:
            state["belonging"] = self.belonging.state()
        if self.detector is not None:
            state["windows"] = {
                name: torch.from_numpy(value) for name, value in self.detector.state().items()
            }
        if self.calibrated is not None:
            state["detector"] = self.calibrated.state()
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.task = state["task"]
        self.steps = state["steps"]
        self.given = list(state["given"])
        self.model.load(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.generator.set_state(state["generator"].cpu())
        self.memory.restore(state["memory"])
        if self.belonging is not None:
            self.belonging.restore(state["belonging"])
        if self.detector is not None:
            self.detector.restore({n: v.cpu().numpy() for n, v in state["windows"].items()})
        if self.calibrated is not None:
            self.calibrated.restore(state["detector"])
        self._enter()
