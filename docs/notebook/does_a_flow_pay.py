"""The trials behind ``does-a-flow-pay.md``: a flow, or a head, beside measured Gaussians.

python docs/notebook/does_a_flow_pay.py --tasks data/tasks/split-cifar100-single-pass.h5 \
    --embeddings data/embeddings --trials gaussians first draws head --seed 0

Each (class, task) pair has a mean and a covariance of its own, blended with the pooled one,
(1 − a) Σ + a Σ_c, both shrunk by ε, of embeddings after Tukey's root; Bayes' rule answers.

``gaussians``  that alone
``first``      the same in the latent space of a flow that learned the first task, by maximum
               likelihood under those Gaussians, which are measured again after each epoch
``draws``      the same, with the flow fitted on draws of the measured Gaussians of all pairs after
               the last task, and the Gaussians measured on their latents: no sample is needed
``head``       a network like joint training's, trained on fresh draws of all pairs; and its
               log-posterior added to a tenth of that of the Gaussians

All are scored on the tasks' validation parts: average and overall accuracy.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hcl.learn.adam import Adam
from hcl.learn.fitting import scaling_of, tukey
from hcl.learn.joint.learner import Network, cosine_rate
from hcl.learn.joint.settings import JointMethod
from hcl.model.flows import Flow, build_flow
from hcl.model.settings import FlowSettings
from hcl.records.embeddings import read
from hcl.records.tasks import read_benchmark
from hcl.train.machine import one_thread
from hcl.tune.search import on_validation
from hcl.tune.settings import TuneSettings

BLEND, SHRINKAGE = 0.1, 0.02
FLOW = FlowSettings(couplings=4, hidden_layers=2, hidden=256, bound=0.5)
BATCH = 128


class Samples(NamedTuple):
    """Of all tasks: rooted, centred and divided by one number, as the first task has it."""

    x: Tensor
    y: Tensor  # class within the task
    t: Tensor  # task


def load(tasks: Path, embeddings: Path) -> tuple[Samples, Samples, str]:
    """Samples to learn from, those of the validation parts, and the benchmark's name."""
    benchmark = on_validation(read_benchmark(tasks), TuneSettings())
    parts: dict[str, list[Samples]] = {"train": [], "test": []}
    for number, task in enumerate(benchmark.tasks):
        source = read(embeddings / f"{task.dataset}.h5")
        for which, mine in parts.items():
            part = getattr(task, which)
            x = tukey(torch.from_numpy(source.x[part.rows]), 0.5)
            t = torch.full((len(x),), number)
            mine.append(Samples(x, torch.from_numpy(part.y).long(), t))
    shift, scale = scaling_of(parts["train"][0].x, "global")
    train, test = (
        Samples(*(torch.cat(column) for column in zip(*mine, strict=True)))
        for mine in parts.values()
    )
    train = train._replace(x=(train.x - shift) / scale)
    test = test._replace(x=(test.x - shift) / scale)
    return train, test, benchmark.name


class Gaussians:
    """A mean and a covariance for each pair, from samples of all of them."""

    def __init__(self, x: Tensor, pair: Tensor, pairs: int) -> None:
        size = x.shape[1]
        counts = pair.bincount(minlength=pairs)
        self.means = torch.zeros(pairs, size).index_add_(0, pair, x) / counts[:, None]
        centred = x - self.means[pair]
        pooled = shrunk(centred.T @ centred / len(x))
        self.factors = torch.empty(pairs, size, size)
        self.log_dets = torch.empty(pairs)
        for c in range(pairs):
            mine = centred[pair == c]
            own = shrunk(mine.T @ mine / len(mine))
            factor = torch.linalg.cholesky((1 - BLEND) * pooled + BLEND * own)
            self.factors[c] = factor
            self.log_dets[c] = factor.diagonal().log().sum()

    def log_prob(self, x: Tensor) -> Tensor:
        """log N(x; m_c, Σ_c) up to a constant, (n, pairs)."""
        columns = []
        for mean, factor, log_det in zip(self.means, self.factors, self.log_dets, strict=True):
            z = torch.linalg.solve_triangular(factor, (x - mean).T, upper=False)
            columns.append(-0.5 * z.square().sum(0) - log_det)
        return torch.stack(columns, 1)

    def of(self, x: Tensor, pair: Tensor) -> Tensor:
        """log N(x; m_y, Σ_y) of samples of known pairs, (n,)."""
        found = torch.zeros(len(x))
        for c in pair.unique().tolist():
            rows = (pair == c).nonzero()[:, 0]
            z = torch.linalg.solve_triangular(
                self.factors[c], (x[rows] - self.means[c]).T, upper=False
            )
            found = found.index_add(0, rows, -0.5 * z.square().sum(0) - self.log_dets[c])
        return found

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """``count`` samples of each pair, mixed."""
        pairs, size = self.means.shape
        noise = torch.randn(pairs, count, size, generator=generator)
        x = torch.baddbmm(self.means[:, None], noise, self.factors.mT).flatten(0, 1)
        order = torch.randperm(len(x), generator=generator)
        return x[order], torch.arange(pairs).repeat_interleave(count)[order]


def shrunk(covariance: Tensor) -> Tensor:
    """(1 − ε) Σ + ε v I, with v the mean variance."""
    variance = covariance.diagonal().mean()
    return (1 - SHRINKAGE) * covariance + SHRINKAGE * variance * torch.eye(len(covariance))


