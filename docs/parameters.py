"""Writes docs/parameters.md, the table of all parameters, from the settings in the code.

    python docs/parameters.py

What a parameter means stands in the docstring of its dataclass, its type and its default in the
field: this script only puts them side by side.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import typing
from pathlib import Path
from typing import Any

from hcl.extract.extraction import ExtractSettings
from hcl.fetch.datasets import DatasetSettings
from hcl.learn.detection import DetectionSettings
from hcl.learn.learners import MethodChanges, MethodSettings
from hcl.learn.plus import PlusSettings
from hcl.learn.sequential import SequentialSettings
from hcl.learn.vae import VAESettings
from hcl.model.flows import FlowSettings
from hcl.settings import describe
from hcl.split import EqualTasks, SegmentSettings, StreamSettings, TaskSettings
from hcl.studies.moons import MoonsSettings
from hcl.studies.toy_losses import ToySettings
from hcl.train.loop import TrainingSettings
from hcl.tune import TuneSettings

PAGE = Path(__file__).resolve().parent / "parameters.md"
SECTIONS: dict[str, type] = {
    "datasets.<name>": DatasetSettings,
    "extract": ExtractSettings,
    "benchmarks.<name>.stream": StreamSettings,
    "benchmarks.<name>.stream.tasks, of equal size": EqualTasks,
    "benchmarks.<name>.stream.tasks[i], one by one": TaskSettings,
    "benchmarks.<name>.stream.order[i], with epochs of its own": SegmentSettings,
    "benchmarks.<name>.flow": FlowSettings,
    "benchmarks.<name>.training": TrainingSettings,
    "methods.<name>": MethodSettings,
    "methods.<name>.detection": DetectionSettings,
    "methods.<name>.vae": VAESettings,
    "methods.<name>.plus": PlusSettings,
    "methods.<name>.plus.test": SequentialSettings,
    "tune": TuneSettings,
    "moons": MoonsSettings,
    "toy_losses": ToySettings,
}
INTRODUCTION = """# Parameters

Every key that `params.yaml` can have. A key that is left out has its default; an unknown or
ill-typed one is an error that names it. The sections themselves must be there, because DVC looks
for them (`tune` may be left out): `flow: {}` takes all defaults.
This page is written by `python docs/parameters.py` from the settings in the code.

| key | value |
| --- | --- |
| `grid.datasets`, `.benchmarks`, `.methods` | lists of names declared below, for `dvc repro` |
| `seeds` | a list of whole numbers, one run each |
"""


def meanings(settings: type) -> dict[str, str]:
    """What the docstring says of each attribute."""
    text = inspect.cleandoc(settings.__doc__ or "")
    _, *listed = re.split(r"^(?:Attributes|Args):\n", text, maxsplit=1, flags=re.MULTILINE)
    found: dict[str, str] = {}
    for line in listed[0].splitlines() if listed else ():
        start = re.match(r"    (\w+): (.*)", line)
        if start:
            name, found[start[1]] = start[1], start[2]
        elif line.strip():
            found[name] += " " + line.strip()
    return {name: in_markdown(said) for name, said in found.items()}


def in_markdown(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|").replace("`None`", "`null`")


def default_of(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{json.dumps(field.default)}`"
    if field.default_factory is dataclasses.MISSING:
        return "must be given"
    value = field.default_factory()
    if not dataclasses.is_dataclass(value):
        return f"`{json.dumps(value)}`"
    usual = dataclasses.asdict(type(value)())
    changed = {k: v for k, v in dataclasses.asdict(value).items() if v != usual[k]}
    return f"`{json.dumps(changed)}`" if changed else "its own defaults"


def table(settings: type) -> str:
    """A row for each key of a section."""
    said, types = meanings(settings), typing.get_type_hints(settings)
    lines = ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]
    for field in dataclasses.fields(settings):
        kind = describe(types[field.name])
        kind = re.sub(r"a section with the keys .*?(?= or |$)", "a section", kind)
        cells = (f"`{field.name}`", kind, default_of(field), said.get(field.name, ""))
        lines.append("| " + " | ".join(cells) + " |")
    if not said:  # the line above the table says it all
        lines = [line.rsplit("|", 2)[0] + "|" for line in lines]
    return "\n".join(lines)


def heading(name: str) -> str:
    key, comma, more = name.partition(",")
    return f"`{key}`{comma}{more}"


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for name, settings in SECTIONS.items():
        summary = inspect.cleandoc(settings.__doc__ or "").split("\n\n")[0]
        parts.append(
            f"## {heading(name)}\n\n{in_markdown(' '.join(summary.split()))}\n\n{table(settings)}\n"
        )
        if settings is MethodSettings:
            names = (f"`{field.name}`" for field in dataclasses.fields(MethodChanges))
            parts.append(
                "`benchmarks: {split-digits: {alpha: 5}}` takes other values on one benchmark, of "
                f"{', '.join(names)}. A section given there stands for the method's as a whole.\n"
            )
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
