"""Every method, the paper's and those beside it, told apart by data: ``MethodSettings``.

=============  ======  ============  ========  ==================================================
method         kind    memory        tasks     objective (to be minimised, −L_ll of the batch …)
=============  ======  ============  ========  ==================================================
``adam``       flow    none          given     alone
``mtl``        flow    all           given     with a batch from every task seen so far
``er``         flow    buffer        given     with a batch from every task's stored samples
``hcl-gr``     flow    generative    given     − L_GR on samples of the snapshot
``hcl-fr``     flow    functional    given     + α L_FR on samples of the snapshot
``hcl-gr-ta``  flow    generative    detected  as hcl-gr, never told the task
``hcl-fr-ta``  flow    functional    detected  as hcl-fr, never told the task
``curl``       vae     generative    given     the VAE's bound, with samples of its snapshot
``ncm``        ncm     none          given     closed form: nearest mean
``slda``       slda    none          given     closed form: streaming LDA
``ranpac``     ranpac  none          given     closed form: random projection, ridge
``hcl-plus``   plus    functional    given     past the paper: ``hcl.learn.plus``
``hcl-plus-ta``  plus  functional    detected  as hcl-plus, never told the task
=============  ======  ============  ========  ==================================================

``hcl-fr-measured`` is ``hcl-fr`` with ``draws: measured``, past the paper.

A learner's tasks are numbered in the order in which it added them. It holds one model and, for GR
and FR, one snapshot, renewed at each change of task: memory does not grow with tasks.

Paper: "the number of replay samples equal to the batch size for each of the previously observed
tasks"; silent on how they are weighed. Here: GR and CURL train on "the mix of real data … and
generated data", as MTL and ER do: one mean over batch and replay, each task weighs the same. L_FR
is a mean over all replay samples, times α. With ``weighing: terms`` L_GR is one, too, as appendix C
writes it (1/J Σ), and all old tasks together weigh as much as the batch: that forgets more.

Paper: silent on a task that comes back. Here: replay is for the other tasks only, because real
samples of this one are at hand; the snapshot is renewed as at any change.

Paper: silent on the optimiser at a change. Here: its state is kept; see ``docs/learning.md``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcl.learn.adam import Adam
from hcl.learn.closed_form import ClosedForm
from hcl.learn.contract import Batch, Evidence, Observation, Prediction, TaskBatch, TaskBatches
from hcl.learn.detection import DetectionSettings, Detector
from hcl.learn.moments import FadingMoments
from hcl.learn.plus import PlusSettings
from hcl.learn.vae import SupervisedCURL, VAESettings
from hcl.model.hybrid import HybridModel, Statistics, check_finite
from hcl.model.latent import LatentMixture
from hcl.model.losses import latent_distance
from hcl.records.runs import NEW, RECURRING, SAME

MEASURED_BATCHES = 100  # over which the moments of latents fade
MEASURED_SHRINKAGE = 1e-2  # of their covariance

Kind = Literal["flow", "vae", "ncm", "slda", "ranpac", "plus"]
MemoryKind = Literal["none", "all", "buffer", "generative", "functional"]


@dataclass(frozen=True)
class MethodChanges:
    """What a method may take differently on one benchmark; ``None`` keeps the method's own."""

    alpha: float | None = None
    buffer_size: int | None = None
    learning_rate: float | None = None
    learning_rate_decay: float | None = None
    weight_decay: float | None = None
    detection: DetectionSettings | None = None
    vae: VAESettings | None = None
    plus: PlusSettings | None = None
    shrinkage: float | None = None
    projections: int | None = None
    ridge: float | None = None


