"""The hybrid model p̂(x, y | t) = p̂_X(x | y, t) p̂(y | t), Eq. 1 of the paper.

p̂_X(x | y, t) is the latent Gaussian N(μ_{y,t}, I) seen through the flow's inverse; p̂(y | t) = 1/K.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hcl.errors import HCLError
from hcl.model import looking
from hcl.model.flows import Flow, build_flow
from hcl.model.latent import LatentMixture
from hcl.model.settings import FlowSettings


class Statistics(NamedTuple):
    """S1, S2 and S3 of Section 4.2, one value per sample; the paper sums them over a batch.

    log_px = log_pz + log_det, by the change of variables.
    """

    log_px: Tensor
    log_pz: Tensor
    log_det: Tensor


class NonFiniteError(HCLError):
    """A NaN or an overflow in the flow. The message names the layer."""


class HybridModel(nn.Module):
    """A flow and a latent mixture: likelihoods, classes and samples.

    Args:
        flow: f_θ; see ``hcl.model.flows.Flow``.
        latent: the Gaussians of the tasks seen so far.
        settings: what ``flow`` was built from; needed to save the model.
    """

    def __init__(
        self, flow: Flow, latent: LatentMixture, settings: FlowSettings | None = None
    ) -> None:
        super().__init__()
        self.flow = flow
        self.latent = latent
        self.settings = settings

    def add_task(self, generator: torch.Generator) -> int:
        """Add the Gaussians of a new task; its index."""
        return self.latent.add_task(generator)

    def statistics(self, x: Tensor, y: Tensor, t: Tensor | int) -> Statistics:
        """S1 = log p̂_X(x | y, t), S2 = log p̂_Z(f(x) | y, t), S3 = S1 − S2 = log |∂f/∂x|."""
        z, log_det = self.flow(x)
        log_pz = self.latent.log_prob(z, y, t)
        return Statistics(log_pz + log_det, log_pz, log_det)

    def log_likelihoods(self, x: Tensor) -> Tensor:
        """log p̂_X(x | y, t) for every task and class, (B, T, K)."""
        z, log_det = self.flow(x)
        return self.latent.log_probs(z) + log_det[:, None, None]

    def _class_scores(self, x: Tensor) -> Tensor:
        """log Σ_t p̂_X(x | y, t), (B, K), up to a term that depends on x alone."""
        z, _ = self.flow(x)
        return self.latent.scores(z).logsumexp(1)

    @torch.no_grad()
    def classify(self, x: Tensor) -> Tensor:
        """ŷ = argmax_y Σ_t p̂_X(x | y, t), (B,): Bayes' rule, marginalised over tasks."""
        return self._class_scores(x).argmax(1)

    @torch.no_grad()
    def classify_pair(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(y, t) = argmax p̂_X(x | y, t), the most likely class together with its task."""
        return self.classify_both(x)[1:]

    @torch.no_grad()
    def classify_both(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What ``classify`` and ``classify_pair`` answer, by one pass through the flow."""
        z, _ = self.flow(x)
        scores = self.latent.scores(z)
        best = scores.flatten(1).argmax(1)
        of_class, of_task = best % self.latent.num_classes, best // self.latent.num_classes
        return scores.logsumexp(1).argmax(1), of_class, of_task

    @torch.no_grad()
    def class_probabilities(self, x: Tensor) -> Tensor:
        """p̂(y | x) ∝ Σ_t p̂_X(x | y, t), (B, K)."""
        return self._class_scores(x).softmax(1)

    @torch.no_grad()
    def sample(
        self, y: Tensor, t: Tensor | int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """x ~ p̂_X(x | y, t), and the latent z that it came from."""
        z = self.latent.sample(y, t, generator)
        x, _ = self.flow.inverse(z)
        return x, z

    def snapshot(self) -> HybridModel:
        """f_θ^(k): a frozen copy of the model as it is now."""
        return copy.deepcopy(self).requires_grad_(False).eval()

    def load(self, state: dict[str, Tensor]) -> None:
        """Weights, and the means of as many tasks as ``state`` has."""
        device = self.latent.means.device
        self.latent.means = torch.empty_like(state["latent.means"], device=device)
        self.latent.num_classes = self.latent.means.shape[1]
        self.latent.seen = None
        if "latent.seen" in state:
            self.latent.seen = torch.empty_like(state["latent.seen"], device=device)
        self.load_state_dict(state)

    @torch.no_grad()
    def copy_from(self, model: HybridModel) -> None:
        """Take over the weights and tasks of ``model``, in place: renews a snapshot."""
        mine = (*self.flow.parameters(), *self.flow.buffers())
        for tensor, other in zip(
            mine, (*model.flow.parameters(), *model.flow.buffers()), strict=True
        ):
            tensor.copy_(other)
        self.latent.means = model.latent.means.clone()
        self.latent.num_classes = model.latent.num_classes
        if model.latent.seen is not None:
            self.latent.seen = model.latent.seen.clone()


def build_model(
    settings: FlowSettings,
    shape: tuple[int, ...],
    num_classes: int,
    generator: torch.Generator,
    mean_scale: float = 1.0,
    only_seen: bool = False,
) -> HybridModel:
    """A model without tasks for samples of ``shape``, on the CPU; weights from ``generator``."""
    flow = build_flow(settings, shape, _on_the_cpu(generator))
    latent = LatentMixture(num_classes, flow.size, mean_scale, only_seen)
    return HybridModel(flow, latent, settings)


def _on_the_cpu(generator: torch.Generator) -> torch.Generator:
    """The generator, or one of its seed where first weights are drawn: the same for any device."""
    if generator.device.type == "cpu":
        return generator
    return torch.Generator().manual_seed(generator.initial_seed())


def check_finite(loss: Tensor, model: HybridModel, x: Tensor) -> None:
    """Raise ``NonFiniteError`` where ``loss``, taken on ``x``, is NaN or infinite.

    To be called before the optimiser's step, which would spread a NaN over all weights. The flow is
    searched only when the loss is not finite: a good step pays for one comparison. Where a look is
    not free, nothing happens: the training loop looks at the losses of many steps at once.
    """
    if looking.is_free(loss.device) and not loss.isfinite():
        raise NonFiniteError(f"the loss is {loss.item()}: {explain_nonfinite(model, x)}.")


def explain_nonfinite(model: HybridModel, x: Tensor) -> str:
    """Where the first NaN or infinity appears on the way from x to z, in words."""
    if not x.isfinite().all():
        return "the input has values that are not finite"
    for name, value in model.flow.trace(x):
        if not value.isfinite().all():
            return f"NaN or overflow in flow.{name}"
    return "every layer of the flow is finite on this input"
