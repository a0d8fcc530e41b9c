"""The calibrated detector beside its peers, on the same streams, in one run.

    pip install river        # once; an extra of this script, not of the package
    python benchmarks/detection.py split-cifar10-single-pass split-cifar100-single-pass
    python benchmarks/detection.py split-digits --only calibrated --seeds 0 1 2 --out streams.csv

Takes benchmarks of the parameter file whose tasks and embeddings are there, and writes
docs/detection/peers.csv, or ``--out`` beside it; rows of other benchmarks stay there. The
contenders, each at one setting for all streams:

* ``calibrated``: ours, one false alarm in 10,000 batches;
* ``paper``: the typical set of S1, λ 5, l 100, which can name tasks that come back, too;
* river's ``ADWIN``, ``KSWIN`` and ``PageHinkley`` with their defaults, as their users run them, on
  S1 (mean over a batch) and on T;
* ``dummy``: an alarm every 100 batches, which any score has to beat.

S1 is the log-likelihood of N(m_y, Σ) and T the shift of class means, both with moments that are
streamed from the batches and kept by the contender's own verdicts: what comes before an alarm is
one task, what comes after it another. Of a trained flow's S1 the tables of docs/results.md tell.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hcl.detect.detector import Detector as Calibrated
from hcl.detect.measure import ClassMeans, Features, Measured, Scatter, known_size
from hcl.detect.settings import CalibratedSettings
from hcl.evaluate.metrics import score_changes
from hcl.learn.flow.detection import DetectionSettings
from hcl.learn.flow.detection import Detector as Typical
from hcl.progress import bar
from hcl.records.embeddings import read
from hcl.records.runs import NEW, RECURRING, SAME
from hcl.records.tasks import read_benchmark
from hcl.train.streams import Stream
from stages.resolve import Resolved

OUT = Path(__file__).parents[1] / "docs" / "detection"
RENEWALS = (2, 8, 32, 128, 512)  # batches of a task at which Σ is taken anew
EVERY = 100  # of the dummy


class Said(NamedTuple):
    """A verdict, and the contender's task after it."""

    verdict: int
    task: int


class Moments:
    """What S1 and T are taken from: means of each task's classes, and Σ of all of them."""

    def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
        self.device = torch.device("cpu")
        self.classes, self.size = classes, known_size(shape)
        self.features = Features(shape, self.device)
        self.scatter = Scatter(self.size, self.device)
        self.log_det = math.nan  # of D·M, about Σ⁻¹
        self.tasks = [self._means()]
        self.task = 0
        self.seen = 0
        self.origin: Tensor | None = None
        self.looked_at = (torch.empty(0), torch.empty(0))

    def _means(self) -> ClassMeans:
        return ClassMeans(self.classes, self.size, self.device)

    def measured(self, x: Tensor, y: Tensor, task: int | None = None) -> Measured:
        if self.looked_at[0] is not x:  # judged, then learned
            self.looked_at = (x, self.features(x))
        z = self.looked_at[1]
        self.origin = z.mean(0) if self.origin is None else self.origin
        means = self.tasks[self.task if task is None else task]
        return Measured(z - self.origin, y, means, self.scatter.metric)

    def log_likelihood(self, measured: Measured) -> float:
        """S1: the sum of log N(z; m_y, Σ) over the batch."""
        half = 0.5 * (self.log_det - self.size * math.log(2 * math.pi))
        return measured.size * half - 0.5 * self.size * float(measured.distances.sum())

    def go_to(self, task: int | None) -> None:
        if task is None:
            self.tasks.append(self._means())
            task = len(self.tasks) - 1
        self.task, self.seen = task, 0

    def learn(self, x: Tensor, y: Tensor) -> bool:
        """Take a batch in; whether Σ is another one now."""
        self.measured(x, y).learn(self.tasks[self.task], self.scatter)
        self.seen += 1
        if self.seen not in RENEWALS:
            return False
        self.scatter.renew()
        self.log_det = float(torch.linalg.slogdet(self.size * self.scatter.metric.double())[1])
        return True


