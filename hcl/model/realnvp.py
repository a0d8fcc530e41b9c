"""RealNVP on vectors: affine couplings of two halves, with MLPs that predict scale and shift.

Every transform keeps the contract of ``hcl.model.flows``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hcl.model.products import product, product_into

# Layer sizes of each coupling's network: inputs, hidden layers, outputs.
Sizes = tuple[tuple[int, ...], ...]
# A network's layers, each with its weight (inputs, outputs) and its bias (outputs,).
Network = list[tuple[Tensor, Tensor]]


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


def networks(weights: Tensor, sizes: Sizes) -> list[Network]:
    """The layers of every coupling's network, as views of the one vector that holds them all."""
    layers = [pair for network in sizes for pair in pairwise(network)]
    lengths = [length for i, o in layers for length in (i * o, o)]
    parts = weights.split(lengths)
    pairs = [
        (weight.view(i, o), bias)
        for weight, bias, (i, o) in zip(parts[::2], parts[1::2], layers, strict=True)
    ]
    depth = len(sizes[0]) - 1
    return [pairs[start : start + depth] for start in range(0, len(pairs), depth)]


class Layers:
    """``networks``, taken once for a vector of weights and kept while it stays where it is.

    Views see every update in place. They carry no gradient: not for use under autograd.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.weights = torch.empty(0)
        self.views: list[Network] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Layers:
        return Layers(self.sizes)

    def of(self, weights: Tensor) -> list[Network]:
        """The layers of ``weights``."""
        if torch.compiler.is_compiling():
            return networks(weights, self.sizes)
        same = weights.data_ptr() == self.weights.data_ptr() and weights.dtype == self.weights.dtype
        if not same or weights.device != self.weights.device:
            self.weights = weights.detach()
            self.views = networks(self.weights, self.sizes)
        return self.views


class Lowered:
    """A copy of the weights in lower precision, made anew for each pass, in memory that stays."""

    def __init__(self, sizes: Sizes, precision: torch.dtype) -> None:
        self.precision = precision
        self.layers = Layers(sizes)

    def __deepcopy__(self, memo: dict[int, Any]) -> Lowered:
        return Lowered(self.layers.sizes, self.precision)

    def copied(self, weights: Tensor) -> list[Network]:
        """The layers of ``weights``, as they are now."""
        if torch.compiler.is_compiling():
            return self.layers.of(weights.to(self.precision))
        kept = self.layers.weights
        if kept.shape != weights.shape or kept.device != weights.device:
            kept = torch.empty_like(weights, dtype=self.precision)
        return self.layers.of(kept.copy_(weights))

    def of(self, weights: Tensor) -> list[Network]:
        """What ``copied`` gave for ``weights``, which have not changed since."""
        return self.copied(weights) if torch.compiler.is_compiling() else self.layers.views


def perceptron(x: Tensor, network: Network) -> list[Tensor]:
    """A multi-layer perceptron with ReLU: the input of each layer, then the output of the last.

    A network of lower precision than x gives its output, which is not made in place, in that of x.
    """
    activations = [x.to(network[0][0].dtype)]
    for weight, bias in network[:-1]:
        activations.append(product(activations[-1], weight, bias).relu_())
    weight, bias = network[-1]
    activations.append(product(activations[-1], weight, bias).to(x.dtype))
    return activations


def couple(
    a: Tensor, b: Tensor, network: Network, bound: float
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """An affine coupling, b ↦ b · exp(s(a)) + m(a); a is the network's input and stays.

    ``network(a)`` gives (r, m) side by side, and s = bound · r / (bound + |r|), so that a coupling
    stretches by less than exp(±bound). Paper: silent on how the scale is kept finite. Here:
    bounded, because an unbounded exponent overflows on inputs far from the training data, which is
    what the model is shown at every change of task; by a fraction, because it costs a tenth of a
    tanh.

    Returns:
        The new b, the log-determinant, and what ``couple_gradient`` needs.
    """
    *activations, outputs = perceptron(a, network)
    raw, shift = outputs.chunk(2, dim=1)
    room = raw.abs().add_(bound)
    log_scale = raw.div_(room).mul_(bound)
    log_det = log_scale.sum(1)
    scale = log_scale.exp_()
    return torch.addcmul(shift, b, scale), log_det, [b, room, scale, *activations]


def uncouple(a: Tensor, b: Tensor, network: Network, bound: float) -> tuple[Tensor, Tensor]:
    """The inverse of ``couple``, b ↦ (b − m(a)) · exp(−s(a)), and its log-determinant."""
    raw, shift = perceptron(a, network)[-1].chunk(2, dim=1)
    room = raw.abs().add_(bound)
    log_scale = raw.div(room).mul_(-bound)
    log_det = log_scale.sum(1)
    return (b - shift).mul_(log_scale.exp_()), log_det


def couple_gradient(
    grad_b: Tensor,
    grad_log_det: Tensor,
    saved: list[Tensor],
    network: Network,
    grad_network: Network,
    bound: float,
) -> tuple[Tensor, Tensor]:
    """From gradients of what ``couple`` returned to those of b and of the first hidden layer.

    The gradients of the network are written to ``grad_network``.
    """
    b, room, scale, *activations = saved
    grad_shift, grad_b = grad_b, grad_b * scale
    # ∂ log_scale / ∂ raw = (bound / room)²
    grad_raw = torch.addcmul(grad_log_det[:, None], grad_b, b).div_(room).div_(room).mul_(bound**2)
    grad = torch.cat((grad_raw, grad_shift), dim=1).to(network[0][0].dtype)
    for index in reversed(range(len(network))):
        grad_weight, grad_bias = grad_network[index]
        product_into(grad_weight, activations[index].T, grad)
        torch.sum(grad, 0, dtype=grad_bias.dtype, out=grad_bias)
        if index > 0:
            grad = torch.ops.aten.threshold_backward(
                product(grad, network[index][0].T), activations[index], 0
            )
    return grad_b, grad


def cut(x: Tensor, layers: list[Network]) -> list[Tensor]:
    """The two halves: the input of the first coupling's network, and the rest."""
    first = len(layers[0][0][0])
    return list(x.split((first, x.shape[1] - first), dim=1))


