"""``dvc.yaml`` and the code say the same: commands, options, modules, outputs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from stages.cli import main
from tests.support.imports import ROOT, closure

STAGES: dict[str, Any] = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
EACH_STAGE = pytest.mark.parametrize("name", STAGES)


def names(entries: list[Any]) -> list[str]:
    """Paths of a list in which an entry may carry options."""
    return [entry if isinstance(entry, str) else next(iter(entry)) for entry in entries]


def command_of(name: str) -> click.Command:
    program, subcommand, *_ = shlex.split(STAGES[name]["cmd"])
    assert program == "hcl"
    found = main.get_command(click.Context(main), subcommand)
    assert found is not None, f"dvc.yaml: {name} calls `hcl {subcommand}`, which does not exist"
    return found


@EACH_STAGE
def test_the_options_of_a_command_exist_and_the_required_ones_are_given(name: str) -> None:
    given = set(re.findall(r"--[a-z-]+", STAGES[name]["cmd"]))
    known = {flag: p for p in command_of(name).params for flag in p.opts}
    assert given <= set(known)
    assert {flag for flag, p in known.items() if p.required} <= given


@EACH_STAGE
def test_a_stage_depends_on_just_the_modules_that_it_imports(name: str) -> None:
    subcommand = shlex.split(STAGES[name]["cmd"])[1]
    module = Path("stages", subcommand.replace("-", "_")).with_suffix(".py")
    imported = {path.as_posix() for path in closure(module)}
    declared = {d for d in names(STAGES[name]["deps"]) if d.endswith(".py")}
    assert sorted(declared) == sorted(imported)


@EACH_STAGE
def test_what_a_command_reads_and_writes_is_declared(name: str) -> None:
    stage = STAGES[name]
    paths = re.findall(r"(?<= )(?:(?:data|results)/[^ ]+|(?<=--out )[^ ]+)", stage["cmd"])
    assert paths
    declared = {*names(stage["deps"]), *names(stage["outs"]), *names(stage.get("metrics", []))}
    # By way of the tasks file, which holds the digest of the embeddings: see split in dvc.yaml.
    behind_tasks = {"data/embeddings"} if "data/tasks/${item.benchmark}.h5" in declared else set()
    assert set(paths) - behind_tasks <= declared


def test_no_stage_is_frozen_or_keeps_old_rows() -> None:
    for stage in STAGES.values():
        assert not stage.get("frozen")
        assert all("persist" not in str(out) for out in stage["outs"])
