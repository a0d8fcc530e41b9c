"""What the stages after ``split`` read alike: which runs are asked for, and their tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from hcl.errors import HCLError
from hcl.files import parse_json
from hcl.settings import Name, Seed, build
from stages import options
from stages.parameters import Parameters

if TYPE_CHECKING:
    from hcl.records.tasks import Benchmark


class RunNames(NamedTuple):
    """Which runs are asked for."""

    benchmark: str
    method: str
    seeds: tuple[int, ...]


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that name runs: by a file of settings, or by names in the parameter file."""
    for option in (
        click.option(
            "--settings",
            type=options.PATH,
            help="File that `hcl settings` wrote for the runs, in place of --benchmark, --method "
            "and --params.",
        ),
        click.option("--method", help="Name of the method, a key of `methods`."),
        click.option("--benchmark", help="Name of the benchmark, a key of `benchmarks`."),
        options.params,
    ):
        command = option(command)
    return command


def input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that name the inputs."""
    for option in (
        click.option(
            "--embeddings",
            type=options.PATH,
            required=True,
            help="Folder with the embedding files.",
        ),
        click.option(
            "--tasks", type=options.PATH, required=True, help="Tasks file of the benchmark."
        ),
    ):
        command = option(command)
    return command


def named(benchmark: str | None, method: str | None) -> tuple[str, str]:
    """Both names, which are needed where there is no file of settings."""
    if benchmark is None or method is None:
        raise click.UsageError("Name the runs with --benchmark and --method, or with --settings.")
    return benchmark, method


def read_names(
    params: Path, benchmark: str | None, method: str | None, settings: Path | None
) -> RunNames:
    """Which runs are asked for, by a file of settings or by names."""
    if settings is None:
        return RunNames(*named(benchmark, method), Parameters(params).seeds())
    check_not_named(benchmark, method)
    return names_in(read_settings(settings), settings)


def check_not_named(benchmark: str | None, method: str | None = None) -> None:
    """A file of settings and names might contradict each other: one of them is enough."""
    if benchmark is not None or method is not None:
        raise click.UsageError("--settings stands in place of --benchmark and --method.")


def names_in(values: dict[str, Any], path: Path) -> RunNames:
    """The runs that a file of settings is for."""
    if not set(RunNames._fields) <= values.keys():
        raise HCLError(f"{path}: not the settings of a run. `hcl settings --out` writes them.")
    return RunNames(
        build(Name, values["benchmark"], path, "benchmark"),
        build(Name, values["method"], path, "method"),
        build(tuple[Seed, ...], values["seeds"], path, "seeds"),
    )


def read_settings(path: Path) -> dict[str, Any]:
    """A file that ``hcl settings`` wrote."""
    if options.is_special(path):
        raise HCLError(f"{path}: not a plain file. `hcl settings --out` writes one.")
    try:
        values = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HCLError(f"{path}: no such file. `hcl settings --out` writes it.") from None
    except (OSError, ValueError):
        raise HCLError(f"{path}: not a file that `hcl settings --out` wrote.") from None
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
