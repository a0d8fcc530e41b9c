"""HCL+: measured moments in place of a flow's, told its tasks or finding them.

Beyond the paper, each with a parameter:

* **Measured moments.** The paper draws μ_{y,t} at random and bends the flow until each class lies
  there, in a Gaussian of unit covariance. Here the mean of each (class, task) pair and one
  covariance Σ within all of them are streamed as the data comes (``hcl.learn.moments``).
* **Tukey's transform** of the embeddings (``power``), and **a lift** (``projections``, ``lift``):
  sums of φ(z) = (z, h(z)) give a boundary that is not linear in z (``hcl.learn.plus.lift``).
* **The rule** (``rule``): ridge regression of the pairs' indicators on φ, or Bayes' rule with
  N(φ; m_c, Σ), which without the lift and the transform is LDA. Both come from the same sums.
* **The flow** (``flow``) is the identity by default, z = scaled x, because learning it has not paid
  so far. It can learn by −L_ll under N(f(x); m_y, Σ) in the first task, or in all tasks with L_FR
  on samples that a snapshot draws from the measured Gaussians.
* **The calibrated detector** (``hcl.detect``), in place of one batch at λ = 5.
* **Samples without a label** (``hcl.learn.plus.sharing``) and **mixed batches**
  (``hcl.learn.plus.whose``).

Kept: G of φ(z), (D + M)² numbers, whatever the number of tasks, and of long streams once more in
double precision; the lift's R or landmarks; one sum of D + M numbers for each pair, and of the
measured Gaussians up to 2 r D; and, where the flow learns, the flow and one snapshot. Of samples,
at most the last 512, until they are taken in, the batches that wait for the detector's verdict, up
to 1,024 without a label that wait for their share, and of the last million 8 bytes each, by which
one that comes again is known.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from hcl.detect.detector import Detector
from hcl.errors import HCLError
from hcl.learn.adam import Adam
from hcl.learn.contract import (
    Batch,
    Evidence,
    Observation,
    Prediction,
    Start,
    TaskBatch,
    as_int16,
    shares,
)
from hcl.learn.fitting import FITTING_SAMPLES, check_labels, fitted_model, tukey
from hcl.learn.moments import Inverse, LinearScores, Moments
from hcl.learn.plus.lift import KernelLift, Lift, RandomLift, landmarks, random_weights
from hcl.learn.plus.measured import Measured, Rule
from hcl.learn.plus.settings import (
    GaussianRule,
    GaussiansRule,
    LearnsAll,
    PlusMethod,
    RidgeRule,
)
from hcl.learn.plus.sharing import Sharing
from hcl.learn.plus.whose import Whose
from hcl.model.flows import Flow
from hcl.model.hybrid import HybridModel, check_finite
from hcl.model.losses import functional_loss
from hcl.model.settings import FlowSettings
from hcl.records.runs import SAME
from hcl.settings import check_memory

IDENTITY = FlowSettings(couplings=1, hidden_layers=1, hidden=1)  # the smallest is quickest


def build(method: PlusMethod, start: Start) -> PlusLearner:
    """The learner of a method, with its inputs' scaling fitted on the first task."""
    flow = IDENTITY
    if method.flow is not None:  # it begins as the identity, too: moments are of embeddings
        flow = dataclasses.replace(start.flow, spread=0.0)
    first = tukey(start.first(FITTING_SAMPLES), method.power)
    model = fitted_model(dataclasses.replace(start, flow=flow), first)
    rates = start.rates(None, None)
    if method.flow is not None:
        rates = start.rates(method.flow.learning_rate, method.flow.weight_decay)
    check_labels(start, method.unlabelled, method.detection)
    if start.partly_labelled and method.unlabelled and method.belongs == "sample":
        raise HCLError(
            f"belongs: is sample, and unlabelled {method.unlabelled:g}: whose a sample is, is "
            "inferred with its label, which not all samples of the stream have. Take unlabelled: 0."
        )
    learner = PlusLearner(
        model,
        method,
        generator=start.generator("draws"),
        partly_labelled=start.partly_labelled,
        own_classes=start.only_seen,
        learning_rate=rates["learning_rate"],
        weight_decay=rates["weight_decay"],
    )
    learner.fit_lift(first.to(start.device))
    return learner


