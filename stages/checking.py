"""All that the parameter file alone can tell, before the first second is spent on data.

No output depends on this: who asks for it wants to hear of a slip now, not when its stage comes.
"""

from __future__ import annotations

from pathlib import Path

from hcl.errors import HCLError
from hcl.extract.settings import ExtractSettings
from hcl.fetch.datasets import DatasetSettings
from hcl.files import sha256_of
from hcl.records.raw import Raw
from hcl.studies.settings import MoonsSettings, ToySettings
from hcl.tune.settings import TuneSettings
from stages.resolve import Resolved

SECTIONS = {
    "extract": ExtractSettings,
    "moons": MoonsSettings,
    "toy_losses": ToySettings,
    "tune": TuneSettings,
}


def check_all(parameters: Resolved) -> None:
    """An error for the first thing in the file that some stage would refuse later."""
    parameters.check()
    for name in parameters.grid().datasets if parameters.values.get("grid") else ():
        parameters.build(DatasetSettings, f"datasets.{name}")
    for key, settings in SECTIONS.items():
        if key in parameters.values:
            parameters.build(settings, key)
    _check_datasets_of_the_grid(parameters)


def check_own_embeddings(parameters: Resolved, raw: Path) -> None:
    """An error where a user's own embedding file is no longer that of the raw file made from it.

    The file lies outside of the pipeline: nobody else would notice that it changed.
    """
    for name in parameters.grid().datasets if parameters.values.get("grid") else ():
        settings = parameters.build(DatasetSettings, f"datasets.{name}")
        made = raw / f"{name}.h5"
        if settings.source != "embeddings" or settings.path is None or not made.exists():
            continue
        file = Path(settings.path).expanduser()
        if file.is_file() and Raw(made).source_sha256 != sha256_of(file):
            raise HCLError(
                f"{file}: has changed since {made} was made from it. Make that again with "
                f"`dvc repro -f -s fetch@{name}` (or `hcl fetch`), or put the old file back."
            )


def _check_datasets_of_the_grid(parameters: Resolved) -> None:
    """A data set that a benchmark needs and the grid leaves out would be taken as it lies there."""
    if not parameters.values.get("grid"):
        return
    grid = parameters.grid()
    for i, benchmark in enumerate(grid.benchmarks):
        for dataset in parameters.stream(benchmark).datasets if grid.datasets else ():
            if dataset not in grid.datasets:
                raise HCLError(
                    f"{parameters.path}: grid.benchmarks[{i}] is {benchmark}, which needs the data "
                    f"set {dataset!r}; add it to grid.datasets."
                )
