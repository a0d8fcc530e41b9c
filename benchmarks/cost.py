"""What HCL+ costs with many classes: time per sample, memory, and time to answer.

    python benchmarks/cost.py                          100, 300 and 1,000 classes, tasks of 100
    python benchmarks/cost.py --classes 1000 --per-task 10 --samples 20
    python benchmarks/cost.py --projections 4000       with the regression on a lift
    python benchmarks/cost.py --projections 4000 --lift kernel

Synthetic latents of 1,280 features, each class a Gaussian with directions of its own. A line is
one number of classes: time to learn one sample, mean over the stream and over its last tenth; what
is kept, in MB, for each pair and for all together; seconds to solve for the rule once, and then to
answer for 10,000 samples, and for how many the answer is right. Times are of the processor, on one
thread: on a machine that is free they are what a clock shows.
"""

from __future__ import annotations

import argparse
import time

import torch

from hcl.learn.contract import TaskBatch
from hcl.learn.plus.learner import IDENTITY, PlusLearner
from hcl.learn.plus.settings import GaussiansRule, PlusMethod
from hcl.model.hybrid import build_model

SIZE, ANSWERS = 1280, 10_000


def numbers_in(state: object) -> int:
    """Bytes of all tensors in a learner's state."""
    if isinstance(state, torch.Tensor):
        return state.numel() * state.element_size()
    if isinstance(state, dict):
        return sum(numbers_in(value) for value in state.values())
    if isinstance(state, list | tuple):
        return sum(numbers_in(value) for value in state)
    return 0


def measure(classes: int, per_task: int, samples: int, settings: PlusMethod) -> str:
    generator = torch.Generator().manual_seed(0)
    model = build_model(IDENTITY, (SIZE,), per_task, generator)
    learner = PlusLearner(model, settings, learning_rate=0.0, weight_decay=0.0, generator=generator)
    places = 0.35 * torch.randn(classes, SIZE, generator=generator)
    own = torch.randn(classes, 8, SIZE, generator=generator) / 8**0.5

    def drawn(of: torch.Tensor) -> torch.Tensor:
        along = torch.randn(len(of), 8, generator=generator)
        noise = torch.randn(len(of), SIZE, generator=generator)
        return places[of] + noise + torch.einsum("nk,nkd->nd", along, own[of])

    learner.fit_lift(drawn(torch.arange(4096) % per_task))
    spent: list[float] = []
    for task in range(classes // per_task):
        order = torch.randperm(per_task * samples, generator=generator) % per_task
        for y in order.split(32):
            x = drawn(task * per_task + y)
            start = time.process_time()
            learner.observe(TaskBatch(x, y, task))
            spent.append((time.process_time() - start) / len(y))
    last = spent[-max(len(spent) // 10, 1) :]
    pairs = numbers_in(learner.measured.spreads.state()) / classes
    whole = numbers_in(learner.state())
    true = torch.randint(classes, (ANSWERS,), generator=generator)
    x = torch.cat([drawn(part) for part in true.split(1000)])
    start = time.process_time()
    learner.predict(x[:1])
    solved = time.process_time() - start
    start = time.process_time()
    found = learner.predict(x)
    answered = time.process_time() - start
    named = torch.from_numpy(found.predicted_task.astype(int) * per_task + found.pair_class)
    right = (named == true).double().mean().item()
    mean, late = (1000 * sum(part) / len(part) for part in (spent, last))
    return (
        f"{classes:5} classes, {classes // per_task:4} tasks: {mean:.2f} ms a sample "
        f"({late:.2f} at the end); {pairs / 1e6:.2f} MB a pair, "
        f"{whole / 1e6:.0f} MB in all; {solved:.1f} s to solve, {answered:.1f} s for {ANSWERS} "
        f"answers, {100 * right:.1f} % right"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--per-task", type=int, default=100)
    parser.add_argument("--samples", type=int, default=50, help="of each class")
    parser.add_argument("--projections", type=int, default=0)
    parser.add_argument("--lift", choices=("random", "kernel"), default="random")
    parser.add_argument("--rank", type=int, default=64)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rule = GaussiansRule(rank=asked.rank, regression=None if asked.projections else 0.0)
    settings = PlusMethod(power=1.0, projections=asked.projections, lift=asked.lift, rule=rule)
    for classes in asked.classes:
        said = measure(classes, asked.per_task, asked.samples, settings)
        print(said, flush=True)


if __name__ == "__main__":
    main()
