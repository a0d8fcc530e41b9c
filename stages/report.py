"""``hcl report``: tables, figures and a page of all results."""

from __future__ import annotations

from pathlib import Path

import click

from hcl.settings import build, load_yaml, section
from stages import options


@click.command(cls=options.Command)
@options.params
@click.option("--metrics", type=options.PATH, required=True, help="Folder with the summaries.")
@click.option("--scores", type=options.PATH, required=True, help="Folder with the scores.")
@click.option("--out", type=options.PATH, required=True, help="Folder to write.")
def command(params: Path, metrics: Path, scores: Path, out: Path) -> None:
    """Show the results of the whole grid.

    Writes one page that opens offline (index.html), the tables as Markdown, CSV and LaTeX, and
    the figures as PNG and SVG; prints the headline table.
    """
    from hcl.report import Grid, read_results, write_report

    grid = build(Grid, section(load_yaml(params), "grid", params), params, "grid")
    headline = write_report(out, read_results(metrics, scores, grid))
    click.echo(headline)
    click.echo(f"Report: {out / 'index.html'}")
