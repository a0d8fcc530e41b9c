"""extract: images to embeddings."""

from __future__ import annotations

from pathlib import Path

import click

from hcl.settings import build, load_yaml, section
from stages import options


@click.command(cls=options.Command)
@options.params
@click.option("--raw", type=options.PATH, required=True, help="Raw file that fetch wrote.")
@click.option("--out", type=options.PATH, required=True, help="Embedding file to write (HDF5).")
def command(params: Path, raw: Path, out: Path) -> None:
    """Embed the images of a raw file with a pretrained backbone.

    Reads the section `extract` of the parameters. Stopped at any moment, it continues from the last
    finished batch when it is started again.
    """
    from hcl.extract.settings import ExtractSettings
    from hcl.files import check_file_to_write

    check_file_to_write(out, "--out")
    values = section(load_yaml(params), "extract", params)
    settings = build(ExtractSettings, values, params, "extract")
    from hcl.extract.extraction import extract  # takes seconds: nothing is left to refuse

    count, size = extract(raw, out, settings)
    click.echo(f"{out}: {count} embeddings of {size} numbers")