@dataclass(frozen=True)
class MethodSettings:
    """One method, by data.

    Attributes:
        kind: what learns: the paper's flow, CURL's VAE, a closed form, or HCL+.
        memory: what stands for old tasks while a new one is learned.
        tasks: whether the learner is told the task of a batch, or detects changes itself.
        alpha: α, the weight of L_FR.
        draws: latents of replay: ``prior`` draws them from N(μ_{y,t}, I), the paper's; past it,
            ``measured`` takes the means and the covariance that the latents of a task had.
        weighing: of ``generative`` replay: ``samples`` counts each draw as one of the batch,
            ``terms`` all of them together as much as the batch.
        buffer_size: samples stored for each task by ``buffer``.
        learning_rate: instead of the benchmark's.
        learning_rate_decay: d in η/√(1 + d n), n steps into a task; 0 keeps the rate as it is.
            Paper: silent.
        weight_decay: instead of the benchmark's.
        detection: of ``tasks: detected`` with ``kind: flow``.
        vae: of ``kind: vae``.
        plus: of ``kind: plus``.
        shrinkage: ε of ``slda``, relative to the mean variance.
        projections: random features of ``ranpac``.
        ridge: ρ of ``ranpac``, relative to the mean of G's diagonal.
        benchmarks: changes for benchmarks, by name.
    """

    kind: Kind = "flow"
    memory: MemoryKind = "none"
    tasks: Literal["given", "detected"] = "given"
    alpha: float = 1.0
    draws: Literal["prior", "measured"] = "prior"
    weighing: Literal["samples", "terms"] = "samples"
    buffer_size: int = 1000
    learning_rate: float | None = None
    learning_rate_decay: float = 0.0
    weight_decay: float | None = None
    detection: DetectionSettings = field(default_factory=DetectionSettings)
    vae: VAESettings = field(default_factory=VAESettings)
    plus: PlusSettings = field(default_factory=PlusSettings)
    shrinkage: float = 1e-2
    projections: int = 2000
    ridge: float = 1e-2
    benchmarks: dict[str, MethodChanges] = field(default_factory=dict)

    def __post_init__(self) -> None:
        allowed: dict[Kind, tuple[MemoryKind, ...]] = {
            "flow": ("none", "all", "buffer", "generative", "functional"),
            "vae": ("none", "generative"),
            "plus": ("functional",),
        }
        memories = allowed.get(self.kind, ("none",))
        if self.memory not in memories:
            raise ValueError(
                f"memory: {self.memory} does not fit kind {self.kind}; allowed: "
                f"{', '.join(memories)}."
            )
        if self.tasks == "detected" and (self.kind not in ("flow", "plus") or self.memory == "all"):
            raise ValueError(
                "tasks: detected needs kind flow or plus, and a memory other than all; "
                f"found {self.kind} and {self.memory}."
            )
        if self.kind == "plus":
            for key, there in (
                ("detection", "plus.test"),
                ("projections", "plus.projections"),
                ("shrinkage", "plus.shrinkage"),
                ("ridge", "plus.ridge"),
            ):
                if getattr(self, key) != getattr(MethodSettings(), key):
                    raise ValueError(f"{key}: is not used by kind plus; set {there}.")
        replays = self.kind == "flow" and self.memory in ("generative", "functional")
        if self.draws == "measured" and not replays:
            raise ValueError(
                "draws: measured needs kind flow and memory generative or functional; found "
                f"{self.kind} and {self.memory}."
            )
        if self.weighing == "terms" and self.memory != "generative":
            raise ValueError(f"weighing: terms needs memory generative; found {self.memory}.")
        decay = self.learning_rate_decay
        if not 0 <= decay < math.inf:
            raise ValueError(f"learning_rate_decay: is {decay:g}; expected 0 or more.")
        if decay > 0 and self.kind != "flow":
            raise ValueError(f"learning_rate_decay: needs kind flow; found {self.kind}.")
        if not self.alpha >= 0:
            raise ValueError(f"alpha: is {self.alpha}; expected 0 or more.")
        if self.buffer_size < 1:
            raise ValueError(f"buffer_size: is {self.buffer_size}; expected 1 or more.")
        if self.projections < 1:
            raise ValueError(f"projections: is {self.projections}; expected 1 or more.")
        if not 0 <= self.shrinkage <= 1:
            raise ValueError(f"shrinkage: is {self.shrinkage}; expected from 0 to 1.")
        if not self.ridge > 0:
            raise ValueError(f"ridge: is {self.ridge}; expected a number above 0.")

    @property
    def is_closed_form(self) -> bool:
        """Whether the method is one of the three that learn by sums alone, told their tasks."""
        return self.kind in ("ncm", "slda", "ranpac")

    @property
    def sees_once(self) -> bool:
        """Whether each sample is shown once, however many epochs the stream has.

        Sums over a second pass would be the same sums again. A learner that has to notice changes
        of task is shown the stream as it is.
        """
        sums_alone = self.kind == "plus" and self.plus.flow == "never" and self.tasks == "given"
        return self.is_closed_form or sums_alone

    def for_benchmark(self, name: str) -> MethodSettings:
        """The settings with the changes for this benchmark made, and nothing of the others."""
        changes = dataclasses.asdict(self.benchmarks[name]) if name in self.benchmarks else {}
        chosen = {
            key: getattr(self.benchmarks[name], key)
            for key, value in changes.items()
            if value is not None
        }
        return dataclasses.replace(self, **chosen, benchmarks={})


