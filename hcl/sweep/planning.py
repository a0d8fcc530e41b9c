"""What a sweep trains, in which order, and how long that will take.

The longest run goes first: one that is begun last would be waited for while the other cores idle.
What a run costs is estimated from its settings, and corrected by how long runs took before.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hcl.errors import HCLError
from hcl.files import write_json
from hcl.records.embeddings import read
from hcl.train.loop import CLOSED_FORM_BATCH, Job, versions
from hcl.train.streams import batch_bounds

# In units of one weight that one sample passes, forward and back: what Adam costs for each weight,
# half of what a batch of 32 does (16 and 33 ms were measured for the paper's flow), and what Python
# costs for each step.
ADAM = 16
STEP = 2e7
# How often a sample that stands for an old task passes the flow in a step. What is drawn, passes
# the snapshot once more, without a gradient.
PASSES = {"none": 0.0, "all": 1.0, "buffer": 1.0, "generative": 4 / 3, "functional": 4 / 3}


@dataclass(frozen=True)
class Order:
    """A run to train.

    Attributes:
        job: the run.
        files: where a process that does not share this one's memory finds the job's embeddings.
        checked: the small file that remembers which of them were found whole.
        fingerprint: the run's key in the store.
    """

    job: Job
    files: Mapping[str, Path] = field(default_factory=dict)
    checked: Path | None = None
    fingerprint: str = ""

    @classmethod
    def of(cls, job: Job, files: Mapping[str, Path], checked: Path | None = None) -> Order:
        """The order for a job; its paths are made absolute, to be found from other folders."""
        absolute = {dataset: path.absolute() for dataset, path in files.items()}
        checked = checked and checked.absolute()
        return cls(job, absolute, checked, job.fingerprint())

    def __str__(self) -> str:
        return f"{self.job.benchmark.name} {self.job.name} seed {self.job.seed}"

    @property
    def key(self) -> str:
        """What runs of about the same length have in common."""
        return f"{self.job.benchmark.name}/{self.job.name}"

    def sealed(self) -> Order:
        """The order without the embeddings, which would be copied on their way to a process."""
        return replace(self, job=replace(self.job, embeddings={}))

    def opened(self) -> Job:
        """The job with its embeddings, which are read from the files if they are not there.

        Raises ``HCLError`` where what is installed here would give the run another key: its bytes
        are not promised to be those of the machine that gave the order.
        """
        job = self.job
        if not job.embeddings:
            found = {dataset: read(path, self.checked) for dataset, path in self.files.items()}
            job = replace(job, embeddings=found)
        if self.fingerprint != job.fingerprint():
            here = ", ".join(f"{name} {version}" for name, version in versions().items())
            raise HCLError(
                f"the worker has other versions than the machine that started the sweep, or "
                f"another device ({here}, {job.device.type}). Install the same there."
            )
        return job


def cost(job: Job) -> float:
    """What a run costs, in weights times samples: only the ratio of two of them means anything.

    Steps, times the weights, times the samples that pass them in a step: the batch and, by the
    method's memory, as many for each old task. Closed forms and HCL+ add up squares of their
    features once and solve them after each segment.
    """
    size: int = next(iter(job.embeddings.values())).x.shape[1]
    batch = CLOSED_FORM_BATCH if job.method.closed_form else job.training.batch_size
    settings: Any = job.method
    total, seen = 0.0, set[int]()
    for segment in job.benchmark.stream:
        samples = len(job.benchmark.tasks[segment.task].train.rows)
        epochs = 1 if settings.sees_once else segment.epochs
        steps = epochs * (len(batch_bounds(samples, batch)) - 1)
        if settings.kind in ("flow", "curl"):
            passes = PASSES[settings.memory.kind] if settings.kind == "flow" else 4 / 3
            shown = batch * (1 + passes * len(seen - {segment.task}))
            total += steps * (_weights(job, size) * (ADAM + shown) + STEP)
        else:
            width = max(size, getattr(settings, "projections", 0))
            total += epochs * samples * width**2 / 6 + width**3 / 3 + steps * STEP
        seen.add(segment.task)
    return total


def _weights(job: Job, size: int) -> float:
    """About as many as the network has, each as often as it is used for one sample."""
    settings: Any = job.method
    if settings.kind == "curl":
        widths = [size, *settings.encoder, 2 * settings.latents]
        widths += [settings.latents, *settings.decoder, size]
        return float(sum(a * b for a, b in itertools.pairwise(widths)))
    flow = job.flow
    if flow.kind == "realnvp":
        inner = (flow.hidden_layers - 1) * flow.hidden**2
        return flow.couplings * (1.5 * size * flow.hidden + inner)
    places = size / 3 / 4  # a coupling on images sees a half of the places, fewer at later scales
    dense = flow.dense * 1.5 * size * flow.dense_hidden
    return flow.couplings * flow.hidden_layers * flow.hidden**2 * 9 * places + dense


class Paces:
    """Seconds for each unit of cost: of runs before, kept in a small file, and of this sweep.

    The file is a convenience: without it the order and the time left are guessed less well.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._known: dict[str, float] = {}
        try:
            found = json.loads(path.read_text(encoding="utf-8")) if path else {}
        except (OSError, ValueError):
            found = {}
        for key, value in found.items() if isinstance(found, dict) else ():
            if isinstance(value, float) and 0 < value < math.inf:
                self._known[key] = value

    def seconds(self, key: str, cost: float) -> float | None:
        """How long a run will take; ``None`` where no run was ever timed."""
        if not self._known:
            return None
        usual = sorted(self._known.values())[len(self._known) // 2]
        return cost * self._known.get(key, usual)

    def note(self, key: str, cost: float, seconds: float) -> None:
        """A run that cost so much took so long, or is about to."""
        if cost > 0 and seconds > 0:
            self._known[key] = seconds / cost

    def keep(self) -> None:
        """Write what is known, for the next sweep."""
        if self._path is not None:
            write_json(self._path, dict(sorted(self._known.items())))


def longest_first(orders: Iterable[Order], paces: Paces) -> list[tuple[Order, float]]:
    """The orders with their costs, in the order in which they are trained."""
    costs = [(order, cost(order.job)) for order in orders]

    def length(one: tuple[Order, float]) -> float:
        known = paces.seconds(one[0].key, one[1])
        return one[1] if known is None else known

    return sorted(costs, key=length, reverse=True)


def time_left(running: Sequence[float], waiting: Iterable[float], slots: int) -> float:
    """Seconds until the last run ends, if each goes to the first worker that is free."""
    free = [*running, *([0.0] * (slots - len(running)))]
    heapq.heapify(free)
    for seconds in waiting:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)
