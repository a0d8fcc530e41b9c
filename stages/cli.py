"""``hcl``: every stage of the pipeline as a subcommand."""

from __future__ import annotations

import importlib

import click

from hcl import __version__

# In the order of the pipeline. A module is imported when its command is asked for or listed;
# all of them keep heavy imports inside the command, so that help is quick.
PIPELINE = ("settings", "fetch", "extract", "split", "train", "evaluate", "report")
COMMANDS = (
    *PIPELINE,
    *("predict", "learn", "serve", "detect", "sweep", "tune", "backbones", "moons", "toy-losses"),
    "dvc",
)


class _Stages(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"stages.{name.replace('-', '_')}").command
        return command


@click.group(cls=_Stages, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hcl")
def main() -> None:
    """Learn tasks one after another without forgetting: a pipeline from images to report.

    `dvc repro` runs the stages in order and keeps their outputs; each of them runs alone, too.
    """
