"""The parameter file: its sections, and what can be said of them without knowing a learner."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hcl.errors import HCLError
from hcl.settings import Name, Named, Seed, build, did_you_mean, load_yaml, section

T = TypeVar("T")

SECTIONS = (
    *("grid", "seeds", "datasets", "extract", "benchmarks", "methods", "tune"),
    *("moons", "toy_losses"),
)


class Grid(NamedTuple):
    """What is run: the section ``grid``."""

    datasets: tuple[str, ...]
    benchmarks: tuple[str, ...]
    methods: tuple[str, ...]


class Parameters:
    """A parameter file, read once.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values = load_yaml(path)
        for kind in Grid._fields:
            there = self.values.get(kind)
            for name in there if isinstance(there, Mapping) else ():
                if name not in Named():  # it becomes part of files, of stages and of the page
                    raise HCLError(
                        f"{path}: {kind} has the name {str(name)[:100]!r}; expected one {Named()}."
                    )

    def build(self, cls: type[T], key: str) -> T:
        """The settings that stand under ``key``."""
        return build(cls, section(self.values, key, self.path), self.path, key)

    def seeds(self) -> tuple[int, ...]:
        """The section ``seeds``: one run each."""
        seeds: tuple[int, ...] = self.build(tuple[Seed, ...], "seeds")
        if not seeds or len(set(seeds)) != len(seeds):
            raise HCLError(f"{self.path}: seeds is {list(seeds)}; expected one or more, each once.")
        return seeds

    def grid(self) -> Grid:
        """The section ``grid``, each name of it declared in the file."""
        there = section(self.values, "grid", self.path)
        if not isinstance(there, Mapping):
            raise HCLError(f"{self.path}: grid is {there!r}; expected a section.")
        for name in map(str, there):
            if name not in Grid._fields:
                raise HCLError(
                    f"{self.path}: grid.{name} is not a known key"
                    f"{did_you_mean(name, list(Grid._fields))}. Allowed: {', '.join(Grid._fields)}."
                )
        return Grid(*(self._names(there, kind) for kind in Grid._fields))

    def _names(self, grid: Mapping[str, Any], kind: str) -> tuple[str, ...]:
        key = f"grid.{kind}"
        names: tuple[str, ...] = build(tuple[Name, ...], grid.get(kind, ()), self.path, key)
        known = self.declared(kind)
        for i, name in enumerate(names):
            if name not in known:
                raise HCLError(
                    f"{self.path}: {key}[{i}] is {name!r}, which is not among the {kind} of "
                    f"the file{did_you_mean(name, known)}: {', '.join(known) or 'none'}."
                )
        if len(set(names)) != len(names):
            raise HCLError(f"{self.path}: {key}: a name stands twice in {list(names)}.")
        return names

    def declared(self, kind: str) -> list[str]:
        """The names of the data sets, benchmarks or methods of the file."""
        there = self.values.get(kind)
        return sorted(map(str, there)) if isinstance(there, Mapping) else []

    def check(self) -> None:
        """An error for what no stage, or only a later one, would notice.

        A section of another name may be somebody else's, and is let be unless it looks like a slip.
        DVC looks at a name of the grid when its turn comes, which may be hours later.
        """
        for name in map(str, self.values):
            hint = did_you_mean(name, list(SECTIONS))
            if name not in SECTIONS and hint:
                raise HCLError(f"{self.path}: there is no section {name!r}{hint}.")
        if isinstance(self.values.get("grid"), Mapping):
            self.grid()
