"""A project small enough to be killed a hundred times: real images, a tiny backbone, every kind."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.support.projects import draw_pictures, environment
from tests.support.tiny_backbone import NAME, save_weights

METHODS = ("hcl-fr", "hcl-fr-ta", "er", "curl", "slda", "ranpac", "hcl-plus-ta")
BENCHMARK = "trees"
TASKS = f"data/tasks/{BENCHMARK}.h5"
MODEL = f"results/runs/{BENCHMARK}/hcl-plus-ta/seed-0.safetensors"
WEIGHTS = "tiny.pth"


@dataclass(frozen=True)
class Command:
    """One thing to do to the project, and what it leaves.

    Attributes:
        arguments: of ``hcl``.
        outputs: files and folders, whose bytes must be the same in the end.
        inputs: files and folders of earlier commands' outputs, beside the data.
    """

    arguments: tuple[str, ...]
    outputs: tuple[str, ...]
    inputs: tuple[str, ...] = ()


def train(method: str) -> Command:
    out = f"results/runs/{BENCHMARK}/{method}"
    inputs = ("--tasks", f"data/tasks/{BENCHMARK}.h5", "--embeddings", "data/embeddings")
    named = ("--benchmark", BENCHMARK, "--method", method)
    return Command(("train", *named, *inputs, "--out", out), (out,))


def evaluate(method: str) -> Command:
    out = f"results/scores/{BENCHMARK}/{method}"
    inputs = ("--tasks", f"data/tasks/{BENCHMARK}.h5", "--embeddings", "data/embeddings")
    named = ("--benchmark", BENCHMARK, "--method", method)
    runs = f"results/runs/{BENCHMARK}/{method}"
    return Command(("evaluate", *named, *inputs, "--runs", runs, "--scores", out), (out,), (runs,))


def learn() -> Command:
    out = "learned/trees.safetensors"
    data = ("--data", "pictures/train", "--weights", WEIGHTS, "--device", "cpu")
    # One that was killed when all was done has left its output: --force.
    return Command(("learn", "--model", MODEL, *data, "--out", out, "--force"), (out,), (MODEL,))


# What is done to a project, in the order in which each finds its inputs. A new command that writes
# is one line here.
COMMANDS: dict[str, Command] = {
    "settings": Command(("settings", "--out", "data/settings"), ("data/settings",)),
    "fetch": Command(
        ("fetch", "--dataset", "pictures", "--out", "data/raw/pictures.h5"),
        ("data/raw/pictures.h5",),
    ),
    "extract": Command(
        ("extract", "--raw", "data/raw/pictures.h5", "--out", "data/embeddings/pictures.h5"),
        ("data/embeddings/pictures.h5",),
    ),
    "split": Command(
        ("split", "--benchmark", BENCHMARK, "--embeddings", "data/embeddings", "--out", TASKS),
        (TASKS,),
    ),
    **{f"train {method}": train(method) for method in METHODS},
    "sweep": Command(("sweep", "--deliver", "--jobs", "2"), ("results/runs",)),
    "evaluate": evaluate("hcl-fr"),
    "learn": learn(),
    "moons": Command(("moons", "--out", "results/moons"), ("results/moons",)),
    "toy-losses": Command(("toy-losses", "--out", "results/toy"), ("results/toy",)),
}


def make_project(folder: Path) -> None:
    """The inputs: pictures, the weights of a tiny backbone, parameters."""
    from tests.support.projects import small_params

    draw_pictures(folder / "pictures")
    save_weights(folder / WEIGHTS)
    values = small_params()
    values["extract"] = {
        "backbone": NAME,
        "weights": str(folder / WEIGHTS),
        "device": "cpu",
        "batch_size": 4,
        "compile": False,
    }
    values["grid"]["methods"] = list(METHODS)
    training = values["benchmarks"][BENCHMARK]["training"]
    training["checkpoint_every"] = 2
    values["benchmarks"][BENCHMARK]["stream"]["epochs"] = 20
    (folder / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False))


def start(project: Path, command: Command) -> subprocess.Popen[str]:
    """``hcl`` in the project, in a session of its own so that all of it can be killed."""
    return subprocess.Popen(
        [sys.executable, "-c", "from stages.cli import main; main()", *command.arguments],
        cwd=project,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def content(project: Path, command: Command) -> dict[str, str]:
    """The digest of every file that a command leaves."""
    found = {}
    for output in command.outputs:
        path = project / output
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        for file in files:
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            found[str(file.relative_to(project))] = digest
    return found


def leftovers(project: Path) -> list[str]:
    """What a process left that did not come to its end."""
    return sorted(
        str(path.relative_to(project))
        for pattern in (".*.part", ".*.previous", "*.damaged", "checkpoint.pt")
        for path in project.rglob(pattern)
    )


def one_line(printed: str) -> bool:
    """Whether a command that failed said so in one line, a sweep in one a run; no traceback."""
    said = [line.split(":")[0] for line in printed.splitlines()]
    told = said.count("Error") == 1 or "Failed" in said
    return told and "Traceback" not in printed
