"""Small benchmarks and runs with known answers, for the tests of evaluation and report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hcl.evaluate import scoring
from hcl.records.runs import Run, Trace, write_run
from hcl.records.scores import write_scores
from hcl.records.studies import MoonsStudy, ToyLosses
from hcl.records.tasks import Benchmark, Part, Segment, Source, Task, write_benchmark

TEST_SAMPLES = (4, 2, 6, 4, 2, 4, 2, 4)  # of each task: unequal, so that weights matter
BATCHES = 12  # a segment


def make_benchmark(
    name: str = "toy", order: Sequence[int] = (0, 1, 2), epochs: int = 3
) -> Benchmark:
    """Tasks of two classes; test labels alternate 0 1 0 1."""
    tasks = []
    for i in range(max(order) + 1):
        parts = [Part(np.arange(n), np.arange(n) % 2) for n in (8, 2, TEST_SAMPLES[i])]
        tasks.append(Task("pictures", (2 * i, 2 * i + 1), *parts))
    stream = tuple(Segment(task, epochs) for task in order)
    return Benchmark(name, tuple(tasks), stream, (Source("pictures", "ab" * 32),))


def make_run(
    benchmark: Benchmark,
    method: str = "hcl-fr",
    seed: int = 0,
    wrong: Sequence[tuple[int, int]] = (),
    tasks_known: bool = True,
    verdicts: dict[int, int] | None = None,
    answers_from: int = 0,
) -> Run:
    """A run that answers all rightly, but for ``wrong``: (segment, test sample) pairs.

    Args:
        benchmark: the tasks.
        method: its name.
        seed: of the run.
        wrong: where the class is wrong.
        tasks_known: whether it names tasks at all.
        verdicts: by batch, of a task-agnostic method; ``None`` makes no trace.
        answers_from: the segment before which there is no answer.
    """
    stream = [segment.task for segment in benchmark.stream]
    y = np.concatenate([task.test.y for task in benchmark.tasks])
    sizes = [len(task.test.y) for task in benchmark.tasks]
    task = np.repeat(np.arange(len(sizes)), sizes)
    predicted = np.tile(y, (len(stream), 1))
    for segment, sample in wrong:
        predicted[segment, sample] = 1 - predicted[segment, sample]
    first = [stream.index(i) for i in range(len(sizes))]
    # A learner numbers tasks in the order in which it meets them.
    met = sorted(range(len(sizes)), key=lambda i: first[i])
    number = np.array([met.index(i) for i in range(len(sizes))])
    named = np.tile(number[task], (len(stream), 1)) if tasks_known else np.full_like(predicted, -1)
    predicted[:answers_from] = named[:answers_from] = -1
    return Run(
        benchmark=benchmark.name,
        method=method,
        seed=seed,
        settings={
            "method": {"detection": {"threshold": 5.0}},
            "flow": {"hidden": 8},
            "training": {"batch_size": 2},
        },
        tasks=benchmark.digest(),
        fingerprint=f"{seed:064x}",
        versions={"torch": "0"},
        predicted_class=predicted.astype(np.int16),
        predicted_task=named.astype(np.int16),
        pair_class=predicted.astype(np.int16),
        added_in=np.array([first[i] for i in met] if tasks_known else [], np.int16),
        trace=None if verdicts is None else _trace(stream, number, verdicts, _statistics(method)),
    )


def _statistics(method: str) -> tuple[str, ...]:
    if method.startswith("hcl-plus"):
        return ("mean_shift", "evidence")
    return ("log_px", "log_pz", "log_det")


def _trace(
    stream: list[int], number: np.ndarray, verdicts: dict[int, int], names: Sequence[str]
) -> Trace:
    """The first statistic is within −125 … −75 for the verdict, the others are not looked at."""
    segment = np.repeat(np.arange(len(stream)), BATCHES)
    true_task = np.array(stream)[segment]
    verdict = np.zeros(len(segment), np.int8)
    for batch, said in verdicts.items():
        verdict[batch] = said
    generator = np.random.default_rng(0)
    statistics = {}
    for place, name in enumerate(names):
        values = generator.normal(-100, 5, len(segment))
        low, high = (np.full(len(segment), b if place == 0 else np.nan) for b in (-125.0, -75.0))
        low[:3] = high[:3] = np.nan
        statistics[name] = np.stack([values, low, high], axis=1).astype(np.float32)
    return Trace(
        segment=segment.astype(np.int16),
        true_task=true_task.astype(np.int16),
        learner_task=number[true_task].astype(np.int16),
        verdict=verdict,
        statistics=statistics,
    )


def write_runs(folder: Path, runs: Sequence[Run], benchmark: Benchmark) -> None:
    """The runs and the tasks as train and split leave them."""
    write_benchmark(folder / "tasks" / f"{benchmark.name}.h5", benchmark)
    for run in runs:
        write_run(folder / "runs" / run.benchmark / run.method / f"seed-{run.seed}.h5", run)


def write_result(
    folder: Path,
    benchmark: Benchmark,
    method: str,
    wrong: Sequence[Sequence[tuple[int, int]]],
    first_seed: int = 0,
    classes: Sequence[str] = tuple("abcdefghijklmnop"),
) -> None:
    """Score one run a seed, from ``first_seed`` on, with the answers in ``wrong`` wrong.

    ``classes`` are the names of the data set's classes; none where they are not known.
    """
    verdicts = {BATCHES: 1, 2 * BATCHES + 3: 1, 30: 1} if method.endswith("-ta") else None
    known = method not in ("curl", "ncm")
    begins = len(benchmark.stream) - 1 if method == "joint" else 0
    runs = [
        make_run(benchmark, method, seed, answers, known, verdicts, begins)
        for seed, answers in enumerate(wrong, first_seed)
    ]
    scores = [scoring.score(run, benchmark) for run in runs]
    attributes = {"pictures": {"backbone": "lite0.in1k", "weights_sha256": "12" * 32}}
    if classes:
        attributes["pictures"]["classes"] = json.dumps(list(classes))
    described = scoring.about(runs, benchmark, attributes)
    latent = [("mean", 1, 0, "0", "0"), ("sample", 1, 1, "1", "2"), ("sample", 2, 0, "3", "-1")]
    write_scores(
        folder / "scores" / benchmark.name / method,
        runs,
        scores,
        scoring.summarise(scores),
        described,
        latent if method == "hcl-fr" else None,
    )


def studies() -> tuple[MoonsStudy, ToyLosses]:
    """What the two analyses might have found."""
    generator = np.random.default_rng(0)
    four = generator.normal(size=(4, 2))
    moons = MoonsStudy(
        first=generator.normal(size=(9, 2)),
        second=generator.normal(size=(9, 2)),
        replay=four,
        density={"gr": np.ones((5, 5)), "fr": np.ones((5, 5))},
        latent={"snapshot": four, "gr": four + 1, "fr": four},
        mean=np.zeros(2),
        distance={"gr": 1.41, "fr": 0.0},
        first_log_likelihood={"snapshot": -0.1, "gr": -77.7, "fr": -0.6},
        second_log_likelihood={"gr": -0.2, "fr": -0.3},
    )
    theta = np.arange(1, 5) / 2
    return moons, ToyLosses(1.0, theta, theta**2 / 2 - np.log(theta), (theta - 1) ** 2)
