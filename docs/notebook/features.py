"""The trials behind ``features.md``: random features, their kernel, and joint training.

    python docs/notebook/features.py --tasks data/tasks/split-cifar10-single-pass.h5 \
        --embeddings data/embeddings --features 4000 12000
    python docs/notebook/features.py --tasks data/tasks/split-cifar10-single-pass.h5 \
        --embeddings data/embeddings --kernel 24000

Ridge regression of the pairs' indicators on φ(z) = (z, max(0, zR)) of all training samples, as HCL+
had it, for several numbers of features and penalties; or (``--kernel``) with as many features as
there can be, by the kernel of max(0, zR), from so many training samples, which are all kept. The
penalty is relative to the mean of the diagonal. z are embeddings after Tukey's root, centred and
scaled as the first task has them. ``--kind`` changes the features: ``cosine`` for those of a
Gaussian's kernel, ``shift`` for max(0, zR + b), ``stretched`` for an R that is longer along the
first task's principal axes, ``orthogonal`` for one whose columns are at right angles, ``landmarks``
for HCL+'s lift by a Gaussian's kernel, ``samples`` for the same at training samples of all tasks,
which are kept. ``--gaussian`` is ``--kernel`` with the kernel of that lift.

Scored on the validation parts: average and overall accuracy for each penalty.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from does_a_flow_pay import Samples, load
from torch import Tensor

from hcl.learn.fitting import FITTING_SAMPLES
from hcl.learn.plus.lift import KernelLift, landmarks
from hcl.model.products import product
from hcl.train.machine import one_thread

BLOCK = 3000  # samples at a time
KINDS = ("plain", "cosine", "shift", "stretched", "orthogonal", "landmarks", "samples")
PENALTIES = (0.003, 0.01, 0.03, 0.1)
WIDTH = 0.5  # of the Gaussian's kernel, exp(−WIDTH |a − b|² / D)

Map = Callable[[Tensor], Tensor]


def features(kind: str, count: int, train: Samples, generator: torch.Generator) -> Map:
    """φ."""
    first = train.x[train.t == 0]
    size = first.shape[1]
    if kind in ("landmarks", "samples"):
        rows = torch.randperm(len(train.x), generator=generator)[:count]
        drawn = kind == "landmarks"
        marks = landmarks(first[:FITTING_SAMPLES], count, generator) if drawn else train.x[rows].T
        nystrom = KernelLift(marks.contiguous())
        return lambda z: torch.cat((z, nystrom(z)), 1)
    lift = torch.randn(size, count, generator=generator) / size**0.5
    shift = torch.zeros(count)
    if kind == "cosine":
        lift *= (2 * WIDTH) ** 0.5
        shift = 2 * math.pi * torch.rand(count, generator=generator)
    elif kind == "shift":
        shift = torch.randn(count, generator=generator)
    elif kind == "stretched":
        values, axes = torch.linalg.eigh(torch.cov(first.T).double())
        root = axes * values.clamp(min=1e-9) ** 0.25
        lift = (root * (size / root.square().sum()) ** 0.5).float() @ lift
    elif kind == "orthogonal":
        blocks = []
        for _ in range(0, count, size):
            axes, _ = torch.linalg.qr(torch.randn(size, size, generator=generator))
            blocks.append(axes * torch.randn(size, size, generator=generator).norm(dim=0))
        lift = torch.cat(blocks, 1)[:, :count].contiguous() / size**0.5

    def mapped(z: Tensor) -> Tensor:
        h = product(z, lift, shift)
        return torch.cat((z, h.cos_() if kind == "cosine" else h.relu_()), 1)

    return mapped


def arc_cosine(a: Tensor, b: Tensor) -> Tensor:
    """The kernel of max(0, zR), Cho and Saul 2009."""
    lengths = a.norm(dim=1)[:, None] * b.norm(dim=1)
    cosine = (product(a, b.T) / lengths).clamp_(-1, 1)
    angle = cosine.acos()
    root = (1 - cosine.square()).clamp_(min=0).sqrt_()
    return root.add_(angle.neg_().add_(math.pi).mul_(cosine)).mul_(lengths).div_(math.pi)


def gaussian(a: Tensor, b: Tensor) -> Tensor:
    """exp(−‖a − b‖² / 2D)."""
    return KernelLift(b.T.contiguous()).kernel(a)


def show(name: str, penalty: float, scores: Tensor, test: Samples, classes: int, began: float):
    """Average and overall accuracy; a class has the score of its best pair."""
    found = scores.unflatten(1, (-1, classes)).amax(1).argmax(1)
    right = (found == test.y).double()
    average = torch.stack([right[test.t == t].mean() for t in test.t.unique()]).mean()
    overall = (scores.argmax(1) == test.t * classes + test.y).double().mean()
    figures = f"{100 * average:.2f} / {100 * overall:.2f}"
    print(f"| {name} | {penalty:g} | {figures} | {time.process_time() - began:.0f} s |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--embeddings", type=Path, required=True)
    parser.add_argument("--features", type=int, nargs="*", default=[])
    parser.add_argument("--kind", choices=KINDS, default="plain")
    parser.add_argument("--kernel", type=int, nargs="*", default=[])
    parser.add_argument("--gaussian", type=int, nargs="*", default=[])
    parser.add_argument("--penalties", type=float, nargs="+", default=PENALTIES)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    train, test, name = load(options.tasks, options.embeddings)
    classes, pairs = int(train.y.max()) + 1, (int(train.y.max()) + 1) * (int(train.t.max()) + 1)
    targets = F.one_hot(train.t * classes + train.y, pairs).float() - 1 / pairs
    print(f"| {name} | penalty | average / overall | processor |\n| --- | --- | --- | --- |")
    with one_thread():
        for count in options.features:
            generator = torch.Generator().manual_seed(options.seed)
            began = time.process_time()
            phi = features(options.kind, count, train, generator)
            wide = train.x.shape[1] + count
            gram, sums = torch.zeros(wide, wide), torch.zeros(wide, pairs)
            for x, y in zip(train.x.split(BLOCK), targets.split(BLOCK), strict=True):
                lifted = phi(x)
                gram += product(lifted.T, lifted)
                sums += lifted.T @ y
            solve(
                f"{count:,} features, {options.kind}",
                gram,
                sums,
                phi(test.x),
                options.penalties,
                test,
                classes,
                began,
            )
        for count, kernel in [
            *((count, arc_cosine) for count in options.kernel),
            *((count, gaussian) for count in options.gaussian),
        ]:
            generator = torch.Generator().manual_seed(options.seed)
            began = time.process_time()
            rows = torch.randperm(len(train.x), generator=generator)[:count]
            x = train.x[rows] - train.x.mean(0)
            asked = test.x - train.x.mean(0)
            solve(
                f"{kernel.__name__}, {count:,} samples",
                kernel(x, x),
                targets[rows],
                kernel(asked, x),
                options.penalties,
                test,
                classes,
                began,
            )


def solve(
    name: str,
    matrix: Tensor,
    right: Tensor,
    asked: Tensor,
    penalties: list[float],
    test: Samples,
    classes: int,
    began: float,
) -> None:
    """Scores of the test for each penalty on the matrix's diagonal."""
    if len(matrix) < 20_000:  # small penalties want the digits
        matrix, right = matrix.double(), right.double()
    diagonal = matrix.diagonal().clone()
    for penalty in penalties:
        matrix.diagonal().copy_(diagonal + penalty * diagonal.mean())
        weights = torch.cholesky_solve(right, torch.linalg.cholesky(matrix)).float()
        show(name, penalty, asked @ weights, test, classes, began)


if __name__ == "__main__":
    main()
