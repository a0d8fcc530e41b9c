"""A user's own embedding file that changed since it was fetched is noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml
from click.testing import CliRunner

from stages.cli import main


def test_a_change_between_two_runs_is_noticed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    x, y, split = np.ones((8, 3), np.float32), np.arange(8) % 2, np.arange(8) // 4
    np.savez("own.npz", x=x, y=y, split=split)
    values = {
        "grid": {"datasets": ["own"], "benchmarks": [], "methods": []},
        "datasets": {"own": {"source": "embeddings", "path": "own.npz"}},
    }
    Path("params.yaml").write_text(yaml.safe_dump(values))
    check = ["settings", "--raw", "raw"]
    assert CliRunner().invoke(main, check).exit_code == 0  # nothing was fetched yet
    fetched = CliRunner().invoke(main, ["fetch", "--dataset", "own", "--out", "raw/own.h5"])
    assert fetched.exit_code == 0, fetched.output
    assert CliRunner().invoke(main, check).exit_code == 0
    np.savez("own.npz", x=x + 1, y=y, split=split)
    result = CliRunner().invoke(main, check)
    assert result.exit_code == 1
    assert "own.npz: has changed since raw/own.h5 was made from it" in result.output
