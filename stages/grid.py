"""What no stage reads by itself: the section ``grid``, and keys that nothing reads at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hcl.errors import HCLError
from hcl.settings import build, did_you_mean

SECTIONS = (
    *("grid", "seeds", "datasets", "extract", "benchmarks", "methods", "tune"),
    *("moons", "toy_losses"),
)
OF_A_BENCHMARK = ("stream", "flow", "training")


def check_params(values: Mapping[str, Any], params: Path) -> None:
    """An error for what only the stage that meets it, or none at all, would notice."""
    check_keys(values, params)
    check_grid(values, params)


def check_keys(values: Mapping[str, Any], params: Path) -> None:
    """An error for a key that no stage will ever read: a slip that would change nothing.

    A section of another name may be somebody else's, and is let be unless it looks like a slip.
    """
    for name in map(str, values):
        hint = did_you_mean(name, list(SECTIONS))
        if name not in SECTIONS and hint:
            raise HCLError(f"{params}: there is no section {name!r}{hint}.")
    benchmarks = values.get("benchmarks")
    for benchmark, section in benchmarks.items() if isinstance(benchmarks, Mapping) else ():
        for name in map(str, section) if isinstance(section, Mapping) else ():
            if name not in OF_A_BENCHMARK:
                raise HCLError(
                    f"{params}: benchmarks.{benchmark}.{name} is not a known key"
                    f"{did_you_mean(name, list(OF_A_BENCHMARK))}. Allowed: "
                    f"{', '.join(OF_A_BENCHMARK)}."
                )


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
