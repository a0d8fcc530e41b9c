"""What the two analyses found is read as it was written; what can't be read is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hcl.errors import HCLError
from hcl.records.studies import read_moons, read_toy_losses, write_moons, write_toy_losses
from tests.support.made_runs import studies


def no_figure(found: object, path: Path) -> None:
    """In place of a drawing, which these tests don't look at."""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    moons, toy = studies()
    write_moons(tmp_path / "moons", moons, no_figure)
    write_toy_losses(tmp_path / "toy-losses", toy, no_figure)
    return tmp_path


def test_moons_are_read_as_they_were_written(written: Path) -> None:
    made, read = studies()[0], read_moons(written / "moons")
    assert read.numbers() == made.numbers()
    for name in ("first", "second", "replay", "mean"):
        np.testing.assert_array_equal(getattr(read, name), getattr(made, name))
    for name in ("gr", "fr"):
        np.testing.assert_array_equal(read.density[name], made.density[name])
        np.testing.assert_array_equal(read.latent[name], made.latent[name])


def test_toy_losses_are_read_as_they_were_written(written: Path) -> None:
    made, read = studies()[1], read_toy_losses(written / "toy-losses")
    assert read.gamma == made.gamma
    np.testing.assert_allclose(read.replay, made.replay, rtol=1e-9)
    np.testing.assert_allclose(read.functional, made.functional, rtol=1e-9)


def test_a_figure_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def fails(found: object, path: Path) -> None:
        raise RuntimeError("no ink")

    with pytest.raises(RuntimeError, match="no ink"):
        write_moons(tmp_path / "moons", studies()[0], fails)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("read", "name", "file"),
    [(read_moons, "moons", "arrays.npz"), (read_toy_losses, "toy-losses", "toy-losses.csv")],
)
def test_a_study_that_is_missing_or_damaged_says_what_makes_it(
    written: Path, read: Callable[[Path], Any], name: str, file: str
) -> None:
    path = written / name / file
    path.write_bytes(b"not\nat all\n")
    with pytest.raises(HCLError, match=rf"{file}: damaged .* again with `hcl {name}`"):
        read(written / name)
    path.unlink()
    with pytest.raises(HCLError, match=rf"{file}: no such study; `hcl {name}` makes it"):
        read(written / name)
