"""``hcl report``: tables, figures and a page of all results."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from hcl.settings import Name, build
from stages import options
from stages.parameters import Parameters


@click.command(cls=options.Command)
@options.params
@click.option("--scores", type=options.PATH, required=True, help="Folder with the scores.")
@click.option("--moons", type=options.PATH, help="Folder that `hcl moons` wrote.")
@click.option("--toy-losses", type=options.PATH, help="Folder that `hcl toy-losses` wrote.")
@click.option(
    "--metrics",
    type=options.PATH,
    help="Folder to write, a file a benchmark with a handful of numbers a method (JSON).",
)
@click.option("--out", type=options.PATH, required=True, help="Folder to write.")
def command(
    params: Path,
    scores: Path,
    metrics: Path | None,
    moons: Path | None,
    toy_losses: Path | None,
    out: Path,
) -> None:
    """Show the results of the whole grid.

    Writes one page that opens offline (index.html), the tables as Markdown, CSV and LaTeX, and
    the figures as PNG and SVG; prints the headline table. With --metrics also writes its numbers
    for `dvc metrics` and `dvc exp show`.
    """
    from hcl.files import check_folder_to_write, replacing, write_json
    from hcl.records.scores import headline as headline_numbers
    from hcl.records.studies import read_moons, read_toy_losses
    from hcl.report.report import REPORT_FILES, Grid, read_results, write_report

    check_folder_to_write(out, "--out", REPORT_FILES)
    if metrics is not None:
        check_folder_to_write(metrics, "--metrics", ("*.json",))
    parameters = Parameters(params)
    grid = parameters.build(Grid, "grid")
    for name in (*grid.benchmarks, *grid.methods):
        build(Name, name, params, "grid")
    if "methods" in parameters.values:  # of the pipeline; else the results' names are enough
        parameters.grid()
    results = read_results(scores, grid)
    headline = write_report(
        out,
        results,
        moons=read_moons(moons) if moons else None,
        toy=read_toy_losses(toy_losses) if toy_losses else None,
        again=_again(grid.benchmarks[0], grid.methods[0]),
    )
    if metrics is not None:
        with replacing(metrics) as folder:
            for benchmark, found in results.items():
                numbers = {result.method: headline_numbers(result.summary) for result in found}
                write_json(folder / f"{benchmark}.json", numbers)
    click.echo(headline)
    click.echo(f"Report: {out / 'index.html'}")


def _again(benchmark: str, method: str) -> list[tuple[str, str]]:
    """The commands that make a report's numbers again."""
    stage = shlex.quote(f"evaluate@{benchmark}-{method}")
    one = f"dvc repro {stage}\ndvc repro -s report"
    return [
        ("To make everything again", "dvc repro"),
        ("One method on one benchmark, and this page after it", one),
    ]
