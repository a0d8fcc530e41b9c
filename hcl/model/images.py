"""Flows on images: RealNVP with residual networks, and Glow with highway networks.

An image is (C, H, W) with values from 0 to 256; ``dequantise`` makes one from bytes. Every
transform keeps the contract of ``hcl.model.flows``: forward and inverse return the value and the
log-determinant of their own direction, one a sample. The latent is flat, (B, C · H · W): what the
scales leave on the way, then what comes out at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def dequantise(images: Tensor, generator: torch.Generator) -> Tensor:
    """Bytes 0…255 to reals in [0, 256), by uniform noise; shape as it was.

    A density on reals would rise without bound at whole numbers otherwise.
    """
    noise = torch.rand(images.shape, generator=generator, device=generator.device)
    # float32 would round the last of these up to the next byte
    return images + noise.mul_(1 - 2**-16).to(images.device)


class PixelScaling(nn.Module):
    """The fixed map from [0, 256) to about [−2, 2): z = (x − 128) / 64.

    Paper: silent. Here: affine and not a logit, because samples of a snapshot are replayed, and a
    logit loses its precision, and at last its inverse, on values outside the range of the data.
    """

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return (x - 128) / 64, x.new_full((len(x),), -math.prod(x.shape[1:]) * math.log(64))

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return 64 * z + 128, z.new_full((len(z),), math.prod(z.shape[1:]) * math.log(64))


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
        return F.conv2d(x, weight[:, :, None, None]), self._log_det(x)

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        lower, upper = self._factors()
        x = self.permutation.T @ z.flatten(2)
        x = torch.linalg.solve_triangular(lower, x, upper=False, unitriangular=True)
        x = torch.linalg.solve_triangular(upper, x, upper=True)
        return x.view_as(z), -self._log_det(z)

    def _log_det(self, x: Tensor) -> Tensor:
        return (self.log_scale.sum() * x.shape[2] * x.shape[3]).expand(len(x))


def convolution(
    inputs: int, outputs: int, kernel: int, generator: torch.Generator | None
) -> nn.Conv2d:
    """A convolution that keeps height and width, uniform within ±1/√fan-in.

    All zeros without a ``generator``: for the last layer of a coupling's network, so that the
    coupling starts as the identity.
    """
    layer = nn.utils.skip_init(nn.Conv2d, inputs, outputs, kernel, padding=kernel // 2)
    bound = (inputs * kernel**2) ** -0.5 if generator else 0.0
    for parameter in (layer.weight, layer.bias):
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return layer


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
    """

    def __init__(self, channels: int, generator: torch.Generator) -> None:
        super().__init__()
        self.value = convolution(channels, channels, 1, generator)
        self.gate = convolution(channels, channels, 1, generator)
        nn.init.constant_(self.gate.bias, -2.0)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.sigmoid(self.gate(x)) * (F.relu(self.value(x)) - x)


def residual_network(
    inputs: int, outputs: int, *, channels: int, blocks: int, generator: torch.Generator
) -> nn.Sequential:
    """The paper's network for SVHN and MNIST: ``blocks`` residual blocks with layer norm."""
    return nn.Sequential(
        convolution(inputs, channels, 3, generator),
        *(Residual(channels, generator) for _ in range(blocks)),
        nn.GroupNorm(1, channels),
        nn.ReLU(),
        convolution(channels, outputs, 3, None),
    )


def highway_network(
    inputs: int, outputs: int, *, channels: int, layers: int, generator: torch.Generator
) -> nn.Sequential:
    """The paper's network for split MNIST: ``layers`` hidden highway layers.

    Paper: three hidden layers with 200 channels; silent on the kernels. Here: 3 × 3 where the image
    comes in and goes out, 1 × 1 in the hidden layers, as in Glow's own networks.
    """
    return nn.Sequential(
        convolution(inputs, channels, 3, generator),
        nn.ReLU(),
        *(Highway(channels, generator) for _ in range(layers)),
        convolution(channels, outputs, 3, None),
    )


class MaskedCoupling(nn.Module):
    """x ↦ x · exp(s(mask · x)) + m(mask · x) where mask is 0; what mask covers stays.

    s is bounded as in ``hcl.model.realnvp.couple``.
    """

    mask: Tensor

    def __init__(self, network: nn.Module, mask: Tensor, bound: float) -> None:
        super().__init__()
        self.network = network
        self.bound = bound
        self.register_buffer("mask", mask)

    def _terms(self, x: Tensor) -> tuple[Tensor, Tensor]:
        raw, shift = self.network(self.mask * x).chunk(2, dim=1)
        free = 1 - self.mask
        return free * raw * self.bound / (self.bound + raw.abs()), free * shift

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log_scale, shift = self._terms(x)
        return torch.addcmul(shift, x, log_scale.exp()), log_scale.flatten(1).sum(1)

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        log_scale, shift = self._terms(z)
        return (z - shift) * (-log_scale).exp(), -log_scale.flatten(1).sum(1)


