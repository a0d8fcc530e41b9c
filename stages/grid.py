"""The section ``grid``: what ``dvc repro`` is to run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hcl.errors import HCLError
from hcl.settings import build, did_you_mean


def check_grid(values: Mapping[str, Any], params: Path) -> None:
    """An error where ``grid`` names a data set, benchmark or method that the file does not declare.

    DVC looks at a name when its turn comes, which may be hours later. A stage's output does not
    depend on this, so that no stage in ``dvc.yaml`` has ``grid`` among its parameters for it; and
    where the file has no such section, there is nothing to check.
    """
    grid = values.get("grid")
    if not isinstance(grid, Mapping):
        return
    for kind in ("datasets", "benchmarks", "methods"):
        names = build(tuple[str, ...], grid.get(kind, ()), params, f"grid.{kind}")
        section = values.get(kind)
        known = sorted(map(str, section)) if isinstance(section, Mapping) else []
        for i, name in enumerate(names):
            if name not in known:
                raise HCLError(
                    f"{params}: grid.{kind}[{i}] is {name!r}, which is not among the {kind} of "
                    f"the file{did_you_mean(name, known)}: {', '.join(known) or 'none'}."
                )
