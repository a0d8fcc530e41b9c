"""``make repro``: what comes before ``train``, then the sweep, and DVC finds the runs finished."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.imports import ROOT
from tests.support.projects import dvc, environment, make_project

pytestmark = pytest.mark.slow


def recipe(target: str) -> list[list[str]]:
    """The commands of a target of the Makefile that run in its environment."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (lines,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", text, re.M)
    return [line.split()[1:] for line in lines.splitlines() if line.startswith("\t$(RUN)")]


def test_dvc_is_told_of_the_runs_of_the_sweep(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    check, first, sweep, commit, last = recipe("repro")
    assert check == ["hcl", "settings", "--raw", "data/raw"]
    assert (first[:2], sweep[:2]) == (["hcl", "dvc"], ["hcl", "sweep"])
    assert last == ["hcl", "dvc", "repro"]
    ran = set(re.findall(r"Running stage '(\w+)", dvc(project, *first[2:])))
    assert ran == {"settings", "fetch", "extract", "split"}
    done = subprocess.run(
        [sys.executable, "-c", "from stages.cli import main; main()", *sweep[1:]],
        cwd=project,
        env=environment(project),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ".hcl/runs: 1 run (1 trained)\n"), done.stderr
    run = project / "results/runs/trees/hcl-fr/seed-0.h5"
    delivered = run.read_bytes()
    dvc(project, *commit[2:])
    assert "didn't change, skipping" in dvc(project, *last[2:], "train")
    dvc(project, *last[2:], "--force", "--single-item", "train@trees-hcl-fr")
    assert run.read_bytes() == delivered  # what the stage itself would have written