class Learner(Protocol):
    """What the training loop asks of a method."""

    task: int  # the current one, −1 before the first

    @property
    def num_tasks(self) -> int:
        """Tasks that the learner knows."""

    def observe(self, batch: Batch | TaskBatch) -> Observation:
        """Learn from one batch."""

    def predict(self, x: Tensor) -> Prediction:
        """Classify samples, without being told their task."""

    def state(self) -> dict[str, Any]:
        """All that a checkpoint must hold to continue as if never stopped."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""


class Replay(NamedTuple):
    """Samples that stand for old tasks in one step."""

    x: Tensor
    y: Tensor
    t: Tensor
    z: Tensor | None = None  # the latents that the snapshot drew x from


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
            self.gaussians[task] = prior, torch.eye(self.latent.size).to(prior)
        self.current = self._empty()

    def prepare(self, tasks: Sequence[int]) -> None:
        """Draw from these tasks from now on."""
        if tasks:
            self.means = torch.stack([self.gaussians[task][0] for task in tasks])
            self.factors = torch.stack([self.gaussians[task][1] for task in tasks])

    def sample(self, y: Tensor) -> Tensor:
        """Latents of classes ``y``, as many of each task, task after task."""
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


class Archive(Protocol):
    """All tasks' training samples, for MTL, which may look at them again."""

    def draw(self, tasks: Sequence[int], count: int, generator: torch.Generator) -> TaskBatches:
        """``count`` samples of each task."""


class Buffers:
    """ER's stored samples: for each task a reservoir, each sample shown so far equally likely."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.x: list[Tensor] = []
        self.y: list[Tensor] = []
        self.seen: list[int] = []

    def remember(self, task: int, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Offer a batch of ``task`` to its reservoir."""
        while len(self.seen) <= task:
            self.x.append(x.new_empty(self.size, *x.shape[1:]))
            self.y.append(y.new_empty(self.size))
            self.seen.append(0)
        chance = torch.rand(len(x), generator=generator, device=generator.device).tolist()
        for index, value in enumerate(chance):
            # The first `size` samples fill it; the n-th then replaces one with probability size/n.
            seen = self.seen[task]
            slot = seen if seen < self.size else int(value * (seen + 1))
            if slot < self.size:
                self.x[task][slot] = x[index]
                self.y[task][slot] = y[index]
            self.seen[task] = seen + 1

    def draw(self, tasks: Sequence[int], count: int, generator: torch.Generator) -> TaskBatches:
        """``count`` stored samples of each task, with replacement."""
        xs, ys = [], []
        for task in tasks:
            held = min(self.seen[task], self.size)
            chosen = torch.randint(held, (count,), generator=generator, device=generator.device)
            xs.append(self.x[task][chosen])
            ys.append(self.y[task][chosen])
        return TaskBatches(torch.cat(xs), torch.cat(ys))


def falling_rate(learning_rate: float, step: int, decay: float) -> float:
    """η_n = η / √(1 + d n): the rate n steps into a task, from η down, anew for each task.

    No number of steps is needed in advance, which a learner that is told nothing does not know.
    """
    return learning_rate / math.sqrt(1 + decay * step)


