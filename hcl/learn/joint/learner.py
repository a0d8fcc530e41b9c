"""Joint training as a learner: what a network reaches that is shown all data at once, and often.

No continual learner: it waits until every task of the stream has been shown, then trains once on
the training parts of all of them. Before that it has no answer (−1), so that its accuracies begin
with the last task, and what it forgets is not defined. It is told the task of each sample.

    p(y, t | x) = softmax of the network's scores of the (class, task) pairs,

from which a class is answered as in the paper, argmax_y Σ_t p(y, t | x), and the likeliest pair.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hcl.learn.adam import Adam
from hcl.learn.contract import Archive, Batch, Observation, Prediction, Start, TaskBatch, as_int16
from hcl.learn.fitting import FITTING_SAMPLES, scaling_of, tukey
from hcl.learn.joint.settings import JointMethod
from hcl.learn.linear import Linear
from hcl.learn.settings import Scaling


def build(method: JointMethod, start: Start) -> JointLearner:
    """The learner of a method."""
    (size,) = start.shape
    return JointLearner(
        method,
        size,
        start.num_classes,
        archive=start.archive,
        scaling=start.training.scaling,
        generator=start.generator("draws"),
        order=start.generator("weights"),
    )


class Network(nn.Module):
    """Scores of the pairs: scaled inputs, one hidden layer of rectified units.

    Args:
        settings: its width, and what is done against overfitting while it trains.
        size: D, features of x.
        pairs: (class, task) pairs.
        generator: source of the initial weights, on the CPU.
    """

    shift: Tensor
    scale: Tensor

    def __init__(
        self, settings: JointMethod, size: int, pairs: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.settings = settings
        self.hidden = Linear(size, settings.hidden, generator)
        self.output = Linear(settings.hidden, pairs, generator)
        self.register_buffer("shift", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def set_scaling(self, x: Tensor, kind: Scaling) -> None:
        """Fit the scaling of the inputs on ``x``."""
        shift, scale = scaling_of(tukey(x, self.settings.power), kind)
        self.shift.copy_(shift)
        self.scale.copy_(scale)

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(n, pairs); with a ``generator``, as in training: with noise and dropout."""
        noise, dropout = self.settings.noise, self.settings.dropout
        x = (tukey(x, self.settings.power) - self.shift) / self.scale
        if generator is not None and noise:
            x = x + noise * torch.randn(x.shape, generator=generator, device=x.device)
        hidden = self.hidden(x).relu()
        if generator is not None and dropout:
            kept = torch.rand(hidden.shape, generator=generator, device=x.device) >= dropout
            hidden = hidden * kept / (1 - dropout)
        scores: Tensor = self.output(hidden)
        return scores


def cosine_rate(learning_rate: float, done: float) -> float:
    """η/2 (1 + cos πs) after a share s of the steps."""
    return 0.5 * learning_rate * (1 + math.cos(math.pi * done))


class JointLearner:
    """A network that is trained once, on all tasks together, as soon as all were shown.

    Args:
        settings: the network, and how it is trained.
        size: D, features of x.
        num_classes: K.
        archive: all tasks' training samples.
        scaling: of the inputs, fitted on samples of all tasks.
        generator: for noise and dropout, where the samples are.
        order: for the weights and the order of the samples, on the CPU.
    """

    def __init__(
        self,
        settings: JointMethod,
        size: int,
        num_classes: int,
        *,
        archive: Archive,
        scaling: Scaling,
        generator: torch.Generator,
        order: torch.Generator,
    ) -> None:
        self.settings = settings
        self.num_classes = num_classes
        self.archive = archive
        self.scaling = scaling
        self.generator = generator
        self.order = order
        self.task = -1
        self.given: list[int] = []  # given[t]: the number under which task t was given
        pairs = num_classes * archive.num_tasks
        self.model = Network(settings, size, pairs, order).to(generator.device)
        self.is_trained = False

    @property
    def num_tasks(self) -> int:
        """Tasks that the learner knows."""
        return len(self.given)

    def observe(self, batch: Batch | TaskBatch) -> Observation:
        """Note the task; train on all of them at the first batch of the last one."""
        assert isinstance(batch, TaskBatch)
        if batch.task not in self.given:
            self.given.append(batch.task)
        self.task = self.given.index(batch.task)
        if self.is_trained or self.num_tasks < self.archive.num_tasks:
            return Observation()
        loss = self._train()
        self.is_trained = True
        return Observation(loss)

    def _train(self) -> Tensor:
        """The cross-entropy of pairs with smoothed labels; its mean in the last epoch."""
        settings = self.settings
        self.model.set_scaling(
            next(self.archive.mixed(FITTING_SAMPLES, self.order)).x, self.scaling
        )
        number = torch.tensor([self.given.index(t) for t in range(self.num_tasks)])
        number = number.to(self.generator.device)
        optimiser = Adam(self.model.parameters(), settings.learning_rate, settings.weight_decay)
        steps = settings.epochs * self.archive.num_mixed(settings.batch_size)
        done = 0
        losses: list[Tensor] = []
        for _ in range(settings.epochs):
            losses.clear()
            for x, y, t in self.archive.mixed(settings.batch_size, self.order):
                loss = F.cross_entropy(
                    self.model(x, self.generator),
                    number[t] * self.num_classes + y,
                    label_smoothing=settings.smoothing,
                )
                optimiser.zero_grad()
                loss.backward()
                optimiser.learning_rate = cosine_rate(settings.learning_rate, done / steps)
                optimiser.step()
                done += 1
                losses.append(loss.detach())
        return torch.stack(losses).mean()

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        """The class summed over tasks, and the likeliest pair; no answer before the training."""
        if not self.is_trained:
            unknown = torch.full((len(x),), -1)
            found = as_int16(unknown, unknown, unknown)
            return found._replace(confidence=np.zeros(len(x), np.float32))
        log_p = self.posterior(x)
        pair = log_p.flatten(1).argmax(1)
        best = log_p.logsumexp(1).max(1)
        found = as_int16(best.indices, pair // self.num_classes, pair % self.num_classes)
        return found._replace(confidence=best.values.exp().float().cpu().numpy())

    @torch.no_grad()
    def posterior(self, x: Tensor) -> Tensor:
        """log p(y, t | x), (n, T, K)."""
        return self.model(x).log_softmax(1).unflatten(1, (-1, self.num_classes))

    def state(self) -> dict[str, Any]:
        """The network; what its training needs is as it was when it was built."""
        return {
            "task": self.task,
            "given": list(self.given),
            "is_trained": self.is_trained,
            "model": self.model.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.task = state["task"]
        self.given = list(state["given"])
        self.is_trained = state["is_trained"]
        self.model.load_state_dict(state["model"])
