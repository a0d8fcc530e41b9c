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

STORE = Path(".hcl") / "runs"
RUN = "run.h5"


@functools.cache
def source_digest(module: str) -> str:
    """SHA-256 over the source of a module of this package and all that it imports from it."""
    package = Path(__file__).parent
    waiting, sources = [module], {}
    while waiting:
        name = waiting.pop()
        path = package / f"{name}.py"
        if name in sources or not path.exists():
            continue
        text = path.read_text(encoding="utf-8")
        sources[name] = hashlib.sha256(text.encode()).hexdigest()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module == package.name:
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                f"{package.name}."
            ):
                waiting.append(str(node.module).split(".")[1])
    return fingerprint(sources)


def finished_runs(kept: Path = STORE) -> set[str]:
    """The fingerprints of the runs that are finished."""
    return {run.parent.name for run in kept.glob(f"*/{RUN}")}


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