def as_gaussians(rule: GaussiansRule | RidgeRule | GaussianRule) -> GaussiansRule:
    """Settings of the densities of a rule: one covariance for all where it has no Gaussians."""
    if isinstance(rule, GaussiansRule):
        return rule
    shrinkage = rule.shrinkage if isinstance(rule, GaussianRule) else 1e-2
    return GaussiansRule(rank=0, shrinkage=shrinkage, temperature=1.0, regression=0.0)


class PlusLearner:
    """The flow with streamed moments, told its tasks or detecting them.

    Args:
        model: its flow is used; its latent mixture stays without tasks.
        settings: the parts.
        learning_rate: of Adam.
        weight_decay: of Adam (L2).
        generator: for the lift and replay.
        partly_labelled: whether labels may be missing.
        own_classes: whether tasks bring classes of their own; for the detector.
    """

    def __init__(
        self,
        model: HybridModel,
        settings: PlusMethod,
        *,
        learning_rate: float,
        weight_decay: float,
        generator: torch.Generator,
        partly_labelled: bool = False,
        own_classes: bool = False,
    ) -> None:
        self.model = model
        self.flow = model.flow
        self.settings = settings
        self.generator = generator
        self.num_classes = model.latent.num_classes
        self.task = -1
        self.given: list[int] = []
        self.num_tasks = 0
        size, device = self.flow.size, generator.device
        # The lift, the features' sums of squares, a copy to solve and an inverse: in float32.
        needed = 4 * settings.projections * (3 * settings.projections + size)
        check_memory(needed, f"{settings.projections:,} random features", "projections")
        shape = (size, settings.projections)
        if settings.lift == "kernel":
            self.lift = self._lift_of(torch.zeros(shape, device=device))  # until ``fit_lift``
        else:
            self.lift = self._lift_of(random_weights(*shape, generator))
        self.moments = Moments(size + settings.projections, device)
        self.optimiser = Adam(self.flow.parameters(), learning_rate, weight_decay)
        self.snapshot: HybridModel | None = None
        self.detector: Detector | None = None
        if settings.detection is not None:
            self.detector = Detector(
                settings.detection, self.num_classes, (size,), device, own_classes
            )
        self.measured = Measured(as_gaussians(settings.rule), size, device)
        self._rule: Rule | LinearScores | None = None  # solved when asked for
        self._gaussians: Rule | None = None
        self.replay_factor: Tensor | None = None
        self.metric = Inverse()  # Σ⁻¹ of L_ll
        self.sharing: Sharing | None = None
        if partly_labelled and settings.unlabelled:
            self.sharing = Sharing(settings.unlabelled, size, self.moments.gram)
        self.whose = Whose() if settings.belongs == "sample" else None

    # Whose batch is it?

    def observe(self, batch: Batch | TaskBatch, watch: bool = True) -> Observation:
        """Learn from a batch, at once or, under suspicion, when there is a verdict.

        Without ``watch``, a learner that detects its tasks takes the batch for its current one; the
        detector does not see it (``introduce`` shows it).
        """
        if isinstance(batch, TaskBatch):
            if self.detector is not None:
                raise TypeError("a learner that detects its tasks must not be handed them")
            if batch.task not in self.given:
                self.given.append(batch.task)
            self._change_to(self.given.index(batch.task))
            if self.sharing is not None:
                return Observation(self._learn_all(batch, self.sharing))
            return Observation(self._learn(batch.x, batch.y))
        if self.detector is None:
            raise TypeError("a learner that is told its tasks needs a TaskBatch")
        if self.task < 0:
            self._change_to(0)
        if not watch:
            return Observation(self._learn(batch.x, batch.y))
        verdict = self.detector.judge(batch.x, batch.y)
        for x, y in verdict.earlier:
            self._learn(x, y)
        if verdict.verdict != SAME:
            self._change_to(verdict.task)
        loss = None
        for x, y in verdict.released:
            loss = self._learn(x, y)
        return Observation(loss, Evidence(verdict.statistics, verdict.verdict))

    def introduce(self, batch: Batch) -> None:
        """Let the detector know a batch that is of the current task, without a verdict."""
        assert self.detector is not None
        self.detector.learn(batch.x, batch.y)

    def _change_to(self, task: int) -> None:
        """Go to another task; the snapshot is what was learned so far."""
        if task == self.task:
            return
        self.measured.end_task(self.moments)
        if self.sharing is not None and self.task >= 0:
            self._share_out(self.sharing)
            self.sharing.end_task()
        learns = self.settings.flow
        if self.task >= 0 and isinstance(learns, LearnsAll):
            if self.snapshot is None:
                self.snapshot = self.model.snapshot()
            else:
                self.snapshot.copy_from(self.model)
            covariance = self.moments.covariance(learns.shrinkage, self.flow.size)
            self.replay_factor = torch.linalg.cholesky(covariance).float()
        if task == self.num_tasks:
            self.num_tasks += 1
            self.moments.add_classes(self.num_classes)
            self.measured.add_classes(self.num_classes)
            self._rule = self._gaussians = None
        self.task = task

    def add_classes(self, count: int) -> None:
        """``count`` more classes may come from now on, in every task."""
        if self.num_tasks:
            self.moments.widen(self.num_tasks, count)
            self.measured.widen(self.num_tasks, count)
        self.num_classes += count
        if self.detector is not None:
            self.detector.add_classes(count)
        self._rule = self._gaussians = None

    # Learning from it.

    def _learn_all(self, batch: TaskBatch, sharing: Sharing) -> Tensor | None:
        """Learn from the samples with a label; those without one wait for their share."""
        labelled = batch.labelled()
        loss = self._learn(labelled.x, labelled.y) if len(labelled.y) else None
        with torch.no_grad():
            z, _ = self.flow(tukey(batch.x, self.settings.power))
        sharing.add(self.lifted(z), batch.y)
        if sharing.is_full:
            self._share_out(sharing)
        self._rule = self._gaussians = None
        return loss

    def _share_out(self, sharing: Sharing) -> None:
        """Between the classes of the current task."""
        sharing.settle(self.moments, self._within())
        self._rule = self._gaussians = None

    def _within(self) -> slice:
        """The pairs of the current task."""
        return slice(self.task * self.num_classes, (self.task + 1) * self.num_classes)

    def _shown(self) -> Moments:
        """The moments to answer by: what waits for its share is in them."""
        if self.sharing is None or not len(self.sharing.waiting):
            return self.moments
        moments = self.moments.copy()
        self.sharing.into(moments, self._within())
        return moments

    def _learn(self, x: Tensor, y: Tensor) -> Tensor | None:
        """A step of the flow, where it learns at this time, and the moments of the latents."""
        loss = None
        x = tukey(x, self.settings.power)
        if self.whose is not None:
            own = self._own(x, y, self.whose)
            x, y = x[own], y[own]
            if not len(y):
                return None
        if self._flow_learns():
            loss, z = self.objective(x, y)
            check_finite(loss, self.model, x)
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
            loss = loss.detach()
        else:
            with torch.no_grad():
                z, _ = self.flow(x)
        lifted, pairs = self.lifted(z), self.task * self.num_classes + y
        self.moments.add(lifted, pairs)
        if isinstance(self.settings.rule, GaussiansRule):
            self.measured.add(lifted, pairs, self.moments)
        self._rule = self._gaussians = None
        return loss

    @torch.no_grad()
    def _own(self, x: Tensor, y: Tensor, whose: Whose) -> Tensor:
        """Which samples of a mixed batch are of the current task."""
        z, _ = self.flow(x)
        return whose.own(z, y, self.moments, self.num_classes, self.task)

    def _flow_learns(self) -> bool:
        """Not before Σ, which stands in its loss, is known from 2 D samples."""
        learns = self.settings.flow
        now = isinstance(learns, LearnsAll) or (learns is not None and self.num_tasks == 1)
        return now and self.moments.samples >= 2 * self.flow.size

    def objective(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """−L_ll + α L_FR with the means as they are measured, and the batch's latents."""
        n = len(x)
        drawn = self.draw_replay()
        z, log_det = self.flow(x if drawn is None else torch.cat((x, drawn[0])))
        gap = z[:n] - self._means_with(z[:n].detach(), y)
        learns = self.settings.flow
        assert learns is not None
        inverse = self.metric.of(self.moments, learns.shrinkage, self.flow.size)
        loss = (0.5 * (gap @ inverse * gap).sum(1) - log_det[:n]).mean()
        if drawn is not None and isinstance(learns, LearnsAll):
            loss = loss + learns.alpha * functional_loss(z[n:], drawn[1])
        return loss, z[:n].detach()

    def _means_with(self, z: Tensor, y: Tensor) -> Tensor:
        """μ_{y,t} of each sample (n, D), over the latents of its class so far and in this batch."""
        first = self.task * self.num_classes
        counts = self.moments.counts[first : first + self.num_classes].clone()
        sums = self.moments.sums[first : first + self.num_classes, : self.flow.size].clone()
        counts.index_add_(0, y, torch.ones_like(y, dtype=counts.dtype))
        sums.index_add_(0, y, z.double())
        return (sums / counts.clamp(min=1)[:, None]).to(z)[y]

    @torch.no_grad()
    def draw_replay(self) -> tuple[Tensor, Tensor] | None:
        """Samples of the snapshot, other tasks' classes equally likely, and their latents."""
        learns = self.settings.flow
        if self.snapshot is None or self.num_tasks < 2 or not isinstance(learns, LearnsAll):
            return None
        assert self.replay_factor is not None
        device = self.generator.device
        count = (learns.replay,)
        task = torch.randint(self.num_tasks - 1, count, generator=self.generator, device=device)
        task += (task >= self.task).long()
        y = torch.randint(self.num_classes, count, generator=self.generator, device=device)
        noise = torch.randn(*count, self.flow.size, generator=self.generator, device=device)
        means = self.moments.means(self.flow.size)[task * self.num_classes + y].float()
        z = torch.addmm(means, noise, self.replay_factor.T)
        return self.snapshot.flow.inverse(z)[0], z

    @torch.no_grad()
    def fit_lift(self, first: Tensor) -> None:
        """Draw the landmarks of a kernel's lift, before anything is learned.

        Args:
            first: samples after Tukey's transform, by whose moments they are drawn.
        """
        if self.settings.lift == "kernel":
            z, _ = self.flow(first)
            self.lift = self._lift_of(landmarks(z, self.settings.projections, self.generator))

    def _lift_of(self, weights: Tensor) -> Lift:
        return KernelLift(weights) if self.settings.lift == "kernel" else RandomLift(weights)

    def lifted(self, z: Tensor) -> Tensor:
        """φ(z): z, and its lift beside it."""
        if not self.settings.projections:
            return z
        return torch.cat((z, self.lift(z)), dim=1)

    @torch.no_grad()
    def scores(self, x: Tensor, flow: Flow | None = None) -> Tensor:
        """A score of every task and class, (n, T, K): the rule's; −∞ where no sample was seen.

        ``flow`` replaces the learner's own: a copy of it in double precision, for instance.
        """
        if self._rule is None:
            rule = self.settings.rule
            if isinstance(rule, GaussiansRule):
                self._rule = self.gaussians()
            elif isinstance(rule, GaussianRule):
                self._rule = self._shown().gaussian_scores(rule.shrinkage)
            else:
                self._rule = self._shown().ridge_scores(rule.penalty)
        z, _ = (flow or self.flow)(tukey(x, self.settings.power))
        return self._rule(self.lifted(z)).unflatten(1, (self.num_tasks, self.num_classes))

    def gaussians(self) -> Rule:
        """The measured Gaussians, solved; of any rule, one covariance for all where it has one."""
        if self._gaussians is None:
            self._gaussians = self.measured.rule(self._shown())
        return self._gaussians

    @torch.no_grad()
    def log_density(self, x: Tensor, flow: Flow | None = None) -> Tensor:
        """log p of Tukey's transform of x, (n,): every pair that was seen is as likely.

        Not of x itself: the transform's slope is infinite at 0, where many activations are.
        """
        z, log_det = (flow or self.flow)(tukey(x, self.settings.power))
        return self.gaussians().log_density(z) + log_det

    @torch.no_grad()
    def sample(self, pairs: Tensor, generator: torch.Generator) -> Tensor:
        """x of N(m_c, Σ_c), one for each of ``pairs`` (n,): task · K + class."""
        x, _ = self.flow.inverse(self.gaussians().sample(pairs, generator))
        return tukey(x, 1 / self.settings.power)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """``count`` samples of each class of each task, (T, K, count, …); NaN of one not seen."""
        pairs = torch.arange(len(self.moments.counts), device=generator.device)
        x = self.sample(pairs.repeat_interleave(count), generator).unflatten(0, (-1, count))
        x[self.moments.counts == 0] = torch.nan
        return x.unflatten(0, (self.num_tasks, self.num_classes))

    def class_scores(self, scores: Tensor) -> Tensor:
        """From the scores of pairs (n, T, K) to those of classes (n, K).

        Bayes' rule sums likelihoods over tasks. Scores of a regression are no log-likelihoods to
        be summed: there a class has the score of its best pair.
        """
        return scores.amax(1) if self.settings.rule.kind == "ridge" else scores.logsumexp(1)

    def posterior(self, x: Tensor) -> Tensor:
        """log p(y, t | x), (n, T, K): by Bayes' rule, or of a regression its scores as shares.

        A regression of indicators estimates p(y, t | x) itself, but not within 0 and 1: what is
        below 0 counts as 0, and the rest is made to sum to 1.
        """
        scores = self.scores(x).double()
        if self.settings.rule.kind != "ridge":
            return scores.flatten(1).log_softmax(1).view_as(scores)
        return shares(scores.flatten(1)).log().view_as(scores)

    def predict(self, x: Tensor) -> Prediction:
        """The class, over all tasks, and the best pair of class and task."""
        scores = self.scores(x)
        pair = scores.flatten(1).argmax(1)
        of_class = self.class_scores(scores)
        found = as_int16(of_class.argmax(1), pair // self.num_classes, pair % self.num_classes)
        if self.settings.rule.kind == "ridge":  # no probabilities
            return found
        confidence = of_class.softmax(1).amax(1).float().cpu().numpy()
        return found._replace(confidence=confidence)

    def state(self) -> dict[str, Any]:
        """Flow, snapshot, optimiser, generator, moments and the detector."""
        state: dict[str, Any] = {
            "task": self.task,
            "given": list(self.given),
            "num_tasks": self.num_tasks,
            "model": self.model.state_dict(),
            "lift": self.lift.weights,
            "moments": self.moments.state(),
            "measured": self.measured.state(),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
            "inverse": self.metric.state(),
        }
        if self.sharing is not None:
            state["sharing"] = {**self.sharing.state(), "samples": self.moments.samples}
        if self.whose is not None:
            state["whose"] = self.whose.state()
        if self.snapshot is not None:
            state["snapshot"] = self.snapshot.state_dict()
            state["replay_factor"] = self.replay_factor
        if self.detector is not None:
            state["detector"] = self.detector.state()
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.task, self.num_tasks = state["task"], state["num_tasks"]
        self.given = list(state["given"])
        self.model.load(state["model"])
        self.lift = self._lift_of(state["lift"])
        self.moments.restore(state["moments"])
        self.measured.restore(state["measured"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.generator.set_state(state["generator"].cpu())
        self.metric.restore(state["inverse"])
        if self.sharing is not None:
            self.sharing.restore(state["sharing"])
            self.moments.samples = state["sharing"]["samples"]
        if self.whose is not None:
            self.whose.restore(state["whose"])
        if "snapshot" in state:
            self.snapshot = self.model.snapshot()
            self.snapshot.load(state["snapshot"])
            self.replay_factor = state["replay_factor"]
        if self.detector is not None:
            self.detector.restore(state["detector"])
        self._rule = self._gaussians = None
