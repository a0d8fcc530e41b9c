"""DVC's lock file is whole at every moment; one that a plain `dvc` left cut is made good."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from stages.cli import main
from stages.dvc import LOCK, RWLOCK, _check_lock, mend
from tests.support.projects import environment

PLAN = {
    "stages": {
        f"stage-{number}": {
            "cmd": f"python -c \"open('out-{number}', 'w').write('{number}')\"",
            "deps": [f"out-{number - 1}"] if number else [],
            "outs": [f"out-{number}"],
        }
        for number in range(6)
    }
}
DONE = {"schema": "2.0", "stages": {"old": {"cmd": "true"}}}


def git(folder: Path, *arguments: str) -> None:
    ours = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *ours, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a lock file that was committed."""
    git(tmp_path, "init", "-q")
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    (tmp_path / ".dvc/config").write_text("[core]\nanalytics = false\n")
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump(PLAN))
    (tmp_path / LOCK).write_text(yaml.safe_dump(DONE))
    git(tmp_path, "add", LOCK, "dvc.yaml")
    git(tmp_path, "commit", "-qm", "lock")
    return tmp_path


def hcl_dvc(project: Path, *arguments: str, program: str = "main()") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", f"from stages.cli import main; {program}", "dvc", *arguments],
        cwd=project,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("damage", ["", "schema: '2.0'\nstages:\n  a:\n    cmd: [", "stages: 3"])
def test_a_cut_lock_file_is_that_of_the_last_commit_again(project: Path, damage, capsys) -> None:
    (project / LOCK).write_text(damage)
    (project / RWLOCK).write_text('{"write": {"/a": {"pi')
    mend(project)
    assert yaml.safe_load((project / LOCK).read_text()) == DONE
    assert (project / f"{LOCK}.damaged").read_text() == damage
    assert not (project / RWLOCK).exists()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert said[1].endswith("that of the last commit is there again.")


def test_without_a_commit_a_cut_lock_file_begins_anew(tmp_path: Path, capsys) -> None:
    (tmp_path / LOCK).write_text("[")
    mend(tmp_path)
    assert not (tmp_path / LOCK).exists()
    assert "a new one begins" in capsys.readouterr().err


def test_what_is_whole_is_let_be(project: Path, capsys) -> None:
    (project / RWLOCK).write_text("{}")
    before = {name: (project / name).stat().st_mtime_ns for name in (LOCK, RWLOCK)}
    mend(project)
    assert {name: (project / name).stat().st_mtime_ns for name in before} == before
    assert capsys.readouterr().err == ""


def test_help_and_options_are_those_of_dvc() -> None:
    result = CliRunner().invoke(main, ["dvc", "repro", "--help"])
    assert result.exit_code == 0


@pytest.mark.slow
def test_the_lock_file_is_whole_at_every_moment(project: Path) -> None:
    """Whoever looks while DVC is at work sees one that DVC accepts, and sees it change."""
    process = hcl_dvc(project, "repro", "--no-commit")
    seen = set()
    while process.poll() is None:
        text = (project / LOCK).read_text()
        if text not in seen:
            _check_lock(text)
            seen.add(text)
    assert process.returncode == 0, process.stdout.read()
    assert len(seen) > 3
    assert (project / "out-5").read_text() == "5"


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_dvc_goes_on(project: Path, kind: signal.Signals) -> None:
    """Stopped where it writes the lock file: plain DVC would be stuck, or lose entries."""
    chance = random.Random(kind)
    writing = (
        "import os, time, stages.dvc as d; real = d._whole; "
        "d._whole = lambda p, e: (open('writing', 'a').write('x'), time.sleep(0.1), real(p, e))[2];"
        "main()"
    )
    for _ in range(3):
        (project / "writing").unlink(missing_ok=True)
        process = hcl_dvc(project, "repro", "--force", "--no-commit", program=writing)
        while process.poll() is None and not (project / "writing").exists():
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.5))
        if process.poll() is None:
            os.killpg(process.pid, kind)
        process.wait()
    last = hcl_dvc(project, "repro")
    printed = last.communicate()[0]
    assert last.returncode == 0, printed
    lock = yaml.safe_load((project / LOCK).read_text())
    assert {"old", *PLAN["stages"]} == set(lock["stages"])
    assert not list(project.glob(".dvc.lock.*"))
