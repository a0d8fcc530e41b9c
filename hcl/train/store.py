"""Finished and unfinished runs, kept between invocations under what determines their result.

DVC removes a stage's outputs before it runs, so that work which should survive lives apart from
them: ``.hcl/runs/<fingerprint>/`` holds a finished run, or the checkpoint of one that was stopped.
A fingerprint is taken over settings, seed, data, library versions and the source of every module
that training uses: a changed line of code never meets the results of the old one.

All that is kept carries a digest: the run over its content, with that of the model beside it, and
the checkpoint over its bytes. What does not fit is set aside as ``<name>.damaged``, with a line on
standard error, and made again.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import logging
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from hcl.errors import HCLError
from hcl.files import Sink, fingerprint, remove, remove_orphans, replacing, sha256_of
from hcl.records.runs import read_run

LOG = logging.getLogger(__name__)

PACKAGE = Path(__file__).resolve().parents[1]
STORE = Path(".hcl") / "runs"
RUN = "run.h5"
_END = b"hcl-checkpoint/2 %s\n"  # the last bytes of a checkpoint, with the SHA-256 of those before
_END_LENGTH = len(_END % bytes(64))


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
        """Whether the run is there, and whole; if it is damaged it is set aside, with its model."""
        try:
            run = read_run(self.run)
        except HCLError as error:
            if self.run.exists():
                set_aside(self.run, str(error))
                set_aside(self.model, f"{self.model}: its run is damaged.")
            return False
        if run.model and _sha256_or_none(self.model) != run.model:
            set_aside(self.model, f"{self.model}: damaged (it is not the model of {RUN}).")
            set_aside(self.run, f"{self.run}: its model is damaged or gone.")
            return False
        return True

    def clean(self) -> None:
        """Drop what only an unfinished run needs, also what killed processes left of it."""
        remove(self.checkpoint)
        for path in (self.checkpoint, self.run, self.model):
            remove_orphans(path)

    def deliver(self, out: Path, name: str) -> None:
        """Put copies of the run, and of its model if it has one, into the folder ``out``.

        Copies, not links: what is done to an output must not reach the store.
        """
        shutil.copyfile(self.run, out / f"{name}.h5")
        if self.model.exists():
            shutil.copyfile(self.model, out / f"{name}.safetensors")


def set_aside(path: Path, why: str) -> None:
    """Move a damaged file out of the way, where one can look at it, and say so in one line."""
    with suppress(FileNotFoundError):  # another process was faster
        aside = path.with_name(f"{path.name}.damaged")
        os.replace(path, aside)
        LOG.warning("%s Set aside as %s; it is made again.", why, aside.name)


def _sha256_or_none(path: Path) -> str | None:
    try:
        return sha256_of(path)
    except FileNotFoundError:
        return None


# Checkpoints


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a state, whole or not at all: the checkpoint before it stands until then."""
    with replacing(path) as partial, Sink(partial) as sink:
        torch.save(state, sink)  # type: ignore[arg-type]
        sink.write(_END % sink.digest.hexdigest().encode())


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """The state of a checkpoint; ``None`` where there is none, or where it was set aside."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    state, end = data[:-_END_LENGTH], data[-_END_LENGTH:]
    if end != _END % hashlib.sha256(state).hexdigest().encode():
        set_aside(path, f"{path}: damaged checkpoint (its SHA-256 does not fit).")
        return None
    try:
        found: dict[str, Any] = torch.load(io.BytesIO(state), weights_only=True)
    except Exception as error:  # of bytes that torch did not write: nearly anything
        set_aside(path, f"{path}: not a checkpoint ({type(error).__name__}).")
        return None
    return found
