"""Finished and unfinished runs, kept between invocations under what determines their result.

DVC removes a stage's outputs before it runs, so that work which should survive lives apart from
them: ``.hcl/runs/<fingerprint>/`` holds a finished run, or the checkpoint of one that was stopped.
A fingerprint is taken over settings, seed, data, library versions and the source of every module
that training uses: a changed line of code never meets the results of the old one.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import shutil
from pathlib import Path

from hcl.files import fingerprint, remove

PACKAGE = Path(__file__).resolve().parents[1]
STORE = Path(".hcl") / "runs"
RUN = "run.h5"


@functools.cache
def source_digest(*modules: str, package: Path = PACKAGE) -> str:
    """SHA-256 over the source of modules of this package and all that they import from it.

    Args:
        modules: their full names, such as ``hcl.train.loop``.
        package: the folder of the package.
    """
    waiting, sources = list(modules), {}
    while waiting:
        name = waiting.pop()
        if name in sources:
            continue
        tree = ast.parse(_file_of(name, package).read_text(encoding="utf-8"))
        sources[name] = hashlib.sha256(_statements(tree).encode()).hexdigest()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names if _is_ours(alias.name, package)]
            elif isinstance(node, ast.ImportFrom) and _is_ours(node.module or "", package):
                parent = str(node.module)
                within = (f"{parent}.{alias.name}" for alias in node.names)
                waiting += [parent, *(child for child in within if _exists(child, package))]
    return fingerprint(sources)


def _statements(tree: ast.Module) -> str:
    """The code without what is written for readers alone: comments, docstrings, layout."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            node.body[0] = ast.Pass()
    return ast.unparse(tree)


def _is_ours(module: str, package: Path) -> bool:
    return module.split(".")[0] == package.name


def _exists(module: str, package: Path) -> bool:
    try:
        return _file_of(module, package).is_file()
    except ModuleNotFoundError:
        return False


def _file_of(module: str, package: Path) -> Path:
    """The file of a module or package; a name without one is an error, never an empty digest."""
    path = package.parent.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    raise ModuleNotFoundError(f"{module}: there is no such module in {package}")


class Entry:
    """The place of one run in the store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / RUN  # there once the run is finished, never before
        self.model = folder / "model.safetensors"
        self.checkpoint = folder / "checkpoint.pt"

    @property
    def is_finished(self) -> bool:
        """Whether the run is there."""
        return self.run.exists()

    def clean(self) -> None:
        """Drop what only an unfinished run needs."""
        remove(self.checkpoint)

    def deliver(self, out: Path, name: str) -> None:
        """Put copies of the run, and of its model if it has one, into the folder ``out``.

        Copies, not links: what is done to an output must not reach the store.
        """
        shutil.copyfile(self.run, out / f"{name}.h5")
        if self.model.exists():
            shutil.copyfile(self.model, out / f"{name}.safetensors")
