"""``hcl split``: turn labels into tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hcl.errors import HCLError
from hcl.settings import Name, build
from stages import options
from stages.options import CHECKED
from stages.reading import check_not_named, read_settings

if TYPE_CHECKING:
    from hcl.split import StreamSettings


@click.command(cls=options.Command)
@options.params
@click.option("--benchmark", help="Name of the benchmark, a key of `benchmarks`.")
@click.option(
    "--settings",
    type=options.PATH,
    help="File that `hcl settings` wrote for the stream, in place of the benchmark's name.",
)
@click.option(
    "--embeddings", type=options.PATH, required=True, help="Folder with the embedding files."
)
@click.option("--out", type=options.PATH, required=True, help="Tasks file to write (HDF5).")
def command(
    params: Path, benchmark: str | None, settings: Path | None, embeddings: Path, out: Path
) -> None:
    """Turn the labels of embeddings into tasks.

    Writes index arrays over the embedding files, with labels 0…K−1 within a task, a validation
    part, and the order in which the tasks are shown.
    """
    from hcl.files import check_file_to_write
    from hcl.records.embeddings import read
    from hcl.records.tasks import write_benchmark
    from hcl.split import make_benchmark

    check_file_to_write(out, "--out")
    name, stream, where = _asked(params, benchmark, settings)
    for dataset in stream.datasets:
        if not (embeddings / f"{dataset}.h5").exists():
            raise HCLError(
                f"{embeddings / dataset}.h5: no such embedding file, and {name} needs it. See "
                f"that {dataset!r} is in grid.datasets of {params}; then `dvc repro "
                f"extract@{dataset}`."
            )
    sources = {dataset: read(embeddings / f"{dataset}.h5", CHECKED) for dataset in stream.datasets}
    made = make_benchmark(name, stream, sources, where)
    write_benchmark(out, made)
    order = " ".join(str(segment.task + 1) for segment in made.stream)
    own = made.shown.labels == "own"
    classes = f", {made.num_classes} classes in all" if own else f" of {made.num_classes} classes"
    click.echo(f"{out}: {len(made.tasks)} tasks{classes}, shown in the order {order}")


def _asked(
    params: Path, benchmark: str | None, settings: Path | None
) -> tuple[str, StreamSettings, str]:
    """The benchmark's name, its stream, and where that is written."""
    from hcl.split import StreamSettings

    if settings is not None:
        check_not_named(benchmark)
        values = read_settings(settings)
        if not {"benchmark", "stream"} <= values.keys():
            raise HCLError(f"{settings}: not the settings of a stream.")
        stream = build(StreamSettings, values["stream"], settings, "stream")
        name: str = build(Name, values["benchmark"], settings, "benchmark")
        return name, stream, f"{params}: benchmarks.{name}.stream"
    if benchmark is None:
        raise click.UsageError("Name the stream with --benchmark, or with --settings.")
    from stages.resolve import Resolved

    parameters = Resolved(params)
    parameters.check()
    return benchmark, parameters.stream(benchmark), f"{params}: benchmarks.{benchmark}.stream"
