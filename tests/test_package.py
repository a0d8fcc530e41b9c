"""``hcl`` itself: its docstring is the map, and its classifiers come when they are asked for."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import hcl
from tests.support.imports import ROOT
from tests.support.projects import environment


def test_the_map_has_every_room_and_every_module_that_stands_by_itself() -> None:
    told, _ = (hcl.__doc__ or "").split("The map:")[1].split("Glossary:")
    left = [line[:32] for line in told.splitlines() if line.startswith("``")]
    shown = re.findall(r"``(\w+)``", "".join(left))
    entries = (ROOT / "hcl").iterdir()
    there = {p.stem for p in entries if p.suffix == ".py" or (p / "__init__.py").is_file()}
    assert sorted(shown) == sorted(there - {"__init__"})


def run(code: str) -> str:
    command = [sys.executable, "-c", f"import sys\n{code}"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_it_imports_nothing_heavy() -> None:
    printed = run("import hcl; dir(hcl); print({'torch', 'numpy', 'sklearn'} & set(sys.modules))")
    assert printed == "set()\n"


def test_the_classifiers_can_be_had_from_the_package() -> None:
    from hcl import HCLClassifier, HCLPlusClassifier, estimator

    assert HCLClassifier is estimator.HCLClassifier
    assert HCLPlusClassifier is estimator.HCLPlusClassifier
    assert {"HCLClassifier", "HCLPlusClassifier"} <= set(dir(hcl))
    assert all(hasattr(hcl, name) for name in hcl.__all__)


def test_another_name_is_missing_as_in_any_module() -> None:
    with pytest.raises(AttributeError, match="'hcl' has no attribute 'HCLClasifier'"):
        hcl.HCLClasifier  # noqa: B018
