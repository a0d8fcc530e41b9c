"""``hcl predict``: classify new images or embeddings with a trained model."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from stages import options

SOME_BROKEN = 3  # exit status where some inputs could not be read, and the others were answered


@click.command(cls=options.Command, short_help="Classify new images or embeddings.")
@click.option("--model", type=options.PATH, required=True, help="Model file of a run.")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@click.option("--out", type=options.PATH, help="Table to write: .csv, .jsonl or .parquet.")
@click.option("--force", is_flag=True, help="Replace the file of --out if it is there.")
@options.weights
@options.device
def command(
    model: Path, inputs: tuple[str, ...], out: Path | None, force: bool, weights: str, device: str
) -> None:
    """Classify new images or embeddings with a trained model.

    INPUT is an image, a folder of images, - for a list of paths on standard input, or embeddings:
    HDF5 of `hcl extract`, NPZ or Parquet. A row for each, as CSV on standard output without --out:
    input, class, probability, task, novelty (a p-value) and error. An image that can't be read is
    a row with its error; the exit status is then 3.
    """
    from hcl.files import check_file_to_write
    from hcl.use import inputs as sources
    from hcl.use import tables

    if out is not None:
        tables.check_suffix(out)
        check_file_to_write(out, "--out")
        options.check_new(out, force)
    options.check_there(model, "model file")
    found = sources.find(inputs, sys.stdin)

    from hcl.use.predicting import check, predict
    from hcl.use.trained import load

    trained = load(model, weights, device)
    check(trained, found)
    with tables.opened(out, sys.stdout) as write:
        done = predict(trained, found, write)
    if out is not None:
        click.echo(f"{out}: {done.rows} rows")
    if done.errors:
        click.echo(f"{done.errors} of {done.rows} could not be read: see their errors.", err=True)
        raise SystemExit(SOME_BROKEN)
