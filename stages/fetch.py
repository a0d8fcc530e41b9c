"""fetch: bring a data set into one raw HDF5 file."""

from __future__ import annotations

from pathlib import Path

import click

from stages.options import PATH, Command, params
from stages.parameters import Parameters


@click.command(cls=Command, short_help="Bring a data set into one raw file.")
@params
@click.option("--dataset", required=True, help="Its name under `datasets` in the parameters.")
@click.option("--out", type=PATH, required=True, help="Raw file to write (HDF5).")
@click.option(
    "--data",
    type=PATH,
    envvar="HCL_DATA",
    show_envvar=True,
    help="Folder with data sets in their official layout, used in place of a download.",
)
@click.option(
    "--downloads",
    type=PATH,
    default=Path("data/downloads"),
    show_default=True,
    help="Folder for downloads.",
)
def command(params: Path, dataset: str, out: Path, data: Path | None, downloads: Path) -> None:
    """Bring a data set into one raw file, from its official source or from your own files."""
    from hcl.fetch.datasets import DatasetSettings, fetch
    from hcl.files import check_file_to_write
    from stages.checking import check_all  # no output depends on these: they say what is wrong,
    from stages.resolve import Resolved  # hours before the stage that would notice

    resolved = Resolved(params)
    check_all(resolved)
    parameters: Parameters = resolved
    settings = parameters.build(DatasetSettings, f"datasets.{dataset}")
    check_file_to_write(out, "--out")
    count, classes = fetch(dataset, settings, out, data=data, downloads=downloads)
    known = f"of {classes} classes" if classes else "without labels"
    click.echo(f"{out}: {count} samples {known}")
