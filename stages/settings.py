"""``hcl settings``: what each method is on each benchmark, after all merging."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import yaml

from hcl.errors import HCLError
from hcl.files import check_folder_to_write, remove, replacing, write_json
from hcl.learn.settings import used_settings
from hcl.split import as_json
from stages import options
from stages.resolve import Resolved, RunSettings

FILES = ("runs", "streams")  # what is written


@click.command(cls=options.Command, short_help="Show or write what a run is made of.")
@options.params
@click.option("--benchmark", help="Show this benchmark's stream or, with --method, one run.")
@click.option("--method", help="Show what this method is on the benchmark.")
@click.option("--out", type=options.PATH, help="Folder to write, a file for each run of the grid.")
def command(params: Path, benchmark: str | None, method: str | None, out: Path | None) -> None:
    """Merge and check the parameters: what each method is on each benchmark.

    With --benchmark and --method, shows what one run is made of. With --out, writes a file for
    each run and each stream of the grid, which the stages after it read: a change for one benchmark
    changes no file of another, and runs no stage of it again.
    """
    parameters = Resolved(params)
    if out is not None:
        check_folder_to_write(out, "--out", FILES)
        parameters.check()
        count = write_all(parameters, out)
        click.echo(f"{out}: {count} runs")
    elif benchmark is None:
        raise click.UsageError("Name a --benchmark to show, or a folder to write with --out.")
    else:
        shown: dict[str, Any] = {"stream": as_json(parameters.stream(benchmark))}
        if method is not None:
            shown = {"method": method, **described(parameters.run(benchmark, method))}
        click.echo(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True).rstrip())


def described(settings: RunSettings) -> dict[str, Any]:
    """What a run depends on, and nothing that its method never reads."""
    used = used_settings(*settings)
    return as_lists({"method_settings": used.pop("method"), **used})


def as_lists(value: Any) -> Any:
    """Tuples as lists, as JSON and YAML write them."""
    if isinstance(value, dict):
        return {name: as_lists(inner) for name, inner in value.items()}
    return [as_lists(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def write_all(parameters: Resolved, out: Path) -> int:
    """Write a file for each stream and each run of the grid; the number of runs."""
    grid, seeds = parameters.grid(), parameters.seeds()
    for name in ("benchmarks", "methods"):
        if not getattr(grid, name):
            raise HCLError(f"{parameters.path}: grid.{name} is empty; name at least one.")
    with replacing(out) as folder:
        remove(folder)
        for benchmark in grid.benchmarks:
            stream = as_json(parameters.stream(benchmark))
            write_json(
                folder / "streams" / f"{benchmark}.json",
                {"benchmark": benchmark, "stream": stream},
            )
            for method in grid.methods:
                run = described(parameters.run(benchmark, method))
                content = {"benchmark": benchmark, "method": method, "seeds": list(seeds), **run}
                write_json(folder / "runs" / benchmark / f"{method}.json", content)
    return len(grid.benchmarks) * len(grid.methods)
