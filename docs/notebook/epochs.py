"""The trials behind ``epochs.md``: MTL with many epochs, watched on held-out samples.

    python docs/notebook/epochs.py --tasks data/tasks/split-cifar10.h5 \
        --embeddings data/embeddings --shown 3 --weight-decay 1.28 --out trials.csv

Learns the first tasks of a benchmark, one after the other, with 15 epochs each. After epochs 1, 2,
4, 7, 11 and 15 of each task it asks for the validation parts of the tasks so far, and adds a row to
the CSV: average and overall accuracy, and −log p of the held-out samples and of the samples just
learned, in nats a feature. What is not given is as in the benchmark's settings of the paper: batch
32, 8 couplings of 3×512. The rows of one trial tell as well where a rule that stops by held-out
samples would have stopped.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import math
from pathlib import Path

import torch
from torch import Tensor

from hcl.learn.adam import Adam
from hcl.learn.fitting import tukey
from hcl.learn.flow.learner import FlowLearner
from hcl.learn.flow.memory import Functional
from hcl.learn.flow.settings import (
    AllData,
    BufferSettings,
    FlowMethod,
    FunctionalSettings,
    GenerativeSettings,
    MemorySettings,
)
from hcl.learn.settings import TrainingSettings
from hcl.model.settings import FlowSettings
from hcl.records.embeddings import Embeddings, read
from hcl.records.tasks import Benchmark, Part, Task, read_benchmark
from hcl.train.loop import Job, build_learner
from hcl.train.machine import one_thread
from hcl.train.streams import Stream
from hcl.tune.search import on_validation
from hcl.tune.settings import TuneSettings

LOOKS = (1, 2, 4, 7, 11, 15)  # epochs of a task
MEMORIES = ("all", "buffer", "generative", "functional")


class Decoupled(Adam):
    """Weight decay beside the gradient, not in it (Loshchilov and Hutter 2019)."""

    @torch.no_grad()
    def step(self) -> None:
        decay, self.weight_decay = self.weight_decay, 0.0
        for parameter in self.parameters:
            parameter.mul_(1 - self.learning_rate * decay)
        super().step()
        self.weight_decay = decay


def samples(embeddings: dict[str, Embeddings], task: Task, part: Part) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(embeddings[task.dataset].x[part.rows]), torch.from_numpy(part.y)


@torch.no_grad()
def look(
    learner: FlowLearner, benchmark: Benchmark, embeddings: dict[str, Embeddings], so_far: int
) -> dict[str, float]:
    """Accuracy on the validation parts of the tasks so far, and −log p a feature."""
    of_class, of_pair, total, held_out, learned = [], 0, 0, 0.0, 0.0
    for number in range(so_far):
        task = benchmark.tasks[number]
        x, y = samples(embeddings, task, task.test)
        found = learner.predict(x)
        of_class.append(float((found.predicted_class == y.numpy()).mean()))
        of_pair += int(((found.pair_class == y.numpy()) & (found.predicted_task == number)).sum())
        total += len(y)
        held_out -= float(learner.model.statistics(x, y, number)[0].mean()) / x.shape[1]
        few = Part(task.train.rows[: len(y)], task.train.y[: len(y)])
        x, y = samples(embeddings, task, few)
        learned -= float(learner.model.statistics(x, y, number)[0].mean()) / x.shape[1]
    return {
        "average": 100 * sum(of_class) / so_far,
        "overall": 100 * of_pair / total,
        "nats_held_out": held_out / so_far,
        "nats_learned": learned / so_far,
    }


def memory_of(options: argparse.Namespace) -> MemorySettings:
    return {
        "all": AllData(),
        "buffer": BufferSettings(),
        "generative": GenerativeSettings(draws=options.draws),
        "functional": FunctionalSettings(alpha=options.alpha, draws=options.draws),
    }[options.memory]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--embeddings", type=Path, required=True)
    parser.add_argument("--shown", type=int, default=3, help="tasks of the stream that are learned")
    parser.add_argument("--samples", type=int, help="of each task; all where it is not given")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--memory", choices=MEMORIES, default="all")
    parser.add_argument("--alpha", type=float, default=10.0)
    parser.add_argument("--per-task", action="store_true", help="α for each old task")
    parser.add_argument("--draws", choices=("prior", "measured"), default="prior")
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--rate-decay", type=float, default=0.0, help="learning_rate_decay")
    parser.add_argument("--weight-decay", type=float, default=1e-3)
    parser.add_argument("--decoupled", action="store_true")
    parser.add_argument("--bound", type=float, default=0.5)
    parser.add_argument("--spread", type=float, default=4.0)
    parser.add_argument("--scaling", choices=("global", "standard"), default="global")
    parser.add_argument("--mean-scale", type=float, default=1.0)
    parser.add_argument("--power", type=float, default=1.0, help="of Tukey's transform")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--out", type=Path, required=True, help="CSV to which rows are added")
    options = parser.parse_args()
    settings = TuneSettings(samples_per_task=options.samples)
    benchmark = on_validation(read_benchmark(options.tasks), settings)
    stream = tuple(
        dataclasses.replace(segment, epochs=options.epochs)
        for segment in benchmark.stream[: options.shown]
    )
    benchmark = dataclasses.replace(benchmark, stream=stream)
    names = {task.dataset for task in benchmark.tasks}
    embeddings = {name: read(options.embeddings / f"{name}.h5") for name in names}
    if options.power != 1:
        for name, found in embeddings.items():
            rooted = tukey(torch.tensor(found.x), options.power).numpy()
            embeddings[name] = dataclasses.replace(found, x=rooted)
    method = FlowMethod(memory=memory_of(options), learning_rate_decay=options.rate_decay)
    flow = FlowSettings(bound=options.bound, spread=options.spread, precision=options.precision)
    training = TrainingSettings(
        learning_rate=options.rate,
        weight_decay=options.weight_decay,
        scaling=options.scaling,
        mean_scale=options.mean_scale,
    )
    job = Job(benchmark, embeddings, options.memory, method, flow, training, options.seed)
    with one_thread():
        learn(job, options)


def learn(job: Job, options: argparse.Namespace) -> None:
    """Train, look, and add a row for each look."""
    stream = Stream(job.benchmark, job.embeddings, batch_size=32, seed=job.seed, device=job.device)
    learner = build_learner(job, stream)
    assert isinstance(learner, FlowLearner)
    if options.decoupled:
        parameters = learner.optimiser.parameters
        learner.optimiser = Decoupled(parameters, options.rate, options.weight_decay)
    given = vars(options).copy()
    for name in ("tasks", "embeddings", "out"):
        del given[name]
    for segment in range(len(job.benchmark.stream)):
        each = stream.num_batches(segment) // options.epochs
        if options.per_task and isinstance(learner.memory, Functional):
            learner.memory.alpha = options.alpha * max(1, segment)
        for number, batch in enumerate(stream.batches(segment), start=1):
            loss = learner.observe(batch).loss
            epoch, rest = divmod(number, each)
            if rest or epoch not in LOOKS:
                continue
            if loss is None or not math.isfinite(float(loss)):
                raise SystemExit(f"the loss is {loss} in task {segment + 1}, epoch {epoch}")
            found = look(learner, job.benchmark, dict(job.embeddings), segment + 1)
            row = {"benchmark": job.benchmark.name, **given, "task": segment + 1, "epoch": epoch}
            row |= {name: f"{value:.4f}" for name, value in found.items()}
            is_new = not options.out.exists()
            with open(options.out, "a", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, row, lineterminator="\n")
                if is_new:
                    writer.writeheader()
                writer.writerow(row)


if __name__ == "__main__":
    main()
