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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from hcl.errors import HCLError
from hcl.evaluate.scoring import score, write_csv
from hcl.files import replacing
from hcl.learn.learners import MethodChanges, MethodSettings
from hcl.learn.plus import PlusSettings
from hcl.model.flows import FlowSettings
from hcl.records.embeddings import Embeddings
from hcl.records.runs import read_run
from hcl.records.tasks import Benchmark, Part, Task
from hcl.train import store
from hcl.train.loop import Job, TrainingSettings, run_jobs
from hcl.train.streams import check_sources

Metric = Literal["average", "overall"]
SAMPLES = 4  # keeps the generator of the samples apart from others of the same seed


@dataclass(frozen=True)
class TuneSettings:
    """What is tried, and how the best is told.

    Attributes:
        alpha: values of α; where a list is empty, the parameter stays as it is.
        weight_decay: of Adam.
        learning_rate: of Adam.
        learning_rate_decay: how fast it falls within a task, of a flow (``hcl.learn.learners``).
        power: of Tukey's transform, of HCL+.
        projections: random features, of RanPAC and HCL+; more of them cost time and memory.
        ridge: of RanPAC, and of HCL+ with ``rule: ridge``.
        shrinkage: of SLDA, and of HCL+ with ``rule: gaussian``.
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
    learning_rate_decay: tuple[float, ...] = ()
    power: tuple[float, ...] = (0.25, 0.5, 1)
    projections: tuple[int, ...] = ()
    ridge: tuple[float, ...] = (1e-3, 1e-2, 1e-1)
    shrinkage: tuple[float, ...] = (1e-3, 1e-2, 1e-1)
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
        for name in ("learning_rate", "ridge", "power", "shrinkage"):
            top = 1 if name in ("power", "shrinkage") else math.inf
            for value in getattr(self, name):
                if not 0 < value <= top:
                    up_to = ", up to 1" if top == 1 else ""
                    raise ValueError(f"{name}: holds {value:g}; expected numbers above 0{up_to}.")
        if self.seed < 0:
            raise ValueError(f"seed: is {self.seed}; expected 0 or more.")
        if self.samples_per_task is not None and self.samples_per_task < 1:
            raise ValueError(
                f"samples_per_task: is {self.samples_per_task}; expected 1 or more, or null."
            )


class Point(NamedTuple):
    """Values of the parameters, in the order of the search; ``None`` for what a method has not."""

    alpha: float | None = None
    learning_rate: float | None = None
    weight_decay: float | None = None
    learning_rate_decay: float | None = None
    power: float | None = None
    projections: int | None = None
    ridge: float | None = None
    shrinkage: float | None = None

    @property
    def given(self) -> dict[str, float]:
        """What the method has."""
        return {name: value for name, value in self._asdict().items() if value is not None}


class Trial(NamedTuple):
    """A point and its scores on the validation part, as fractions.

    Both scores are NaN where the run diverged; ``overall`` also where the method names no task.
    """

    point: Point
    average: float = math.nan
    overall: float = math.nan


class Tuning(NamedTuple):
    """Every trial in the order tried, the best of them, and its values as a method takes them.

    ``chosen`` is the entry ``methods.<method>.benchmarks.<benchmark>`` of the parameter file, with
    the best values of what was searched.
    """

    trials: list[Trial]
    best: Trial
    chosen: dict[str, Any]


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
    before = method.benchmarks.get(benchmark.name, MethodChanges())
    method = method.for_benchmark(benchmark.name)
    start = _start(method, training)
    values = _values(name, method, start, settings)
    check_sources(benchmark, embeddings)
    benchmark = on_validation(benchmark, settings)
    training = dataclasses.replace(training, save_model=False)

    def attempt(points: Sequence[Point]) -> list[Trial]:
        jobs = []
        for point in points:
            tried = _at(method, point.given)
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
    found = {key: getattr(best.point, key) for key in values}
    return Tuning(trials, best, _as_parameters(method, before, found))


def _start(method: MethodSettings, training: TrainingSettings) -> Point:
    """Where the search starts: what the method has, at the values that it would be trained with."""
    plus = method.plus if method.kind == "plus" else None
    steps = not method.is_closed_form and (plus is None or plus.flow != "never")
    regularised = method.memory == "functional" and (plus is None or plus.flow == "all")
    decay = training.weight_decay if method.weight_decay is None else method.weight_decay
    start = Point(
        alpha=method.alpha if regularised else None,
        learning_rate=method.learning_rate or training.learning_rate if steps else None,
        weight_decay=decay if steps else None,
        learning_rate_decay=method.learning_rate_decay if method.kind == "flow" else None,
    )
    if plus is not None:
        solver = "ridge" if plus.rule == "ridge" else "shrinkage"
        start = start._replace(power=plus.power, projections=plus.projections)
        return start._replace(**{solver: getattr(plus, solver)})
    if method.kind == "ranpac":
        return start._replace(projections=method.projections, ridge=method.ridge)
    return start._replace(shrinkage=method.shrinkage) if method.kind == "slda" else start


def _at(method: MethodSettings, values: Mapping[str, Any]) -> MethodSettings:
    """The method with these values, where it has them."""
    if method.kind != "plus":
        return dataclasses.replace(method, **values)
    own, parts = _by_section(values)
    return dataclasses.replace(method, plus=dataclasses.replace(method.plus, **parts), **own)


def _by_section(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values of HCL+ that are its own as a method, and those of its section ``plus``."""
    names = {field.name for field in dataclasses.fields(PlusSettings)}
    return (
        {name: value for name, value in values.items() if name not in names},
        {name: value for name, value in values.items() if name in names},
    )