def couple_all(
    x: Tensor, layers: list[Network], bound: float, keep: bool
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """All couplings in turn; with ``keep``, also what their gradients need."""
    halves = cut(x, layers)
    log_det = x.new_zeros(len(x))
    kept = []
    for index, network in enumerate(layers):
        given, changed = index % 2, 1 - index % 2
        halves[changed], term, saved = couple(halves[given], halves[changed], network, bound)
        log_det += term
        if keep:
            kept += saved
    return torch.cat(halves, dim=1), log_det, kept


class GradientMemory:
    """Memory for the gradient of a flow, used again from step to step.

    A gradient of 48 MB that is freed after each step goes back to the system, and comes back page
    by page in the next step: at batch 32 that was a quarter of a training step. Here the memory
    belongs to an array, and each tensor on it holds a reference to the array: it is handed out
    again only when no such tensor is left. While one is, for instance because two gradients are
    added up, the next gradient gets memory of its own.
    """

    def __init__(self) -> None:
        self.array: np.ndarray | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> GradientMemory:
        return GradientMemory()

    def empty_like(self, tensor: Tensor) -> Tensor:
        """An uninitialised tensor of the shape and type of ``tensor``."""
        dtype = {torch.float32: np.float32, torch.float64: np.float64}.get(tensor.dtype)
        if torch.compiler.is_compiling() or tensor.device.type != "cpu" or dtype is None:
            return torch.empty_like(tensor)
        if self.array is None or self.array.dtype != dtype or self.array.shape != tensor.shape:
            # Aligned to a cache line, as torch's own memory is: products write to it faster.
            memory = np.empty(tensor.nbytes + 64, np.uint8)
            start = -memory.ctypes.data % 64
            self.array = memory[start : start + tensor.nbytes].view(dtype).reshape(tensor.shape)
        elif sys.getrefcount(self.array) > 2:  # ours, and the argument of getrefcount
            return torch.empty_like(tensor)
        return torch.from_numpy(self.array)


class _Couplings(torch.autograd.Function):
    """All couplings of a RealNVP in turn, with their gradient by hand.

    Under autograd each coupling takes some forty nodes, whose bookkeeping is a tenth of a training
    step at batch 32, and the gradient arrives in 64 pieces. Here it is one vector like the weights.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weights: Tensor,
        layers: Layers,
        lowered: Lowered | None,
        bound: float,
        memory: GradientMemory,
    ) -> tuple[Tensor, Tensor]:
        taken = layers.of(weights) if lowered is None else lowered.copied(weights)
        z, log_det, kept = couple_all(x, taken, bound, keep=True)
        ctx.layers, ctx.lowered, ctx.bound, ctx.memory = layers, lowered, bound, memory
        ctx.save_for_backward(weights, *kept)
        return z, log_det

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_z: Tensor, grad_log_det: Tensor
    ) -> tuple[Tensor | None, Tensor, None, None, None, None]:
        weights, *kept = ctx.saved_tensors  # an error where weights changed since
        layers = (ctx.lowered or ctx.layers).of(weights)
        count = len(kept) // len(layers)
        grad_weights = ctx.memory.empty_like(weights)
        grad_layers = networks(grad_weights, ctx.layers.sizes)
        grads = cut(grad_z, layers)
        for index in reversed(range(len(layers))):
            given, changed = index % 2, 1 - index % 2
            saved = kept[index * count : (index + 1) * count]
            grads[changed], grad_hidden = couple_gradient(
                grads[changed], grad_log_det, saved, layers[index], grad_layers[index], ctx.bound
            )
            if index > 0 or ctx.needs_input_grad[0]:
                grads[given] = product(grad_hidden, layers[index][0][0].T, grads[given])
        grad_x = torch.cat(grads, dim=1) if ctx.needs_input_grad[0] else None
        return grad_x, grad_weights, None, None, None, None


class RealNVP(nn.Module):
    """RealNVP (Dinh et al. 2017) on vectors of ``size`` features.

    The features are cut once in two halves; couplings change the second half given the first, then
    the first given the second, and so on in turn.

    Paper: eight couplings, each with an MLP of three hidden layers of 512; silent on the masks.
    Here: contiguous halves, because a half is a view: nothing is masked, gathered or permuted, and
    embeddings have no order that another split would respect better.

    The weights of all couplings are one vector, ``weights``: an optimiser, a snapshot and a penalty
    on the weights handle one tensor in place of 64. ``networks`` gives each layer its name and
    shape. The first weights are uniform within ±1/√inputs, those of each network's last layer
    within ±spread/√inputs: with 0 the flow starts as the identity. Paper: silent. Here: a
    parameter, because in a single pass a random start forgets less (docs/results.md).

    Args:
        size: number of features, two or more.
        couplings: number of couplings.
        hidden: width of the hidden layers.
        hidden_layers: number of hidden layers.
        bound: the largest absolute log-scale of one coupling.
        generator: source of the initial weights.
        spread: of the last layers' first weights.
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
        spread: float = 0.0,
    ) -> None:
        if size < 2:
            raise ValueError(f"shape: a coupling needs two features or more, found {size}")
        super().__init__()
        self.shape: tuple[int, ...] = (size,)
        self.size = size
        self.bound = bound
        self.scaling = Scaling(size)
        halves = ((size + 1) // 2, size // 2)
        self.sizes: Sizes = tuple(
            (halves[index % 2], *[hidden] * hidden_layers, 2 * halves[1 - index % 2])
            for index in range(couplings)
        )
        self._layers = Layers(self.sizes)
        self._lowered: Lowered | None = None
        self._memory = GradientMemory()
        count = sum((i + 1) * o for network in self.sizes for i, o in pairwise(network))
        self.weights = nn.Parameter(torch.zeros(count))
        with torch.no_grad():
            for network in networks(self.weights, self.sizes):
                for weight, bias in network[:-1]:
                    limit = len(weight) ** -0.5
                    weight.uniform_(-limit, limit, generator=generator)
                    bias.uniform_(-limit, limit, generator=generator)
                if spread > 0:
                    weight = network[-1][0]
                    limit = spread * len(weight) ** -0.5
                    weight.uniform_(-limit, limit, generator=generator)

    def set_scaling(self, shift: Tensor | float, scale: Tensor | float) -> None:
        """Set the fixed first layer, z = (x − shift) / scale; see ``Scaling``."""
        self.scaling.set(shift, scale)

    def set_precision(self, precision: torch.dtype | None) -> None:
        """Run the couplings' networks in ``precision`` in training; with None as they are.

        All else, log-determinants above all, keeps the precision of x; so do answers and draws, for
        which no gradient is taken, so that a draw is where its latent was.
        """
        self._lowered = None if precision is None else Lowered(self.sizes, precision)

    @torch.no_grad()
    def initialise(self, x: Tensor) -> None:
        """Set the fixed first layer from data: its mean by feature, one scale for all features.

        Paper: silent. Here: a common scale, because a feature that is constant in the first task
        may vary in a later one.
        """
        shift = x.mean(0)
        scale = (x - shift).square().mean().sqrt()
        self.set_scaling(shift, scale if scale > 0 else 1.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, log_det = self.scaling(x)
        if torch.is_grad_enabled():
            z, term = _Couplings.apply(
                x, self.weights, self._layers, self._lowered, self.bound, self._memory
            )
        else:
            z, term, _ = couple_all(x, self._layers.of(self.weights), self.bound, keep=False)
        return z, log_det + term

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled():
            layers = networks(self.weights, self.sizes)
        else:
            layers = self._layers.of(self.weights)
        halves = cut(z, layers)
        log_det = z.new_zeros(len(z))
        for index in reversed(range(len(layers))):
            given, changed = index % 2, 1 - index % 2
            halves[changed], term = uncouple(
                halves[given], halves[changed], layers[index], self.bound
            )
            log_det = log_det + term
        x, term = self.scaling.inverse(torch.cat(halves, dim=1))
        return x, log_det + term

    @torch.no_grad()
    def trace(self, x: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Every weight and value on the way from x to z, each with its layer's name."""
        x, _ = self.scaling(x)
        yield "scaling", x
        layers = networks(self.weights, self.sizes)
        halves = cut(x, layers)
        for index, network in enumerate(layers):
            given, changed = index % 2, 1 - index % 2
            outputs = perceptron(halves[given], network)[1:]
            for depth, (layer, output) in enumerate(zip(network, outputs, strict=True)):
                name = f"couplings.{index}.layers.{depth}"
                yield f"{name}.weight", layer[0]
                yield f"{name}.bias", layer[1]
                yield name, output
            halves[changed], _, _ = couple(halves[given], halves[changed], network, self.bound)
            yield f"couplings.{index}", halves[changed]
