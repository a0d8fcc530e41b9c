"""A search over the parameters that a method has, on the validation part of a benchmark.

A trial is a run of the training loop with its own values for these, on the training parts of the
tasks, and scored on their validation parts. The test parts are out of reach: the benchmark that a
trial is given has the validation parts in their place. What learns by steps has a learning rate and
a weight decay, L_FR has α; the closed forms and HCL+ have what their sums are solved with.

Paper: α from {1, 5, 10, 100}, the weight decay from {1e-4, 1e-3, 1e-2}; silent on the learning rate
and on how values are combined. Here: the learning rate is tuned as well, because low rates forget
less, and by default one parameter after the other, because a grid of all three is 36 runs. Its
rivals are tuned by the same means.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hcl.errors import HCLError
from hcl.evaluate.scoring import score
from hcl.files import replacing
from hcl.learn.settings import Method, TrainingSettings
from hcl.model.settings import FlowSettings
from hcl.records.embeddings import Embeddings
from hcl.records.runs import read_run
from hcl.records.scores import write_csv
from hcl.records.tasks import Benchmark, Part, Task
from hcl.train import store
from hcl.train.jobs import run_jobs
from hcl.train.loop import Job
from hcl.train.streams import check_sources
from hcl.tune.settings import Metric, TuneSettings, Value, numbers_of

SAMPLES = 4  # keeps the generator of the samples apart from others of the same seed
RATES = ("learning_rate", "weight_decay")  # of the benchmark where a method names none

Point = tuple[tuple[str, Value], ...]  # a value for each dotted key that the method has


class Trial(NamedTuple):
    """A point and its scores on the validation part, as fractions.

    Both scores are NaN where the run diverged; ``overall`` also where the method names no task.
    """

    point: Point
    average: float = math.nan
    overall: float = math.nan


class Tuning(NamedTuple):
    """Every trial in the order tried, the best of them, and its values as a method takes them.

    ``chosen`` is the entry ``benchmarks.<benchmark>.tuned.<method>`` of the parameter file, with
    the best values of what was searched.
    """

    trials: list[Trial]
    best: Trial
    chosen: dict[str, Any]


def tune(
    benchmark: Benchmark,
    embeddings: Mapping[str, Embeddings],
    name: str,
    method: Method,
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
        method: its settings on this benchmark, where the search starts.
        flow: the flow's size.
        training: how it is trained.
        settings: what is tried.
        kept: the store.
    """
    values = _values(name, method, training, settings)
    start = tuple((key, _value(method, training, key)) for key in values)
    check_sources(benchmark, embeddings)
    benchmark = on_validation(benchmark, settings)
    training = dataclasses.replace(training, save_model=False)

    def attempt(points: Sequence[Point]) -> list[Trial]:
        jobs = []
        for point in points:
            tried = with_values(method, dict(point))
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
            "not finite. Add lower values to tune.values.learning_rate, or see with `hcl train` "
            "where the loss breaks."
        )
    return Tuning(trials, best, nested(dict(best.point)))


def _has(method: Any, key: str) -> bool:
    """Whether a dotted key is one of a method's."""
    first, _, rest = key.partition(".")
    if first not in {field.name for field in dataclasses.fields(method)}:
        return False
    inner = getattr(method, first)
    return _has(inner, rest) if rest and dataclasses.is_dataclass(inner) else not rest


def _value(method: Any, training: TrainingSettings, key: str) -> Value:
    """What a method would be trained with."""
    value: Any = method
    for part in key.split("."):
        value = getattr(value, part)
    last = key.rpartition(".")[2]
    if value is None and last in RATES:
        value = getattr(training, last)
    found: Value = value
    return found


def with_values(method: Any, values: Mapping[str, Any]) -> Any:
    """The method with these values in place of its own, by dotted key."""
    for key, value in values.items():
        first, _, rest = key.partition(".")
        if not rest:
            method = dataclasses.replace(method, **{first: value})
            continue
        try:
            inner = with_values(getattr(method, first), {rest: value})
        except ValueError as error:
            raise ValueError(f"{first}.{error}") from None
        method = dataclasses.replace(method, **{first: inner})
    return method


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """From dotted keys to sections."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        first, _, rest = key.partition(".")
        if rest:
            found.setdefault(first, {})[rest] = value
        else:
            found[first] = value
    return found


def _values(
    name: str, method: Method, training: TrainingSettings, settings: TuneSettings
) -> dict[str, tuple[Value, ...]]:
    """The values to try of each parameter that the method has."""
    if method.kind == "curl" and settings.metric == "overall":
        raise HCLError(
            f"{name}: tune.metric is overall, which is not defined for a method that names no "
            "task. Take metric: average."
        )
    listed = settings.listed()
    values = {key: choices for key, choices in listed.items() if choices and _has(method, key)}
    if not values:
        there = [key for key in numbers_of(type(method)) if _has(method, key)]
        advice = f"Give values of {', '.join(there)}." if there else ""
        raise HCLError(
            f"{name}: there is nothing to tune: tune.values lists nothing that a method of kind "
            f"{method.kind} has. {advice}".rstrip()
        )
    for key, choices in values.items():
        now = _value(method, training, key)
        kind = float if now is None else type(now)  # what the stream chooses is a number, too
        for choice in choices:
            if kind is int and not isinstance(choice, int):
                raise HCLError(f"tune.values.{key}: holds {choice}; expected whole numbers.")
            try:
                with_values(method, {key: choice})
            except ValueError as error:
                raise HCLError(f"tune.values.{error}") from None
        values[key] = tuple(kind(choice) for choice in choices)
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
    values: Mapping[str, Sequence[Value]],
    settings: TuneSettings,
    attempt: Callable[[Sequence[Point]], Sequence[Trial]],
) -> list[Trial]:
    """Try points by ``attempt``, none of them twice.

    By coordinates the start is the first of them: what is changed has to be better than what is.

    Args:
        start: where the search starts.
        values: to try, by parameter.
        settings: of the search.
        attempt: tries points that do not depend on each other's scores.
    """
    if settings.search == "grid":
        combinations = itertools.product(*values.values())
        return list(attempt([tuple(zip(values, c, strict=True)) for c in combinations]))
    trials: list[Trial] = []
    here = start
    for name, choices in values.items():
        tried = {trial.point for trial in trials}
        points = [here, *(_moved(here, name, choice) for choice in choices)]
        trials += attempt([point for point in dict.fromkeys(points) if point not in tried])
        best = best_of(trials, settings.metric)
        here = here if best is None else best.point
    return trials


def _moved(point: Point, name: str, value: Value) -> Point:
    return tuple((key, value if key == name else there) for key, there in point)


def best_of(trials: Sequence[Trial], metric: Metric) -> Trial | None:
    """The trial with the highest score, the first of equals; ``None`` where all diverged."""
    scored = [trial for trial in trials if not math.isnan(getattr(trial, metric))]
    return max(scored, key=lambda trial: float(getattr(trial, metric)), default=None)


def write_tuning(path: str | Path, tuning: Tuning) -> None:
    """Write a row a trial, in the order tried; what is not defined is an empty cell."""
    has = tuple(dict(tuning.best.point))
    rows = []
    for number, trial in enumerate(tuning.trials, start=1):
        point = (f"{value:.15g}" for _, value in trial.point)
        scores = ("" if math.isnan(s) else f"{s:.4f}" for s in (trial.average, trial.overall))
        rows.append([number, *point, *scores, int(trial is tuning.best)])
    with replacing(path) as partial:
        write_csv(partial, ("trial", *has, "average", "overall", "chosen"), rows)
