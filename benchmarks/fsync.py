"""What it costs that files reach the disk before they are renamed: seconds within ``fsync``.

    python benchmarks/fsync.py --folder .

The same run is trained with ``fsync`` and without, in turn, on the disk of ``--folder``: HCL-FR,
the paper's flow, 64 features, four tasks, a checkpoint every 20 steps (50 times as often as the
default) and a model at the end. Then one file of 256 MB is written as an embedding file would be.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

from hcl.files import replacing
from hcl.learn.flow.settings import FlowMethod, FunctionalSettings
from hcl.learn.settings import TrainingSettings
from hcl.model.settings import FlowSettings
from hcl.train.jobs import train_into
from hcl.train.loop import Job
from tests.support.blobs import benchmark, blobs_in_64_dimensions

MEGABYTES = 256


class Timed:
    """``os.fsync``, counted and timed; without ``really``, left out."""

    def __init__(self, really: bool) -> None:
        self.really, self.calls, self.seconds = really, 0, 0.0
        self._fsync = os.fsync

    def __call__(self, file: int) -> None:
        began = time.perf_counter()
        if self.really:
            self._fsync(file)
        self.calls += 1
        self.seconds += time.perf_counter() - began


def training(folder: Path) -> None:
    embeddings, tasks = benchmark(blobs_in_64_dimensions())
    settings = TrainingSettings(batch_size=32, checkpoint_every=20, device="cpu", save_model=True)
    method = FlowMethod(memory=FunctionalSettings())
    train_into(Job(tasks, embeddings, "hcl-fr", method, FlowSettings(), settings, 0), folder)


def large_file(folder: Path) -> None:
    block = os.urandom(1 << 20)
    with replacing(folder / "large") as partial, open(partial, "wb") as file:
        for _ in range(MEGABYTES):
            file.write(block)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(), help="on the disk in question")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("what", "round", "fsync", "seconds", "calls", "seconds in fsync", sep="\t")
    for name, work in (("training", training), (f"{MEGABYTES} MB", large_file)):
        for number in range(options.rounds):
            for really in (True, False):
                timed = Timed(really)
                with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                    began = time.perf_counter()
                    with patch("os.fsync", timed):
                        work(Path(folder))
                    seconds = time.perf_counter() - began
                row = (name, number, "yes" if really else "no", f"{seconds:.2f}", timed.calls)
                print(*row, f"{timed.seconds:.3f}", sep="\t", flush=True)


if __name__ == "__main__":
    main()