class ChannelCoupling(nn.Module):
    """One half of the channels changes given the other: the second, or with ``swap`` the first.

    s is bounded as in ``hcl.model.realnvp.couple``.
    """

    def __init__(self, network: nn.Module, bound: float, swap: bool) -> None:
        super().__init__()
        self.network = network
        self.bound = bound
        self.swap = swap

    def _halves(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        a, b = x.chunk(2, dim=1)
        if self.swap:
            a, b = b, a
        raw, shift = self.network(a).chunk(2, dim=1)
        return a, b, raw * self.bound / (self.bound + raw.abs()), shift

    def _join(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.cat((b, a) if self.swap else (a, b), dim=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b, log_scale, shift = self._halves(x)
        b = torch.addcmul(shift, b, log_scale.exp())
        return self._join(a, b), log_scale.flatten(1).sum(1)

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        a, b, log_scale, shift = self._halves(z)
        b = (b - shift) * (-log_scale).exp()
        return self._join(a, b), -log_scale.flatten(1).sum(1)


class ImageFlow(nn.Module):
    """Transforms at several scales. After each scale but the last, half of the channels are done.

    Args:
        shape: (C, H, W) of an image.
        scales: the transforms of each scale, in turn.
    """

    def __init__(self, shape: tuple[int, ...], scales: list[list[nn.Module]]) -> None:
        super().__init__()
        self.shape = shape
        self.size = math.prod(shape)
        self.pixels = PixelScaling()
        self.scales = nn.ModuleList(nn.ModuleList(transforms) for transforms in scales)
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
                if isinstance(transform, ActNorm):
                    transform.initialise(x)
                x, _ = transform(x)
            x = x[:, : self.ends[index][0]]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, log_det = self.pixels(x)
        done = []
        for index in range(len(self.scales)):
            for transform in self._transforms(index):
                x, term = transform(x)
                log_det = log_det + term
            channels = self.ends[index][0]
            x, left = x[:, :channels], x[:, channels:]
            done.append(left.flatten(1))
        return torch.cat((*done, x.flatten(1)), dim=1), log_det

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        lengths = [math.prod(end) for end in self.ends]
        *done, z = z.split(lengths, dim=1)
        z = z.unflatten(1, self.ends[-1])
        log_det = z.new_zeros(len(z))
        for index in reversed(range(len(self.scales))):
            if index < len(done):
                z = torch.cat((z, done[index].unflatten(1, self.ends[index])), dim=1)
            for transform in reversed(self._transforms(index)):
                z, term = transform.inverse(z)
                log_det = log_det + term
        x, term = self.pixels.inverse(z)
        return x, log_det + term

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
            self(x)
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
) -> ImageFlow:
    """RealNVP on images (Dinh et al. 2017), with residual networks.

    Each scale but the last: n couplings on a checkerboard, a squeeze, n couplings on channels. The
    last scale: what is left of ``couplings`` on a checkerboard. Paper: three scales, sixteen
    couplings in all, which are the 3 + 3, 3 + 3 and 4 of the original.
    """
    check_shape(shape, scales - 1)
    turns = (couplings + 2) // (2 * scales)
    last = couplings - 2 * turns * (scales - 1)
    if turns < 1 or last < 1:
        raise ValueError(f"couplings: {couplings} are too few for {scales} scales")
    depth, height, width = shape
    if height * width < 2 * 4 ** (scales - 1):
        raise ValueError(f"scales: {scales} leave no checkerboard of an image of {shape}")

    def masked(swap: bool) -> nn.Module:
        network = residual_network(
            depth, 2 * depth, channels=channels, blocks=blocks, generator=generator
        )
        return MaskedCoupling(network, checkerboard(height, width, swap), bound)

    def by_channels(swap: bool) -> nn.Module:
        network = residual_network(
            depth // 2, depth, channels=channels, blocks=blocks, generator=generator
        )
        return ChannelCoupling(network, bound, swap)

    parts: list[list[nn.Module]] = []
    for _ in range(scales - 1):
        part = [masked(index % 2 == 1) for index in range(turns)]
        part.append(Squeeze())
        depth, height, width = 4 * depth, height // 2, width // 2
        part += [by_channels(index % 2 == 1) for index in range(turns)]
        parts.append(part)
        depth //= 2
    parts.append([masked(index % 2 == 1) for index in range(last)])
    return ImageFlow(shape, parts)


def glow(
    shape: tuple[int, ...],
    *,
    scales: int,
    couplings: int,
    channels: int,
    layers: int,
    bound: float,
    generator: torch.Generator,
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
        part: list[nn.Module] = [Squeeze()]
        for _ in range(couplings // scales):
            network = highway_network(
                depth // 2, depth, channels=channels, layers=layers, generator=generator
            )
            part += [
                ActNorm(depth),
                ChannelMix(depth, generator),
                ChannelCoupling(network, bound, swap=False),
            ]
        parts.append(part)
        depth //= 2
    return ImageFlow(shape, parts)
