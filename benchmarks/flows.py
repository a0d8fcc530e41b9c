"""Our RealNVP beside normflows, nflows, FrEIA and zuko: the same architecture, one process.

Each library gets eight affine couplings on two halves of 1280 features, with MLPs of three hidden
layers of 512 and ReLU, and so the same number of weights, which is checked. Libraries take turns
within every round, so that a busy moment of the machine falls on all of them; a figure is the
median over rounds, in milliseconds of processor time (user and system) on one thread. The column
``products`` is what no implementation can do without: the matrix products of the networks' layers,
forward and, in a training step, backward, and one fused Adam over as many weights.

    python -m pip install -e '.[benchmark]'
    python benchmarks/flows.py --rounds 20
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import FrEIA.framework
import FrEIA.modules
import nflows.distributions
import nflows.flows
import nflows.nn.nets
import nflows.transforms
import normflows
import torch
import zuko
from torch import Tensor, nn

from hcl.model.hybrid import build_model
from hcl.model.losses import likelihood_loss
from hcl.model.settings import FlowSettings

SIZE, COUPLINGS, HIDDEN, LAYERS = 1280, 8, 512, 3


@dataclass(frozen=True)
class Contestant:
    """A library's flow, seen through the three calls that are timed."""

    module: nn.Module
    log_prob: Callable[[Tensor], Tensor]
    sample: Callable[[int], Tensor]

    @property
    def weights(self) -> int:
        return sum(p.numel() for p in self.module.parameters() if p.requires_grad)


def ours() -> Contestant:
    generator = torch.Generator().manual_seed(0)
    settings = FlowSettings(couplings=COUPLINGS, hidden=HIDDEN, hidden_layers=LAYERS)
    model = build_model(settings, (SIZE,), 2, generator)
    model.add_task(generator)
    labels = {n: torch.randint(2, (n,), generator=generator) for n in (32, 256)}
    return Contestant(
        model,
        lambda x: -likelihood_loss(model.statistics(x, labels[len(x)], 0).log_px),
        lambda n: model.sample(labels[n], 0, generator)[0],
    )


