"""A training step of flows on images: ours, ours as it was, and three libraries' couplings.

    git show <commit>:hcl/model/images.py > before.py
    python benchmarks/image_flows.py --before before.py

needs ``pip install -e '.[benchmark]'``. One thread, batch 32: forward, backward and an Adam step,
fused for all. A peer brings its couplings (and for Glow its activation norm and 1 × 1 convolution),
as it ships them; the coupling networks, the squeezes and the splits between scales are the same for
all, in plain torch. FrEIA's 1 × 1 convolution is fixed, so that it has a little less to do.

The flow as it was looks at a checkerboard at full resolution; now it is folded. ``hcl, full`` is
today's code without the fold: the architecture as it was. So is ``normflows, full`` and so on: a
peer's couplings with networks that look at a checkerboard at full resolution, as in the paper that
its users follow; ``normflows`` has the folded networks, the idea of this project. ``hcl, bfloat16``
runs the coupling networks in half precision (``flow.precision``), which no peer does; highway
layers with value and gate in one convolution are given to all. ``convolutions`` are the
networks' convolutions as torch runs them, forward and backward, and Adam: what no peer can do
without.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import FrEIA.modules
import nflows.transforms
import normflows.flows
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hcl.model import images
from hcl.model.images import HighwayNetwork, ResidualNetwork

BATCH, BOUND = 32, 3.0
Network = Callable[[int, int], nn.Module]  # of so many inputs and outputs


@dataclass(frozen=True)
class Size:
    """A flow's architecture; ``layers`` are residual blocks or highway layers."""

    kind: str
    shape: tuple[int, int, int]
    scales: int
    couplings: int
    layers: int
    channels: int

    def __str__(self) -> str:
        depth, height, width = self.shape
        return (
            f"{self.kind} {height}×{width}×{depth}, {self.couplings} couplings of "
            f"{self.layers}×{self.channels}"
        )


SIZES = {
    "realnvp-16": Size("RealNVP", (3, 32, 32), 3, 16, 2, 16),
    "realnvp-32": Size("RealNVP", (3, 32, 32), 3, 16, 2, 32),
    "glow-32": Size("Glow", (1, 28, 28), 2, 8, 2, 32),
    "glow-64": Size("Glow", (1, 28, 28), 2, 12, 2, 64),
}


def ours(module: Any, size: Size, **options: Any) -> nn.Module:
    """The flow of ``module``, today's or an older version of ``hcl.model.images``."""
    shared = {
        "scales": size.scales,
        "couplings": size.couplings,
        "channels": size.channels,
        "bound": BOUND,
        "generator": torch.Generator().manual_seed(0),
        **options,
    }
    if size.kind == "Glow":
        return module.glow(size.shape, layers=size.layers, **shared)
    return module.realnvp_image(size.shape, blocks=size.layers, **shared)


def network(size: Size, inputs: int, outputs: int) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    if size.kind == "Glow":
        return HighwayNetwork(
            inputs, outputs, channels=size.channels, layers=size.layers, generator=generator
        )
    return ResidualNetwork(
        inputs, outputs, channels=size.channels, blocks=size.layers, generator=generator
    )