class FlowLearner:
    """The hybrid model with one of five memories, told its tasks or detecting them.

    Args:
        model: without tasks yet.
        settings: the method.
        batch_size: replay samples for each old task.
        learning_rate: of Adam.
        weight_decay: of Adam (L2).
        generator: for the means of new tasks, replay and buffers.
        archive: of ``memory: all``.
    """

    def __init__(
        self,
        model: HybridModel,
        settings: MethodSettings,
        *,
        batch_size: int,
        learning_rate: float,
        weight_decay: float,
        generator: torch.Generator,
        archive: Archive | None = None,
    ) -> None:
        self.model = model
        self.settings = settings
        self.batch_size = batch_size
        self.generator = generator
        self.archive = archive
        self.task = -1  # the current task
        self.given: list[int] = []  # given[t]: the number under which task t was given
        self.detector = Detector(settings.detection) if settings.tasks == "detected" else None
        self.buffers = Buffers(settings.buffer_size) if settings.memory == "buffer" else None
        self.snapshot: HybridModel | None = None
        self.draws: MeasuredDraws | None = None
        if settings.draws == "measured":
            self.draws = MeasuredDraws(model.latent, generator)
        self.learning_rate = learning_rate
        self.steps = 0  # since the current task was begun, or came back
        self.optimiser = Adam(model.parameters(), learning_rate, weight_decay)
        self._old = torch.empty(0, dtype=torch.int64)  # tasks other than the current, each repeated

    @property
    def num_tasks(self) -> int:
        """Tasks that the learner knows."""
        return self.model.latent.num_tasks

    def observe(self, batch: Batch | TaskBatch, watch: bool = True) -> Observation:
        """One step of Adam on the batch and what stands for old tasks; first, whose batch it is.

        Without ``watch``, a learner that detects its tasks takes the batch for its current one.
        """
        x, y = batch.x, batch.y
        if isinstance(batch, TaskBatch):
            if self.detector is not None:
                raise TypeError("a learner that detects its tasks must not be handed them")
            if self.task < 0 or self.given[self.task] != batch.task:
                self._change_to(self.given.index(batch.task) if batch.task in self.given else None)
                if self.num_tasks > len(self.given):
                    self.given.append(batch.task)
        elif self.detector is None:
            raise TypeError("a learner that is told its tasks needs a TaskBatch")
        elif self.task < 0:
            self._change_to(None)
        loss, statistics, z = self._objective(x, y)
        evidence = None
        if self.detector is not None:
            if watch:
                evidence = self._judge(y, statistics, z)
            if evidence is not None and evidence.verdict != SAME:
                loss, statistics, _ = self._objective(x, y)
            self.detector.record(self.task, self._sums(statistics), len(x))
        if self.draws is not None:
            self.draws.current.add(z, y)
        if self.buffers is not None:
            self.buffers.remember(self.task, x, y, self.generator)
        if loss.device.type == "cpu":  # on a GPU, looking at it would stop the queue: the loop does
            check_finite(loss, self.model, x)
        self.optimiser.zero_grad()
        loss.backward()
        decay = self.settings.learning_rate_decay
        self.optimiser.learning_rate = falling_rate(self.learning_rate, self.steps, decay)
        self.optimiser.step()
        self.steps += 1
        return Observation(loss.detach(), evidence)

    def _objective(self, x: Tensor, y: Tensor) -> tuple[Tensor, Statistics, Tensor]:
        """The method's loss; S1, S2, S3 of the batch for the current task; and its latents.

        Batch and replay pass the flow together: one product a layer instead of two.
        """
        n = len(x)
        replay = self._draw_replay()
        z, log_det = self.model.flow(x if replay is None else torch.cat((x, replay.x)))
        latent = self.model.latent
        log_pz = latent.log_prob(z[:n], y, self.task)
        statistics = Statistics(log_pz + log_det[:n], log_pz, log_det[:n])
        log_px = statistics.log_px  # L_ll is its mean
        if replay is None:
            loss = -log_px.mean()
        elif replay.z is not None and self.settings.memory == "functional":
            loss = -log_px.mean() + self.settings.alpha * latent_distance(z[n:], replay.z)
        else:
            replay_log_px = latent.log_prob(z[n:], replay.y, replay.t) + log_det[n:]
            loss = weighed(-log_px, -replay_log_px, self.settings.weighing)
        return loss, statistics, z[:n].detach()

    def _draw_replay(self) -> Replay | None:
        """A batch's worth of samples for each task other than the current one."""
        if self.settings.memory == "none" or not len(self._old):
            return None
        t = self._old
        if self.snapshot is not None:  # y uniform over classes
            y = torch.randint(
                self.model.latent.num_classes, t.shape, generator=self.generator, device=t.device
            )
            if self.draws is None:
                x, z = self.snapshot.sample(y, t, self.generator)
            else:
                z = self.draws.sample(y)
                x = self._seen_by_snapshot(z)
            return Replay(x, y, t, z)
        old = [task for task in range(self.num_tasks) if task != self.task]
        if self.buffers is not None:
            drawn = self.buffers.draw(old, self.batch_size, self.generator)
        else:
            assert self.archive is not None
            numbers = [self.given[task] for task in old]
            drawn = self.archive.draw(numbers, self.batch_size, self.generator)
        return Replay(drawn.x, drawn.y, t)

    @torch.no_grad()
    def _seen_by_snapshot(self, z: Tensor) -> Tensor:
        assert self.snapshot is not None
        return self.snapshot.flow.inverse(z)[0]

    def _judge(self, y: Tensor, statistics: Statistics, z: Tensor) -> Evidence:
        """The verdict on a batch (Section 4.2), from statistics taken before it is learned."""
        assert self.detector is not None
        n = len(y)
        sums = self._sums(statistics)
        mean, std = self.detector.typical_set(self.task, n)
        verdict = SAME
        if self.detector.has_left(self.task, sums, n):
            back = self.detector.came_back(self._sums_for_all(y, statistics, z), n, self.task)
            verdict = NEW if back is None else RECURRING
            self._change_to(back)
        scale = self.batch_size / n
        return Evidence(scale * sums, scale * mean, scale * std, verdict)

    def _sums_for_all(self, y: Tensor, statistics: Statistics, z: Tensor) -> NDArray[np.float64]:
        """S1, S2, S3 of the batch for each task, (T, 3)."""
        log_det = statistics.log_det
        rows = []
        for task in range(self.num_tasks):
            log_pz = self.model.latent.log_prob(z, y, task)
            rows.append(self._sums(Statistics(log_pz + log_det, log_pz, log_det)))
        return np.stack(rows)

    def _sums(self, statistics: Statistics) -> NDArray[np.float64]:
        """S1, S2, S3: sums over the batch, in double precision.

        Where samples are trimmed, the mean of the others stands for them.
        """
        n, trim = len(statistics.log_px), self.settings.detection.trim
        values = [s.detach().double() for s in statistics]
        if 0 < trim < n / 2:
            values = [v.sort().values[trim : n - trim] * (n / (n - 2 * trim)) for v in values]
        return torch.stack([v.sum() for v in values]).cpu().numpy()

    def _change_to(self, task: int | None) -> None:
        """Go to an earlier task, or (``None``) add one; the snapshot is what was learned so far."""
        if self.draws is not None and self.task >= 0:
            self.draws.settle(self.task)
        if self.settings.memory in ("generative", "functional") and self.num_tasks > 0:
            if self.snapshot is None:
                self.snapshot = self.model.snapshot()
            else:
                self.snapshot.copy_from(self.model)
        if task is None:
            task = self.model.add_task(self.generator)
            if self.detector is not None:
                self.detector.add_task()
        self.task = task
        self.steps = 0
        self._list_old()

    def _list_old(self) -> None:
        old = [task for task in range(self.num_tasks) if task != self.task]
        if self.draws is not None:
            self.draws.prepare(old)
        device = self.model.latent.means.device
        self._old = torch.tensor(old, dtype=torch.int64, device=device).repeat_interleave(
            self.batch_size
        )

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        """Bayes' rule: the class marginalised over tasks, and the likeliest pair."""
        predicted, pair_class, pair_task = self.model.classify_both(x)
        return Prediction(*(_int16(v) for v in (predicted, pair_task, pair_class)))

    def state(self) -> dict[str, Any]:
        """Model, snapshot, optimiser, generator, buffers and windows."""
        state: dict[str, Any] = {
            "task": self.task,
            "steps": self.steps,
            "given": list(self.given),
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
        }
        if self.snapshot is not None:
            state["snapshot"] = self.snapshot.state_dict()
        if self.buffers is not None:
            state["buffers"] = {n: list(getattr(self.buffers, n)) for n in ("x", "y", "seen")}
        if self.draws is not None:
            state["draws"] = self.draws.state()
        if self.detector is not None:
            state["windows"] = {
                name: torch.from_numpy(value) for name, value in self.detector.state().items()
            }
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.task = state["task"]
        self.steps = state["steps"]
        self.given = list(state["given"])
        _restore_model(self.model, state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.generator.set_state(state["generator"].cpu())
        if "snapshot" in state:
            self.snapshot = self.model.snapshot()
            _restore_model(self.snapshot, state["snapshot"])
        if self.buffers is not None:
            for name, value in state["buffers"].items():
                setattr(self.buffers, name, list(value))
        if self.draws is not None:
            self.draws.restore(state["draws"])
        if self.detector is not None:
            self.detector.restore({n: v.cpu().numpy() for n, v in state["windows"].items()})
        self._list_old()


def weighed(batch: Tensor, replay: Tensor, weighing: Literal["samples", "terms"]) -> Tensor:
    """One loss from those of a batch's samples and of replay's."""
    if weighing == "terms":
        return batch.mean() + replay.mean()
    return torch.cat((batch, replay)).mean()


class VAELearner:
    """Supervised CURL with generative replay, told when the task changes; it names no task."""

    num_tasks: int = 0

    def __init__(
        self,
        model: SupervisedCURL,
        settings: MethodSettings,
        *,
        batch_size: int,
        learning_rate: float,
        weight_decay: float,
        generator: torch.Generator,
    ) -> None:
        self.model = model
        self.settings = settings
        self.batch_size = batch_size
        self.generator = generator
        self.task = -1
        self.seen: list[int] = []  # the numbers of the tasks given so far
        self.snapshot: SupervisedCURL | None = None
        self.optimiser = Adam(model.parameters(), learning_rate, weight_decay)

    def observe(self, batch: Batch | TaskBatch) -> Observation:
        """One step of Adam on the batch and, after the first task, the snapshot's samples."""
        assert isinstance(batch, TaskBatch)
        if batch.task != self.task:
            if self.settings.memory == "generative" and self.seen:
                self.snapshot = self.model.snapshot()
            self.task = batch.task
            if batch.task not in self.seen:
                self.seen.append(batch.task)
        losses = self.model.loss(batch.x, batch.y, self.generator)
        loss = losses.mean()
        if self.snapshot is not None and len(self.seen) > 1:
            count = self.batch_size * (len(self.seen) - 1)
            device = batch.y.device
            y = torch.randint(
                self.model.num_classes, (count,), generator=self.generator, device=device
            )
            x = self.snapshot.sample(y, self.generator)
            replayed = self.model.loss(x, y, self.generator)
            loss = weighed(losses, replayed, self.settings.weighing)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return Observation(loss.detach())

    def predict(self, x: Tensor) -> Prediction:
        """argmax_y q(y | x); the task is undefined."""
        predicted = _int16(self.model.classify(x))
        return Prediction(predicted, np.full_like(predicted, -1), predicted)

    def state(self) -> dict[str, Any]:
        """Model, snapshot, optimiser and generator."""
        state: dict[str, Any] = {
            "task": self.task,
            "seen": list(self.seen),
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
        }
        if self.snapshot is not None:
            state["snapshot"] = self.snapshot.state_dict()
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.task = state["task"]
        self.seen = list(state["seen"])
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.generator.set_state(state["generator"].cpu())
        if "snapshot" in state:
            self.snapshot = self.model.snapshot()
            self.snapshot.load_state_dict(state["snapshot"])


class ClosedFormLearner:
    """A closed form over (class, task) pairs: each pair is one of its classes."""

    def __init__(self, form: ClosedForm, num_classes: int) -> None:
        self.form = form
        self.num_classes = num_classes
        self.task = -1
        self.given: list[int] = []

    @property
    def num_tasks(self) -> int:
        """Tasks that the learner knows."""
        return len(self.given)

    def observe(self, batch: Batch | TaskBatch) -> Observation:
        """Add the batch to the sums."""
        assert isinstance(batch, TaskBatch)
        if batch.task not in self.given:
            self.given.append(batch.task)
        self.task = self.given.index(batch.task)
        self.form.observe(batch.x.numpy(), self.task * self.num_classes + batch.y.numpy())
        return Observation()

    def predict(self, x: Tensor) -> Prediction:
        """The pair with the highest score, as class and task."""
        pair = self.form.scores(x.numpy()).argmax(1)
        of_class, task = (pair % self.num_classes), (pair // self.num_classes)
        return Prediction(*(v.astype(np.int16) for v in (of_class, task, of_class)))

    def state(self) -> dict[str, Any]:
        """The sums."""
        sums = {name: torch.from_numpy(value) for name, value in self.form.state().items()}
        return {"task": self.task, "given": list(self.given), "form": sums}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.task = state["task"]
        self.given = list(state["given"])
        self.form.restore({name: value.numpy() for name, value in state["form"].items()})


def _restore_model(model: HybridModel, state: dict[str, Tensor]) -> None:
    """Weights, and the means of as many tasks as there were."""
    model.latent.means = torch.empty_like(state["latent.means"], device=model.latent.means.device)
    model.load_state_dict(state)


def _int16(values: Tensor) -> NDArray[np.int16]:
    return values.cpu().numpy().astype(np.int16)
