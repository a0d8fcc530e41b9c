"""The estimators on made streams: false alarms, changes missed, and what many tasks cost.

    python benchmarks/streams.py verdicts     # docs/detection/estimators.csv
    python benchmarks/streams.py many         # docs/detection/many_tasks.csv
    python benchmarks/streams.py new_tasks    # docs/detection/new_tasks.csv

Two classes of 16 features, unit deviations, 32 samples a batch. ``verdicts`` are of the calibrated
detector, which both classifiers hand their samples as they come, before anything is learned: what
one of them declares the other declares as well. That is checked on the first batches of every
stream, and an error where it does not hold. ``many`` shows HCL+ a task after the other and measures
time and memory: what is resident once the allocator has given back what is free, the most that ever
was, and the bytes of what the classifier keeps, with those of the samples' fingerprints, which have
a bound, apart. ``new_tasks`` shows HCL ever new tasks, as the README's stream has three, and
measures how much of all tasks so far it still knows.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import gc
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hcl.detect.detector import Detector
from hcl.detect.settings import CalibratedSettings
from hcl.estimator import HCLClassifier, HCLPlusClassifier
from hcl.records.runs import SAME

OUT = Path(__file__).parents[1] / "docs" / "detection"
FEATURES, SIZE = 16, 32
CHECKED = 60  # batches of each stream that both classifiers are shown
CALM = 150  # batches before each change

Batches = Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]
Noise = Callable[[np.random.Generator, NDArray[Any]], NDArray[Any]]


def normal(random: np.random.Generator, y: NDArray[Any]) -> NDArray[Any]:
    return random.normal(size=(len(y), FEATURES))


def heavy(random: np.random.Generator, y: NDArray[Any]) -> NDArray[Any]:
    """Student's t with three degrees of freedom, of unit variance."""
    return random.standard_t(3, size=(len(y), FEATURES)) / 3**0.5


def with_outliers(random: np.random.Generator, y: NDArray[Any]) -> NDArray[Any]:
    far = 1 + 19 * (random.random((len(y), 1)) < 0.002)
    return far * normal(random, y)


def stationary(seed: int, noise: Noise, drift: float = 0.0, frequencies: bool = False) -> Batches:
    """One task without end."""
    random = np.random.default_rng(seed)
    centres = random.normal(scale=5, size=(2, FEATURES))
    way = random.normal(size=FEATURES)
    way *= drift / np.linalg.norm(way)
    share = 0.5
    for number in range(10**9):
        if frequencies and number % 100 == 0:
            share = random.uniform(0.1, 0.9)
        y = (random.random(SIZE) < share).astype(np.int64)
        yield (centres[y] + number * way + noise(random, y)).astype(np.float32), y


def changing(seed: int, kind: str) -> Batches:
    """A change every ``CALM`` batches: all class means by so many σ, or the labels swapped."""
    random = np.random.default_rng(seed)
    centres = random.normal(scale=5, size=(2, FEATURES))
    while True:
        for _ in range(CALM):
            y = random.integers(0, 2, SIZE)
            yield (centres[y] + normal(random, y)).astype(np.float32), y
        if kind == "swapped labels":
            centres = centres[::-1]
        else:
            way = random.normal(size=FEATURES)
            centres = centres + float(kind.split()[0]) * way / np.linalg.norm(way)


STATIONARY: dict[str, Callable[[int], Batches]] = {
    "Gaussian": lambda seed: stationary(seed, normal),
    "Student t3": lambda seed: stationary(seed, heavy),
    "0.2 % outliers": lambda seed: stationary(seed, with_outliers),
    "class frequencies": lambda seed: stationary(seed, normal, frequencies=True),
    "drift 0.001 σ a batch": lambda seed: stationary(seed, normal, drift=0.001),
    "drift 0.01 σ a batch": lambda seed: stationary(seed, normal, drift=0.01),
    "drift 0.05 σ a batch": lambda seed: stationary(seed, normal, drift=0.05),
}
CHANGES = ("1 σ", "2 σ", "4 σ", "swapped labels")


def alarms(batches: Batches, count: int) -> tuple[list[int], int]:
    """At which batches the detector declares a change, and how many tasks it has in the end."""
    detector = Detector(CalibratedSettings(), 2, (FEATURES,))
    found = []
    for number, (x, y) in enumerate(islice(batches, count)):
        if detector.judge(torch.from_numpy(x), torch.from_numpy(y)).verdict != SAME:
            found.append(number)
    return found, detector.num_tasks


def check_estimators(batches: Batches, expected: list[int], count: int) -> None:
    """Both classifiers declare what the detector alone does."""
    hcl = HCLClassifier(random_state=0, couplings=1, hidden_layers=1, hidden=4)
    plus = HCLPlusClassifier(random_state=0, projections=0)
    for x, y in islice(batches, count):
        for classifier in (hcl, plus):
            classifier.partial_fit(x, y, classes=[0, 1])
    for classifier in (hcl, plus):
        found = [change.batch for change in classifier.task_changes_]
        if found != [number for number in expected if number < count]:
            raise SystemExit(f"{type(classifier).__name__} declares {found}, not {expected}")


