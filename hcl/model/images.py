"""Flows on images: RealNVP with residual networks, and Glow with highway networks.

An image is (C, H, W) with values from 0 to 256; ``dequantise`` makes one from bytes. Every
transform keeps the contract of ``hcl.model.flows``: forward and inverse return the value and the
log-determinant of their own direction, one per sample. The latent is flat, (B, C · H · W): what the
scales leave on the way, then what comes out at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hcl.model.products import add_product, product, product_into

Pixels = Literal["affine", "logit"]
CACHED = 2**18  # numbers of one layer's activations, a megabyte in float32


def dequantise(images: Tensor, generator: torch.Generator) -> Tensor:
    """Bytes 0…255 to reals in [0, 256), by uniform noise; shape as it was.

    A density on reals would rise without bound at whole numbers otherwise.
    """
    noise = torch.rand(images.shape, generator=generator, device=generator.device)
    # float32 would round the last of these up to the next byte
    return images + noise.mul_(1 - 2**-16).to(images.device)


def midpoints(images: Tensor) -> Tensor:
    """Bytes 0…255 to the middle of what ``dequantise`` makes of each: the same every time."""
    return images + 0.5


class PixelScaling(nn.Module):
    """The fixed map from [0, 256) to about [−2, 2): z = (x − 128) / 64. Paper: silent."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return (x - 128) / 64, x.new_full((len(x),), -math.prod(x.shape[1:]) * math.log(64))

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return 64 * z + 128, z.new_full((len(z),), math.prod(z.shape[1:]) * math.log(64))


class PixelLogit(nn.Module):
    """z = logit(q) / 4 with q = ε + (1 − 2ε) x / 256, ε = 1e-3; beyond [0, 256] its tangents.

    Where most pixels are black or white, as in MNIST, bytes there are noise of 1/256 of the range:
    a flow of a few couplings can't widen it to the Gaussians' 1, so that what it draws from them is
    no image. The logit widens it tenfold and more. The plain one ends at 0 and 256; what a
    snapshot draws lies beyond, and the tangents take it back to where it was drawn from.

    Paper: silent. Here: docs/notebook/logit.md.
    """

    margin = 1e-3  # ε
    divisor = 4.0

    def __init__(self) -> None:
        super().__init__()
        self.share = (1 - 2 * self.margin) / 256  # dq / dx
        self.end = math.log((1 - self.margin) / self.margin)  # logit(1 − ε)
        self.tangent = self.share / (self.margin * (1 - self.margin))  # its slope at 0 and 256

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        inside = x.clamp(0, 256)
        black, white = self.margin + self.share * inside, self.margin + self.share * (256 - inside)
        z = black.log() - white.log() + self.tangent * (x - inside)
        return z / self.divisor, self._log_det(black, white)

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        z = self.divisor * z
        inside = z.clamp(-self.end, self.end)
        black, white = inside.sigmoid(), (-inside).sigmoid()
        x = (black - self.margin) / self.share + (z - inside) / self.tangent
        return x, -self._log_det(black, white)

    def _log_det(self, black: Tensor, white: Tensor) -> Tensor:
        constant = math.prod(black.shape[1:]) * math.log(self.share / self.divisor)
        return constant - (black * white).log().flatten(1).sum(1)


class Squeeze(nn.Module):
    """(C, H, W) to (4C, H/2, W/2): each block of 2 × 2 pixels becomes four channels."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.pixel_unshuffle(x, 2), x.new_zeros(len(x))

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return F.pixel_shuffle(z, 2), z.new_zeros(len(z))


class ActNorm(nn.Module):
    """Activation normalisation (Kingma & Dhariwal 2018): z = (x + bias) · exp(log_scale) a channel.

    ``initialise`` sets both from a batch, so that its channels leave with mean 0 and variance 1;
    then they are trained like any weight.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(channels, 1, 1))
        self.log_scale = nn.Parameter(torch.zeros(channels, 1, 1))

    @torch.no_grad()
    def initialise(self, x: Tensor) -> None:
        """Take mean and spread of each channel of ``x``."""
        self.bias.copy_(-x.mean((0, 2, 3), keepdim=True)[0])
        spread = x.std((0, 2, 3), keepdim=True, unbiased=False)[0]
        self.log_scale.copy_(-torch.where(spread > 1e-6, spread, 1.0).log())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return (x + self.bias) * self.log_scale.exp(), self._log_det(x)

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return z * (-self.log_scale).exp() - self.bias, -self._log_det(z)

    def _log_det(self, x: Tensor) -> Tensor:
        return (self.log_scale.sum() * x.shape[2] * x.shape[3]).expand(len(x))


