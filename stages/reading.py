"""What the stages after ``split`` read alike: a run's settings, and the tasks of a benchmark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from hcl.errors import HCLError
from hcl.learn.kinds import AnyMethod
from hcl.learn.settings import TrainingSettings
from hcl.model.settings import FlowSettings
from hcl.settings import build
from stages import options
from stages.resolve import Resolved, RunSettings

if TYPE_CHECKING:
    from hcl.records.tasks import Benchmark


class RunAsked(NamedTuple):
    """Which runs a stage is asked for, and what they are made of."""

    benchmark: str
    method: str
    seeds: tuple[int, ...]
    settings: RunSettings
    parameters: Resolved | None  # where they come from, if not from a file of settings


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that name runs: by a file of settings, or by names in the parameter file."""
    for option in (
        click.option(
            "--settings",
            type=options.PATH,
            help="File that `hcl settings` wrote for the runs, in place of the next three.",
        ),
        click.option("--method", help="Name of the method, a key of `methods`."),
        click.option("--benchmark", help="Name of the benchmark, a key of `benchmarks`."),
        options.params,
    ):
        command = option(command)
    return command


def read_run_asked(
    params: Path, benchmark: str | None, method: str | None, settings: Path | None
) -> RunAsked:
    """Which runs are asked for, from a file of settings or from the parameter file."""
    if settings is not None:
        return _from_settings(settings)
    if benchmark is None or method is None:
        raise click.UsageError("Name the runs with --benchmark and --method, or with --settings.")
    parameters = Resolved(params)
    parameters.check()
    run = parameters.run(benchmark, method)
    return RunAsked(benchmark, method, parameters.seeds(), run, parameters)


def _from_settings(path: Path) -> RunAsked:
    values = read_settings(path)
    names = ("benchmark", "method", "seeds")
    if not set(names) <= values.keys():
        raise HCLError(f"{path}: not the settings of a run. `hcl settings --out` writes them.")
    run = RunSettings(
        build(AnyMethod, values.get("method_settings"), path, "method_settings"),  # type: ignore[arg-type]
        build(FlowSettings, values.get("flow", {}), path, "flow"),
        build(TrainingSettings, values.get("training", {}), path, "training"),
    )
    benchmark, method, seeds = (values[name] for name in names)
    return RunAsked(benchmark, method, tuple(seeds), run, None)


def read_settings(path: Path) -> dict[str, Any]:
    """A file that ``hcl settings`` wrote."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HCLError(f"{path}: no such file. `hcl settings --out` writes it.") from None
    except (OSError, ValueError) as error:
        raise HCLError(f"{path}: can't be read as settings ({error}).") from None
    if not isinstance(values, dict):
        raise HCLError(f"{path}: holds no settings. `hcl settings --out` writes them.")
    return values


def read_tasks(tasks: Path, benchmark: str) -> Benchmark:
    """The tasks file, which must be the benchmark's."""
    from hcl.records.tasks import read_benchmark

    stream = read_benchmark(tasks)
    if stream.name != benchmark:
        raise HCLError(
            f"{tasks}: holds the tasks of {stream.name}, expected {benchmark}; name another file "
            "with --tasks, or the other benchmark."
        )
    return stream