def normflows_flow() -> Contestant:
    flows = []
    for _ in range(COUPLINGS):
        sizes = [SIZE // 2, *[HIDDEN] * LAYERS, SIZE]
        flows.append(
            normflows.flows.AffineCouplingBlock(normflows.nets.MLP(sizes, init_zeros=True))
        )
        flows.append(normflows.flows.Permute(SIZE, mode="swap"))
    base = normflows.distributions.base.DiagGaussian(SIZE, trainable=False)
    model = normflows.NormalizingFlow(base, flows)
    return Contestant(model, lambda x: -model.forward_kld(x), lambda n: model.sample(n)[0])


class ContextFree(nflows.nn.nets.MLP):
    """nflows' couplings hand a context to their networks; its MLP takes none."""

    def forward(self, inputs: Tensor, context: None = None) -> Tensor:
        return super().forward(inputs)


def nflows_flow() -> Contestant:
    def network(inputs: int, outputs: int) -> nn.Module:
        return ContextFree([inputs], [outputs], [HIDDEN] * LAYERS)

    transforms = [
        nflows.transforms.AffineCouplingTransform(
            nflows.utils.torchutils.create_alternating_binary_mask(SIZE, even=index % 2 == 0),
            network,
        )
        for index in range(COUPLINGS)
    ]
    model = nflows.flows.Flow(
        nflows.transforms.CompositeTransform(transforms),
        nflows.distributions.StandardNormal([SIZE]),
    )
    return Contestant(model, lambda x: model.log_prob(x).mean(), model.sample)


def freia_flow() -> Contestant:
    def network(inputs: int, outputs: int) -> nn.Module:
        sizes = [inputs, *[HIDDEN] * LAYERS]
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(HIDDEN, outputs))

    model = FrEIA.framework.SequenceINN(SIZE)
    for _ in range(COUPLINGS // 2):  # one block couples both halves
        model.append(FrEIA.modules.GLOWCouplingBlock, subnet_constructor=network)

    def log_prob(x: Tensor) -> Tensor:
        z, log_det = model(x)
        return (log_det - 0.5 * z.square().sum(1)).mean()

    return Contestant(model, log_prob, lambda n: model(torch.randn(n, SIZE), rev=True)[0])


def zuko_flow() -> Contestant:
    model = zuko.flows.RealNVP(SIZE, transforms=COUPLINGS, hidden_features=[HIDDEN] * LAYERS)
    return Contestant(model, lambda x: model().log_prob(x).mean(), lambda n: model().sample((n,)))


LIBRARIES: dict[str, Callable[[], Contestant]] = {
    "hcl": ours,
    "normflows": normflows_flow,
    "nflows": nflows_flow,
    "FrEIA": freia_flow,
    "zuko": zuko_flow,
}


def training_step(contestant: Contestant, x: Tensor, fused: bool) -> Callable[[], None]:
    optimiser = torch.optim.Adam(contestant.module.parameters(), lr=1e-4, fused=fused)

    def step() -> None:
        optimiser.zero_grad()
        (-contestant.log_prob(x)).backward()
        optimiser.step()

    return step


def log_likelihood(contestant: Contestant, x: Tensor) -> Callable[[], None]:
    @torch.no_grad()
    def step() -> None:
        contestant.log_prob(x)

    return step


def sampling(contestant: Contestant, x: Tensor) -> Callable[[], None]:
    @torch.no_grad()
    def step() -> None:
        contestant.sample(len(x))

    return step


def products(x: Tensor, trains: bool) -> Callable[[], None]:
    """The matrix products of the networks, each into memory of its own, and Adam: nothing else."""
    sizes = list(pairwise([SIZE // 2, *[HIDDEN] * LAYERS, SIZE])) * COUPLINGS
    count = sum(i * o + o for i, o in sizes)
    weights, gradient = nn.Parameter(torch.randn(count) / 100), torch.randn(count)
    optimiser = torch.optim.Adam([weights], lr=1e-4, fused=True)
    weights.grad = gradient
    inputs = {i: torch.randn(len(x), i) for i, _ in sizes}
    outputs = {o: torch.randn(len(x), o) for _, o in sizes}
    changes = {i: torch.empty(len(x), i) for i, _ in sizes}
    starts = [sum(i * o + o for i, o in sizes[:index]) for index in range(len(sizes))]
    layers = [
        (i, o, *(v.detach()[start : start + i * o].view(i, o) for v in (weights, gradient)))
        for start, (i, o) in zip(starts, sizes, strict=True)
    ]

    @torch.no_grad()
    def step() -> None:
        for i, o, weight, _ in layers:
            torch.mm(inputs[i], weight, out=outputs[o])
        if trains:
            for index, (i, o, weight, grad) in enumerate(reversed(layers)):
                torch.mm(inputs[i].T, outputs[o], out=grad)
                if index < len(layers) - 1:  # the samples need no gradient
                    torch.mm(outputs[o], weight.T, out=changes[i])
            optimiser.step()

    return step


def measure(
    actions: dict[str, Callable[[], None]], rounds: int, inner: int
) -> tuple[dict[str, float], float]:
    """Milliseconds of each action, and how many times ours the fastest peer takes.

    A time is the median over rounds of the mean of ``inner`` runs. A ratio is the median over
    rounds of the ratio within a round, in which both met the same load.
    """
    for action in actions.values():
        action()
        action()
    names = list(actions)
    times: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(rounds):
        start = turn % len(names)  # nobody always follows the same one
        for name in names[start:] + names[:start]:
            before = time.process_time()
            for _ in range(inner):
                actions[name]()
            times[name].append((time.process_time() - before) / inner * 1e3)
    ratios = [
        statistics.median(peer / own for peer, own in zip(times[name], times["hcl"], strict=True))
        for name in names
        if name not in ("hcl", "products")
    ]
    return {name: statistics.median(values) for name, values in times.items()}, min(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 256])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)  # the peers draw from torch's global generator
    contestants = {name: make() for name, make in LIBRARIES.items()}
    counts = {contestant.weights for contestant in contestants.values()}
    if len(counts) > 1:
        raise SystemExit(f"the flows differ in size: {sorted(counts)} weights")
    print(f"{counts.pop():,} weights each, torch {torch.__version__}, milliseconds\n")
    print(f"| batch | | {' | '.join(contestants)} | products | fastest peer / hcl |")
    print(f"| --- | --- |{' --- |' * (len(contestants) + 2)}")
    for batch in arguments.batches:
        x = torch.randn(batch, SIZE)
        rows = {
            "training step, peers with plain Adam": {
                name: training_step(c, x, fused=name == "hcl") for name, c in contestants.items()
            },
            "training step, all with fused Adam": {
                name: training_step(c, x, fused=True) for name, c in contestants.items()
            },
            "log-likelihood": {name: log_likelihood(c, x) for name, c in contestants.items()},
            "sampling": {name: sampling(c, x) for name, c in contestants.items()},
        }
        for title, actions in rows.items():
            actions["products"] = products(x, trains="step" in title)
            times, ratio = measure(actions, arguments.rounds, inner=3 if batch < 100 else 1)
            cells = " | ".join(f"{value:.1f}" for value in times.values())
            print(f"| {batch} | {title} | {cells} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