class ChannelMix(nn.Module):
    """The invertible 1 × 1 convolution of Glow, W = P L (U + diag(sign · exp(log_scale))).

    It starts as a random rotation. In this form the log-determinant is a sum, and the inverse two
    triangular solves.
    """

    permutation: Tensor
    sign: Tensor

    def __init__(self, channels: int, generator: torch.Generator) -> None:
        super().__init__()
        rotation, _ = torch.linalg.qr(torch.randn(channels, channels, generator=generator))
        permutation, lower, upper = torch.linalg.lu(rotation)
        diagonal = upper.diagonal()
        self.register_buffer("permutation", permutation)
        self.register_buffer("sign", diagonal.sign())
        self.lower = nn.Parameter(lower.tril(-1))
        self.upper = nn.Parameter(upper.triu(1))
        self.log_scale = nn.Parameter(diagonal.abs().log())

    def _factors(self) -> tuple[Tensor, Tensor]:
        one = torch.eye(len(self.sign), dtype=self.lower.dtype, device=self.lower.device)
        lower = self.lower.tril(-1) + one
        return lower, self.upper.triu(1) + torch.diag(self.sign * self.log_scale.exp())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        lower, upper = self._factors()
        weight = self.permutation @ lower @ upper
        planes = x.transpose(0, 1)  # (C, B, H, W): one matrix product for all samples
        z = (weight @ planes.flatten(1)).view_as(planes).transpose(0, 1)
        return z, self._log_det(x)

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        lower, upper = self._factors()
        x = self.permutation.T @ z.flatten(2)
        x = torch.linalg.solve_triangular(lower, x, upper=False, unitriangular=True)
        x = torch.linalg.solve_triangular(upper, x, upper=True)
        return x.view_as(z), -self._log_det(z)

    def _log_det(self, x: Tensor) -> Tensor:
        return (self.log_scale.sum() * x.shape[2] * x.shape[3]).expand(len(x))


