"""Where L_FR holds the flow: how far latents of old tasks move while the next task is learned.

HCL-FR learns the tasks of a benchmark in turn. While one is learned, L_FR holds the flow at the
snapshot's draws. After each, the mean of ‖f(x) − f^(k)(x)‖² is printed over fresh draws of the
snapshot and over real samples of the same old tasks (their validation parts), and the accuracy on
those. ``--points`` says where L_FR is taken: at ``prior`` draws, the paper's; at ``measured`` ones
(``draws: measured``); or at ``real`` samples of the old tasks, which the method has not.

    python benchmarks/moves.py --tasks data/tasks/split-cifar10-single-pass.h5 \
        --embeddings data/embeddings --samples 3000
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hcl.learn.flow.learner import FlowLearner
from hcl.learn.flow.memory import Functional, Rehearsal, Replay
from hcl.learn.flow.settings import Draws, FlowMethod, FunctionalSettings
from hcl.learn.settings import TrainingSettings
from hcl.model.settings import FlowSettings
from hcl.progress import bar
from hcl.records.embeddings import Embeddings, read
from hcl.records.tasks import Benchmark, Part, read_benchmark
from hcl.train.loop import Job, build_learner
from hcl.train.machine import one_thread
from hcl.train.streams import Stream

POINTS = ("prior", "measured", "real")


class RealPoints(Functional):
    """L_FR is taken at real samples of the old tasks."""

    archive: Stream
    given: Sequence[int] = ()

    def enter(self, others: Sequence[int], given: Sequence[int]) -> None:
        super().enter(others, given)
        self.given = given

    @torch.no_grad()
    def draw(self) -> Replay | None:
        if self.snapshot is None:
            return None
        drawn = self.archive.draw(self.given, self.batch_size, self.generator)
        z, _ = self.snapshot.flow(drawn.x)
        return Replay(drawn.x, drawn.y, self.t, z)


def first_samples(part: Part, count: int) -> Part:
    return dataclasses.replace(part, rows=part.rows[:count], y=part.y[:count])


def shortened(benchmark: Benchmark, samples: int) -> Benchmark:
    tasks = [
        dataclasses.replace(task, train=first_samples(task.train, samples))
        for task in benchmark.tasks
    ]
    return dataclasses.replace(benchmark, tasks=tuple(tasks))


def validation_samples(
    benchmark: Benchmark, embeddings: dict[str, Embeddings], tasks: range
) -> tuple[Tensor, Tensor, Tensor]:
    """x, y and t of the validation parts."""
    parts = [
        (
            torch.from_numpy(np.array(embeddings[task.dataset].x[task.validation.rows])),
            torch.from_numpy(task.validation.y.astype(np.int64)),
            torch.full((len(task.validation.y),), number),
        )
        for number, task in enumerate(benchmark.tasks)
        if number in tasks
    ]
    x, y, t = (torch.cat(column) for column in zip(*parts, strict=True))
    return x, y, t


@torch.no_grad()
def moves(
    learner: FlowLearner, benchmark: Benchmark, embeddings: dict[str, Embeddings]
) -> tuple[float, float, float]:
    """Of draws and of real samples of all old tasks; and the accuracy on the real ones."""
    memory = learner.memory
    assert isinstance(memory, Rehearsal)
    assert memory.snapshot is not None
    x, y, t = validation_samples(benchmark, embeddings, range(learner.task))
    if memory.measured is None:
        drawn, drawn_z = memory.snapshot.sample(y, t, torch.Generator().manual_seed(0))
    else:
        drawn_z = memory.measured.sample(y, t)
        drawn, _ = memory.snapshot.flow.inverse(drawn_z)
    of_draws = (learner.model.flow(drawn)[0] - drawn_z).square().sum(1).mean()
    of_samples = (learner.model.flow(x)[0] - memory.snapshot.flow(x)[0]).square().sum(1).mean()
    accuracy = (learner.model.classify(x) == y).double().mean()
    return float(of_draws), float(of_samples), float(accuracy)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--embeddings", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=3000, help="of each task")
    parser.add_argument("--alpha", type=float, default=5.0)
    parser.add_argument("--spread", type=float, default=0.0, help="of the flow's first weights")
    parser.add_argument("--points", nargs="+", choices=POINTS, default=POINTS)
    options = parser.parse_args()
    benchmark = shortened(read_benchmark(options.tasks), options.samples)
    names = {task.dataset for task in benchmark.tasks}
    embeddings = {name: read(options.embeddings / f"{name}.h5") for name in names}
    training, flow = TrainingSettings(), FlowSettings(spread=options.spread)
    print("| L_FR at | after task | draws move | real samples move | accuracy on them |")
    print("| --- | --- | --- | --- | --- |")
    for points in options.points:
        draws: Draws = "measured" if points == "measured" else "prior"
        settings = FunctionalSettings(alpha=options.alpha, draws=draws)
        method = FlowMethod(memory=settings)
        job = Job(benchmark, embeddings, "hcl-fr", method, flow, training, seed=0)
        stream = Stream(benchmark, embeddings, batch_size=32, seed=0, device=torch.device("cpu"))
        learner = build_learner(job, stream)
        assert isinstance(learner, FlowLearner)
        if points == "real":
            generator, size = learner.generator, learner.batch_size
            learner.memory = RealPoints(settings, learner.model, size, generator)
            learner.memory.archive = stream
        with one_thread():
            for segment in range(len(benchmark.stream)):
                total = stream.num_batches(segment)
                for batch in bar(stream.batches(segment), total=total, leave=False):
                    learner.observe(batch)
                if segment:
                    of_draws, of_samples, accuracy = moves(learner, benchmark, embeddings)
                    cells = f"{of_draws:.1f} | {of_samples:.1f} | {100 * accuracy:.1f}"
                    print(f"| {points} | {segment + 1} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
