"""Matrix products of a flow's layers: torch's own, and as ``hcl.model.products`` has them made.

    python benchmarks/products.py

One thread, float32, processor time; the two take turns, and a figure is the median over rounds. The
layers are those of the paper's flow on 1,280 features, and Glow's of 64 and of 200 channels. A
layer's three products are its output, the gradient of its input and that of its weights; of the
paper's flow, a training step with four old tasks stands beside them. A second table has that step
with `precision: bfloat16`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from hcl.model import products
from hcl.model.products import product, product_into
from hcl.model.realnvp import RealNVP

LAYERS = {  # samples, inputs, outputs
    "RealNVP, batch 32": (32, 512, 512),
    "RealNVP, batch 32, last layer": (32, 512, 1280),
    "RealNVP, batch and four of replay": (160, 512, 512),
    "RealNVP, batch and four of replay, last layer": (160, 512, 1280),
    "Glow of 64 channels, 14 × 14": (64, 64, 4096),
    "Glow of 200 channels, 14 × 14": (200, 200, 1310),
}


def layer(samples: int, inputs: int, outputs: int) -> Callable[[], None]:
    x, weight = torch.randn(samples, inputs), torch.randn(inputs, outputs)
    bias, grad, out = torch.randn(outputs), torch.randn(samples, outputs), torch.empty_like(weight)

    def run() -> None:
        product(x, weight, bias)
        product(grad, weight.T)
        product_into(out, x.T, grad)

    return run


def step(samples: int, precision: torch.dtype | None = None) -> Callable[[], None]:
    generator = torch.Generator().manual_seed(0)
    flow = RealNVP(
        1280, couplings=8, hidden=512, hidden_layers=3, bound=0.5, generator=generator, spread=4.0
    )
    flow.set_precision(precision)
    x = torch.randn(samples, 1280, generator=generator)

    def run() -> None:
        flow.weights.grad = None
        z, log_det = flow(x)
        (0.5 * z.square().sum(1) - log_det).mean().backward()

    return run


def timed(run: Callable[[], None]) -> float:
    """Milliseconds of processor time."""
    start = time.process_time()
    run()
    return 1e3 * (time.process_time() - start)


def row(name: str, slow: list[float], fast: list[float]) -> str:
    """Medians of both, the first round left out, and of their ratio within a round."""
    ratio = statistics.median(a / b for a, b in zip(slow[1:], fast[1:], strict=True))
    medians = f"{statistics.median(slow[1:]):.2f} | {statistics.median(fast[1:]):.2f}"
    return f"| {name} | {medians} | {ratio:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if not products.HAS_ONEDNN:
        raise SystemExit("This build of torch has no oneDNN: there is nothing to compare.")
    torch.set_num_threads(1)
    runs = {name: layer(*sizes) for name, sizes in LAYERS.items()}
    runs["forward and backward, batch 32"] = step(32)
    runs["forward and backward, batch and four of replay"] = step(160)
    print("| | torch's own, ms | hcl, ms | times as fast |\n| --- | --- | --- | --- |")
    for name, run in runs.items():
        times: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(options.rounds + 1):
            for products.HAS_ONEDNN, found in times.items():
                found.append(timed(run))
        print(row(name, times[False], times[True]))
    print("\n| | float32, ms | bfloat16, ms | times as fast |\n| --- | --- | --- | --- |")
    for samples in (32, 160, 320):
        pair = step(samples), step(samples, torch.bfloat16)
        taken = [[timed(run) for run in pair] for _ in range(options.rounds + 1)]
        slow, fast = (list(each) for each in zip(*taken, strict=True))
        print(row(f"forward and backward, {samples} samples", slow, fast))


if __name__ == "__main__":
    main()