def _as_parameters(
    method: MethodSettings, before: MethodChanges, values: Mapping[str, Any]
) -> dict[str, Any]:
    """What stands below the method's benchmark in the parameter file, with ``values`` in it.

    A section there stands for the method's as a whole, so that ``plus`` also has what else the
    method sets in it.
    """
    entry = {
        field.name: _changed(value) if dataclasses.is_dataclass(value) else value
        for field in dataclasses.fields(before)
        if (value := getattr(before, field.name)) is not None
    }
    if method.kind != "plus":
        return {**entry, **values}
    own, parts = _by_section(values)
    return {**entry, **own, "plus": {**_changed(method.plus), **parts}}


def _changed(section: Any) -> dict[str, Any]:
    """What a section has that is not its default."""
    default, now = dataclasses.asdict(type(section)()), dataclasses.asdict(section)
    return {name: value for name, value in now.items() if value != default[name]}


def _values(
    name: str, method: MethodSettings, start: Point, settings: TuneSettings
) -> dict[str, tuple[float, ...]]:
    """The values to try of each parameter that the method has, in the order of ``Point``."""
    if not start.given:
        raise HCLError(
            f"{name}: there is nothing to tune. A method of kind {method.kind} has none of "
            f"{', '.join(Point._fields)}."
        )
    if method.kind == "vae" and settings.metric == "overall":
        raise HCLError(
            f"{name}: tune.metric is overall, which is not defined for a method that names no "
            "task. Take metric: average."
        )
    values = {key: getattr(settings, key) for key in start.given if getattr(settings, key)}
    if not values:
        raise HCLError(
            f"{name}: there is nothing to try. Give values in tune.{' or tune.'.join(start.given)}."
        )
    for key, choices in values.items():
        for choice in choices:
            try:
                _at(method, {key: choice})
            except ValueError as error:
                raise HCLError(f"tune.{error}") from None
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
    values: Mapping[str, Sequence[Any]],
    settings: TuneSettings,
    attempt: Callable[[Sequence[Point]], Sequence[Trial]],
) -> list[Trial]:
    """Try points by ``attempt``, none of them twice.

    By coordinates the start is the first of them: what is changed has to be better than what is.

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
        points = [here, *(here._replace(**{name: choice}) for choice in choices)]
        trials += attempt([point for point in dict.fromkeys(points) if point not in tried])
        best = best_of(trials, settings.metric)
        here = here if best is None else best.point
    return trials


def best_of(trials: Sequence[Trial], metric: Metric) -> Trial | None:
    """The trial with the highest score, the first of equals; ``None`` where all diverged."""
    scored = [trial for trial in trials if not math.isnan(getattr(trial, metric))]
    return max(scored, key=lambda trial: float(getattr(trial, metric)), default=None)


def write_tuning(path: str | Path, tuning: Tuning) -> None:
    """Write a row a trial, in the order tried; what is not defined is an empty cell."""
    has = tuple(tuning.best.point.given)
    rows = []
    for number, trial in enumerate(tuning.trials, start=1):
        point = (f"{getattr(trial.point, name):.15g}" for name in has)
        scores = ("" if math.isnan(s) else f"{s:.4f}" for s in (trial.average, trial.overall))
        rows.append([number, *point, *scores, int(trial is tuning.best)])
    with replacing(path) as partial:
        write_csv(partial, ("trial", *has, "average", "overall", "chosen"), rows)
