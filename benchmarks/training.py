"""Milliseconds a training step with 0, 2, 4 and 9 old tasks: the paper's flow on 1280 features.

A step is all that the loop does for one batch of 32: gather it from a mapped file, draw replay
from the snapshot (a batch for each old task), pass both through the flow, go back, Adam. The
figure is the median over steps, in processor time of one thread, which other work on the machine
disturbs less than wall time; the wall time stands beside it. The methods take turns. A second table
has the same figures as multiples of the paper's FR with two old tasks, which is what the methods
with fixed replay may cost whatever the number of old tasks.

    python benchmarks/training.py --steps 20
    python benchmarks/training.py --steps 10 --old 2 9 29 --methods hcl-fr hcl-fr-fixed
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from hcl.learn.contract import Batch, TaskBatch
from hcl.learn.flow.detection import DetectionSettings
from hcl.learn.flow.learner import FlowLearner
from hcl.learn.flow.memory import build_memory
from hcl.learn.flow.settings import (
    BufferSettings,
    FlowMethod,
    FunctionalSettings,
    GenerativeSettings,
)
from hcl.model.hybrid import build_model
from hcl.model.settings import FlowSettings
from hcl.train.machine import one_thread

SIZE, CLASSES, BATCH, ROWS = 1280, 2, 32, 4096
METHODS = {
    "adam": FlowMethod(),
    "er": FlowMethod(memory=BufferSettings()),
    "hcl-gr": FlowMethod(memory=GenerativeSettings()),
    "hcl-fr": FlowMethod(memory=FunctionalSettings(alpha=10.0)),
    "hcl-fr-ta": FlowMethod(memory=FunctionalSettings(alpha=10.0), detection=DetectionSettings()),
    "hcl-gr-fixed": FlowMethod(memory=GenerativeSettings(replay=2 * BATCH)),
    "hcl-fr-fixed": FlowMethod(memory=FunctionalSettings(alpha=10.0, replay=2 * BATCH)),
    "hcl-fr-measured-fixed": FlowMethod(
        memory=FunctionalSettings(alpha=10.0, draws="measured", replay=2 * BATCH)
    ),
}
PAPERS = "hcl-fr"  # with two old tasks: what the others are compared with


def make_learner(method: FlowMethod, old_tasks: int, x: np.ndarray) -> FlowLearner:
    """A learner that has seen ``old_tasks`` and is in its next one."""
    generator = torch.Generator().manual_seed(0)
    model = build_model(FlowSettings(), (SIZE,), CLASSES, generator)
    learner = FlowLearner(
        model,
        build_memory(method.memory, model, BATCH, generator),
        detection=method.detection,
        batch_size=BATCH,
        learning_rate=1e-4,
        weight_decay=1e-4,
        generator=generator,
    )
    for task in range(old_tasks + 1):
        if learner.detector is None:
            learner.observe(take(x, task, task))
        else:  # tell it of a change that it has no window to see
            learner.change_to(None)
            learner.observe(take(x, task, None))
    return learner


def take(x: np.ndarray, index: int, task: int | None) -> Batch | TaskBatch:
    """A batch of random rows of the mapped file."""
    rows = np.random.default_rng(index).permutation(ROWS)[:BATCH]
    samples, labels = torch.from_numpy(x[rows]), torch.arange(BATCH) % CLASSES
    return Batch(samples, labels) if task is None else TaskBatch(samples, labels, task)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--old", type=int, nargs="+", default=[0, 2, 4, 9])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    options = parser.parse_args()
    methods = {name: METHODS[name] for name in options.methods}
    with tempfile.TemporaryDirectory() as folder, one_thread():
        path = Path(folder) / "x"
        np.random.default_rng(0).standard_normal((ROWS, SIZE), np.float32).tofile(path)
        x = np.memmap(path, np.float32, "r", shape=(ROWS, SIZE))
        table: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
        for old in options.old:
            learners = {name: make_learner(m, old, x) for name, m in methods.items()}
            spent: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
            for step in range(options.steps + 2):
                for name, learner in learners.items():
                    cpu, wall = time.process_time(), time.perf_counter()
                    learner.observe(take(x, step, None if learner.detector else old))
                    if step >= 2:  # the first steps warm up
                        spent[name].append((time.process_time() - cpu, time.perf_counter() - wall))
            for name, times in spent.items():
                cpu, wall = (
                    1000 * statistics.median(column) for column in zip(*times, strict=True)
                )
                table[name].append((cpu, wall))
    print(f"{'':22}" + "".join(f"{f'{old} old tasks':>26}" for old in options.old))
    for name, cells in table.items():
        said = (f"{cpu:8.0f} ms cpu {wall:6.0f} wall" for cpu, wall in cells)
        print(f"{name:22}" + "".join(f"{cell:>26}" for cell in said))
    if PAPERS in table and 2 in options.old:
        unit = table[PAPERS][options.old.index(2)][0]
        print(f"\nprocessor time, {PAPERS} with 2 old tasks = 1")
        for name, cells in table.items():
            print(f"{name:22}" + "".join(f"{cpu / unit:>26.2f}" for cpu, _ in cells))


if __name__ == "__main__":
    main()
