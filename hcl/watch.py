"""The calibrated detector alone over a stream: what it would say, before anything is trained.

It judges by the samples and by nothing that learns (``hcl.detect``), so that what it says here is
what it says inside any learner.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hcl.detect.detector import Detector
from hcl.detect.settings import CalibratedSettings
from hcl.evaluate.metrics import Changes, score_changes
from hcl.files import replacing
from hcl.progress import bar
from hcl.records.embeddings import Embeddings
from hcl.records.runs import SAME
from hcl.records.tasks import Benchmark
from hcl.train.streams import Stream

VERDICTS = ("same", "new", "recurring")


class Judged(NamedTuple):
    """One batch, as the detector saw it."""

    segment: int  # of the stream; 0 where the truth is not known
    task: int  # the detector's, after the verdict
    verdict: int
    mean_shift: float
    common_shift: float
    spread: float
    evidence: float
    could_judge: bool
    waiting: int  # batches that wait after it


@dataclass(frozen=True)
class Watch:
    """A detector's way through one stream."""

    batches: list[Judged]
    limit: float  # of the evidence
    added_in: list[int]  # the segment in which each of its tasks was added
    stream: list[int] | None = None  # the true task of each segment, where it is known

    @property
    def alarms(self) -> list[int]:
        """The batches at which it declared a change."""
        return [i for i, batch in enumerate(self.batches) if batch.verdict != SAME]

    @property
    def judged(self) -> int:
        """Batches that it could judge."""
        return sum(batch.could_judge for batch in self.batches)

    @property
    def most_waiting(self) -> int:
        """The most batches that ever waited for a verdict."""
        return max(batch.waiting for batch in self.batches)

    def first_of(self, segment: int) -> int:
        """The first batch of a segment."""
        return next(i for i, batch in enumerate(self.batches) if batch.segment == segment)

    def length_of(self, segment: int) -> int:
        """Batches of a segment."""
        return sum(batch.segment == segment for batch in self.batches)

    def judged_in(self, segment: int) -> int:
        """Batches of a segment that could be judged."""
        return sum(batch.could_judge for batch in self.batches if batch.segment == segment)

    def true_changes(self) -> list[int]:
        """Segments that begin with a change of task."""
        stream = self.stream or []
        return [j for j in range(1, len(stream)) if stream[j] != stream[j - 1]]

    def delays(self) -> dict[int, int | None]:
        """For each true change, batches from its first one to the alarm; ``None``: missed."""
        found: dict[int, int | None] = {}
        for segment in self.true_changes():
            inside = [i for i in self.alarms if self.batches[i].segment == segment]
            found[segment] = inside[0] - self.first_of(segment) if inside else None
        return found

    def changes(self) -> Changes:
        """The verdicts beside the stream's true changes."""
        segment, verdict, task = (
            np.array([getattr(batch, name) for batch in self.batches])
            for name in ("segment", "verdict", "task")
        )
        return score_changes(segment, verdict, task, self.added_in, self.stream or [0])


def watch_benchmark(
    benchmark: Benchmark,
    embeddings: Mapping[str, Embeddings],
    settings: CalibratedSettings,
    batch_size: int,
    seed: int,
) -> Watch:
    """Show a benchmark's stream to a detector."""
    stream = Stream(
        benchmark, embeddings, batch_size=batch_size, seed=seed, device=torch.device("cpu")
    )
    own = benchmark.shown.labels == "own"
    detector = Detector(settings, benchmark.num_classes, stream.shape, own_classes=own)
    segments = range(len(benchmark.stream))

    def shown() -> Iterator[tuple[int, Tensor, Tensor]]:
        for segment in segments:
            for batch in stream.batches(segment):
                yield segment, batch.x, batch.y

    total = sum(stream.num_batches(segment) for segment in segments)
    truth = [segment.task for segment in benchmark.stream]
    return _watch(detector, shown(), total, f"{benchmark.name} seed {seed}", truth)


def watch_samples(
    batches: Iterable[tuple[Tensor, Tensor]],
    total: int,
    settings: CalibratedSettings,
    num_classes: int,
    shape: tuple[int, ...],
    name: str,
) -> Watch:
    """Show a stream to a detector of which nobody knows when it changes."""
    detector = Detector(settings, num_classes, shape)
    return _watch(detector, ((0, x, y) for x, y in batches), total, name, None)


def _watch(
    detector: Detector,
    shown: Iterable[tuple[int, Tensor, Tensor]],
    total: int,
    name: str,
    truth: list[int] | None,
) -> Watch:
    judged: list[Judged] = []
    added_in: list[int] = []
    with bar(total=total, desc=name, unit="batch", leave=False) as steps:
        for segment, x, y in shown:
            could = detector.can_judge
            said = detector.judge(x, y)
            while len(added_in) < detector.num_tasks:
                added_in.append(segment)
            values = {key: watched.value for key, watched in said.statistics.items()}
            judged.append(
                Judged(
                    segment=segment,
                    task=said.task,
                    verdict=said.verdict,
                    could_judge=could,
                    waiting=said.waiting,
                    **values,
                )
            )
            steps.update()
    return Watch(judged, detector.sequential.limit, added_in, truth)


def write_watches(path: str | Path, watches: Mapping[int, Watch]) -> None:
    """Every batch of every seed: a row each (CSV)."""
    names = [name for name in Judged._fields if name not in ("segment", "task", "verdict")]
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["seed", "batch", "segment", "true_task", "task", "verdict", *names])
        for seed, watch in watches.items():
            for number, batch in enumerate(watch.batches):
                true = "" if watch.stream is None else watch.stream[batch.segment] + 1
                shown = [_shown(getattr(batch, name)) for name in names]
                row = [seed, number, batch.segment + 1, true, batch.task + 1]
                writer.writerow([*row, VERDICTS[batch.verdict], *shown])


def _shown(value: float) -> str:
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{value:.6g}"
    return str(int(value))