def verdicts(count: int, seeds: list[int]) -> Iterator[dict[str, Any]]:
    for name, make in STATIONARY.items():
        found = [alarms(make(seed), count) for seed in seeds]
        check_estimators(make(seeds[0]), found[0][0], CHECKED)
        false = sum(len(numbers) for numbers, _ in found)
        rate = round(10_000 * false / (count * len(seeds)), 2)
        tasks = max(tasks for _, tasks in found)
        yield row(name, count * len(seeds), alarms_in_10_000=rate, tasks=tasks)
    for kind in CHANGES:
        delays: list[int] = []
        changes = false = 0
        for seed in seeds:
            said, tasks = alarms(changing(seed, kind), count)
            starts = range(CALM, count, CALM)
            for start in starts:
                within = [number for number in said if start <= number < start + CALM]
                delays += [within[0] - start] if within else []
                false += max(len(within) - 1, 0)
            changes += len(starts)
            false += sum(number < CALM for number in said)
        check_estimators(
            changing(seeds[0], kind), alarms(changing(seeds[0], kind), 2 * CALM)[0], CALM + CHECKED
        )
        late = round(float(np.mean(delays)), 2) if delays else ""
        missed = changes - len(delays)
        yield row(
            kind,
            count * len(seeds),
            round(10_000 * false / (count * len(seeds)), 2),
            tasks,
            changes,
            missed,
            late,
        )


def row(
    stream: str,
    batches: int,
    alarms_in_10_000: float,
    tasks: int,
    changes: int | str = "",
    missed: int | str = "",
    mean_delay: float | str = "",
) -> dict[str, Any]:
    return dict(locals())


def of_task(
    centres: NDArray[Any], random: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    y = random.integers(0, 2, SIZE)
    return (centres[y] + random.normal(size=(SIZE, centres.shape[1]))).astype(np.float32), y


def resident() -> float:
    """Megabytes of this process, without what is free but still held by the allocator."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def kept(state: Any) -> int:
    """Bytes of all tensors in a learner's state."""
    if isinstance(state, torch.Tensor):
        return state.nbytes
    inner = state.values() if isinstance(state, dict) else state
    return (
        sum(map(kept, inner)) if isinstance(inner, Iterable) and not isinstance(inner, str) else 0
    )


def many(tasks: int, batches: int, projections: int, features: int = 8) -> Iterator[dict[str, Any]]:
    """HCL+ on ever new tasks: milliseconds a batch, at a change and within a task, and memory."""
    random = np.random.default_rng(0)
    classifier = HCLPlusClassifier(random_state=0, projections=projections)
    shown = {2, 10, 100, *range(0, tasks + 1, 100)}
    for task in range(1, tasks + 1):
        centres = random.normal(scale=20, size=(2, features))
        times = []
        for _ in range(batches):
            x, y = of_task(centres, random)
            began = time.process_time()
            classifier.partial_fit(x, y, classes=[0, 1])
            times.append(1000 * (time.process_time() - began))
        if task in shown:
            marks = classifier._learner.measured.seen.state().nbytes
            yield {
                "tasks": task,
                "found": classifier.n_tasks_,
                "batches": classifier.n_batches_,
                "median_ms": round(float(np.median(times)), 2),
                "mean_ms": round(float(np.mean(times)), 2),
                "largest_ms": round(max(times), 1),
                "resident_MB": round(resident(), 1),
                "kept_kB": (kept(classifier._learner.state()) - marks) // 1000,
                "marks_kB": marks // 1000,
                "peak_MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
            }


def new_tasks(tasks: int, batches: int, seeds: list[int]) -> Iterator[dict[str, Any]]:
    """HCL on ever new tasks: accuracy on all of them so far, and on the worst."""
    for seed in seeds:
        random = np.random.default_rng(seed)
        all_centres = random.normal(scale=5, size=(tasks, 2, FEATURES))
        classifier = HCLClassifier(random_state=seed)
        for task in range(1, tasks + 1):
            for _ in range(batches):
                classifier.partial_fit(*of_task(all_centres[task - 1], random), classes=[0, 1])
            right = []
            for centres in all_centres[:task]:
                shown = [of_task(centres, random) for _ in range(10)]
                right.append(np.mean([classifier.predict(x) == y for x, y in shown]))
            yield {
                "seed": seed,
                "tasks": task,
                "found": classifier.n_tasks_,
                "accuracy": round(float(np.mean(right)), 4),
                "worst": round(float(min(right)), 4),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("verdicts", "many", "new_tasks"))
    parser.add_argument("--batches", type=int, help="of a stream, or of a task")
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--projections", type=int, default=0, help="of HCL+; its default is 4000")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    options = parser.parse_args()
    torch.set_num_threads(1)
    made = {
        "verdicts": lambda: verdicts(options.batches or 10_000, options.seeds),
        "many": lambda: many(options.tasks or 1000, options.batches or 100, options.projections),
        "new_tasks": lambda: new_tasks(options.tasks or 10, options.batches or 200, options.seeds),
    }
    files = {"verdicts": "estimators.csv", "many": "many_tasks.csv", "new_tasks": "new_tasks.csv"}
    OUT.mkdir(parents=True, exist_ok=True)
    writer = None
    with (OUT / files[options.what]).open("w", newline="", encoding="utf-8") as file:
        for line in made[options.what]():
            if writer is None:
                writer = csv.DictWriter(file, list(line), lineterminator="\n")
                writer.writeheader()
            writer.writerow(line)
            file.flush()
            print(*line.values(), sep="\t", flush=True)


if __name__ == "__main__":
    main()
