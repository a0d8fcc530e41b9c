"""RealNVP on vectors: affine couplings of two halves, with MLPs that predict scale and shift.

Every transform here, and every flow built of them, keeps one contract:

    forward(x) → (z, log_det)        inverse(z) → (x, log_det)

``log_det`` is log |det ∂output/∂input| of the direction that was asked for, one value a sample.
The two directions at the same point therefore have opposite signs.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Scaling(nn.Module):
    """A fixed affine map, z = (x − shift) / scale: not trained, set once from data.

    Args:
        size: number of features. ``shift`` and ``scale`` are buffers of this length.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def set(self, shift: Tensor | float, scale: Tensor | float) -> None:
        """Take new constants: one for each feature, or one for all of them."""
        shift, scale = (
            torch.as_tensor(value, dtype=self.shift.dtype, device=self.shift.device)
            for value in (shift, scale)
        )
        if not (scale > 0).all() or not scale.isfinite().all() or not shift.isfinite().all():
            raise ValueError("scaling: shift and scale must be finite, and scale positive")
        self.shift.copy_(shift)
        self.scale.copy_(scale)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return (x - self.shift) / self.scale, -self.scale.log().sum().expand(len(x))

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return torch.addcmul(self.shift, z, self.scale), self.scale.log().sum().expand(len(z))


def linear(inputs: int, outputs: int, generator: torch.Generator | None) -> nn.Linear:
    """A linear layer, uniform within ±1/√inputs; all zeros without a ``generator``."""
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs)
    bound = inputs**-0.5 if generator else 0.0
    for parameter in (layer.weight, layer.bias):
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return layer


class MLP(nn.Module):
    """Linear layers with ReLU between them; the last one starts at zero.

    So a coupling starts as the identity, and a flow of any depth starts where its data are.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        hidden: int,
        hidden_layers: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        sizes = [inputs] + [hidden] * hidden_layers + [outputs]
        self.layers = nn.ModuleList(
            linear(sizes[i], sizes[i + 1], generator) for i in range(hidden_layers)
        )
        self.layers.append(linear(sizes[-2], sizes[-1], None))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.relu(layer(x), inplace=True)
        return self.layers[-1](x)


class AffineCoupling(nn.Module):
    """b ↦ b · exp(s(a)) + m(a), with a as the network's input and untouched.

    ``network(a)`` gives (raw, m); s = bound · tanh(raw / bound), so that one coupling stretches by
    no more than exp(±bound). Paper: silent on how the scale is kept finite. Here: bounded, because
    an unbounded exponent overflows on inputs far from the training data, which is what the model
    is shown at every change of task.
    """

    def __init__(self, network: nn.Module, bound: float) -> None:
        super().__init__()
        self.network = network
        self.bound = bound

    def _log_scale_and_shift(self, a: Tensor) -> tuple[Tensor, Tensor]:
        raw, shift = self.network(a).chunk(2, dim=-1)
        return self.bound * torch.tanh(raw / self.bound), shift

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        log_scale, shift = self._log_scale_and_shift(a)
        return torch.addcmul(shift, b, log_scale.exp()), log_scale.sum(-1)

    def inverse(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        log_scale, shift = self._log_scale_and_shift(a)
        return (b - shift) * torch.exp(-log_scale), -log_scale.sum(-1)


class RealNVP(nn.Module):
    """RealNVP (Dinh et al. 2017) on vectors of ``size`` features.

    The features are cut once in two halves; couplings change the second half given the first, then
    the first given the second, and so on in turn.

    Paper: eight couplings, each with an MLP of three hidden layers of 512; silent on the masks.
    Here: contiguous halves, because a half is a view: nothing is masked, gathered or permuted, and
    embeddings have no order that another split would respect better.

    Args:
        size: number of features, two or more.
        couplings: number of couplings.
        hidden: width of the hidden layers.
        hidden_layers: number of hidden layers.
        bound: the largest absolute log-scale of one coupling.
        generator: source of the initial weights.
    """

    def __init__(
        self,
        size: int,
        *,
        couplings: int,
        hidden: int,
        hidden_layers: int,
        bound: float,
        generator: torch.Generator,
    ) -> None:
        if size < 2:
            raise ValueError(f"shape: a coupling needs two features or more, found {size}")
        super().__init__()
        self.shape: tuple[int, ...] = (size,)
        self.size = size
        self.cut = (size + 1) // 2
        self.scaling = Scaling(size)
        self.couplings = nn.ModuleList()
        for index in range(couplings):
            given, changed = self.cut, size - self.cut
            if index % 2 == 1:
                given, changed = changed, given
            network = MLP(
                given,
                2 * changed,
                hidden=hidden,
                hidden_layers=hidden_layers,
                generator=generator,
            )
            self.couplings.append(AffineCoupling(network, bound))

    def set_scaling(self, shift: Tensor | float, scale: Tensor | float) -> None:
        """Set the fixed first layer, z = (x − shift) / scale; see ``Scaling``."""
        self.scaling.set(shift, scale)

    @torch.no_grad()
    def initialise(self, x: Tensor) -> None:
        """Set the fixed first layer from data: its mean by feature, one scale for all features.

        Paper: silent. Here: a common scale, because a feature that is constant in the first task
        may vary in a later one.
        """
        shift = x.mean(0)
        scale = (x - shift).square().mean().sqrt()
        self.set_scaling(shift, scale if scale > 0 else 1.0)

    def _in_turn(self) -> list[tuple[int, AffineCoupling]]:
        return list(enumerate(cast("list[AffineCoupling]", self.couplings)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, log_det = self.scaling(x)
        a, b = x[:, : self.cut], x[:, self.cut :]
        for index, coupling in self._in_turn():
            if index % 2 == 0:
                b, term = coupling(a, b)
            else:
                a, term = coupling(b, a)
            log_det = log_det + term
        return torch.cat((a, b), dim=1), log_det

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        a, b = z[:, : self.cut], z[:, self.cut :]
        log_det = z.new_zeros(len(z))
        for index, coupling in reversed(self._in_turn()):
            if index % 2 == 0:
                b, term = coupling.inverse(a, b)
            else:
                a, term = coupling.inverse(b, a)
            log_det = log_det + term
        x, term = self.scaling.inverse(torch.cat((a, b), dim=1))
        return x, log_det + term
