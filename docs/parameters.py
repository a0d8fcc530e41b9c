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
from hcl.learn.kinds import AnyMethod
from hcl.learn.settings import TrainingSettings
from hcl.model.settings import FlowSettings
from hcl.records.tasks import Drift, Tails
from hcl.settings import Named, describe, kind_of
from hcl.split import EqualTasks, SegmentSettings, StreamSettings, TaskSettings
from hcl.studies.moons import MoonsSettings
from hcl.studies.toy_losses import ToySettings
from hcl.tune.settings import TuneSettings

PAGE = Path(__file__).resolve().parent / "parameters.md"


def sections_of_methods() -> dict[str, type]:
    """A section for each kind of method, and one for each kind of what stands within it."""
    found: dict[str, type] = {}
    for method in typing.get_args(AnyMethod):
        kind = kind_of(method)
        found[f"methods.<name>, kind: {kind}"] = method
        for name, hint in typing.get_type_hints(method).items():
            for inner in filter(dataclasses.is_dataclass, typing.get_args(hint)):
                own = kind_of(inner)
                which = f"kind: {own}" if own else f"of a method of kind {kind}"
                found[f"methods.<name>.{name}, {which}"] = inner
    return found


SECTIONS: dict[str, type] = {
    "datasets.<name>": DatasetSettings,
    "extract": ExtractSettings,
    "benchmarks.<name>.stream": StreamSettings,
    "benchmarks.<name>.stream.tasks, of equal size": EqualTasks,
    "benchmarks.<name>.stream.tasks[i], one by one": TaskSettings,
    "benchmarks.<name>.stream.order[i], with epochs of its own": SegmentSettings,
    "benchmarks.<name>.stream.disturb, kind: tails": Tails,
    "benchmarks.<name>.stream.disturb, kind: drift": Drift,
    "benchmarks.<name>.flow": FlowSettings,
    "benchmarks.<name>.training": TrainingSettings,
    **sections_of_methods(),
    "tune": TuneSettings,
    "moons": MoonsSettings,
    "toy_losses": ToySettings,
}
INTRODUCTION = """# Parameters

Every key that `params.yaml` can have. A key that is left out has its default; an unknown or
ill-typed one is an error that names it, and so is one that the `kind` of a section never reads.
This page is written by `python docs/parameters.py` from the settings in the code.

| key | value |
| --- | --- |
| `grid.datasets`, `.benchmarks`, `.methods` | lists of names declared below, for `dvc repro` |
| `seeds` | a list of whole numbers from 0 on, of at most 63 bits, one run each |
| `benchmarks.<name>.like`, `methods.<name>.like` | the name of another, to start from |
| `benchmarks.<name>.tuned.<method>` | keys of the method, for it and those like it |

Sections are merged key by key, first what `like` names, then its own, then what was tuned, and
checked after that. A section that names another `kind` stands in the place of the one before it.

A number has the range that stands beside its type. A name, of a data set, a benchmark or a method,
has at most 100 letters (a to z), digits, `-`, `_` and `.`, the first of them none of `-` and `.`.
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


def default_of(field: dataclasses.Field[Any], hint: Any) -> str:
    if field.name == "kind" and len(typing.get_args(hint)) == 1:
        return "must be given"
    if field.default is not dataclasses.MISSING:
        return f"`{json.dumps(field.default)}`"
    if field.default_factory is dataclasses.MISSING:
        return "must be given"
    value = field.default_factory()
    if not dataclasses.is_dataclass(value):
        return f"`{json.dumps(value)}`"
    usual = dataclasses.asdict(type(value)())
    changed = {k: v for k, v in dataclasses.asdict(value).items() if v != usual[k]}
    if kind_of(type(value)):
        changed = {"kind": kind_of(type(value)), **changed}
    return f"`{json.dumps(changed)}`" if changed else "its own defaults"


def table(settings: type) -> str:
    """A row for each key of a section."""
    said, types = meanings(settings), typing.get_type_hints(settings, include_extras=True)
    lines = ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]
    for field in dataclasses.fields(settings):
        kind = describe(types[field.name])
        kind = re.sub(r"a section with the keys .*?(?= or |$)", "a section", kind)
        kind = kind.replace(f"a text {Named()}", "a name")
        if field.name == "kind":
            kind = kind.removeprefix("one of ")
        default = default_of(field, types[field.name])
        if field.name == "kind" and getattr(settings, "unless_said", False):
            default = f"`{json.dumps(field.default)}`"
        cells = (f"`{field.name}`", kind, default, said.get(field.name, ""))
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
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
