"""Supervised CURL (Rao et al., 2019) as the paper runs it (Section 5, appendix A.3): a baseline.

A variational autoencoder with one latent Gaussian for each label, whatever the task:

    p(y) = 1/K,  p(z | y) = N(m_y, s_y²),  p(x | z) from the decoder,
    q(y | x) and q(z | x, y) = N(·, ·) from one encoder.

With the label given, −log p(x, y) is at most

    −E_q[log p(x | z)] + KL(q(z | x, y) ‖ p(z | y)) − log q(y | x),

where the last term trains the classifier q(y | x), which answers at test time. At a change of
task a snapshot is taken; from then on its samples are learned beside the real ones. It is told
the task, and names none.

Paper: silent on the decoder's variance. Here: 1, on inputs that are scaled, because a learned
variance drowns the other terms.
"""

from __future__ import annotations

import copy
import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hcl.learn.curl.settings import CurlMethod
from hcl.learn.linear import Linear


def _mlp(sizes: tuple[int, ...], generator: torch.Generator) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [Linear(inputs, outputs, generator), nn.ReLU()]
    return nn.Sequential(*layers)


class SupervisedCURL(nn.Module):
    """The networks, the bound on the log-likelihood, and samples.

    Args:
        settings: sizes.
        size: D, features of x.
        num_classes: K.
        generator: source of the initial weights.
    """

    shift: Tensor
    scale: Tensor
    prior_mean: nn.Parameter
    prior_log_std: nn.Parameter

    def __init__(
        self, settings: CurlMethod, size: int, num_classes: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.settings = settings
        self.num_classes = num_classes
        latents = settings.latents
        self.encoder = _mlp((size, *settings.encoder), generator)
        self.label_head = Linear(settings.encoder[-1], num_classes, generator)
        # Mean and log-deviation of q(z | x, y) for each y.
        self.latent_head = Linear(settings.encoder[-1], num_classes * 2 * latents, generator)
        self.decoder = _mlp((latents, *settings.decoder), generator)
        self.output_head = Linear(settings.decoder[-1], size, generator)
        start = torch.randn(num_classes, latents, generator=generator, device=generator.device)
        self.prior_mean = nn.Parameter(start)
        self.prior_log_std = nn.Parameter(torch.zeros_like(start))
        self.register_buffer("shift", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def set_scaling(self, shift: Tensor | float, scale: Tensor | float) -> None:
        """Inputs are taken as (x − shift) / scale."""
        self.shift.copy_(torch.as_tensor(shift))
        self.scale.copy_(torch.as_tensor(scale))

    def loss(self, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """The bound on −log p(x, y) above, (B,)."""
        x = (x - self.shift) / self.scale
        hidden = self.encoder(x)
        parameters = self.latent_head(hidden).unflatten(1, (self.num_classes, 2, -1))
        mean, log_std = parameters[torch.arange(len(y), device=y.device), y].unbind(1)
        noise = torch.randn(mean.shape, generator=generator, device=generator.device)
        z = mean + log_std.exp() * noise
        prior_mean, prior_log_std = self.prior_mean[y], self.prior_log_std[y]
        square = (mean - prior_mean).square() + (2 * log_std).exp()
        divergence = prior_log_std - log_std + 0.5 * square * (-2 * prior_log_std).exp() - 0.5
        classification = F.cross_entropy(self.label_head(hidden), y, reduction="none")
        return self._reconstruction(z, x) + divergence.sum(1) + classification

    def _reconstruction(self, z: Tensor, x: Tensor) -> Tensor:
        """−log p(x | z), up to a constant, (B,)."""
        output = self.output_head(self.decoder(z))
        if self.settings.likelihood == "bernoulli":
            return F.binary_cross_entropy_with_logits(output, x, reduction="none").sum(1)
        return 0.5 * (output - x).square().sum(1)

    @torch.no_grad()
    def classify(self, x: Tensor) -> Tensor:
        """argmax_y q(y | x), (B,)."""
        return self._logits(x).argmax(1)

    @torch.no_grad()
    def log_probabilities(self, x: Tensor) -> Tensor:
        """log q(y | x), (B, K)."""
        return self._logits(x).log_softmax(1)

    def _logits(self, x: Tensor) -> Tensor:
        logits: Tensor = self.label_head(self.encoder((x - self.shift) / self.scale))
        return logits

    @torch.no_grad()
    def sample(self, y: Tensor, generator: torch.Generator) -> Tensor:
        """x with z ~ p(z | y): the decoder's mean."""
        noise = torch.randn(
            len(y), self.settings.latents, generator=generator, device=generator.device
        )
        z = self.prior_mean[y] + self.prior_log_std[y].exp() * noise
        output = self.output_head(self.decoder(z))
        if self.settings.likelihood == "bernoulli":
            output = output.sigmoid()
        return output * self.scale + self.shift

    def snapshot(self) -> SupervisedCURL:
        """A frozen copy as it is now."""
        return copy.deepcopy(self).requires_grad_(False).eval()
