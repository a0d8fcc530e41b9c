"""What each part of HCL+'s measured Gaussians is worth: the numbers of gaussians.md.

    python docs/notebook/gaussians.py split-cifar100-single-pass 0 1 2

One stream is learned for each seed, as `hcl train` of `hcl-plus-ta` learns it. The sums that it
leaves hold every variant: each is a rule made of them with one part taken away. `--power 1` leaves
out Tukey's transform, `--rank` keeps more or fewer directions, `--lift`, `--projections` and
`--penalty` are the regression's. What each answers at the end of the
stream is scored on the validation part and on the test part; nothing is chosen by either.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hcl.evaluate import metrics
from hcl.learn.plus.gaussians import Densities, Spreads
from hcl.learn.plus.learner import PlusLearner
from hcl.learn.plus.measured import Rule
from hcl.learn.plus.settings import GaussiansRule
from hcl.records.tasks import Benchmark
from hcl.train.loop import Job, build_learner
from hcl.train.streams import Stream
from stages.inputs import read_inputs, read_run_asked


def variants(learner: PlusLearner) -> dict[str, Any]:
    """Rules of the learner's sums, by name."""
    whole, moments = learner.gaussians(), learner.moments
    assert isinstance(learner.settings.rule, GaussiansRule)
    chosen, ridge = whole.chosen, moments.ridge_scores(learner.settings.rule.penalty)
    one = Spreads(learner.flow.size, 0, moments.counts.device)
    one.add_classes(len(moments.counts))
    pooled = Densities(moments, one, None, chosen.shrinkage)
    fixed = dataclasses.replace(chosen, shrinkage=0.05, blend=0.1, temperature=11.0, weight=4.0)
    given = Densities(moments, learner.measured.spreads, None, fixed.shrinkage)
    return {
        "as it is": whole,
        "no regression": Rule(whole.densities, None, chosen),
        "no covariance of a pair's own": Rule(pooled, ridge, chosen),
        "neither: one Gaussian's covariance, LDA": Rule(pooled, None, chosen),
        "the regression alone": lambda lifted: 1000 * ridge(lifted),  # the best pair's class
        "numbers given, not chosen": Rule(given, ridge, fixed),
    }


def learned(job: Job) -> tuple[PlusLearner, list[int]]:
    """The learner at the end of its stream, and the segment in which it added each task."""
    stream = stream_of(job, job.benchmark)
    learner = build_learner(job, stream)
    assert isinstance(learner, PlusLearner)
    added_in: list[int] = []
    for segment in range(len(job.benchmark.stream)):
        for batch in stream.batches(segment):
            learner.observe(batch.without_task())
            added_in += [segment] * (learner.num_tasks - len(added_in))
    return learner, added_in


def stream_of(job: Job, benchmark: Benchmark) -> Stream:
    return Stream(
        benchmark,
        job.embeddings,
        batch_size=job.training.batch_size,
        seed=job.seed,
        device=torch.device("cpu"),
        images=False,
    )


def answers(learner: PlusLearner, stream: Stream, benchmark: Benchmark, added_in: list[int]) -> str:
    """Average and overall accuracy and the calibration error, in percent."""
    found = [learner.predict(x) for x in stream.test_samples()]
    y = np.concatenate([task.test.y for task in benchmark.tasks])
    task = np.repeat(np.arange(len(benchmark.tasks)), [len(t.test.y) for t in benchmark.tasks])
    of_class, named, pair = (np.concatenate([f[i] for f in found]) for i in range(3))
    order = [segment.task for segment in benchmark.stream]
    named = metrics.relabelled_tasks(named, added_in, order)
    accuracy = metrics.accuracy_matrix(of_class[None], y, task, len(benchmark.tasks))
    confidence = np.concatenate([f.confidence for f in found])
    error = metrics.expected_calibration_error(confidence, of_class == y)
    overall = metrics.overall_accuracy(pair, named, y, task)
    return f"{100 * accuracy.mean():.2f} / {100 * overall:.2f} (calibration {100 * error:.1f})"


def draws(learner: PlusLearner, job: Job, added_in: list[int]) -> str:
    """How far draws lie from the nearest training sample of their pair, beside test samples.

    Medians over draws, over as many test samples, and over draws of which each feature comes from
    another training sample of the pair, which keeps all but what features have in common.
    """
    benchmark = job.benchmark
    generator = torch.Generator().manual_seed(job.seed)
    drawn = learner.draw(8, generator)
    near: dict[str, list[Tensor]] = {"draws": [], "test samples": [], "shuffled features": []}
    for number, segment in enumerate(added_in):
        task = benchmark.tasks[benchmark.stream[segment].task]
        x = job.embeddings[task.dataset].x
        for label in range(benchmark.num_classes):
            known = torch.from_numpy(x[task.train.rows[task.train.y == label]])
            fresh = torch.from_numpy(x[task.test.rows[task.test.y == label][:8]])
            rows = torch.randint(len(known), (8, known.shape[1]), generator=generator)
            found = (drawn[number, label], fresh, known.gather(0, rows))
            for name, samples in zip(near, found, strict=True):
                near[name].append(torch.cdist(samples, known).amin(1))
    return ", ".join(f"{name} {torch.cat(d).median():.2f}" for name, d in near.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("benchmark")
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    parser.add_argument("--power", type=float)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--lift", choices=("random", "kernel"))
    parser.add_argument("--projections", type=int)
    parser.add_argument("--penalty", type=float)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    name = "hcl-plus-ta"
    inputs = read_inputs(
        read_run_asked(asked.params, asked.benchmark, name, None),
        Path("data/tasks") / f"{asked.benchmark}.h5",
        Path("data/embeddings"),
    )
    benchmark, method = inputs.benchmark, inputs.method
    held_out = [dataclasses.replace(task, test=task.validation) for task in benchmark.tasks]
    parts = {
        "validation": dataclasses.replace(benchmark, tasks=tuple(held_out)),
        "test": benchmark,
    }
    given = {key: value for key, value in vars(asked).items() if value is not None}
    for_rule = {key: given[key] for key in ("rank", "penalty") if key in given}
    for_method = {key: given[key] for key in ("power", "lift", "projections") if key in given}
    rule = dataclasses.replace(method.rule, **for_rule)
    method = dataclasses.replace(method, rule=rule, **for_method)
    for seed in asked.seeds:
        start = time.process_time()
        job = Job(benchmark, inputs.embeddings, name, method, inputs.flow, inputs.training, seed)
        learner, added_in = learned(job)
        seconds = time.process_time() - start
        print(
            f"{asked.benchmark} seed {seed}: {seconds:.0f} s, tasks begun in segments {added_in}, "
            f"{learner.measured.choice.best()}, {learner.measured.choice.trials} trials",
            flush=True,
        )
        for variant, rule in variants(learner).items():
            learner._rule = rule
            said = [
                f"{part} {answers(learner, stream_of(job, of), of, added_in)}"
                for part, of in parts.items()
            ]
            print(f"  {variant}: {', '.join(said)}", flush=True)
        print(f"  distance to the nearest: {draws(learner, job, added_in)}", flush=True)


if __name__ == "__main__":
    main()
