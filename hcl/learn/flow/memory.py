"""What stands for old tasks while a new one is learned: one class for each memory (Section 4.3).

Each draws samples (``draw``), makes the objective of them (``loss``), is told when the task changes
(``leave``, ``enter``) and what was learned (``learned``), and is part of a checkpoint.

Paper: silent on a task that comes back. Here: replay is for the other tasks only, because real
samples of this one are at hand; the snapshot is renewed as at any change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from hcl.learn.contract import Archive, TaskBatches
from hcl.learn.flow.settings import (
    AllData,
    BufferSettings,
    Draws,
    FunctionalSettings,
    GenerativeSettings,
    MemorySettings,
    NoMemory,
)
from hcl.learn.moments import FadingMoments
from hcl.model.hybrid import HybridModel
from hcl.model.latent import LatentMixture
from hcl.model.losses import functional_loss, likelihood_loss, mixed_loss

MEASURED_BATCHES = 100  # over which the moments of latents fade
MEASURED_SHRINKAGE = 1e-2  # of their covariance


class Replay(NamedTuple):
    """Samples that stand for old tasks in one step."""

    x: Tensor
    y: Tensor
    t: Tensor
    z: Tensor | None = None  # the latents that the snapshot drew x from


class Passed(NamedTuple):
    """What the flow made of replay, in the same pass as of the batch."""

    log_px: Tensor  # log p̂_X(x | y, t)
    z: Tensor  # f_θ(x)


class Memory(Protocol):
    """What the learner asks of a memory."""

    def leave(self, task: int) -> None:
        """``task`` is left: what was learned so far is to be kept."""

    def enter(self, others: Sequence[int], given: Sequence[int]) -> None:
        """Another task begins or comes back; ``others`` are to be remembered.

        Args:
            others: tasks other than the current one.
            given: the numbers under which they were given, where the learner is told them.
        """

    def draw(self) -> Replay | None:
        """Samples for the tasks other than the current one."""

    def loss(self, log_px: Tensor, replay: Replay | None, passed: Passed | None) -> Tensor:
        """The objective, from the batch's log-likelihoods and what the flow made of replay."""

    def learned(self, task: int, x: Tensor, y: Tensor, z: Tensor) -> None:
        """A batch of ``task`` was looked at, and its latents were ``z``."""

    def add_classes(self, count: int) -> None:
        """The model has ``count`` more classes."""

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""


class Nothing:
    """No memory: −L_ll of the batch alone."""

    def leave(self, task: int) -> None: ...

    def enter(self, others: Sequence[int], given: Sequence[int]) -> None: ...

    def draw(self) -> Replay | None:
        return None

    def loss(self, log_px: Tensor, replay: Replay | None, passed: Passed | None) -> Tensor:
        return likelihood_loss(log_px)

    def learned(self, task: int, x: Tensor, y: Tensor, z: Tensor) -> None: ...

    def add_classes(self, count: int) -> None: ...

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None: ...


class All:
    """MTL: one mean over the batch and a batch of every other task's training samples."""

    def __init__(
        self,
        archive: Archive,
        batch_size: int,
        generator: torch.Generator,
        device: torch.device,
    ) -> None:
        self.archive = archive
        self.batch_size = batch_size
        self.generator = generator  # on the CPU, wherever the samples are wanted
        self.device = device
        self.t = torch.empty(0, dtype=torch.int64)
        self.given: Sequence[int] = ()

    def leave(self, task: int) -> None: ...

    def enter(self, others: Sequence[int], given: Sequence[int]) -> None:
        self.t = repeated(others, self.batch_size, self.device)
        self.given = given

    def draw(self) -> Replay | None:
        if not len(self.t):
            return None
        drawn = self.archive.draw(self.given, self.batch_size, self.generator)
        return Replay(drawn.x, drawn.y, self.t)

    def loss(self, log_px: Tensor, replay: Replay | None, passed: Passed | None) -> Tensor:
        return likelihood_loss(log_px) if passed is None else mixed_loss(log_px, passed.log_px)

    def learned(self, task: int, x: Tensor, y: Tensor, z: Tensor) -> None: ...

    def add_classes(self, count: int) -> None: ...

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None: ...


