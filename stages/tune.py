"""``hcl tune``: pick a method's parameters on the validation part of a benchmark."""

from __future__ import annotations

from pathlib import Path

import click
import yaml

from stages import options
from stages.reading import input_options


@click.command(cls=options.Command)
@options.params
@click.option("--benchmark", required=True, help="Name of the benchmark, a key of `benchmarks`.")
@click.option("--method", required=True, help="Name of the method, a key of `methods`.")
@input_options
@click.option("--out", type=options.PATH, required=True, help="File to write, a row a trial (CSV).")
def command(
    params: Path, benchmark: str, method: str, tasks: Path, embeddings: Path, out: Path
) -> None:
    """Pick the parameters that a method has on the validation part.

    α, learning rate and weight decay of a flow; power, projections, ridge or shrinkage of HCL+ and
    the closed forms. Trains with the values of the section `tune` (which may be left out), scores
    every trial on the validation part of the tasks, and prints the best values as they go into the
    parameter file. Test samples are not looked at. What is finished or was stopped is kept in
    `.hcl/runs` and not trained again.
    """
    from hcl.files import check_file_to_write
    from hcl.tune.settings import TuneSettings
    from stages.inputs import RunAsked, read_inputs
    from stages.resolve import Resolved

    check_file_to_write(out, "--out")
    parameters = Resolved(params)
    parameters.check()
    settings = TuneSettings()
    if "tune" in parameters.values:
        settings = parameters.build(TuneSettings, "tune")
    asked = RunAsked(benchmark, method, (), parameters.run(benchmark, method), parameters)

    from hcl.tune.search import tune, write_tuning

    found = tune(*read_inputs(asked, tasks, embeddings), settings)
    write_tuning(out, found)
    changes = {"benchmarks": {benchmark: {"tuned": {method: found.chosen}}}}
    entry = yaml.safe_dump(changes, default_flow_style=True, sort_keys=False, width=10_000).strip()
    reached = getattr(found.best, settings.metric)
    trials = "1 trial" if len(found.trials) == 1 else f"{len(found.trials)} trials"
    click.echo(f"best of {trials}: {settings.metric} accuracy {reached:.4f} with {entry[1:-1]}")
