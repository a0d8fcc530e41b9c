"""Which modules of the project a module imports, directly or through others; scripts as modules."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def path_of(module: str) -> Path | None:
    """The file of a module of the project, relative to the root; None for others, and packages.

    A package's ``__init__.py`` holds nothing but what it says of itself.
    """
    path = Path(*module.split(".")).with_suffix(".py")
    return path if module.split(".")[0] in ("hcl", "stages") and (ROOT / path).is_file() else None


def imports_in(path: Path) -> list[tuple[int, str]]:
    """Line and full name of all that a file imports, at its top or inside a function.

    ``from a import b`` gives ``a.b``, whether b is a module or a name in one.
    """
    package = path.with_suffix("").parts[:-1]
    found = []
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            parent = ".".join((*above, *filter(None, [node.module])))
            found += [(node.lineno, f"{parent}.{alias.name}") for alias in node.names]
    return sorted(found)


def imported_by(path: Path) -> set[Path]:
    """The project's modules that a file imports at its top or inside a function."""
    names = {name for _, name in imports_in(path)}
    parents = {name.rpartition(".")[0] for name in names if "." in name}
    return {found for found in map(path_of, names | parents) if found}


def closure(path: Path) -> set[Path]:
    """The file itself and all of the project's modules behind it."""
    done: set[Path] = set()
    left = {path}
    while left:
        path = left.pop()
        done.add(path)
        left |= imported_by(path) - done
    return done


def load_script(path: Path) -> ModuleType:
    """A script of the documents as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
