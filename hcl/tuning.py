"""A search over α, the learning rate and the weight decay, on the validation part of a benchmark.

A trial is a run of the training loop with its own values for these three, on the training parts of
the tasks, and scored on their validation parts. The test parts are out of reach: the benchmark that
a trial is given has the validation parts in their place.

Paper: α from {1, 5, 10, 100}, the weight decay from {1e-4, 1e-3, 1e-2}; silent on the learning rate
and on how values are combined. Here: the learning rate is tuned as well, because low rates forget
less, and by default one parameter after the other, because a grid of all three is 36 runs.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from hcl import store
from hcl.embeddings import Embeddings
from hcl.errors import HCLError
from hcl.evaluation import score, write_csv
from hcl.files import replacing
from hcl.flows import FlowSettings
from hcl.learners import MethodSettings
from hcl.runs import read_run
from hcl.streams import check_sources
from hcl.tasks import Benchmark, Part, Task
from hcl.training import Job, TrainingSettings, run_jobs

Metric = Literal["average", "overall"]
SAMPLES = 4  # keeps the generator of the samples apart from others of the same seed


@dataclass(frozen=True)
class TuneSettings:
    """What is tried, and how the best is told.

    Attributes:
        alpha: values of α; where a list is empty, the parameter stays as it is.
        weight_decay: of Adam.
        learning_rate: of Adam.
        search: ``coordinate`` takes one parameter after the other, with the others at the best
            values so far; ``grid`` tries every combination.
        metric: ``average`` is the accuracy of classes, mean over tasks; ``overall`` that of (class,
            task) pairs.
        seed: of every trial, and of the draw of its samples.
        samples_per_task: train on at most so many samples of each task; ``None`` takes all.
    """

    alpha: tuple[float, ...] = (1, 5, 10, 100)
    weight_decay: tuple[float, ...] = (1e-4, 1e-3, 1e-2)
    learning_rate: tuple[float, ...] = (3e-5, 1e-4, 3e-4)
    search: Literal["coordinate", "grid"] = "coordinate"
    metric: Metric = "average"
    seed: int = 0
    samples_per_task: int | None = None

    def __post_init__(self) -> None:
        for name in Point._fields:
            values = getattr(self, name)
            if len(set(values)) != len(values):
                raise ValueError(f"{name}: a value stands twice in {list(values)}.")
            if any(value < 0 for value in values):
                raise ValueError(f"{name}: is {list(values)}; expected numbers of 0 or more.")
        if 0 in self.learning_rate:
            raise ValueError("learning_rate: holds 0; expected numbers above 0.")
        if self.seed < 0:
            raise ValueError(f"seed: is {self.seed}; expected 0 or more.")
        if self.samples_per_task is not None and self.samples_per_task < 1:
            raise ValueError(
                f"samples_per_task: is {self.samples_per_task}; expected 1 or more, or null."
            )


class Point(NamedTuple):
    """Values of the parameters, in the order in which they are searched."""

    alpha: float | None  # None where the method has none
    learning_rate: float
    weight_decay: float


class Trial(NamedTuple):
    """A point and its scores on the validation part, as fractions.

    Both scores are NaN where the run diverged; ``overall`` also where the method names no task.
    """

    point: Point
    average: float = math.nan
    overall: float = math.nan


class Tuning(NamedTuple):
    """Every trial in the order tried, the best of them, and the parameters that were searched."""

    trials: list[Trial]
    best: Trial
    searched: tuple[str, ...]

    @property
    def chosen(self) -> dict[str, float]:
        """The best value of each parameter that was searched."""
        return {name: getattr(self.best.point, name) for name in self.searched}


def tune(
    benchmark: Benchmark,
    embeddings: Mapping[str, Embeddings],
    name: str,
    method: MethodSettings,
    flow: FlowSettings,
    training: TrainingSettings,
    settings: TuneSettings,
    kept: Path = store.STORE,
) -> Tuning:
    """Search for the best values of a method's parameters on a benchmark's validation part.

    Trials run side by side where they do not wait for each other. Those that are finished are
    taken from the store, so that a search that was stopped goes on.

    Args:
        benchmark: what is learned; its test parts are not looked at.
        embeddings: of the benchmark's sources.
        name: of the method.
        method: its settings, where the search starts.
        flow: the flow's size.
        training: how it is trained.
        settings: what is tried.
        kept: the store.
    """
    method = method.for_benchmark(benchmark.name)
    values = _values(name, method, settings)
    check_sources(benchmark, embeddings)
    benchmark = on_validation(benchmark, settings)
    training = dataclasses.replace(training, save_model=False)
    start = Point(
        method.alpha if method.memory == "functional" else None,
        method.learning_rate or training.learning_rate,
        training.weight_decay if method.weight_decay is None else method.weight_decay,
    )

    def attempt(points: Sequence[Point]) -> list[Trial]:
        jobs = []
        for point in points:
            given = {key: value for key, value in point._asdict().items() if value is not None}
            tried = dataclasses.replace(method, **given)
            jobs.append(Job(benchmark, embeddings, name, tried, flow, training, settings.seed))
        trials = []
        for point, entry in zip(points, run_jobs(jobs, kept, may_diverge=True), strict=True):
            trials.append(Trial(point))
            if entry.is_finished:
                scores = score(read_run(entry.run), benchmark)
                trials[-1] = Trial(point, scores.average_accuracy, scores.overall_accuracy)
        return trials

    trials = search(start, values, settings, attempt)
    best = best_of(trials, settings.metric)
    if best is None:
        raise HCLError(
            f"{name} on {benchmark.name}: each of the {len(trials)} trials ended in a loss that is "
            "not finite. Add lower values to tune.learning_rate, or see with `hcl train` where "
            "the loss breaks."
        )
    return Tuning(trials, best, tuple(values))


def _values(
    name: str, method: MethodSettings, settings: TuneSettings
) -> dict[str, tuple[float, ...]]:
    """The values to try of each parameter that the method has, in the order of ``Point``."""
    if method.is_closed_form:
        raise HCLError(
            f"{name}: there is nothing to tune. A method of kind {method.kind} has none of "
            f"{', '.join(Point._fields)}."
        )
    if method.kind == "plus" and method.plus.flow == "never":
        raise HCLError(
            f"{name}: there is nothing to tune while plus.flow is never; "
            f"{', '.join(Point._fields)} are those of a flow that learns."
        )
    if method.kind == "vae" and settings.metric == "overall":
        raise HCLError(
            f"{name}: tune.metric is overall, which is not defined for a method that names no "
            "task. Take metric: average."
        )
    has = [key for key in Point._fields if key != "alpha" or method.memory == "functional"]
    values = {key: getattr(settings, key) for key in has if getattr(settings, key)}
    if not values:
        raise HCLError(
            f"{name}: there is nothing to try. Give values in tune.{' or tune.'.join(has)}."
        )
    return values


def on_validation(benchmark: Benchmark, settings: TuneSettings) -> Benchmark:
    """The benchmark that trials see: tested on the validation part, and cut to what is asked."""
    generator = np.random.default_rng([settings.seed, SAMPLES])
    tasks = []
    for number, task in enumerate(benchmark.tasks, start=1):
        if not len(task.validation.y):
            raise HCLError(
                f"{benchmark.name}: task {number} has no validation samples to tune on. Set "
                f"benchmarks.{benchmark.name}.stream.validation to a fraction above 0 and split "
                "again."
            )
        tasks.append(_tested_on_validation(task, settings.samples_per_task, generator))
    return dataclasses.replace(benchmark, tasks=tuple(tasks))


def _tested_on_validation(task: Task, samples: int | None, generator: np.random.Generator) -> Task:
    chosen = np.sort(generator.permutation(len(task.train.y))[:samples])
    train = Part(task.train.rows[chosen], task.train.y[chosen])
    return dataclasses.replace(task, train=train, test=task.validation)


def search(
    start: Point,
    values: Mapping[str, Sequence[float]],
    settings: TuneSettings,
    attempt: Callable[[Sequence[Point]], Sequence[Trial]],
) -> list[Trial]:
    """Try points by ``attempt``, none of them twice.

    Args:
        start: where the search starts, and what parameters without values keep.
        values: to try, by parameter.
        settings: of the search.
        attempt: tries points that do not depend on each other's scores.
    """
    if settings.search == "grid":
        combinations = itertools.product(*values.values())
        return list(
            attempt([start._replace(**dict(zip(values, c, strict=True))) for c in combinations])
        )
    trials: list[Trial] = []
    here = start
    for name, choices in values.items():
        tried = {trial.point for trial in trials}
        points = [here._replace(**{name: choice}) for choice in choices]
        trials += attempt([point for point in points if point not in tried])
        best = best_of(trials, settings.metric)
        here = here if best is None else best.point
    return trials


def best_of(trials: Sequence[Trial], metric: Metric) -> Trial | None:
    """The trial with the highest score, the first of equals; ``None`` where all diverged."""
    scored = [trial for trial in trials if not math.isnan(getattr(trial, metric))]
    return max(scored, key=lambda trial: float(getattr(trial, metric)), default=None)


def write_tuning(path: str | Path, tuning: Tuning) -> None:
    """Write a row a trial, in the order tried; what is not defined is an empty cell."""
    rows = []
    for number, trial in enumerate(tuning.trials, start=1):
        point = ("" if value is None else f"{value:.15g}" for value in trial.point)
        scores = ("" if math.isnan(s) else f"{s:.4f}" for s in (trial.average, trial.overall))
        rows.append([number, *point, *scores, int(trial is tuning.best)])
    with replacing(path) as partial:
        header = ("trial", *Point._fields, "average", "overall", "chosen")
        write_csv(partial, header, rows)
