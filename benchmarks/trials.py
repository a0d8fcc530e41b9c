"""What else was tried for HCL: each trial changes one thing, and is scored on the validation part.

Of `hcl-fr`, with the paper's draws or measured ones: L_FR weighted by the number of old tasks;
replay drawn once for each task and used again; a learning rate that falls within a task; and a
discriminative term, the cross-entropy of the posterior over all (class, task) pairs on batch and
replay. Of Bayes' rule on Tukey's root of the embeddings: one covariance for all tasks, or one for
each, with several shrinkages.

    python benchmarks/trials.py --tasks data/tasks/split-cifar10-single-pass.h5 \
        --embeddings data/embeddings --samples 3000 --draws measured
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from hcl.evaluate.scoring import score
from hcl.learn.fitting import FITTING_SAMPLES, fitted_model
from hcl.learn.flow.learner import FlowLearner
from hcl.learn.flow.memory import Functional, Passed, Replay, repeated
from hcl.learn.flow.settings import FlowMethod, FunctionalSettings
from hcl.learn.moments import Moments
from hcl.learn.plus.learner import tukey
from hcl.learn.settings import TrainingSettings
from hcl.model.hybrid import Statistics
from hcl.model.losses import functional_loss, likelihood_loss
from hcl.model.settings import FlowSettings
from hcl.records.embeddings import Embeddings, read
from hcl.records.tasks import Benchmark, Part, read_benchmark
from hcl.train.loop import Job, start_of, train_seed
from hcl.train.machine import one_thread
from hcl.train.streams import Stream
from hcl.tune.search import on_validation
from hcl.tune.settings import TuneSettings

POOL = 640  # samples of each old task, drawn when a task begins
DECAY = 30  # steps in which the learning rate falls by √2
SHRINKAGES = (0.01, 0.1, 0.3)


class WeightByTasks(Functional):
    """α stands for each old task, not for all of them together."""

    def loss(self, log_px: Tensor, replay: Replay | None, passed: Passed | None) -> Tensor:
        if replay is None or passed is None or replay.z is None:
            return likelihood_loss(log_px)
        alpha = self.alpha * len(self.t) / self.batch_size
        return likelihood_loss(log_px) + alpha * functional_loss(passed.z, replay.z)


class DrawnOnce(Functional):
    """Replay comes from a pool that the snapshot draws when a task begins."""

    others: Sequence[int] = ()
    pool: Replay | None = None

    def enter(self, others: Sequence[int], given: Sequence[int]) -> None:
        super().enter(others, given)
        self.others, self.pool = others, None

    def draw(self) -> Replay | None:
        if self.snapshot is None or not self.others:
            return None
        device = self.generator.device
        if self.pool is None:
            self.pool = self.sample(self.snapshot, repeated(self.others, POOL, device))
        first = POOL * torch.arange(len(self.others), device=device)[:, None]
        shape = (len(self.others), self.batch_size)
        chosen = torch.randint(POOL, shape, generator=self.generator, device=device)
        return Replay(*(part[(first + chosen).flatten()] for part in self.pool if part is not None))


class Remembered(Functional):
    """What was drawn last can be asked for."""

    last: Replay | None = None

    def draw(self) -> Replay | None:
        self.last = super().draw()
        return self.last


class Discriminative(FlowLearner):
    """The loss also has the cross-entropy of the (class, task) pair, of batch and replay."""

    memory: Remembered

    def objective(self, x: Tensor, y: Tensor) -> tuple[Tensor, Statistics, Tensor]:
        loss, statistics, z = super().objective(x, y)
        replay, classes = self.memory.last, self.model.latent.num_classes
        pairs = y + self.task * classes
        if replay is not None:
            x = torch.cat((x, replay.x))
            pairs = torch.cat((pairs, replay.y + replay.t * classes))
        latents, _ = self.model.flow(x)
        scores = -0.5 * torch.cdist(latents, self.model.latent.means.flatten(0, 1)).square()
        return loss + cross_entropy(scores, pairs), statistics, z


@dataclass(frozen=True)
class Trial:
    """What is changed: the memory, the learner, or what the method takes."""

    memory: type[Functional] = Functional
    learner: type[FlowLearner] = FlowLearner
    values: Mapping[str, Any] = field(default_factory=dict)

    def build(self, job: Job, stream: Stream) -> FlowLearner:
        """The learner, in place of the method's own."""
        method, start = job.method, start_of(job, stream)
        assert isinstance(method, FlowMethod)
        assert isinstance(method.memory, FunctionalSettings)
        model = fitted_model(start, start.first(FITTING_SAMPLES))
        draws, batch_size = start.generator("draws"), start.training.batch_size
        return self.learner(
            model,
            self.memory(method.memory, model, batch_size, draws),
            detection=None,
            batch_size=batch_size,
            generator=draws,
            learning_rate_decay=method.learning_rate_decay,
            **start.rates(method.learning_rate, method.weight_decay),
        )


