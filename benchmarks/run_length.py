"""Is the calibrated detector calibrated? Nominal against measured run length, and its power.

    python benchmarks/run_length.py ranks      # the limit: uniform numbers through the ranks alone
    python benchmarks/run_length.py made       # streams that are made: Gaussian, t3, outliers, …
    python benchmarks/run_length.py images --embeddings data/embeddings --datasets cifar10 cifar100
    python benchmarks/run_length.py smallest   # the smallest change that is found
    python benchmarks/run_length.py cost       # milliseconds a batch with ever more tasks
    python benchmarks/run_length.py draw       # two figures of these tables

Each writes one file, docs/detection/<name>.csv. A segment's first ``SETTLED`` batches belong to the
change before it; an alarm after them is false. Batches of ``images`` are drawn without replacement
from one task, in as many passes as it takes, and go to the next task after ``SEGMENT`` batches.
"""

from __future__ import annotations

import argparse
import csv
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hcl.detect.detector import Detector
from hcl.detect.sequential import Scores, Sequential
from hcl.detect.settings import CalibratedSettings
from hcl.records import embeddings

OUT = Path(__file__).parents[1] / "docs" / "detection"
SEGMENT = 500  # batches of a task before the next
SETTLED = 10
SIZE, CLASSES = 64, 4  # of the made streams
OF_IMAGES = ((8, 1_000), (32, 1_000), (128, 1_000), (32, 10_000))  # batch sizes and N
KEYS = {"stream", "batch_size", "nominal", "limit", "task_batches", "change", "size", "tasks"}

Samples = tuple[NDArray, NDArray[np.int64]]


def write(name: str, rows: Iterator[dict]) -> None:
    """The rows as docs/detection/<name>.csv, and on the screen, as they come.

    What the file has on other streams, batch sizes and N stays.
    """
    path = OUT / f"{name}.csv"
    held: dict[tuple, dict] = {}
    if name == "images" and path.exists():
        with path.open(encoding="utf-8") as file:
            held = {key_of(row): row for row in csv.DictReader(file)}
    for row in rows:
        held[key_of(row)] = row
        print(row, flush=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(row), lineterminator="\n")
            writer.writeheader()
            writer.writerows(held.values())


def key_of(row: dict) -> tuple:
    """What tells a row of a table from the others."""
    return tuple(str(value) for name, value in row.items() if name in KEYS)


def ranks(batches: int) -> Iterator[dict]:
    """The run length of ``Sequential`` for each limit, with tasks of several lengths."""
    for limit in (40.0, 400.0, 4000.0):
        for length in (50, 150, 500, batches):
            draw, sequential, alarms = random.Random(0), Sequential(limit), 0
            for index in range(batches):
                sequential.update(Scores(draw.random(), draw.random(), draw.random()))
                if sequential.alarm:
                    alarms += 1
                    sequential.reset(0)
                elif index % length == length - 1:
                    sequential.reset(3)
            run = round(batches / max(alarms, 1))
            row = {"limit": limit, "task_batches": length, "batches": batches, "alarms": alarms}
            yield {**row, "run_length": run, "ratio": round(run / limit, 2)}


def listen(
    segments: Iterator[Iterator[Samples]], classes: int, every: int, shape: tuple[int, ...]
) -> dict[str, int | float]:
    """What a detector says of a stream: false alarms, changes found, and their delay."""
    detector = Detector(CalibratedSettings(false_alarm_every=every), classes, shape)
    batches = false = changes = found = late = 0
    for number, segment in enumerate(segments):
        changes += number > 0
        open_change = number > 0
        for index, (x, y) in enumerate(segment):
            batches += 1
            if not detector.judge(torch.from_numpy(x), torch.from_numpy(y)).verdict:
                continue
            if open_change and index < SETTLED:
                found, late, open_change = found + 1, late + index + 1, False
            else:
                false += 1
    return {
        "nominal": every,
        "batches": batches,
        "false_alarms": false,
        "run_length": round(batches / false) if false else batches,
        "changes": changes,
        "found": found,
        "mean_delay": round(late / max(found, 1), 2),
    }


def gaussian(generator: np.random.Generator, shape: tuple[int, int]) -> NDArray:
    return generator.normal(size=shape)


def student(generator: np.random.Generator, shape: tuple[int, int]) -> NDArray:
    return generator.standard_t(3, size=shape)


def outliers(generator: np.random.Generator, shape: tuple[int, int]) -> NDArray:
    """Gaussian, and 0.2 % of the samples fifty times as far out."""
    far = np.where(generator.random((shape[0], 1)) < 0.002, 50.0, 1.0)
    return generator.normal(size=shape) * far