class Unfolded(nn.Module):
    """A network on the checkerboard at full resolution: zeros where the pixels are to be changed.

    It takes and returns halves as the folded ones do: two pixels of each 2 × 2 block as channels.
    """

    def __init__(self, size: Size, swap: bool, inputs: int, outputs: int) -> None:
        super().__init__()
        self.colours = [slice(0, None, 3), slice(1, 3)][:: -1 if swap else 1]  # given, changed
        self.inner = network(size, inputs // 2, outputs // 2)

    def forward(self, x: Tensor) -> Tensor:
        given, changed = self.colours
        pixels = x.unflatten(1, (-1, 2))
        blocks = pixels.new_zeros(len(x), pixels.shape[1], 4, *x.shape[2:])
        blocks[:, :, given] = pixels
        outputs = self.inner(F.pixel_shuffle(blocks.flatten(1, 2), 2))
        blocks = F.pixel_unshuffle(outputs, 2).unflatten(1, (-1, 4))
        return blocks[:, :, changed].flatten(1, 2)


class Normflows(nn.Module):
    """normflows goes from data to latents by ``inverse``."""

    def __init__(self, size: Size, channels: int, swap: bool, make: Network) -> None:
        super().__init__()
        mode = "channel_inv" if swap else "channel"
        coupling = normflows.flows.AffineCouplingBlock(
            make(channels // 2, channels), scale_map="exp", split_mode=mode
        )
        self.parts = nn.ModuleList([coupling])
        if size.kind == "Glow":
            mix = normflows.flows.Invertible1x1Conv(channels, use_lu=True)
            self.parts = nn.ModuleList([normflows.flows.ActNorm((channels, 1, 1)), mix, coupling])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log_det = x.new_zeros(len(x))
        for part in self.parts:
            x, term = part.inverse(x)  # type: ignore[operator]
            log_det = log_det + term
        return x, log_det


class ContextFree(nn.Module):
    """nflows' couplings hand a context to their networks, which take none."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor, context: None = None) -> Tensor:
        return self.inner(inputs)


class Nflows(nn.Module):
    def __init__(self, size: Size, channels: int, swap: bool, make: Network) -> None:
        super().__init__()
        mask = (torch.arange(channels) >= channels // 2) != swap  # what is changed
        coupling = nflows.transforms.AffineCouplingTransform(
            mask.int(), lambda inputs, outputs: ContextFree(make(inputs, outputs))
        )
        parts = [coupling]
        if size.kind == "Glow":
            mix = nflows.transforms.OneByOneConvolution(channels)
            parts = [nflows.transforms.ActNorm(channels), mix, coupling]
        self.whole = nflows.transforms.CompositeTransform(parts)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.whole(x)


class Freia(nn.Module):
    """FrEIA's one-sided coupling changes the second half; for Glow its all-in-one block."""

    def __init__(self, size: Size, channels: int, swap: bool, make: Network) -> None:
        super().__init__()
        self.swap = swap
        options: dict[str, Any] = {"subnet_constructor": make}
        kind = FrEIA.modules.AffineCouplingOneSided
        if size.kind == "Glow":
            kind, options["permute_soft"] = FrEIA.modules.AllInOneBlock, True
        self.block = kind([(channels, 1, 1)], **options)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.swap:
            x = torch.cat(x.chunk(2, dim=1)[::-1], dim=1)
        (x,), log_det = self.block([x])
        if self.swap:
            x = torch.cat(x.chunk(2, dim=1)[::-1], dim=1)
        return x, log_det


class Peer(nn.Module):
    """Our architecture, with another library's couplings."""

    def __init__(self, size: Size, coupling: Callable[..., nn.Module], full: bool = False) -> None:
        super().__init__()
        self.size = size
        depth, turns = size.shape[0], (size.couplings + 2) // (2 * size.scales)
        self.scales = nn.ModuleList()
        for index in range(size.scales):
            depth *= 4
            counts = [size.couplings // size.scales]
            if size.kind == "RealNVP":  # on the checkerboard, then on channels
                last = size.couplings - 2 * turns * (size.scales - 1)
                counts = [last] if index == size.scales - 1 else [turns, turns]
            # The halves take turns in RealNVP; in Glow the 1 × 1 convolution mixes them.
            groups = nn.ModuleList(nn.ModuleList() for _ in counts)
            for group, count in enumerate(counts):
                for turn in range(count):
                    swap = size.kind == "RealNVP" and turn % 2 == 1
                    make: Network = partial(network, size)
                    if full and group == 0:
                        make = partial(Unfolded, size, swap)
                    groups[group].append(coupling(size, depth, swap, make))
            self.scales.append(groups)
            depth //= 2

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = (x - 128) / 64
        log_det, done = x.new_zeros(len(x)), []
        for index, groups in enumerate(self.scales):
            x = F.pixel_unshuffle(x, 2)
            if self.size.kind == "RealNVP":
                blocks = x.unflatten(1, (-1, 4))
                x = torch.cat([blocks[:, :, 0::3], blocks[:, :, 1:3]], dim=1).flatten(1, 2)
            for group in groups:  # type: ignore[union-attr]
                for coupling in group:
                    x, term = coupling(x)
                    log_det = log_det + term
            if index < len(self.scales) - 1:
                x, left = x.chunk(2, dim=1)
                done.append(left.flatten(1))
        return torch.cat([*done, x.flatten(1)], dim=1), log_det


def training_step(flow: nn.Module, x: Tensor) -> Callable[[], None]:
    optimiser = torch.optim.Adam(flow.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        optimiser.zero_grad()
        z, log_det = flow(x)
        (0.5 * z.square().sum(1) - log_det).mean().backward()
        optimiser.step()

    return step


def convolutions(flow: nn.Module, x: Tensor) -> Callable[[], None]:
    """The convolutions of our networks, forward and backward, and Adam: nothing else."""
    calls: list[tuple[Tensor, nn.Conv2d]] = []

    def note(module: nn.Conv2d, inputs: tuple[Tensor], output: Tensor) -> None:
        layout = inputs[0].detach().clone(memory_format=torch.channels_last)
        calls.append((layout, module))

    hooks = [m.register_forward_hook(note) for m in flow.modules() if isinstance(m, nn.Conv2d)]
    with torch.no_grad():
        flow(x, plain=True)
    for hook in hooks:
        hook.remove()
    optimiser = torch.optim.Adam(flow.parameters(), lr=0.0, fused=True)
    for parameter in flow.parameters():
        parameter.grad = torch.zeros_like(parameter)

    @torch.no_grad()
    def step() -> None:
        for given, layer in calls:
            pad = list(layer.padding)
            out = F.conv2d(given, layer.weight, layer.bias, padding=pad)
            torch.ops.aten.convolution_backward(
                out,
                given,
                layer.weight,
                None,
                [1, 1],
                pad,
                [1, 1],
                False,
                [0, 0],
                1,
                [True, True, False],
            )
        optimiser.step()

    return step


def measure(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of the processor for each, round by round; in a round all meet one load."""
    names = list(steps)
    times: dict[str, list[float]] = {name: [] for name in names}
    for step in steps.values():
        step()
        step()
    for turn in range(rounds):
        start = turn % len(names)  # nobody always follows the same one
        for name in names[start:] + names[:start]:
            before = time.process_time()
            steps[name]()
            times[name].append((time.process_time() - before) * 1e3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="an older version of hcl/model/images.py")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)  # the peers draw from torch's global generator
    before = None
    if arguments.before:
        spec = importlib.util.spec_from_file_location("before", arguments.before)
        assert spec is not None
        assert spec.loader is not None
        before = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(before)
    peers = {"normflows": Normflows, "nflows": Nflows, "FrEIA": Freia}
    names = [
        "hcl",
        "hcl, bfloat16",
        "hcl, full",
        *(["before"] if before else []),
        *peers,
        *(f"{name}, full" for name in peers),
        "convolutions",
    ]
    print(f"torch {torch.__version__}, batch {BATCH}, one thread, milliseconds\n")
    both = ("hcl", "hcl, bfloat16")
    kinds = ("before", "fastest peer", "fastest peer, full")
    ratios = [f"{name} / {own}" for name in kinds for own in both]
    print(f"| | weights | {' | '.join(names + ratios)} |")
    print(f"| --- |{' --- |' * (len(names + ratios) + 1)}")
    for key in arguments.sizes:
        size = SIZES[key]
        flows: dict[str, nn.Module] = {"hcl": ours(images, size)}
        flows["hcl, bfloat16"] = ours(images, size)
        flows["hcl, bfloat16"].set_precision(torch.bfloat16)  # type: ignore[operator]
        if size.kind == "RealNVP":
            flows["hcl, full"] = ours(images, size, folded=False)
        if before:
            flows["before"] = ours(before, size)
        flows |= {name: Peer(size, kind) for name, kind in peers.items()}
        if size.kind == "RealNVP":
            flows |= {f"{name}, full": Peer(size, kind, full=True) for name, kind in peers.items()}
        x = 256 * torch.rand(BATCH, *size.shape, generator=torch.Generator().manual_seed(0))
        for name in ("hcl", "hcl, bfloat16", *(["before"] if before else [])):
            flows[name].initialise(x)  # type: ignore[operator]
        steps = {name: training_step(flow, x) for name, flow in flows.items()}
        steps["convolutions"] = convolutions(ours(images, size), x)
        times = measure(steps, arguments.rounds)

        def ratio(name: str, own: str, times: dict[str, list[float]] = times) -> float:
            pairs = zip(times[name], times[own], strict=True)
            return statistics.median(other / mine for other, mine in pairs)

        weights = sum(parameter.numel() for parameter in flows["hcl"].parameters())
        cells = [f"{statistics.median(times[n]):.0f}" if n in times else "" for n in names]
        for others in (["before"], [*peers], [f"{name}, full" for name in peers]):
            found = [name for name in others if name in times]
            for own in both:
                cells.append(f"{min(ratio(n, own) for n in found):.2f}" if found else "")
        print(f"| {size} | {weights:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