def batches(pair: Tensor, generator: torch.Generator) -> list[Tensor]:
    """Rows of batches that hold up to four pairs each: a factor of Σ_c is a large thing to read."""
    quarter = BATCH // 4
    chunks: list[Tensor] = []
    for c in pair.unique().tolist():
        rows = (pair == c).nonzero()[:, 0]
        chunks += rows[torch.randperm(len(rows), generator=generator)].split(quarter)
    order = torch.randperm(len(chunks), generator=generator)
    return [torch.cat([chunks[i] for i in four]) for four in order.split(4)]


def fit_flow(
    flow: Flow, x: Tensor, pair: Tensor, pairs: int, held_out: tuple[Tensor, Tensor], options
) -> None:
    """Maximum likelihood under Gaussians that are measured in the latent space before each epoch.

    Prints the mean log-likelihood per feature of samples that were held out.
    """
    generator = torch.Generator().manual_seed(options.seed)
    optimiser = Adam(flow.parameters(), options.rate, 0.0)
    said = []
    for epoch in range(options.epochs + 1):
        with torch.no_grad():
            gaussians = Gaussians(flow(x)[0], pair, pairs)
            z, log_det = flow(held_out[0])
            said.append(float((gaussians.of(z, held_out[1]) + log_det).mean()) / x.shape[1])
        if epoch == options.epochs:
            break
        del z, log_det
        for rows in batches(pair, generator):
            z, log_det = flow(x[rows])
            loss = -(gaussians.of(z, pair[rows]) + log_det).mean() / x.shape[1]
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    print("  held out, per feature: " + " ".join(f"{v:.4f}" for v in said), flush=True)


def fit_head(gaussians: Gaussians, classes: int, options) -> Network:
    """Joint training's network on draws; each epoch has draws of its own."""
    pairs, size = gaussians.means.shape
    generator = torch.Generator().manual_seed(options.seed)
    settings = JointMethod(power=1.0, noise=0.0)
    head = Network(settings, size, pairs, generator)
    optimiser = Adam(head.parameters(), settings.learning_rate, settings.weight_decay)
    count = options.draws // pairs
    steps, done = options.head_epochs * math.ceil(count * pairs / BATCH), 0
    for _ in range(options.head_epochs):
        x, pair = gaussians.draw(count, generator)
        for part, wanted in zip(x.split(BATCH), pair.split(BATCH), strict=True):
            scores = head(part, generator)
            loss = F.cross_entropy(scores, wanted, label_smoothing=settings.smoothing)
            optimiser.zero_grad()
            loss.backward()
            optimiser.learning_rate = cosine_rate(settings.learning_rate, done / steps)
            optimiser.step()
            done += 1
    return head


def show(name: str, log_p: Tensor, test: Samples, classes: int, began: float) -> None:
    """Average and overall accuracy of log-posteriors of the pairs."""
    by_class = log_p.log_softmax(1).unflatten(1, (-1, classes)).logsumexp(1).argmax(1)
    right = (by_class == test.y).double()
    average = torch.stack([right[test.t == t].mean() for t in test.t.unique()]).mean()
    overall = (log_p.argmax(1) == test.t * classes + test.y).double().mean()
    spent = time.process_time() - began
    print(f"| {name} | {100 * average:.2f} | {100 * overall:.2f} | {spent:.0f} s |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    trials = ("gaussians", "first", "draws", "head")
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--embeddings", type=Path, required=True)
    parser.add_argument("--trials", nargs="+", choices=trials, default=trials)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=5, help="of the flow")
    parser.add_argument("--rate", type=float, default=1e-4, help="of the flow")
    parser.add_argument("--draws", type=int, default=40000, help="in an epoch, for all pairs")
    parser.add_argument("--head-epochs", type=int, default=8)
    options = parser.parse_args()
    train, test, name = load(options.tasks, options.embeddings)
    classes, tasks = int(train.y.max()) + 1, int(train.t.max()) + 1
    pairs, pair = classes * tasks, train.t * classes + train.y
    print(f"| {name}, seed {options.seed} | average | overall | processor |")
    print("| --- | --- | --- | --- |", flush=True)
    with one_thread():
        began = time.process_time()
        measured = Gaussians(train.x, pair, pairs)
        log_p = measured.log_prob(test.x)
        show("Gaussians", log_p, test, classes, began)
        generator = torch.Generator().manual_seed(options.seed)
        held_out = test.t == 0
        if "first" in options.trials:
            began = time.process_time()
            flow = build_flow(FLOW, (train.x.shape[1],), generator)
            first = train.t == 0
            there = test.x[held_out], test.y[held_out]
            fit_flow(flow, train.x[first], pair[first], classes, there, options)
            with torch.no_grad():
                z, _ = flow(train.x)
                latent = Gaussians(z, pair, pairs)
                z, _ = flow(test.x)
                show("a flow of the first task", latent.log_prob(z), test, classes, began)
        if "draws" in options.trials:
            began = time.process_time()
            flow = build_flow(FLOW, (train.x.shape[1],), generator)
            x, drawn = measured.draw(options.draws // pairs, generator)
            there = test.x[held_out], test.y[held_out]
            fit_flow(flow, x, drawn, pairs, there, options)
            with torch.no_grad():
                latent = Gaussians(flow(x)[0], drawn, pairs)
                z, _ = flow(test.x)
                show("a flow fitted on draws", latent.log_prob(z), test, classes, began)
        if "head" in options.trials:
            began = time.process_time()
            head = fit_head(measured, classes, options)
            with torch.no_grad():
                by_head = head(test.x).log_softmax(1)
            show("a head trained on draws", by_head, test, classes, began)
            both = by_head + (0.1 * log_p).log_softmax(1)
            show("Gaussians and head together", both, test, classes, began)


if __name__ == "__main__":
    main()
