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
@click.option(
    "--dataset",
    help="Its name under `datasets` in the parameters; with `pixels` there, no backbone is used.",
)
@click.option(
    "--ray",
    metavar="ADDRESS",
    envvar="HCL_RAY",
    show_envvar=True,
    help="Ray cluster whose machines do the work: host:port, or auto. The file is the same.",
)
@click.option(
    "--shared",
    is_flag=True,
    envvar="HCL_RAY_SHARED",
    show_envvar=True,
    help="The cluster's machines see the raw file at the same path: send them no images.",
)
def command(
    params: Path, raw: Path, out: Path, dataset: str | None, ray: str | None, shared: bool
) -> None:
    """Embed the images of a raw file with a pretrained backbone.

    Reads the section `extract` of the parameters. Stopped at any moment, it continues from the last
    finished batch when it is started again. A data set with `pixels` keeps its images as they are,
    resized to that shape.
    """
    from hcl.extract.settings import ExtractSettings, pixels_of
    from hcl.files import check_file_to_write

    check_file_to_write(out, "--out")
    if shared and not ray:
        raise click.UsageError("--shared is about the machines of a cluster: name it with --ray.")
    values = load_yaml(params)
    shape = None
    if dataset is not None:
        shape = pixels_of(section(values, f"datasets.{dataset}", params), params, dataset)
    if shape is not None:
        from hcl.extract.pixels import extract_pixels

        count = extract_pixels(raw, out, shape)
        click.echo(f"{out}: {count} images of {'×'.join(map(str, shape))} pixels")
        return
    settings = build(ExtractSettings, section(values, "extract", params), params, "extract")
    from hcl.extract.extraction import extract  # takes seconds: nothing is left to refuse

    count, size = extract(raw, out, settings, ray=ray, shared=shared)
    click.echo(f"{out}: {count} embeddings of {size} numbers")
