"""A slip in the parameters is refused before anything heavy is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.imports import ROOT
from tests.support.projects import environment

HEAVY = ("torch", "timm", "sklearn", "matplotlib")  # a second or more each
SLIPS = [
    (
        *("fetch", ("--dataset", "digits"), "datasets: {digits: {source: digits, pth: x}}"),
        "datasets.digits.pth is not a known key",
    ),
    ("extract", ("--raw", "raw.h5"), "extract: {batchsize: 3}", "extract.batchsize is not a known"),
    ("moons", (), "moons: {flow: {hiden: 3}}", "moons.flow.hiden is not a known key"),
    ("toy-losses", (), "toy_losses: {gama: 1}", "toy_losses.gama is not a known key"),
    ("settings", (), "toy_losses: {gama: 1}", "toy_losses.gama is not a known key"),
]
CHECK = """
import sys
from stages.cli import main

try:
    main()
finally:
    loaded = [name for name in {heavy!r} if name in sys.modules]
    if loaded:
        print("loaded:", *loaded)
"""


@pytest.mark.parametrize(("stage", "options", "params", "message"), SLIPS)
def test_a_slip_is_refused_before_heavy_imports(
    tmp_path: Path, stage: str, options: tuple[str, ...], params: str, message: str
) -> None:
    (tmp_path / "params.yaml").write_text(params)
    done = subprocess.run(
        [sys.executable, "-c", CHECK.format(heavy=HEAVY), stage, *options, "--out", "made"],
        cwd=tmp_path,
        env=environment(ROOT),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert message in done.stderr
    assert done.stdout == ""  # nothing heavy was loaded
