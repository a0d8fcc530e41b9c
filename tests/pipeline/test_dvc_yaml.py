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
from tests.support.imports import ROOT, imported_by

STAGES: dict[str, Any] = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
# Doors that a stage of dvc.yaml opens without its output depending on them: two ask whether the
# rest of the parameters is right; the others read the parameter file only without --settings.
READ_ELSEWHERE = ("stages/resolve.py", "stages/parameters.py")
NOT_USED = {
    "settings": ("stages/checking.py",),
    "fetch": ("stages/resolve.py", "stages/checking.py"),
    **dict.fromkeys(("split", "train", "evaluate"), READ_ELSEWHERE),
}
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


def code_behind(name: str) -> set[Path]:
    """The modules that a stage's output depends on."""
    subcommand = shlex.split(STAGES[name]["cmd"])[1]
    done: set[Path] = set()
    left = {Path("stages", subcommand.replace("-", "_")).with_suffix(".py")}
    while left:
        path = left.pop()
        done.add(path)
        left |= {p for p in imported_by(path) if p.as_posix() not in NOT_USED.get(name, ())} - done
    return done


@EACH_STAGE
def test_a_stage_depends_on_the_code_behind_it_by_room_or_by_module(name: str) -> None:
    behind = {path.as_posix() for path in code_behind(name)}
    declared = {d for d in names(STAGES[name]["deps"]) if d.startswith(("hcl", "stages"))}
    rooms = {d for d in declared if not d.endswith(".py")}
    missing = {p for p in behind if p not in declared and not p.startswith(within(rooms))}
    assert not missing, f"dvc.yaml: {name} does not list them, nor their rooms"
    needless = {d for d in declared - rooms if d not in behind or d.startswith(within(rooms))}
    assert not needless, f"dvc.yaml: {name} lists them, but does not need them"
    for room in rooms:
        assert any(p.startswith(f"{room}/") for p in behind), f"{name} does not use {room}"
        assert room not in ("hcl", "hcl/records"), "by module: a change to one file is not to all"


def within(rooms: set[str]) -> tuple[str, ...]:
    return tuple(f"{room}/" for room in rooms)


def test_learners_that_training_imports_by_name_are_behind_it() -> None:
    assert "hcl/learn" in names(STAGES["train"]["deps"])


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