TRIALS = {
    "as it is": Trial(),
    "α for each old task": Trial(memory=WeightByTasks),
    f"replay drawn once a task, {POOL} samples of each": Trial(memory=DrawnOnce),
    f"learning rate 3e-4 / √(1 + n/{DECAY})": Trial(
        values={"learning_rate": 3e-4, "learning_rate_decay": 1 / DECAY}
    ),
    "and the cross-entropy of pairs": Trial(memory=Remembered, learner=Discriminative),
}


def learned(benchmark: Benchmark, embeddings: dict[str, Embeddings], method: FlowMethod) -> None:
    """Average and overall accuracy of each learner."""
    for name, trial in TRIALS.items():
        tried = dataclasses.replace(method, **trial.values)
        job = Job(benchmark, embeddings, name, tried, FlowSettings(), TrainingSettings(), seed=0)
        with one_thread():
            run, _ = train_seed(job, build=trial.build)
        scores = score(run, benchmark)
        print_row(name, scores.average_accuracy, scores.overall_accuracy)


def by_covariance(benchmark: Benchmark, embeddings: dict[str, Embeddings]) -> None:
    """Bayes' rule with a mean for each pair: one Σ for all tasks, or one for each."""
    classes = max(int(task.train.y.max()) for task in benchmark.tasks) + 1
    size = embeddings[benchmark.tasks[0].dataset].x.shape[1]
    whole, each = Moments(size, torch.device("cpu")), []
    for number, task in enumerate(benchmark.tasks):
        x, y = samples(embeddings[task.dataset], task.train)
        each.append(Moments(size, torch.device("cpu")))
        for moments, first in ((whole, number * classes), (each[-1], 0)):
            moments.add_classes(classes)
            moments.add(x, y + first)
    for shrinkage in SHRINKAGES:
        rules = {"one Σ": [whole], "a Σ for each task": each}
        for name, parts in rules.items():
            gaussians = [gaussian(m.means(), m.covariance(shrinkage)) for m in parts]
            right_class, right_pair, total = [], 0, 0
            for number, task in enumerate(benchmark.tasks):
                x, y = samples(embeddings[task.dataset], task.test)
                log_p = torch.cat([log_density(x) for log_density in gaussians], 1)
                by_class = log_p.unflatten(1, (-1, classes)).logsumexp(1).argmax(1)
                right_class.append(float((by_class == y).double().mean()))
                right_pair += int((log_p.argmax(1) == y + number * classes).sum())
                total += len(y)
            average = sum(right_class) / len(right_class)
            print_row(f"{name}, shrunk by {shrinkage:g}", average, right_pair / total)


def samples(embeddings: Embeddings, part: Part) -> tuple[Tensor, Tensor]:
    x = torch.from_numpy(embeddings.x[part.rows])
    return tukey(x, 0.5), torch.from_numpy(part.y).long()


def gaussian(means: Tensor, covariance: Tensor) -> Callable[[Tensor], Tensor]:
    """log N(x; m_c, Σ) of samples and means, (n, C), up to a constant."""
    factor = torch.linalg.cholesky(covariance)
    log_det = factor.diagonal().log().sum()
    centres = torch.linalg.solve_triangular(factor, means.T, upper=False).T

    def log_p(x: Tensor) -> Tensor:
        z = torch.linalg.solve_triangular(factor, x.double().T, upper=False).T
        return -0.5 * torch.cdist(z, centres).square() - log_det

    return log_p


def print_row(name: str, average: float, overall: float) -> None:
    print(f"| {name} | {100 * average:.1f} | {100 * overall:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--embeddings", type=Path, required=True)
    parser.add_argument("--samples", type=int, help="of each task; all where it is not given")
    parser.add_argument("--alpha", type=float, default=5.0)
    parser.add_argument("--draws", nargs="*", choices=("prior", "measured"), default=["measured"])
    options = parser.parse_args()
    benchmark = read_benchmark(options.tasks)
    names = {task.dataset for task in benchmark.tasks}
    embeddings = {name: read(options.embeddings / f"{name}.h5") for name in names}
    benchmark = on_validation(benchmark, TuneSettings(samples_per_task=options.samples))
    for draws in options.draws:
        print(f"| `hcl-fr`, {draws} draws, α {options.alpha:g} | average | overall |")
        print("| --- | --- | --- |")
        learned(
            benchmark,
            embeddings,
            FlowMethod(memory=FunctionalSettings(alpha=options.alpha, draws=draws)),
        )
    print("| Bayes' rule | average | overall |\n| --- | --- | --- |")
    by_covariance(benchmark, embeddings)


if __name__ == "__main__":
    main()
