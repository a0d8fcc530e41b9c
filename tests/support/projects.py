"""A project of a user's own, small enough for a test: real images, real backbone, real pipeline."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from tests.support.imports import ROOT

CLASSES = ("ash", "birch", "cedar", "dogwood")


def draw_pictures(folder: Path, train: int = 16, test: int = 5) -> None:
    """A folder of images as a user has it: ``train/<class>/*`` and ``test/<class>/*``."""
    generator = np.random.default_rng(0)
    for split, count in (("train", train), ("test", test)):
        for label, name in enumerate(CLASSES):
            (folder / split / name).mkdir(parents=True)
            for index in range(count):
                picture = generator.integers(0, 120, (12 + label, 12, 3), dtype=np.uint8)
                picture[..., label % 3] += 60
                picture[label * 3 : label * 3 + 3] += 70
                suffix = ("png", "webp", "jpg")[index % 3]
                Image.fromarray(picture).save(folder / split / name / f"{index}.{suffix}")


def small_params() -> dict[str, Any]:
    """The project's own parameters, cut down to one small benchmark on the user's pictures."""
    values: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    values["grid"] = {"datasets": ["pictures"], "benchmarks": ["trees"], "methods": ["hcl-fr"]}
    values["seeds"] = [0]
    values["datasets"]["pictures"] = {"source": "folder", "path": "pictures"}
    values["benchmarks"] = {
        "trees": {
            "stream": {
                "tasks": [
                    {"dataset": "pictures", "classes": ["ash", "birch"]},
                    {"dataset": "pictures", "classes": ["cedar", "dogwood"]},
                ],
                "epochs": 2,
                "validation": 0.25,
            },
            "flow": {"couplings": 2, "hidden_layers": 1, "hidden": 8},
            "training": {"batch_size": 8, "learning_rate": 1e-3, "save_model": True},
        }
    }
    values["moons"] = {"steps": 2, "samples": 20, "grid": 10}
    values["toy_losses"] = {"steps": 10, "samples": 10}
    return values


def write_params(project: Path, values: dict[str, Any]) -> None:
    (project / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False))


def make_project(folder: Path) -> Path:
    """A clone's worth of the project in ``folder``, with the user's pictures and parameters."""
    for name in ("dvc.yaml", ".dvcignore", ".gitignore"):
        shutil.copy(ROOT / name, folder / name)
    for name in ("hcl", "stages"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".dvc").mkdir()
    shutil.copy(ROOT / ".dvc" / "config", folder / ".dvc" / "config")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    draw_pictures(folder / "pictures")
    write_params(folder, small_params())
    return folder


def environment(project: Path = ROOT) -> dict[str, str]:
    """The tests' own ``hcl`` and ``dvc`` before any other, on the code of ``project``."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    ours = {"PATH": path, "PYTHONPATH": str(project), "OMP_NUM_THREADS": "1"}
    return os.environ | ours | {"DVC_NO_ANALYTICS": "1"}


def dvc(project: Path, *arguments: str, fails: bool = False) -> str:
    """What a ``dvc`` command prints; an exit status other than expected fails the test."""
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments],
        cwd=project,
        env=environment(project),
        capture_output=True,
        text=True,
        check=False,
    )
    printed = done.stdout + done.stderr
    assert (done.returncode != 0) == fails, printed
    return printed


def repro(project: Path, *arguments: str) -> set[str]:
    """The stages that ``dvc repro`` ran; one found in the cache did not run."""
    printed = dvc(project, "repro", *arguments)
    return set(re.findall(r"Running stage '([^']+)'", printed))
