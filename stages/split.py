"""``hcl split``: turn labels into tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from hcl.errors import HCLError
from hcl.settings import build, did_you_mean, load_yaml, section
from stages import options
from stages.grid import check_params


@click.command(cls=options.Command)
@options.params
@click.option("--benchmark", required=True, help="Name of the benchmark, a key of `benchmarks`.")
@click.option(
    "--embeddings", type=options.PATH, required=True, help="Folder with the embedding files."
)
@click.option("--out", type=options.PATH, required=True, help="Tasks file to write (HDF5).")
def command(params: Path, benchmark: str, embeddings: Path, out: Path) -> None:
    """Turn the labels of embeddings into tasks.

    Writes index arrays over the embedding files, with labels 0…K−1 within a task, a validation
    part, and the order in which the tasks are shown.
    """
    from hcl.files import check_file_to_write
    from hcl.records.embeddings import read
    from hcl.records.tasks import write_benchmark
    from hcl.split import StreamSettings, make_benchmark

    check_file_to_write(out, "--out")
    values = load_yaml(params)
    check_params(values, params)
    key = f"benchmarks.{benchmark}.stream"
    settings = build(StreamSettings, section(values, key, params), params, key)
    declared = values.get("datasets")
    for dataset in settings.datasets:
        if isinstance(declared, Mapping) and dataset not in declared:
            hint = did_you_mean(dataset, list(map(str, declared)))
            raise HCLError(
                f"{params}: {key}.tasks names the data set {dataset!r}, which is not among the "
                f"datasets of the file{hint}: {', '.join(map(str, declared))}."
            )
        if not (embeddings / f"{dataset}.h5").exists():
            raise HCLError(
                f"{embeddings / dataset}.h5: no such embedding file, and {benchmark} needs it. See "
                f"that {dataset!r} is in grid.datasets of {params}; then `dvc repro "
                f"extract@{dataset}`."
            )
    sources = {dataset: read(embeddings / f"{dataset}.h5") for dataset in settings.datasets}
    made = make_benchmark(benchmark, settings, sources, f"{params}: {key}")
    write_benchmark(out, made)
    order = " ".join(str(segment.task + 1) for segment in made.stream)
    click.echo(
        f"{out}: {len(made.tasks)} tasks of {made.num_classes} classes, shown in the order {order}"
    )