class Peer:
    """A detector of one number, such as river's: an alarm begins a new task."""

    def __init__(self, make: Callable[[], Any], statistic: str) -> None:
        self.make, self.statistic = make, statistic

    def start(self, classes: int, shape: tuple[int, ...]) -> None:
        self.moments, self.detector = Moments(classes, shape), self.make()

    def judge(self, x: Tensor, y: Tensor) -> Said:
        verdict = SAME
        if not math.isnan(self.moments.log_det):
            measured = self.moments.measured(x, y)
            value = float(measured.shift)
            if self.statistic == "S1":
                value = self.moments.log_likelihood(measured) / measured.size
            if not math.isnan(value):
                self.detector.update(value)
            if self.detector.drift_detected:
                verdict = NEW
                self.moments.go_to(None)
                self.detector = self.make()
        self.moments.learn(x, y)
        return Said(verdict, self.moments.task)


class Paper:
    """The rule of the paper on S1: a typical set for each task."""

    def start(self, classes: int, shape: tuple[int, ...]) -> None:
        self.moments, self.detector = Moments(classes, shape), Typical(DetectionSettings())
        self.detector.add_task()

    def _sums(self, x: Tensor, y: Tensor, task: int) -> np.ndarray:
        value = self.moments.log_likelihood(self.moments.measured(x, y, task))
        return np.array([value, 0.0, 0.0])

    def judge(self, x: Tensor, y: Tensor) -> Said:
        moments, verdict = self.moments, SAME
        if not math.isnan(moments.log_det):
            sums = self._sums(x, y, moments.task)
            if self.detector.has_left(moments.task, sums, len(y)):
                rows = [self._sums(x, y, task) for task in range(len(moments.tasks))]
                back = self.detector.came_back(np.stack(rows), len(y), moments.task)
                verdict = NEW if back is None else RECURRING
                moments.go_to(back)
                if back is None:
                    self.detector.add_task()
                sums = self._sums(x, y, moments.task)
            self.detector.record(moments.task, sums, len(y))
        if moments.learn(x, y):
            self.detector.forget(moments.task)  # statistics of another Σ are no reference
        return Said(verdict, moments.task)


class Ours:
    """The calibrated detector."""

    def start(self, classes: int, shape: tuple[int, ...]) -> None:
        self.detector = Calibrated(CalibratedSettings(), classes, shape)

    def judge(self, x: Tensor, y: Tensor) -> Said:
        said = self.detector.judge(x, y)
        return Said(said.verdict, said.task)


class Dummy:
    """An alarm every so many batches."""

    def start(self, classes: int, shape: tuple[int, ...]) -> None:
        self.batches = self.task = 0

    def judge(self, x: Tensor, y: Tensor) -> Said:
        self.batches += 1
        alarm = self.batches % EVERY == 0
        self.task += alarm
        return Said(NEW if alarm else SAME, self.task)


def contenders(only: str | None) -> dict[str, Any]:
    if only == "calibrated":
        return {only: Ours()}
    from river import drift

    makers: dict[str, Callable[[], Any]] = {
        "ADWIN": drift.ADWIN,
        "KSWIN": lambda: drift.KSWIN(seed=0),
        "PageHinkley": drift.PageHinkley,
    }
    peers = {f"{n} on {s}": Peer(make, s) for n, make in makers.items() for s in ("S1", "T")}
    all_of_them = {"calibrated": Ours(), "paper": Paper(), **peers}
    all_of_them[f"dummy, every {EVERY}"] = Dummy()
    return all_of_them if only is None else {only: all_of_them[only]}


def shown(stream: Stream) -> Iterator[tuple[int, Tensor, Tensor]]:
    for segment in range(len(stream.benchmark.stream)):
        for batch in stream.batches(segment):
            yield segment, batch.x, batch.y


