"""A project small enough to be killed a hundred times: real images, a tiny backbone, every kind."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import yaml

from tests.support.projects import draw_pictures, environment
from tests.support.tiny_backbone import NAME, save_weights

METHODS = (
    *("hcl-fr", "hcl-fr-ta", "hcl-gr", "er", "curl", "joint", "ncm", "slda", "ranpac"),
    "hcl-plus-ta",
)
BENCHMARK = "trees"
TASKS = f"data/tasks/{BENCHMARK}.h5"
MODEL = f"results/runs/{BENCHMARK}/hcl-plus-ta/seed-0.safetensors"
WEIGHTS = "tiny.pth"
SHOWN = "shown.yaml"  # parameters with the one method that is evaluated


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


def detect() -> Command:
    inputs = ("--tasks", TASKS, "--embeddings", "data/embeddings")
    return Command(
        ("detect", "--benchmark", BENCHMARK, *inputs, "--out", "detected/trace.csv"),
        ("detected/trace.csv",),
    )


def predict() -> Command:
    out = "predicted/table.csv"
    how = ("--weights", WEIGHTS, "--device", "cpu", "--out", out, "--force")
    return Command(("predict", "pictures/test", "--model", MODEL, *how), (out,), (MODEL,))


def report() -> Command:
    inputs = ("results/scores", "results/moons", "results/toy")
    named = ("--scores", inputs[0], "--moons", inputs[1], "--toy-losses", inputs[2])
    outputs = ("results/metrics", "report")
    written = ("--metrics", outputs[0], "--out", outputs[1])
    return Command(("report", "--params", SHOWN, *named, *written), outputs, inputs)


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
    "report": report(),
    "predict": predict(),
    "detect": detect(),
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
    for method in ("ranpac", "hcl-plus"):  # by default a checkpoint of theirs has 80 MB
        values["methods"][method]["projections"] = 64
    training = values["benchmarks"][BENCHMARK]["training"]
    training["checkpoint_every"] = 2
    values["benchmarks"][BENCHMARK]["stream"]["epochs"] = 20
    (folder / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    values["grid"]["methods"] = ["hcl-fr"]
    (folder / SHOWN).write_text(yaml.safe_dump(values, sort_keys=False))


class Process(Protocol):
    """What the trials ask of a process; it leads a group, so that all of it can be killed."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def communicate(self) -> tuple[str, None]: ...


def start(project: Path, command: Command) -> Process:
    """``hcl`` in the project, as a user starts it."""
    return subprocess.Popen(
        [sys.executable, "-c", "from stages.cli import main; main()", *command.arguments],
        cwd=project,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["tests.chaos.warm"])


class Forked:
    """``hcl`` in the project, forked from a process that has imported everything.

    It takes the time of its work alone, so that a kill at a random moment meets the work.
    """

    def __init__(self, project: Path, command: Command) -> None:
        with tempfile.NamedTemporaryFile(prefix="hcl-chaos-", delete=False) as file:
            self._printed = Path(file.name)
        ours = {name: environment()[name] for name in ("PYTHONPATH", "OMP_NUM_THREADS")}
        arguments = (str(project), command.arguments, ours, str(self._printed))
        self._process = FORKED.Process(target=_work, args=arguments)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("hcl", timeout or 0)
        return self._process.exitcode

    def communicate(self) -> tuple[str, None]:
        self.wait()
        printed = self._printed.read_text(encoding="utf-8")
        self._printed.unlink()
        return printed, None


def kill_group(process: Process, number: int) -> None:
    """A signal to a process and to all that it has started."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:  # it is so young that it leads no group yet
        os.kill(process.pid, number)


def _work(project: str, arguments: tuple[str, ...], ours: dict[str, str], printed: str) -> None:
    os.setsid()
    os.environ.update(ours)
    os.chdir(project)
    file = os.open(printed, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.argv = ["hcl", *arguments]
    from stages.cli import main

    main()


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