def made_stream(
    noise: Callable[[np.random.Generator, tuple[int, int]], NDArray],
    batches: int,
    size: int,
    drift: float = 0.0,
    frequencies: bool = False,
    seed: int = 0,
) -> Iterator[Iterator[Samples]]:
    """Tasks of random class means; with ``frequencies`` another share of each class every 100."""
    generator = np.random.default_rng(seed)

    def segment() -> Iterator[Samples]:
        centres = generator.normal(size=(CLASSES, SIZE))
        way = generator.normal(size=SIZE)
        way *= drift / np.linalg.norm(way)
        shares = np.full(CLASSES, 1 / CLASSES)
        for index in range(SEGMENT):
            if frequencies and index % 100 == 0:
                shares = generator.dirichlet(np.full(CLASSES, 0.7))
            y = generator.choice(CLASSES, size, p=shares)
            x = centres[y] + index * way + noise(generator, (size, SIZE))
            yield x.astype(np.float32), y.astype(np.int64)

    return (segment() for _ in range(batches // SEGMENT))


def made(batches: int) -> Iterator[dict]:
    """False alarms on streams that are made."""
    kinds = {
        "Gaussian": {"noise": gaussian},
        "Student t3": {"noise": student},
        "0.2 % outliers": {"noise": outliers},
        "class frequencies": {"noise": gaussian, "frequencies": True},
        "drift 0.01 a batch": {"noise": gaussian, "drift": 0.01},
        "drift 0.05 a batch": {"noise": gaussian, "drift": 0.05},
    }
    for name, kind in kinds.items():
        for size, every in ((32, 1_000), (32, 10_000), (8, 10_000)):
            stream = made_stream(**kind, batches=batches, size=size)
            found = listen(stream, CLASSES, every, (SIZE,))
            yield {"stream": name, "batch_size": size, **found}


def image_stream(
    x: NDArray, y: NDArray[np.int64], per_task: int, batches: int, size: int, seed: int
) -> Iterator[Iterator[Samples]]:
    """Tasks of ``per_task`` classes, one after the other and again."""
    generator = np.random.default_rng(seed)
    tasks = (int(y.max()) + 1) // per_task

    def segment(task: int) -> Iterator[Samples]:
        rows = np.flatnonzero(y // per_task == task)
        left = rows[:0]
        for _ in range(SEGMENT):
            if len(left) < size:
                left = generator.permutation(rows)
            chosen, left = left[:size], left[size:]
            yield x[np.sort(chosen)], y[np.sort(chosen)] - per_task * task

    return (segment(number % tasks) for number in range(batches // SEGMENT))


def images(
    batches: int, folder: Path, datasets: list[str], kinds: Sequence[tuple[int, int]]
) -> Iterator[dict]:
    """False alarms, and changes found, on embeddings or pixels."""
    for name in datasets:
        read = embeddings.read(folder / f"{name}.h5")
        train = np.flatnonzero(read.split == 0)
        x, y = np.asarray(read.x[train]), read.y[train].astype(np.int64)
        per_task = max(2, (int(y.max()) + 1) // 10)
        for size, every in kinds:
            count = batches * (3 if every > 1_000 else 1)
            stream = image_stream(x, y, per_task, count, size, seed=every + size)
            found = listen(stream, per_task, every, x.shape[1:])
            yield {"stream": name, "batch_size": size, **found}


def smallest(changes: int) -> Iterator[dict]:
    """How large a shift of all class means, and a change of spread, has to be to be found."""
    for what, steps in (
        ("shift", (0.3, 0.5, 0.7, 0.8, 1.0, 1.2, 1.5, 2.0)),
        ("spread", (0.7, 0.8, 0.9, 0.95, 0.98, 1.02, 1.05, 1.1, 1.2, 1.5)),
    ):
        for step in steps:
            delays = [delay_of(what, step, seed) for seed in range(changes)]
            seen = [delay for delay in delays if delay is not None]
            yield {
                "change": what,
                "size": step,
                "changes": changes,
                "found": len(seen),
                "median_delay": float(np.median(seen)) if seen else "",
            }


def delay_of(what: str, step: float, seed: int, before: int = 150, after: int = 60) -> int | None:
    """Batches after a change of a Gaussian stream until it is found."""
    generator = np.random.default_rng([seed, 7])
    centres = generator.normal(size=(CLASSES, SIZE))
    way = generator.normal(size=SIZE)
    way /= np.linalg.norm(way)
    detector = Detector(CalibratedSettings(), CLASSES, (SIZE,))
    for index in range(before + after):
        changed = index >= before
        y = generator.integers(CLASSES, size=32)
        noise = generator.normal(size=(32, SIZE))
        if changed and what == "spread":
            noise *= step
        x = centres[y] + noise + (step * way if changed and what == "shift" else 0)
        seen = detector.judge(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y))
        if seen.verdict and changed:
            return index - before + 1
    return None


def cost(most: int) -> Iterator[dict]:
    """Milliseconds of a batch within a task, and at a change, with ever more tasks."""
    generator = np.random.default_rng(0)
    detector = Detector(CalibratedSettings(), 2, (SIZE,))
    within, at_change, said = [], [], 0
    for task in range(most):
        centres = 2 * generator.normal(size=(2, SIZE))
        for _ in range(100):
            y = generator.integers(2, size=32)
            x = (centres[y] + generator.normal(size=(32, SIZE))).astype(np.float32)
            start = time.process_time()
            verdict = detector.judge(torch.from_numpy(x), torch.from_numpy(y)).verdict
            (at_change if verdict else within).append(1e3 * (time.process_time() - start))
            said += verdict > 0
        if task + 1 in (2, 100, 500, 1000):
            row = {"tasks": task + 1, "batches": 100 * (task + 1), "changes_said": said}
            row["within_ms"] = round(float(np.median(within[-2000:])), 2)
            row["at_change_ms"] = round(float(np.median(at_change[-20:])), 2)
            yield row


def draw() -> None:
    """Measured against nominal run length, and the changes found against their size."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "hcl"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(5.5, 4), layout="constrained")
    rows = table("images")
    axes.plot([50, 30_000], [50, 30_000], color="0.6", label="as stated")
    axes.plot([50, 30_000], [50 / 3, 10_000], color="0.6", ls=":", label="a third of it")
    for name in dict.fromkeys(row["stream"] for row in rows):
        points = [row for row in rows if row["stream"] == name]
        x, y = ([int(row[key]) for row in points] for key in ("nominal", "run_length"))
        axes.scatter(x, y, s=14, label=name)
        for row, n, counted in zip(points, x, y, strict=True):
            if int(row["false_alarms"]) == 0:  # at least so long
                axes.annotate("", (n, 1.6 * counted), (n, counted), arrowprops={"arrowstyle": "->"})
    axes.set(xscale="log", yscale="log", xlabel="N, batches between false alarms, as asked for",
             ylabel="batches between false alarms, as counted")  # fmt: skip
    axes.legend(frameon=False)
    figure.savefig(OUT / "run-length.svg", metadata={"Date": None})

    figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3.2), layout="constrained")
    rows = table("smallest")
    for side, what, label in (
        (left, "shift", "shift of all class means, in σ"),
        (right, "spread", "spread, as a factor"),
    ):
        of = [row for row in rows if row["change"] == what]
        share = [100 * int(row["found"]) / int(row["changes"]) for row in of]
        side.plot([float(row["size"]) for row in of], share, marker="o", ms=4)
        side.set(xlabel=label, ylabel="found, %", ylim=(-5, 105))
    figure.savefig(OUT / "smallest.svg", metadata={"Date": None})


def table(name: str) -> list[dict[str, str]]:
    """A table that was written before."""
    with (OUT / f"{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def main() -> None:
    """One part of the measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("part", choices=["ranks", "made", "images", "smallest", "cost", "draw"])
    parser.add_argument(
        "--batches",
        type=int,
        help="of a row (N 10,000: three times); changes, or tasks, for the last two",
    )
    parser.add_argument("--embeddings", type=Path, default=Path("data/embeddings"))
    parser.add_argument("--datasets", nargs="+", default=["digits"])
    parser.add_argument("--every", type=int, nargs="+", help="N of images, in batches of 32")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    batches = arguments.batches
    parts = {
        "ranks": lambda: ranks(batches or 1_000_000),
        "made": lambda: made(batches or 20_000),
        "images": lambda: images(
            batches or 10_000,
            arguments.embeddings,
            arguments.datasets,
            [(32, every) for every in arguments.every] if arguments.every else OF_IMAGES,
        ),
        "smallest": lambda: smallest(batches or 20),
        "cost": lambda: cost(batches or 1000),
    }
    if arguments.part == "draw":
        draw()
    else:
        write(arguments.part, parts[arguments.part]())


if __name__ == "__main__":
    main()
