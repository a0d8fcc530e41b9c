"""``hcl train``: learn the tasks of a benchmark one after another."""

from __future__ import annotations

from pathlib import Path

import click

from hcl.settings import load_yaml
from stages import options
from stages.grid import check_params
from stages.inputs import input_options, read_inputs
from stages.reading import read_seeds


@click.command(cls=options.Command, short_help="Learn the tasks of a benchmark with one method.")
@input_options
@click.option("--out", type=options.PATH, required=True, help="Folder to write, one run a seed.")
def command(
    params: Path, benchmark: str, method: str, tasks: Path, embeddings: Path, out: Path
) -> None:
    """Learn the tasks of a benchmark one after another with one method.

    Trains every seed, side by side, and writes the answers on all tasks' test samples after each
    segment of the stream. What is finished or was stopped is kept in `.hcl/runs` and not trained
    again.
    """
    from hcl.files import check_folder_to_write
    from hcl.records.runs import read_run
    from hcl.train.loop import RUN_FILES, train
    from hcl.train.store import STORE, finished_runs

    check_folder_to_write(out, "--out", RUN_FILES)
    values = load_yaml(params)
    check_params(values, params)
    seeds = read_seeds(values, params)
    before = finished_runs()
    train(*read_inputs(params, benchmark, method, tasks, embeddings), seeds, out)
    found = sum(read_run(out / f"seed-{seed}.h5").fingerprint in before for seed in seeds)
    runs = "1 run" if len(seeds) == 1 else f"{len(seeds)} runs"
    click.echo(f"{out}: {runs}" + (f", {found} from {STORE}" if found else ""))