def race(name: str, stream: Stream, seed: int, only: str | None) -> list[dict[str, Any]]:
    """Every contender over one stream, or one of them."""
    truth = [segment.task for segment in stream.benchmark.stream]
    total = sum(stream.num_batches(j) for j in range(len(truth)))
    rows = []
    for label, contender in contenders(only).items():
        contender.start(stream.benchmark.num_classes, stream.shape)
        said: list[tuple[int, int, int]] = []
        added_in: list[int] = []
        with bar(total=total, desc=f"{name} {label}", unit="batch", leave=False) as steps:
            for segment, x, y in shown(stream):
                verdict, task = contender.judge(x, y)
                while len(added_in) <= task:
                    added_in.append(segment)
                said.append((segment, verdict, task))
                steps.update()
        found = score_changes(*(np.array(c) for c in zip(*said, strict=True)), added_in, truth)
        rows.append(
            {
                "stream": name,
                "seed": seed,
                "detector": label,
                "batches": total,
                "changes": found.true,
                "found": found.found,
                "missed": found.missed,
                "delay": "" if math.isnan(found.delay) else round(found.delay, 2),
                "largest_delay": largest_delay(said, truth),
                "false": found.false,
                "false_per_1000": round(1000 * found.false / total, 2),
                "came_back": found.recurring,
                "named": found.recurring_named,
            }
        )
    return rows


def largest_delay(said: list[tuple[int, int, int]], truth: list[int]) -> int | str:
    """Batches from the first one of a segment with another task to its first alarm, at most."""
    late = []
    for segment in range(1, len(truth)):
        inside = [verdict for j, verdict, _ in said if j == segment]
        if truth[segment] != truth[segment - 1] and any(inside):
            late.append(next(i for i, verdict in enumerate(inside) if verdict))
    return max(late, default="")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("benchmarks", nargs="+")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    parser.add_argument("--tasks", type=Path, default=Path("data/tasks"))
    parser.add_argument("--embeddings", type=Path, default=Path("data/embeddings"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", help="one contender instead of all")
    parser.add_argument("--out", default="peers.csv", help="file in docs/detection")
    options = parser.parse_args()
    torch.set_num_threads(1)
    parameters = Resolved(options.params)
    rows = kept(OUT / options.out, options.benchmarks)
    for name in options.benchmarks:
        benchmark = read_benchmark(options.tasks / f"{name}.h5")
        embeddings = {
            s.dataset: read(options.embeddings / f"{s.dataset}.h5") for s in benchmark.sources
        }
        for seed in options.seeds:
            size = parameters.training(name).batch_size
            device = torch.device("cpu")
            stream = Stream(benchmark, embeddings, batch_size=size, seed=seed, device=device)
            found = race(name, stream, seed, options.only)
            for row in found:
                print(*row.values(), sep="\t", flush=True)
            rows += found
            write(OUT / options.out, rows)
    print_totals(rows)


def kept(path: Path, again: list[str]) -> list[dict[str, Any]]:
    """The rows of benchmarks that are not run again."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["stream"] not in again]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """All rows so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def print_totals(rows: list[dict[str, Any]]) -> None:
    """All streams together, a line for each detector."""
    print("detector\tfound\tmissed\tmean delay\tfalse in 1,000 batches")
    for label in dict.fromkeys(row["detector"] for row in rows):
        of = [row for row in rows if row["detector"] == label]
        found, missed, false, batches = (
            sum(int(row[name]) for row in of) for name in ("found", "missed", "false", "batches")
        )
        late = sum(float(row["delay"]) * int(row["found"]) for row in of if int(row["found"]))
        delay, false = late / max(found, 1), 1000 * false / batches
        print(f"{label}\t{found}\t{missed}\t{delay:.1f}\t{false:.2f}")


if __name__ == "__main__":
    main()
