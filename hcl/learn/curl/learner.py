"""Supervised CURL as a learner."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from hcl.errors import HCLError
from hcl.learn.adam import Adam
from hcl.learn.contract import Batch, Observation, Prediction, Start, TaskBatch, as_int16
from hcl.learn.curl.settings import CurlMethod
from hcl.learn.curl.vae import SupervisedCURL
from hcl.learn.fitting import FITTING_SAMPLES, scaling_of
from hcl.model.losses import mixed_loss
from hcl.settings import check_memory


def build(method: CurlMethod, start: Start) -> CurlLearner:
    """The learner of a method, with its inputs' scaling fitted on the first task."""
    (size,) = start.shape
    widths = (size, *method.encoder, 2 * method.latents, *method.decoder, size)
    weights = sum(a * b for a, b in pairwise(widths))
    # Weights, their gradients, Adam's two moments and a snapshot, in float32.
    check_memory(5 * 4 * weights, "such an autoencoder", "encoder, decoder or latents")
    vae = SupervisedCURL(method, size, start.num_classes, start.generator("weights"))
    first, scaling = start.first(FITTING_SAMPLES), start.training.scaling
    if method.likelihood == "bernoulli":
        scaling = "none"  # its values are probabilities as they are
        if not 0 <= first.min() <= first.max() <= 1:
            raise HCLError(
                f"likelihood: is bernoulli, for values from 0 to 1, but samples go from "
                f"{first.min():g} to {first.max():g}. Take gaussian, or data sets with pixels."
            )
    vae.to(start.device).set_scaling(*scaling_of(first, scaling))
    return CurlLearner(
        vae,
        weighing=method.weighing,
        batch_size=start.training.batch_size,
        generator=start.generator("draws"),
        **start.rates(method.learning_rate, method.weight_decay),
    )


class CurlLearner:
    """Supervised CURL with generative replay, told when the task changes; it names no task."""

    num_tasks: int = 0

    def __init__(
        self,
        model: SupervisedCURL,
        *,
        weighing: Literal["samples", "terms"],
        batch_size: int,
        learning_rate: float,
        weight_decay: float,
        generator: torch.Generator,
    ) -> None:
        self.model = model
        self.weighing = weighing
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
            if self.seen:
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
            loss = mixed_loss(-losses, -replayed, self.weighing)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return Observation(loss.detach())

    def predict(self, x: Tensor) -> Prediction:
        """argmax_y q(y | x); the task is undefined."""
        predicted = self.model.classify(x)
        return as_int16(predicted, torch.full_like(predicted, -1), predicted)

    def posterior(self, x: Tensor) -> Tensor:
        """log q(y | x), (n, 1, K): it knows no tasks."""
        return self.model.log_probabilities(x)[:, None]

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """The decoder's mean for z ~ p(z | y), ``count`` for each class: (1, K, count, D)."""
        classes = self.model.num_classes
        y = torch.arange(classes, device=generator.device).repeat_interleave(count)
        return self.model.sample(y, generator).view(1, classes, count, -1)

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