def convolution(inputs: int, outputs: int, kernel: int, generator: torch.Generator) -> nn.Conv2d:
    """A convolution that keeps height and width, uniform within ±1/√fan-in."""
    layer = nn.utils.skip_init(nn.Conv2d, inputs, outputs, kernel, padding=kernel // 2)
    bound = (inputs * kernel**2) ** -0.5
    for parameter in (layer.weight, layer.bias):
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return layer


class LastConvolution(nn.Conv2d):
    """gain · weight ∗ x + bias, 3 × 3, all zeros at first: its coupling starts as the identity.

    Adam moves every weight by about its rate r in the first steps, whatever the gradient's size,
    and all in the direction that helps: the output moves by up to r · gain · Σ|x| over the fan-in.
    With a gain of 1 and the 9 · 200 inputs of the paper's Glow that is some tenths in the log-scale
    of each of 28 couplings at r = 1e-3: the first step raises the loss, and later ones leap. With
    64 / fan-in the first steps are those of a network of 7 channels, whatever the width. Paper:
    silent. Here: a constant, where the original Glow learns a factor, because the factor would have
    to be small before the first step (docs/notebook/glow.md).
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1)
        self.gain = min(1.0, 64 / (9 * inputs))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(cast("Tensor", self.bias))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.gain * self.weight, self.bias, padding=1)


class Residual(nn.Module):
    """x + a branch of two 3 × 3 convolutions, each behind a layer norm and a ReLU.

    The layer norm is over channels, height and width of a sample, with a gain for each channel.
    """

    def __init__(self, channels: int, generator: torch.Generator) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.GroupNorm(1, channels),
            nn.ReLU(),
            convolution(channels, channels, 3, generator),
            nn.GroupNorm(1, channels),
            nn.ReLU(),
            convolution(channels, channels, 3, generator),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class Highway(nn.Module):
    """x + gate(x) · (relu(value(x)) − x), Srivastava et al. 2015, with 1 × 1 convolutions.

    The gate starts nearly shut, as in the original, so that the layer starts near the identity.
    ``both`` gives value and gate, one behind the other: one product of twice the width is faster.
    """

    def __init__(self, channels: int, generator: torch.Generator) -> None:
        super().__init__()
        value, gate = (convolution(channels, channels, 1, generator) for _ in range(2))
        nn.init.constant_(cast("Tensor", gate.bias), -2.0)
        self.both = nn.utils.skip_init(nn.Conv2d, channels, 2 * channels, 1)
        with torch.no_grad():
            for own, one, other in zip(
                self.both.parameters(), value.parameters(), gate.parameters(), strict=True
            ):
                torch.cat((one, other), out=own)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.both(x).chunk(2, dim=1)
        return torch.lerp(x, F.relu(value), torch.sigmoid(gate))


class ResidualNetwork(nn.Sequential):
    """The paper's network for SVHN and MNIST: ``blocks`` residual blocks with layer norm.

    ``run`` and ``gradient`` are the same map and its gradient by hand, for the CPU: images with
    their channels innermost, which the convolutions take as they are, activations written over
    norms, and none of the bookkeeping of some sixty nodes.
    """

    def __init__(
        self, inputs: int, outputs: int, *, channels: int, blocks: int, generator: torch.Generator
    ) -> None:
        super().__init__(
            convolution(inputs, channels, 3, generator),
            *(Residual(channels, generator) for _ in range(blocks)),
            nn.GroupNorm(1, channels),
            nn.ReLU(),
            LastConvolution(channels, outputs),
        )

    @property
    def weights(self) -> list[nn.Parameter]:
        """All of them, in the order in which ``run`` takes them; not kept: a move replaces some."""
        return list(self.parameters())

    def run(self, x: Tensor, weights: Sequence[Tensor], keep: bool) -> tuple[Tensor, list[Tensor]]:
        """The output; with ``keep``, also what ``gradient`` needs."""
        gain = cast("LastConvolution", self[-1]).gain
        x = x.contiguous(memory_format=torch.channels_last)
        kept = [x]
        h = branch = convolve(x, weights[0], weights[1])
        *layers, last = in_turns(weights[2:], 4)
        for index, (scale, shift, weight, bias) in enumerate(layers):
            normed, saved = norm(branch, scale, shift)
            branch = convolve(normed, weight, bias)
            if keep:
                kept += saved
            if index % 2 == 1:
                h = branch.add_(h)
        scale, shift, weight, bias = last
        normed, saved = norm(h, scale, shift)
        return convolve(normed, gain * weight, bias), kept + saved

    def gradient(
        self, halves: Sequence[Tensor], kept: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """From gradients of the output's halves to those of the input and of ``weights``."""
        gain = cast("LastConvolution", self[-1]).gain
        grad = torch.cat([half.to(kept[0].dtype) for half in halves], dim=1)
        *layers, last = zip(in_turns(weights[2:], 4), in_turns(kept[1:], 4), strict=True)
        (scale, _, weight, _), saved = last
        grad, grad_weight, grad_bias = convolution_gradient(grad, saved[1], gain * weight)
        grad, *grads = norm_gradient(grad, saved, scale)
        grads += [grad_weight.mul_(gain), grad_bias]
        skip = grad
        for index, ((scale, _, weight, _), saved) in reversed(list(enumerate(layers))):
            grad, *of_convolution = convolution_gradient(grad, saved[1], weight)
            grad, *of_norm = norm_gradient(grad, saved, scale)
            if index % 2 == 0:
                skip = grad.add_(skip)
            grads[:0] = [*of_norm, *of_convolution]
        grad, *of_convolution = convolution_gradient(grad, kept[0], weights[0])
        return grad, [*of_convolution, *grads]


def convolve(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A 3 × 3 convolution in the precision of ``x``."""
    return F.conv2d(x, weight.to(x.dtype), bias.to(x.dtype), padding=1)


def norm(x: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, list[Tensor]]:
    """relu of the layer norm of ``x``; and what ``norm_gradient`` needs, itself among it."""
    samples, channels, height, width = x.shape
    normed, mean, spread = torch.native_group_norm(
        x, scale, shift, samples, channels, height * width, 1, 1e-5
    )
    normed.relu_()
    return normed, [x, normed, mean, spread]


def norm_gradient(grad: Tensor, saved: Sequence[Tensor], scale: Tensor) -> Sequence[Tensor]:
    """From the gradient of ``norm``'s output to those of x, scale and shift."""
    x, normed, mean, spread = saved
    samples, channels, height, width = x.shape
    grad = relu_gradient(grad, normed)
    return torch.ops.aten.native_group_norm_backward(
        grad, x, mean, spread, scale, samples, channels, height * width, 1, [True] * 3
    )


def relu_gradient(grad: Tensor, output: Tensor) -> Tensor:
    """From the gradient of relu's ``output`` to that of its input, written over ``grad``."""
    return torch.ops.aten.threshold_backward.grad_input(grad, output, 0, grad_input=grad)


def convolution_gradient(grad: Tensor, x: Tensor, weight: Tensor) -> Sequence[Tensor]:
    """From the gradient of a 3 × 3 convolution's output to those of x, weight and bias."""
    asked = [True, True, False]  # a plain sum is faster for the bias
    grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
        grad, x, weight.to(x.dtype), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, asked
    )
    return grad_x, grad_weight.to(weight.dtype), grad.sum((0, 2, 3)).to(weight.dtype)


class HighwayNetwork(nn.Sequential):
    """The paper's network for split MNIST: ``layers`` hidden highway layers.

    Paper: three hidden layers with 200 channels; silent on the kernels. Here: 3 × 3 where the image
    comes in and goes out, 1 × 1 in the hidden layers, as in Glow's own networks.

    ``run`` and ``gradient`` are the same map and its gradient by hand, for the CPU. With channels
    outermost, (C, H · W · B), each layer is one matrix product, and each 3 × 3 convolution one of
    nine shifts of the few channels at its thin end: a convolution to 4 channels would cost as much
    as one to 16. With samples innermost, a row of an image is moved in one piece.
    """

    def __init__(
        self, inputs: int, outputs: int, *, channels: int, layers: int, generator: torch.Generator
    ) -> None:
        super().__init__(
            convolution(inputs, channels, 3, generator),
            nn.ReLU(),
            *(Highway(channels, generator) for _ in range(layers)),
            LastConvolution(channels, outputs),
        )

    @property
    def weights(self) -> list[nn.Parameter]:
        """All of them, in the order in which ``run`` takes them; not kept: a move replaces some."""
        return list(self.parameters())

    def run(self, x: Tensor, weights: Sequence[Tensor], keep: bool) -> tuple[Tensor, list[Tensor]]:
        """The output; with ``keep``, also what ``gradient`` needs."""
        gain = cast("LastConvolution", self[-1]).gain
        (first, start), *hidden, (last, end) = in_turns([w.to(x.dtype) for w in weights], 2)
        shifted = shifts(planes(x))  # (C, 3, 3, H, W, B)
        columns = shifted.view(9 * len(shifted), -1)
        parts = columns.new_empty(9 * len(last), columns.shape[1])
        matrix = taps(gain * last)
        kept = [columns]
        for span in self._spans(columns):
            h = product(first.flatten(1), columns[:, span], start[:, None]).relu_()
            tensors = [h]
            for weight, bias in hidden:
                both = product(weight.flatten(1), h, bias[:, None])
                value, gate = both.chunk(2)
                h = torch.lerp(h, value.relu_(), gate.sigmoid_())
                tensors += [both, h]
            if keep:
                kept += tensors
            product_into(parts[:, span], matrix, h)
        out = sum_of_shifts(parts.view(-1, *shifted.shape[1:]))
        return samples(out.add_(end[:, None, None, None])), kept

    def gradient(
        self, halves: Sequence[Tensor], kept: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """From gradients of the output's halves to those of the input and of ``weights``."""
        gain = cast("LastConvolution", self[-1]).gain
        columns, *tensors = kept
        grad = torch.cat([planes(half).to(columns.dtype) for half in halves])
        shifted = shifts(grad)
        parts, of_columns = shifted.view(9 * len(shifted), -1), torch.empty_like(columns)
        sums = [torch.zeros_like(weight).flatten(1) for weight in weights[:-2:2]]
        biases = [torch.zeros_like(bias) for bias in weights[1:-2:2]]
        of_last = torch.zeros_like(taps(weights[-2]))
        first, *hidden, last = [weight.to(grad.dtype) for weight in weights[::2]]
        reverse, matrix = first.flip(2, 3).flatten(1).T, taps(gain * last.flip(2, 3)).T
        spans = self._spans(columns)
        for span, (h, *layers) in zip(
            spans, in_turns(tensors, len(tensors) // len(spans)), strict=True
        ):
            inputs = [h, *layers[1::2]]  # of each layer behind the first
            add_product(of_last, parts[:, span], inputs[-1].T)
            grad_h = product(matrix, parts[:, span])
            for index in reversed(range(len(hidden))):
                before, both, after = inputs[index], layers[2 * index], inputs[index + 1]
                of_both = torch.empty_like(both)
                (value, gate), (of_value, of_gate) = both.chunk(2), of_both.chunk(2)
                torch.mul(grad_h, gate, out=of_value)
                grad_h.sub_(of_value)
                # ∂ gate = gate (1 − gate), and gate (value − before) = after − before
                torch.sub(after, before, out=of_gate).mul_(grad_h)
                relu_gradient(of_value, value)
                add_product(sums[1 + index], of_both, before.T)
                biases[1 + index].add_(of_both.sum(1))
                add_product(grad_h, hidden[index].flatten(1).T, of_both)
            relu_gradient(grad_h, h)
            add_product(sums[0], grad_h, columns[:, span].T)
            biases[0].add_(grad_h.sum(1))
            product_into(of_columns[:, span], reverse, grad_h)
        sums.append(of_last.mul_(gain).view(-1, 3, 3, len(h)).flip(1, 2).permute(0, 3, 1, 2))
        biases.append(grad.sum((1, 2, 3)).to(of_last.dtype))
        grads = [
            total.view_as(weight)
            for total, weight in zip(
                chain.from_iterable(zip(sums, biases, strict=True)), weights, strict=True
            )
        ]
        return samples(sum_of_shifts(of_columns.view(-1, *shifted.shape[1:]))), grads

    def _spans(self, columns: Tensor) -> list[slice]:
        """Parts of the pixels, so that a layer's activations stay in a core's cache."""
        count, length = columns.shape[1], max(1, CACHED // len(cast("nn.Conv2d", self[0]).weight))
        return [slice(start, min(start + length, count)) for start in range(0, count, length)]


def taps(weight: Tensor) -> Tensor:
    """The weight (O, C, 3, 3) of a convolution as a matrix (O · 9, C)."""
    return weight.permute(0, 2, 3, 1).flatten(0, 2)


def planes(x: Tensor) -> Tensor:
    """(B, C, H, W) to (C, H, W, B)."""
    return x.permute(1, 2, 3, 0)


def samples(x: Tensor) -> Tensor:
    """The inverse of ``planes``."""
    return x.permute(3, 0, 1, 2)


def shifts(x: Tensor) -> Tensor:
    """(C, H, W, B) to (C, 3, 3, H, W, B): at [c, i, j] the value at p + (i − 1, j − 1), 0 outside.

    Its gradient is ``sum_of_shifts`` of the taps in reverse, and the other way round.
    """
    channels, height, width, count = x.shape
    padded = F.pad(x, (0, 0, 1, 1, 1, 1))
    plane, row, pixel, sample = padded.stride()
    taps = (channels, 3, 3, height, width, count)
    return padded.as_strided(taps, (plane, row, pixel, row, pixel, sample)).contiguous()


def sum_of_shifts(parts: Tensor) -> Tensor:
    """(C, 3, 3, H, W, B) to (C, H, W, B): the sum over taps of parts[c, i, j] at p + (i, j) − 1."""
    rows = parts[:, 1].clone()
    rows[:, :, 1:].add_(parts[:, 0, :, :-1])
    rows[:, :, :-1].add_(parts[:, 2, :, 1:])
    out = rows[:, 1]
    out[:, :, 1:].add_(rows[:, 0, :, :-1])
    out[:, :, :-1].add_(rows[:, 2, :, 1:])
    return out


def in_turns(values: Sequence[Any], count: int) -> list[Sequence[Any]]:
    """``values``, ``count`` at a time."""
    return [values[start : start + count] for start in range(0, len(values), count)]


class Coupling(nn.Module):
    """b ↦ b · exp(s(a)) + m(a), for two halves of an image's values; a stays.

    s is bounded as in ``hcl.model.realnvp.couple``.

    Args:
        network: gives r and m, each of b's shape, one behind the other in the channels.
        bound: the largest absolute log-scale.

    Attributes:
        precision: that of the network where a gradient is taken, which is in training; with None
            b's, as everywhere else. Scale and log-determinant keep b's.
    """

    def __init__(self, network: ResidualNetwork | HighwayNetwork, bound: float) -> None:
        super().__init__()
        self.network = network
        self.bound = bound
        self.precision: torch.dtype | None = None

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        lower = self.precision is not None and torch.is_grad_enabled()
        with torch.autocast(a.device.type, self.precision, enabled=lower):
            outputs = self.network(a)
        log_scale, shift = self._terms(outputs, b)
        return torch.addcmul(shift, b, log_scale.exp()), log_scale.sum((1, 2, 3))

    def inverse(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        if self.by_hand(a) and not torch.is_grad_enabled():
            outputs, _ = self.network.run(a, self.network.weights, keep=False)
        else:
            outputs = self.network(a)
        log_scale, shift = self._terms(outputs, b)
        return (b - shift) * (-log_scale).exp(), -log_scale.sum((1, 2, 3))

    def by_hand(self, x: Tensor) -> bool:
        """Whether the network and its gradient are run by hand; if not, by its modules."""
        return x.device.type == "cpu"

    def _terms(self, outputs: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        raw, shift = outputs.to(b.dtype).chunk(2, dim=1)
        return raw * self.bound / (self.bound + raw.abs()), shift


class Way(NamedTuple):
    """How couplings are run by hand: their bound, their networks' precision, for a gradient."""

    bound: float
    precision: torch.dtype | None
    keep: bool


def way_of(coupling: Coupling) -> Way:
    """In lower precision for a gradient alone."""
    keep = torch.is_grad_enabled()
    return Way(coupling.bound, coupling.precision if keep else None, keep)


def couple(
    a: Tensor, b: Tensor, network: Any, weights: Sequence[Tensor], way: Way
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """``Coupling`` by hand: the new b, the log-determinant, and what ``couple_gradient`` needs."""
    bound, precision, keep = way
    outputs, kept = network.run(a.to(precision or a.dtype), weights, keep)
    raw, shift = outputs.to(b.dtype).chunk(2, dim=1)
    room = raw.abs().add_(bound)
    log_scale = torch.div(raw, room).mul_(bound)
    log_det = log_scale.sum((1, 2, 3))
    scale = log_scale.exp_()
    return torch.addcmul(shift, b, scale), log_det, [b, room, scale, *kept] if keep else []


def couple_gradient(
    grad_b: Tensor,
    grad_log_det: Tensor,
    kept: Sequence[Tensor],
    network: Any,
    weights: Sequence[Tensor],
    way: Way,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """From gradients of what ``couple`` returned to those of a, b and ``weights``."""
    b, room, scale, *rest = kept
    grad_shift, grad_b = grad_b, grad_b * scale
    # ∂ log_scale / ∂ raw = (bound / room)²
    grad_raw = torch.addcmul(grad_log_det[:, None, None, None], grad_b, b)
    grad_raw.div_(room).div_(room).mul_(way.bound**2)
    grad_a, grads = network.gradient((grad_raw, grad_shift), rest, weights)
    return grad_a.to(b.dtype), grad_b, grads


class Couplings(nn.Module):
    """Couplings that change the two halves of an image's values in turn, the second half first.

    Args:
        couplings: all with the same bound.
        halves: ``channels`` are the first and the second half of the channels; ``checkerboard`` the
            pixels of one colour and those of the other, the two in each 2 × 2 block as channels.
    """

    def __init__(
        self, couplings: list[Coupling], halves: Literal["channels", "checkerboard"]
    ) -> None:
        super().__init__()
        self.couplings = nn.ModuleList(couplings)
        self.cut, self.join = {
            "channels": (cut_channels, join_channels),
            "checkerboard": (cut_checkerboard, join_checkerboard),
        }[halves]

    def forward(self, x: Tensor, plain: bool = False) -> tuple[Tensor, Tensor]:
        """With ``plain`` by the networks' modules, each of which is called."""
        halves, log_det = self.cut(x), x.new_zeros(len(x))
        couplings = list(cast("list[Coupling]", self.couplings))
        if couplings[0].by_hand(x) and not plain:
            networks = [coupling.network for coupling in couplings]
            weights = [weight for network in networks for weight in network.weights]
            *halves, log_det = _Couplings.apply(*halves, networks, way_of(couplings[0]), *weights)
            return self.join(halves), log_det
        for index, coupling in enumerate(couplings):
            given, changed = index % 2, 1 - index % 2
            halves[changed], term = coupling(halves[given], halves[changed])
            log_det = log_det + term
        return self.join(halves), log_det

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        halves, log_det = self.cut(z), z.new_zeros(len(z))
        for index, coupling in reversed(list(enumerate(cast("list[Coupling]", self.couplings)))):
            given, changed = index % 2, 1 - index % 2
            halves[changed], term = coupling.inverse(halves[given], halves[changed])
            log_det = log_det + term
        return self.join(halves), log_det


class _Couplings(torch.autograd.Function):
    """Couplings of two halves in turn, with their gradient by hand."""

    @staticmethod
    def forward(
        ctx: Any,
        first: Tensor,
        second: Tensor,
        networks: Any,
        way: Way,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        halves = [half.contiguous(memory_format=torch.channels_last) for half in (first, second)]
        log_det, kept = first.new_zeros(len(first)), []
        turns = in_turns(weights, len(weights) // len(networks))
        for index, (network, own) in enumerate(zip(networks, turns, strict=True)):
            given, changed = index % 2, 1 - index % 2
            halves[changed], term, saved = couple(halves[given], halves[changed], network, own, way)
            log_det += term
            kept += saved
        ctx.networks, ctx.way, ctx.count = networks, way, len(weights)
        ctx.save_for_backward(*weights, *kept)
        return halves[0], halves[1], log_det

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, first: Tensor, second: Tensor, grad_log_det: Tensor
    ) -> tuple[Tensor | None, ...]:
        weights, kept = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        turns = in_turns(weights, len(weights) // len(ctx.networks))
        saved = in_turns(kept, len(kept) // len(ctx.networks))
        halves = [half.contiguous(memory_format=torch.channels_last) for half in (first, second)]
        grads: list[Tensor] = []
        for index in reversed(range(len(ctx.networks))):
            given, changed = index % 2, 1 - index % 2
            grad_a, halves[changed], own = couple_gradient(
                halves[changed],
                grad_log_det,
                saved[index],
                ctx.networks[index],
                turns[index],
                ctx.way,
            )
            halves[given] = halves[given] + grad_a
            grads[:0] = own
        return (*halves, None, None, *grads)


class Step(nn.Module):
    """A step of Glow: activation norm, 1 × 1 convolution, a coupling of the channels' halves."""

    def __init__(
        self, channels: int, network: HighwayNetwork, bound: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.norm = ActNorm(channels)
        self.mix = ChannelMix(channels, generator)
        self.coupling = Couplings([Coupling(network, bound)], "channels")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, of_norm = self.norm(x)
        x, of_mix = self.mix(x)
        x, of_coupling = self.coupling(x, plain=True)
        return x, of_norm + of_mix + of_coupling

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        z, of_coupling = self.coupling.inverse(z)
        z, of_mix = self.mix.inverse(z)
        z, of_norm = self.norm.inverse(z)
        return z, of_norm + of_mix + of_coupling


class Steps(nn.Module):
    """The steps of one of Glow's scales, in turn.

    By hand, the norm and the mix of a step are one matrix and one shift, W exp(log_scale) and
    W exp(log_scale) bias, made for all steps at once.
    """

    def __init__(self, steps: list[Step]) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)

    @torch.no_grad()
    def initialise(self, x: Tensor) -> None:
        """Set every activation norm from what reaches it of the batch ``x``."""
        for step in cast("list[Step]", self.steps):
            step.norm.initialise(x)
            x, _ = step(x)

    def _maps(self) -> tuple[Tensor, Tensor, Tensor]:
        """Matrix (S, C, C) and shift (S, C) of every step; the log-determinant of one pixel."""
        steps = list(cast("list[Step]", self.steps))
        lower = torch.stack([step.mix.lower for step in steps]).tril(-1)
        upper = torch.stack([step.mix.upper for step in steps]).triu(1)
        log_scale = torch.stack([step.mix.log_scale for step in steps])
        sign = torch.stack([step.mix.sign for step in steps])
        permutation = torch.stack([step.mix.permutation for step in steps])
        lower = lower + torch.eye(lower.shape[1], dtype=lower.dtype, device=lower.device)
        upper = upper + torch.diag_embed(sign * log_scale.exp())
        norm = torch.stack([step.norm.log_scale.flatten() for step in steps])
        bias = torch.stack([step.norm.bias.flatten() for step in steps])
        matrix = permutation @ lower @ upper * norm.exp()[:, None]
        return matrix, (matrix @ bias[:, :, None])[:, :, 0], log_scale.sum() + norm.sum()

    def forward(self, x: Tensor, plain: bool = False) -> tuple[Tensor, Tensor]:
        """With ``plain`` by the modules, each of which is called."""
        couplings = [step.coupling.couplings[0] for step in cast("list[Any]", self.steps)]
        if couplings[0].by_hand(x) and not plain:
            networks = [coupling.network for coupling in couplings]
            weights = [weight for network in networks for weight in network.weights]
            matrix, shift, term = self._maps()
            z, log_det = _Steps.apply(
                planes(x),
                matrix,
                shift,
                networks,
                way_of(couplings[0]),
                *weights,
            )
            return samples(z), log_det + term * (x.shape[2] * x.shape[3])
        log_det = x.new_zeros(len(x))
        for step in self.steps:
            x, term = step(x)
            log_det = log_det + term
        return x, log_det

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        log_det = z.new_zeros(len(z))
        for step in reversed(list(cast("list[Step]", self.steps))):
            z, term = step.inverse(z)
            log_det = log_det + term
        return z, log_det


class _Steps(torch.autograd.Function):
    """Steps of Glow on planes (C, H, W, B), with their gradient by hand."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        matrix: Tensor,
        shift: Tensor,
        networks: Any,
        way: Way,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor]:
        log_det, kept = x.new_zeros(x.shape[3]), []
        turns = in_turns(weights, len(weights) // len(networks))
        x = x.contiguous()
        for index, (network, own) in enumerate(zip(networks, turns, strict=True)):
            mixed = torch.addmm(shift[index, :, None], matrix[index], x.flatten(1)).view_as(x)
            a, b = samples(mixed).chunk(2, dim=1)
            b, term, saved = couple(a, b, network, own, way)
            log_det += term
            kept += [x, *saved]
            x = torch.cat((planes(a), planes(b)))
        ctx.networks, ctx.way, ctx.count = networks, way, len(weights)
        ctx.save_for_backward(matrix, *weights, *(kept if way.keep else ()))
        return x, log_det

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_log_det: Tensor) -> tuple[Tensor | None, ...]:
        matrix, *rest = ctx.saved_tensors
        weights, kept = rest[: ctx.count], rest[ctx.count :]
        turns = in_turns(weights, len(weights) // len(ctx.networks))
        saved = in_turns(kept, len(kept) // len(ctx.networks))
        of_matrix, of_shift = torch.empty_like(matrix), torch.empty_like(matrix[:, :, 0])
        grads: list[Tensor] = []
        for index in reversed(range(len(ctx.networks))):
            x, *own = saved[index]
            of_a, of_b = samples(grad).chunk(2, dim=1)
            through, of_b, of_weights = couple_gradient(
                of_b, grad_log_det, own, ctx.networks[index], turns[index], ctx.way
            )
            grads[:0] = of_weights
            mixed = torch.cat((planes(of_a + through), planes(of_b))).flatten(1)
            of_matrix[index] = mixed @ x.flatten(1).T
            of_shift[index] = mixed.sum(1)
            grad = (matrix[index].T @ mixed).view_as(x)
        return (grad, of_matrix, of_shift, None, None, *grads)


def cut_channels(x: Tensor) -> list[Tensor]:
    """(B, C, H, W) to two of (B, C/2, H, W)."""
    return list(x.chunk(2, dim=1))


def join_channels(halves: list[Tensor]) -> Tensor:
    """The inverse of ``cut_channels``."""
    return torch.cat(halves, dim=1)


def cut_checkerboard(x: Tensor) -> list[Tensor]:
    """(B, C, H, W) to two of (B, 2C, H/2, W/2): the pixels where row + column is even, and odd."""
    blocks = F.pixel_unshuffle(x, 2).unflatten(1, (-1, 4))  # in a block: 0 1 above 2 3
    return [blocks[:, :, 0::3].flatten(1, 2), blocks[:, :, 1:3].flatten(1, 2)]


def join_checkerboard(halves: list[Tensor]) -> Tensor:
    """The inverse of ``cut_checkerboard``."""
    even, odd = (half.unflatten(1, (-1, 2)) for half in halves)
    blocks = torch.cat((even[:, :, :1], odd, even[:, :, 1:]), dim=2)
    return F.pixel_shuffle(blocks.flatten(1, 2), 2)


class MaskedCoupling(nn.Module):
    """x ↦ x · exp(s(mask · x)) + m(mask · x) where mask is 0; what mask covers stays.

    The original's coupling on a checkerboard. s is bounded as in ``hcl.model.realnvp.couple``.
    """

    mask: Tensor

    def __init__(self, network: nn.Module, mask: Tensor, bound: float) -> None:
        super().__init__()
        self.network = network
        self.bound = bound
        self.precision: torch.dtype | None = None
        self.register_buffer("mask", mask)

    def _terms(self, x: Tensor) -> tuple[Tensor, Tensor]:
        lower = self.precision is not None and torch.is_grad_enabled()
        with torch.autocast(x.device.type, self.precision, enabled=lower):
            outputs = self.network(self.mask * x)
        raw, shift = outputs.to(x.dtype).chunk(2, dim=1)
        free = 1 - self.mask
        return free * raw * self.bound / (self.bound + raw.abs()), free * shift

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log_scale, shift = self._terms(x)
        return torch.addcmul(shift, x, log_scale.exp()), log_scale.flatten(1).sum(1)

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        log_scale, shift = self._terms(z)
        return (z - shift) * (-log_scale).exp(), -log_scale.flatten(1).sum(1)


class ImageFlow(nn.Module):
    """Transforms at several scales. After each scale but the last, half of the channels are done.

    Args:
        shape: (C, H, W) of an image.
        scales: the transforms of each scale, in turn.
        pixels: the map from bytes, which comes first.

    Attributes:
        dense: a flow on the flat latent, which comes last; ``None`` leaves it out. A convolution
            does the same at every place, and sees a few pixels around it. The means are drawn for
            each place by itself, and which one is wanted depends on the whole image: the paper's 28
            couplings reach that in some thousand steps, a few couplings don't in some hundred.
    """

    dense: nn.Module | None

    def __init__(
        self, shape: tuple[int, ...], scales: list[list[nn.Module]], pixels: Pixels = "affine"
    ) -> None:
        super().__init__()
        self.shape = shape
        self.size = math.prod(shape)
        self.pixels = PixelLogit() if pixels == "logit" else PixelScaling()
        self.scales = nn.ModuleList(nn.ModuleList(transforms) for transforms in scales)
        self.dense = None
        # The shape in which each scale ends.
        self.ends = []
        channels, height, width = shape
        for index, transforms in enumerate(scales):
            for transform in transforms:
                if isinstance(transform, Squeeze):
                    channels, height, width = 4 * channels, height // 2, width // 2
            if index < len(scales) - 1:
                channels //= 2
            self.ends.append((channels, height, width))

    def _transforms(self, scale: int) -> list[Any]:
        return list(cast("list[Any]", self.scales[scale]))

    @torch.no_grad()
    def initialise(self, x: Tensor) -> None:
        """Set every activation norm from the batch ``x``, each from what reaches it."""
        x, _ = self.pixels(x)
        for index in range(len(self.scales)):
            for transform in self._transforms(index):
                if isinstance(transform, Steps):
                    transform.initialise(x)
                x, _ = transform(x)
            x = x[:, : self.ends[index][0]]

    def forward(self, x: Tensor, plain: bool = False) -> tuple[Tensor, Tensor]:
        x, log_det = self.pixels(x)
        done = []
        for index in range(len(self.scales)):
            for transform in self._transforms(index):
                x, term = (
                    transform(x, plain)
                    if isinstance(transform, Couplings | Steps)
                    else transform(x)
                )
                log_det = log_det + term
            channels = self.ends[index][0]
            x, left = x[:, :channels], x[:, channels:]
            done.append(left.flatten(1))
        z = torch.cat((*done, x.flatten(1)), dim=1)
        if self.dense is not None:
            z, term = self.dense(z)
            log_det = log_det + term
        return z, log_det

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        log_det = z.new_zeros(len(z))
        if self.dense is not None:
            z, term = cast("Any", self.dense).inverse(z)
            log_det = log_det + term
        lengths = [math.prod(end) for end in self.ends]
        *done, z = z.split(lengths, dim=1)
        z = z.unflatten(1, self.ends[-1])
        for index in reversed(range(len(self.scales))):
            if index < len(done):
                z = torch.cat((z, done[index].unflatten(1, self.ends[index])), dim=1)
            for transform in reversed(self._transforms(index)):
                z, term = transform.inverse(z)
                log_det = log_det + term
        x, term = self.pixels.inverse(z)
        return x, log_det + term

    def set_precision(self, precision: torch.dtype | None) -> None:
        """Run the couplings' networks in ``precision`` in training; with None as they are.

        All else, log-determinants above all, keeps the precision of x; so do answers and draws, for
        which no gradient is taken, so that a draw is where its latent was.
        """
        for module in self.modules():
            if isinstance(module, Coupling | MaskedCoupling):
                module.precision = precision

    @torch.no_grad()
    def trace(self, x: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Every weight and value on the way from x to z, each with its layer's name."""
        seen: list[tuple[str, Tensor]] = []

        def note(name: str) -> Any:
            def hook(module: nn.Module, _: Any, output: Any) -> None:
                seen.extend((f"{name}.{n}", p) for n, p in module.named_parameters(recurse=False))
                seen.append((name, output[0] if isinstance(output, tuple) else output))

            return hook

        hooks = [m.register_forward_hook(note(n)) for n, m in self.named_modules() if n]
        try:
            self(x, plain=True)
        finally:
            for hook in hooks:
                hook.remove()
        yield from seen


def checkerboard(height: int, width: int, swap: bool) -> Tensor:
    """1 and 0 in turn, (1, H, W)."""
    rows, columns = torch.arange(height)[:, None], torch.arange(width)
    return ((rows + columns + swap) % 2 == 0).float()[None]


def check_shape(shape: tuple[int, ...], squeezes: int) -> None:
    """An image must be (C, H, W), and halve without a rest at every squeeze."""
    side = 2**squeezes
    if len(shape) != 3 or shape[1] % side or shape[2] % side:
        raise ValueError(
            f"shape: an image flow with this many scales takes (C, H, W) with H and W divisible by "
            f"{side}, found {shape}"
        )


def realnvp_image(
    shape: tuple[int, ...],
    *,
    scales: int,
    couplings: int,
    channels: int,
    blocks: int,
    bound: float,
    generator: torch.Generator,
    folded: bool = True,
    pixels: Pixels = "affine",
) -> ImageFlow:
    """RealNVP on images (Dinh et al. 2017), with residual networks.

    Each scale but the last: n couplings on a checkerboard, a squeeze, n couplings on channels. The
    last scale: what is left of ``couplings`` on a checkerboard. Paper: three scales, sixteen
    couplings in all, which are the 3 + 3, 3 + 3 and 4 of the original.

    Paper: silent on the networks' resolution. Here: a checkerboard's network sees the pixels of one
    colour alone, the two of each 2 × 2 block as channels (``folded``), because the original's looks
    at an image of full size whose other half is 0, at four times the cost. Where height or width is
    odd, and without ``folded``, it is the original's.
    """
    check_shape(shape, scales - 1)
    turns = (couplings + 2) // (2 * scales)
    last = couplings - 2 * turns * (scales - 1)
    if turns < 1 or last < 1:
        raise ValueError(f"couplings: {couplings} are too few for {scales} scales")
    depth, height, width = shape
    if height * width < 2 * 4 ** (scales - 1):
        raise ValueError(f"scales: {scales} leave no checkerboard of an image of {shape}")

    def network(inputs: int, outputs: int) -> ResidualNetwork:
        return ResidualNetwork(
            inputs, outputs, channels=channels, blocks=blocks, generator=generator
        )

    def on_checkerboard(count: int) -> list[nn.Module]:
        if folded and height % 2 == 0 and width % 2 == 0:
            parts = [Coupling(network(2 * depth, 4 * depth), bound) for _ in range(count)]
            return [Couplings(parts, "checkerboard")]
        return [
            MaskedCoupling(
                network(depth, 2 * depth), checkerboard(height, width, index % 2 == 1), bound
            )
            for index in range(count)
        ]

    parts: list[list[nn.Module]] = []
    for _ in range(scales - 1):
        part = [*on_checkerboard(turns), Squeeze()]
        depth, height, width = 4 * depth, height // 2, width // 2
        by_channels = [Coupling(network(depth // 2, depth), bound) for _ in range(turns)]
        parts.append([*part, Couplings(by_channels, "channels")])
        depth //= 2
    parts.append(on_checkerboard(last))
    return ImageFlow(shape, parts, pixels)


def glow(
    shape: tuple[int, ...],
    *,
    scales: int,
    couplings: int,
    channels: int,
    layers: int,
    bound: float,
    generator: torch.Generator,
    pixels: Pixels = "affine",
) -> ImageFlow:
    """Glow (Kingma & Dhariwal 2018), with highway networks.

    Each scale: a squeeze, then steps of activation norm, 1 × 1 convolution and coupling.
    ``couplings`` are in all, the same number at each scale. Paper: two scales of fourteen.
    """
    check_shape(shape, scales)
    if couplings % scales:
        raise ValueError(
            f"couplings: {couplings} can't be shared evenly by {scales} scales; "
            f"take a multiple of {scales}"
        )
    depth = shape[0]
    parts: list[list[nn.Module]] = []
    for _ in range(scales):
        depth *= 4
        steps = []
        for _ in range(couplings // scales):
            network = HighwayNetwork(
                depth // 2, depth, channels=channels, layers=layers, generator=generator
            )
            steps.append(Step(depth, network, bound, generator))
        parts.append([Squeeze(), Steps(steps)])
        depth //= 2
    return ImageFlow(shape, parts, pixels)