class Buffer:
    """ER: one mean over the batch and a batch of every other task's stored samples."""

    def __init__(self, size: int, batch_size: int, generator: torch.Generator) -> None:
        self.reservoirs = Reservoirs(size)
        self.batch_size = batch_size
        self.generator = generator
        self.t = torch.empty(0, dtype=torch.int64)
        self.others: Sequence[int] = ()

    def leave(self, task: int) -> None: ...

    def enter(self, others: Sequence[int], given: Sequence[int]) -> None:
        self.t = repeated(others, self.batch_size, self.generator.device)
        self.others = others

    def draw(self) -> Replay | None:
        if not len(self.t):
            return None
        drawn = self.reservoirs.draw(self.others, self.batch_size, self.generator)
        return Replay(drawn.x, drawn.y, self.t)

    def loss(self, log_px: Tensor, replay: Replay | None, passed: Passed | None) -> Tensor:
        return likelihood_loss(log_px) if passed is None else mixed_loss(log_px, passed.log_px)

    def learned(self, task: int, x: Tensor, y: Tensor, z: Tensor) -> None:
        self.reservoirs.remember(task, x, y, self.generator)

    def add_classes(self, count: int) -> None: ...

    def state(self) -> dict[str, Any]:
        return self.reservoirs.state()

    def restore(self, state: dict[str, Any]) -> None:
        self.reservoirs.restore(state)


class Rehearsal:
    """One snapshot f_θ^(k), and the samples that it draws for the other tasks.

    It is renewed at each change of task: memory does not grow with tasks.

    Paper: a batch for each old task in every step, so that a step costs more with every task. Here,
    where ``replay`` is given: so many draws for all old tasks together, unless the paper's are
    fewer. They are dealt to the (class, task) pairs in turn, from one that is chosen by chance: the
    shares of two tasks, and of two pairs, differ by one draw at most, and have the expectation that
    they have with a batch for each task; so has the loss.

    Args:
        model: what learns.
        draws: where the snapshot's latents come from.
        replay: draws in a step for all of the other tasks; ``None`` draws a batch for each.
        batch_size: samples for each of the other tasks.
        generator: for labels and latents.
    """

    def __init__(
        self,
        model: HybridModel,
        draws: Draws,
        replay: int | None,
        batch_size: int,
        generator: torch.Generator,
    ) -> None:
        self.model = model
        self.replay = replay
        self.batch_size = batch_size
        self.generator = generator
        self.snapshot: HybridModel | None = None
        self.measured: MeasuredDraws | None = None
        if draws == "measured":
            self.measured = MeasuredDraws(model.latent, generator)
        self.others = 0  # tasks that are drawn for
        self.t = torch.empty(0, dtype=torch.int64)  # these, each as often as it can be drawn

    def leave(self, task: int) -> None:
        """Renew the snapshot."""
        if self.measured is not None:
            self.measured.settle(task)
        if self.snapshot is None:
            self.snapshot = self.model.snapshot()
        else:
            self.snapshot.copy_from(self.model)

    def enter(self, others: Sequence[int], given: Sequence[int]) -> None:
        """Draw for these from now on."""
        if self.measured is not None:
            self.measured.prepare(others)
        self.others = len(others)
        most = self.batch_size
        if self.replay is not None and others:
            most = min(most, math.ceil(self.replay / len(others)))
        self.t = repeated(others, most, self.generator.device)

    @property
    def each(self) -> float:
        """How many of the paper's draws one of these stands for."""
        if self.replay is None:
            return 1.0
        return max(1.0, self.others * self.batch_size / self.replay)

    def draw(self) -> Replay | None:
        """The snapshot's samples for the tasks other than the current one."""
        if self.snapshot is None or not len(self.t):
            return None
        return self.sample(self.snapshot, self.t)

    @torch.no_grad()
    def sample(self, snapshot: HybridModel, t: Tensor) -> Replay:
        """y uniform over the classes that came, z ~ N(μ_{y,t}, ·), x by the snapshot's inverse.

        Where ``replay`` is less than a batch for each task, pairs are dealt.

        Args:
            snapshot: f_θ^(k).
            t: the tasks that are drawn for, as many samples of each, one after the other.
        """
        classes = self.model.latent.num_classes
        dealing = self.replay if self.each > 1 else None
        if dealing is None or snapshot.latent.seen is not None:
            y = snapshot.latent.sample_classes(t, self.generator)
        if dealing is not None:
            pairs = self.others * classes
            first = torch.randint(pairs, (1,), generator=self.generator, device=t.device)
            rows, dealt_y = dealt(dealing, self.others, classes, first)
            if snapshot.latent.seen is None:
                y = torch.zeros_like(t).index_copy_(0, rows, dealt_y)
            else:
                dealt_y = y[rows]  # some pairs never came: tasks alone are dealt
        if self.measured is None:
            z = snapshot.latent.sample(y, t, self.generator)
        else:
            z = self.measured.sample(y, t)
        if dealing is not None:
            y, t, z = dealt_y, t[rows], z[rows]
        return Replay(snapshot.flow.inverse(z)[0], y, t, z)

    def learned(self, task: int, x: Tensor, y: Tensor, z: Tensor) -> None:
        """Measure where the latents lie."""
        if self.measured is not None:
            self.measured.add(z, y)

    def add_classes(self, count: int) -> None:
        """A class that comes late is not drawn before the snapshot knows it."""
        if self.measured is not None:
            self.measured.add_classes(count)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        state: dict[str, Any] = {}
        if self.snapshot is not None:
            state["snapshot"] = self.snapshot.state_dict()
        if self.measured is not None:
            state["measured"] = self.measured.state()
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        if "snapshot" in state:
            self.snapshot = self.model.snapshot()
            self.snapshot.load(state["snapshot"])
        if self.measured is not None:
            self.measured.restore(state["measured"])


