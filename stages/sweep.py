"""``hcl sweep``: train every run of the grid that is not there yet, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hcl.errors import HCLError
from stages import options

if TYPE_CHECKING:
    from hcl.sweep.planning import Order
    from stages.inputs import RunAsked


@click.command(cls=options.Command, short_help="Train all runs of the grid side by side.")
@options.params
@click.option(
    "--settings",
    type=options.PATH,
    help="Folder that `hcl settings` wrote for the grid, in place of --params.",
)
@click.option(
    "--tasks",
    type=options.PATH,
    default=Path("data/tasks"),
    show_default=True,
    help="Folder with the tasks files.",
)
@click.option(
    "--embeddings",
    type=options.PATH,
    default=Path("data/embeddings"),
    show_default=True,
    help="Folder with the embedding files.",
)
@click.option(
    "--runs",
    type=options.PATH,
    default=Path("results/runs"),
    show_default=True,
    help="Folder of `hcl train`'s outputs: a run that is there already is not trained again.",
)
@click.option(
    "--store",
    "kept",
    type=options.PATH,
    default=Path(".hcl/runs"),
    show_default=True,
    help="Folder for finished and unfinished runs. `hcl train` looks into the default one.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Runs at once. Without it: one for each core, or --per-gpu for each GPU.",
)
@click.option(
    "--per-gpu",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Runs that share a GPU, where there is one; fewer if its memory runs out.",
)
@click.option(
    "--ray",
    "address",
    help="Train on a Ray cluster: host:port of its head or, for that of RAY_ADDRESS or of this "
    "machine, auto.",
)
def command(
    params: Path,
    settings: Path | None,
    tasks: Path,
    embeddings: Path,
    runs: Path,
    kept: Path,
    jobs: int | None,
    per_gpu: int,
    address: str | None,
) -> None:
    """Train every run that the grid asks for and the store does not hold.

    All methods, benchmarks and seeds together, the longest first, as many at once as there are
    cores. A stopped sweep goes on where it was. `hcl train`, and with it `dvc repro`, then takes
    the runs from the store. A failed run does not stop the others; the exit status says so.
    """
    asked = list(_asked(params, settings))  # before torch is imported

    from contextlib import ExitStack

    from hcl.sweep.events import Engine
    from hcl.sweep.local import Processes
    from hcl.sweep.running import summary, sweep

    with ExitStack() as stack:
        orders = list(_orders(asked, tasks, embeddings))
        on_gpu = any(order.job.device.type == "cuda" for order in orders)
        engine: Engine = Processes(jobs, per_gpu, on_gpu)
        if address is not None:
            from hcl.cluster import connect
            from hcl.sweep.on_ray import Cluster

            engine = Cluster(stack.enter_context(connect(address)), jobs, per_gpu)
        outcome = sweep(orders, engine, kept, runs=runs)
    click.echo(summary(outcome, kept))
    for order, failure in outcome.failures:
        click.echo(f"Failed: {order}: {failure.why}", err=True)
    if outcome.failures:
        raise click.exceptions.Exit(1)


def _asked(params: Path, settings: Path | None) -> Iterator[RunAsked]:
    """Every run of the grid, by a folder of settings or by the parameter file."""
    from stages.inputs import RunAsked, read_run_asked
    from stages.resolve import Resolved

    if settings is not None:
        files = sorted(settings.glob("runs/*/*.json"))
        if not files:
            raise HCLError(
                f"{settings}: no settings of runs there. `hcl settings --out` writes them."
            )
        for file in files:
            yield read_run_asked(params, None, None, file)
        return
    parameters = Resolved(params)
    parameters.check()
    grid, seeds = parameters.grid(), parameters.seeds()
    for name in ("benchmarks", "methods"):
        if not getattr(grid, name):
            raise HCLError(f"{params}: grid.{name} is empty; name at least one.")
    for benchmark in grid.benchmarks:
        for method in grid.methods:
            yield RunAsked(benchmark, method, seeds, parameters.run(benchmark, method), parameters)


def _orders(asked: list[RunAsked], tasks: Path, embeddings: Path) -> Iterator[Order]:
    """An order for each seed; the inputs of a benchmark are read once."""
    from hcl.sweep.planning import Order
    from hcl.train.loop import Job
    from hcl.train.streams import check_sources
    from stages.inputs import Inputs, read_inputs

    read: dict[str, Inputs] = {}
    for one in asked:
        if one.benchmark not in read:
            read[one.benchmark] = read_inputs(one, tasks / f"{one.benchmark}.h5", embeddings)
            check_sources(read[one.benchmark].benchmark, read[one.benchmark].embeddings)
        benchmark, sources, *_ = read[one.benchmark]
        files = {dataset: embeddings / f"{dataset}.h5" for dataset in sources}
        for seed in one.seeds:
            job = Job(benchmark, sources, one.method, *one.settings, seed)
            yield Order.of(job, files, options.CHECKED)
