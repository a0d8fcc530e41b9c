"""``hcl train``: learn the tasks of a benchmark one after another."""

from __future__ import annotations

from pathlib import Path

import click

from stages import options
from stages.reading import input_options, run_options


@click.command(cls=options.Command, short_help="Learn the tasks of a benchmark with one method.")
@run_options
@input_options
@click.option("--out", type=options.PATH, required=True, help="Folder to write, one run a seed.")
def command(
    params: Path,
    benchmark: str | None,
    method: str | None,
    settings: Path | None,
    tasks: Path,
    embeddings: Path,
    out: Path,
) -> None:
    """Learn the tasks of a benchmark one after another with one method.

    Trains every seed, side by side, and writes the answers on all tasks' test samples after each
    segment of the stream. What is finished or was stopped is kept in `.hcl/runs` and not trained
    again.
    """
    from stages.inputs import read_inputs, read_run_asked

    asked = read_run_asked(params, benchmark, method, settings)  # before torch is imported

    from hcl.files import check_folder_to_write
    from hcl.train.jobs import RUN_FILES, train
    from hcl.train.store import STORE
    from hcl.train.streams import shortest_segment

    check_folder_to_write(out, "--out", RUN_FILES)
    inputs = read_inputs(asked, tasks, embeddings)
    batches = shortest_segment(inputs.benchmark, inputs.training.batch_size)
    advice = inputs.method.advice(batches)
    if advice is not None:
        click.echo(f"Note: {asked.method} on {asked.benchmark}: {advice}", err=True)
    found = train(*inputs, asked.seeds, out)
    runs = "1 run" if len(asked.seeds) == 1 else f"{len(asked.seeds)} runs"
    click.echo(f"{out}: {runs}" + (f", {found} from {STORE}" if found else ""))