class Generative(Rehearsal):
    """GR: −L_ll of the batch and −L_GR of what the snapshot draws, mixed as ``weighing`` says."""

    def __init__(
        self,
        settings: GenerativeSettings,
        model: HybridModel,
        batch_size: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__(model, settings.draws, settings.replay, batch_size, generator)
        self.weighing = settings.weighing

    def loss(self, log_px: Tensor, replay: Replay | None, passed: Passed | None) -> Tensor:
        if passed is None:
            return likelihood_loss(log_px)
        return mixed_loss(log_px, passed.log_px, self.weighing, self.each)


class Functional(Rehearsal):
    """FR: −L_ll of the batch + α L_FR of what the snapshot draws."""

    def __init__(
        self,
        settings: FunctionalSettings,
        model: HybridModel,
        batch_size: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__(model, settings.draws, settings.replay, batch_size, generator)
        self.alpha = settings.alpha

    def loss(self, log_px: Tensor, replay: Replay | None, passed: Passed | None) -> Tensor:
        if replay is None or passed is None or replay.z is None:
            return likelihood_loss(log_px)
        return likelihood_loss(log_px) + self.alpha * functional_loss(passed.z, replay.z)


def build_memory(
    settings: MemorySettings,
    model: HybridModel,
    batch_size: int,
    generator: torch.Generator,
    archive: Archive | None = None,
) -> Memory:
    """The memory of ``settings``."""
    match settings:
        case NoMemory():
            return Nothing()
        case AllData():
            if archive is None:
                raise ValueError("memory.kind: is all, but there are no data to look at again.")
            return All(archive, batch_size, generator, model.latent.means.device)
        case BufferSettings():
            return Buffer(settings.size, batch_size, generator)
        case GenerativeSettings():
            return Generative(settings, model, batch_size, generator)
        case FunctionalSettings():
            return Functional(settings, model, batch_size, generator)


def repeated(tasks: Sequence[int], count: int, device: torch.device) -> Tensor:
    """Each task ``count`` times, one after the other."""
    return torch.tensor(list(tasks), dtype=torch.int64, device=device).repeat_interleave(count)


def dealt(draws: int, tasks: int, classes: int, first: Tensor) -> tuple[Tensor, Tensor]:
    """``draws`` samples, dealt to the (class, task) pairs in turn from pair ``first`` on.

    With ``first`` uniform over pairs, each has draws/pairs of them in expectation.

    Returns:
        their rows among ⌈draws/tasks⌉ samples of each task, one task after the other; and classes.
    """
    turn = torch.arange(draws, device=first.device)
    pair = (first + turn) % (tasks * classes)
    return pair % tasks * math.ceil(draws / tasks) + turn // tasks, pair // tasks


class Reservoirs:
    """ER's stored samples: for each task a reservoir, each sample shown so far equally likely."""

    def __init__(self, size: int) -> None:
        self.size = size
        # Rows of each task, and behind them a spare one for samples that are not kept: which ones
        # is decided where the samples are, and nobody waits to hear it.
        self._x: list[Tensor] = []
        self._y: list[Tensor] = []
        self.seen: list[int] = []

    @property
    def x(self) -> list[Tensor]:
        """The stored samples of each task."""
        return [rows[: self.size] for rows in self._x]

    @property
    def y(self) -> list[Tensor]:
        """Their labels."""
        return [rows[: self.size] for rows in self._y]

    def remember(self, task: int, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Offer a batch of ``task`` to its reservoir."""
        while len(self.seen) <= task:
            self._x.append(x.new_zeros(self.size + 1, *x.shape[1:]))
            self._y.append(y.new_zeros(self.size + 1))
            self.seen.append(0)
        chance = torch.rand(len(x), generator=generator, device=generator.device)
        before = torch.arange(self.seen[task], self.seen[task] + len(x), device=x.device)
        # The first `size` samples fill it; the n-th then replaces one with probability size/n.
        drawn = (chance.double() * (before + 1)).long()
        slot = torch.where(before < self.size, before, drawn)
        replaced = (slot[:, None] == slot).triu(1).any(1)  # by a later one of the same batch
        slot = slot.masked_fill(replaced, self.size).clamp(max=self.size)
        self._x[task].index_copy_(0, slot, x)
        self._y[task].index_copy_(0, slot, y)
        self.seen[task] += len(x)

    def draw(self, tasks: Sequence[int], count: int, generator: torch.Generator) -> TaskBatches:
        """``count`` stored samples of each task, with replacement."""
        xs, ys = [], []
        for task in tasks:
            held = min(self.seen[task], self.size)
            chosen = torch.randint(held, (count,), generator=generator, device=generator.device)
            xs.append(self._x[task][chosen])
            ys.append(self._y[task][chosen])
        return TaskBatches(torch.cat(xs), torch.cat(ys))

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"x": list(self._x), "y": list(self._y), "seen": list(self.seen)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self._x, self._y, self.seen = (list(state[name]) for name in ("x", "y", "seen"))


class MeasuredDraws:
    """For each task the Gaussian that its latents had when it was left, to draw replay from.

    N(μ_{y,t}, I) is where latents should lie; in few steps a flow puts them near μ, but leaves
    their features correlated, and samples drawn without that lie beside the data, where holding
    the flow in place keeps little. Kept: K D + D² numbers for each task, whatever its samples.

    Args:
        latent: the mixture; its means stand for a class that was never seen.
        generator: for the noise.
    """

    def __init__(self, latent: LatentMixture, generator: torch.Generator) -> None:
        self.latent = latent
        self.generator = generator
        self.gaussians: dict[int, tuple[Tensor, Tensor]] = {}  # by task: means, factor of Σ
        self.current = self._empty()
        self.means = self.factors = latent.means  # of the tasks that are drawn from
        self.tasks: Sequence[int] = ()

    def _empty(self) -> FadingMoments:
        latent = self.latent
        return FadingMoments(latent.num_classes, latent.size, MEASURED_BATCHES, latent.means)

    def settle(self, task: int) -> None:
        """The current task is left: hold its Gaussian, and start anew for the next."""
        prior = self.latent.means[task]
        if self.current.counts.sum() > 0:
            means, factor = self.current.gaussian(MEASURED_SHRINKAGE)
            self.gaussians[task] = torch.where(means.isnan(), prior, means), factor
        elif task not in self.gaussians:  # left before it had a batch
            one = torch.eye(self.latent.size, dtype=prior.dtype, device=prior.device)
            self.gaussians[task] = prior, one
        self.current = self._empty()

    def add_classes(self, count: int) -> None:
        """The mixture has ``count`` more classes, at their prior means until samples come."""
        for task, (means, factor) in self.gaussians.items():
            self.gaussians[task] = torch.cat((means, self.latent.means[task, -count:])), factor
        self.current.add_classes(count)
        self.prepare(self.tasks)

    def add(self, z: Tensor, y: Tensor) -> None:
        """Take in the latents of a batch of the current task."""
        self.current.add(z, y)

    def prepare(self, tasks: Sequence[int]) -> None:
        """Draw from these tasks from now on."""
        self.tasks = tasks
        if tasks:
            self.means = torch.stack([self.gaussians[task][0] for task in tasks])
            self.factors = torch.stack([self.gaussians[task][1] for task in tasks])

    def sample(self, y: Tensor, t: Tensor) -> Tensor:
        """Latents of classes ``y``, as many of each task, task after task as ``t`` says."""
        y = y.unflatten(0, (len(self.means), -1))  # (tasks, samples)
        means = self.means.gather(1, y[:, :, None].expand(-1, -1, self.latent.size))
        noise = torch.randn(
            means.shape, dtype=means.dtype, generator=self.generator, device=means.device
        )
        return torch.baddbmm(means, noise, self.factors.mT).flatten(0, 1)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        current = {name: getattr(self.current, name) for name in ("counts", "sums", "gram")}
        return {"gaussians": {k: list(v) for k, v in self.gaussians.items()}, "current": current}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.gaussians = {k: (means, factor) for k, (means, factor) in state["gaussians"].items()}
        for name, value in state["current"].items():
            getattr(self.current, name).copy_(value)
