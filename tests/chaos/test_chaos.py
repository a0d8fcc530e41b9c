"""A short version of ``make chaos``, and that it can fail."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from hcl.learn.kinds import AnyMethod
from hcl.settings import kind_of
from stages.cli import COMMANDS as STAGES
from tests.chaos.project import COMMANDS, METHODS, leftovers, one_line
from tests.chaos.trials import Reference, fill_disk, kill_randomly, run_two, whole_project
from tests.support.projects import small_params

NAMES = ("settings", "fetch")


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Reference:
    return whole_project(tmp_path_factory.mktemp("chaos") / "whole", NAMES)


@pytest.mark.slow
def test_killed_twice_it_goes_on(reference: Reference) -> None:
    ((_, troubles),) = kill_randomly(reference, 2, seed=0, names=["fetch"])
    assert troubles == []


@pytest.mark.slow
def test_a_full_disk_is_one_line(reference: Reference) -> None:
    ((line, troubles),) = fill_disk(reference, ["fetch"], rooms=(0,))
    assert troubles == []
    assert "1 times, 0 kB" in line or "no small disk" in line


@pytest.mark.slow
def test_two_at_once(reference: Reference) -> None:
    ((_, troubles),) = run_two(reference, ["fetch"])
    assert troubles == []


@pytest.mark.slow
def test_other_bytes_and_what_is_left_over_are_noticed(reference: Reference) -> None:
    other = {name: {"x": "another digest"} for name in reference.outputs}
    changed = Reference(reference.folder, reference.seconds, other)
    ((_, troubles),) = kill_randomly(changed, 0, seed=0, names=["fetch"])
    assert troubles == ["other bytes"]


def test_what_counts_as_left_over_and_as_a_line(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in (".a.12.part", ".b.12.previous", "run.h5.damaged", "checkpoint.pt", "run.h5"):
        (tmp_path / "deep" / name).touch()
    assert len(leftovers(tmp_path)) == 4
    assert one_line("Error: a.h5: no space left\n")
    assert not one_line("Traceback (most recent call last):\nError: a\n")
    assert not one_line("Killed")


def test_every_kind_of_command_that_writes_is_there() -> None:
    others = {
        *("serve", "dvc"),  # have trials of their own
        "backbones",  # writes nothing
        "tune",  # takes long: many runs, each kept as those of train and sweep are, and one table
    }
    assert {name.split()[0] for name in COMMANDS} == set(STAGES) - others


def test_every_kind_of_learner_is_trained() -> None:
    methods = small_params()["methods"]
    kinds = {methods[methods[name].get("like", name)]["kind"] for name in METHODS}
    assert kinds == {kind_of(settings) for settings in get_args(AnyMethod)}
