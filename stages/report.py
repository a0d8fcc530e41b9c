"""``hcl report``: tables, figures and a page of all results."""

from __future__ import annotations

from pathlib import Path

import click

from hcl.settings import build, load_yaml, section
from stages import options
from stages.grid import check_grid


@click.command(cls=options.Command)
@options.params
@click.option("--metrics", type=options.PATH, required=True, help="Folder with the summaries.")
@click.option("--scores", type=options.PATH, required=True, help="Folder with the scores.")
@click.option("--moons", type=options.PATH, help="Folder that `hcl moons` wrote.")
@click.option("--toy-losses", type=options.PATH, help="Folder that `hcl toy-losses` wrote.")
@click.option("--out", type=options.PATH, required=True, help="Folder to write.")
def command(
    params: Path,
    metrics: Path,
    scores: Path,
    moons: Path | None,
    toy_losses: Path | None,
    out: Path,
) -> None:
    """Show the results of the whole grid.

    Writes one page that opens offline (index.html), the tables as Markdown, CSV and LaTeX, and
    the figures as PNG and SVG; prints the headline table.
    """
    from hcl.files import check_folder_to_write
    from hcl.records.studies import read_moons, read_toy_losses
    from hcl.report.report import REPORT_FILES, Grid, read_results, write_report

    check_folder_to_write(out, "--out", REPORT_FILES)
    values = load_yaml(params)
    grid = build(Grid, section(values, "grid", params), params, "grid")
    if "methods" in values:  # in a file of the pipeline's; else the results' names are enough
        check_grid(values, params)
    results = read_results(metrics, scores, grid)
    headline = write_report(
        out,
        results,
        moons=read_moons(moons) if moons else None,
        toy=read_toy_losses(toy_losses) if toy_losses else None,
    )
    click.echo(headline)
    click.echo(f"Report: {out / 'index.html'}")
