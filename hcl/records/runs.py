"""The run file: what one seed of one method answered after each segment of the stream.

Layout (``hcl-run/4``, HDF5, contiguous; J segments of the stream, N test samples in all):

===================  ================  ==========================================================
``predicted_class``  int16 (J, N)      argmax_y Σ_t p(x | y, t) after segment j; the tasks' test
                                       parts stand one after the other, in the order of the tasks
``predicted_task``   int16 (J, N)      task of the likeliest (class, task) pair, in the learner's
                                       own numbering; −1 where the method knows no tasks
``pair_class``       int16 (J, N)      class of that pair
``confidence``       float32 (J, N)    p̂ of the predicted class, of methods that give probabilities
``added_in``         int16 (tasks,)    the segment that was shown when the learner added the task
``loss``             float32 (steps,)  training loss, of methods that have one
``trace``            group             of task-agnostic methods, one row a training batch
``samples``          uint8 (J, T, K,   of methods that can draw, on pixels: n of each class of each
                     n, C, H, W)       of the learner's T tasks after segment j, black where it did
                                       not know the task yet; T is 1 where it knows no tasks
``nearest``          float32 (2, M,    of methods that can draw, on embeddings: how far n draws of
                     K, n)             each class of each task lie from its nearest training
                                       sample, and how far n test samples do; NaN: there is none
===================  ================  ==========================================================

All three answers are −1 after a segment where the method had none yet (``joint``).

In the trace, ``statistics`` is a group: under the name of each statistic float32 (B, 3), its value
for the batch and the bounds, low and high, that the verdict used. A bound is NaN where no verdict
was possible, or where the verdict does not look at this statistic, and infinite where one side is
open. The names stand in the attribute ``names``, the one to show first first. The paper's rule has
``log_px``, ``log_pz`` and ``log_det``, sums over the batch that are scaled to the full batch size
(epochs are cut into batches of nearly equal, not equal size); the calibrated detector has
``mean_shift``, ``common_shift``, ``spread`` and ``evidence``; a new one brings its own.

Its attributes, all of them text, are the fields of ``Run`` that are no arrays, and
``content_sha256`` over everything, so that a changed answer is refused, not scored. ``model`` is
the SHA-256 of the model file that was saved beside the run, empty where there is none.

Nothing here needs torch: the evaluation reads runs on any machine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcl.errors import HCLError
from hcl.files import canonical_json
from hcl.records.hdf5 import Format, Reader, Writer, reading, writing

FORMAT = "hcl-run/4"
RUN = Format("run file", (FORMAT,), "hcl train")

SAME, NEW, RECURRING = 0, 1, 2  # the verdicts, as they stand in a trace


@dataclass(frozen=True)
class Trace:
    """One row a training batch; for scoring and plots, the learner never reads it."""

    segment: NDArray[np.int16]  # (B,) the segment of the stream that is shown
    true_task: NDArray[np.int16]  # (B,)
    learner_task: NDArray[np.int16]  # (B,) the learner's task after the verdict
    verdict: NDArray[np.int8]  # (B,) SAME, NEW or RECURRING
    statistics: dict[str, NDArray[np.float32]]  # by name (B, 3): value, low, high


@dataclass(frozen=True)
class Run:
    """What a run file holds."""

    benchmark: str
    method: str
    seed: int
    settings: dict[str, Any]
    tasks: str  # the digest of what was shown and answered: hcl.records.tasks.Benchmark.digest
    fingerprint: str
    versions: dict[str, str]
    predicted_class: NDArray[np.int16]
    predicted_task: NDArray[np.int16]
    pair_class: NDArray[np.int16]
    added_in: NDArray[np.int16]
    loss: NDArray[np.float32] | None = None
    trace: Trace | None = None
    samples: NDArray[np.uint8] | None = None
    model: str = ""  # SHA-256 of its model file
    confidence: NDArray[np.float32] | None = None
    nearest: NDArray[np.float32] | None = None


# Type and number of dimensions
_ARRAYS = {
    "predicted_class": ("int16", 2),
    "predicted_task": ("int16", 2),
    "pair_class": ("int16", 2),
    "confidence": ("float32", 2),
    "added_in": ("int16", 1),
    "loss": ("float32", 1),
    "samples": ("uint8", 7),
    "nearest": ("float32", 4),
}
_MAY_BE_ABSENT = ("confidence", "loss", "samples", "nearest")
_TRACE = {"segment": "int16", "true_task": "int16", "learner_task": "int16", "verdict": "int8"}
_STATISTICS = "trace/statistics"


def write_run(path: str | Path, run: Run) -> None:
    """Write ``run``, whole or not at all; equal runs give equal bytes."""
    with writing(path) as (file, _):
        writer = Writer(file)
        writer.text("format", FORMAT)
        for name in ("benchmark", "method", "tasks", "fingerprint", "model"):
            writer.text(name, getattr(run, name))
        for name in ("seed", "settings", "versions"):
            writer.text(name, canonical_json(getattr(run, name)))
        for name, (dtype, _) in _ARRAYS.items():
            values = getattr(run, name)
            if values is not None:
                writer.array(name, np.asarray(values, dtype))
        if run.trace is not None:
            for name, dtype in _TRACE.items():
                writer.array(f"trace/{name}", np.asarray(getattr(run.trace, name), dtype))
            _write_statistics(writer, run.trace.statistics)
        writer.finish()


def _write_statistics(writer: Writer, statistics: dict[str, NDArray[np.float32]]) -> None:
    for name in statistics:
        # A name is a column of trace.csv too, beside name_low and name_high.
        if not name.isidentifier() or name.endswith(("_low", "_high")):
            raise ValueError(f"{name!r} can't name a statistic: use letters, digits and _.")
    writer.text("names", json.dumps(list(statistics)), _STATISTICS)
    for name, values in statistics.items():
        writer.array(f"{_STATISTICS}/{name}", np.asarray(values, np.float32))


def read_run(path: str | Path) -> Run:
    """Read and check a run file; what is wrong with it is said in one line."""
    path = Path(path)
    with reading(path, RUN) as file:
        arrays = {
            name: file.array(name, *kind)
            for name, kind in _ARRAYS.items()
            if name not in _MAY_BE_ABSENT or file.has(name)
        }
        run = Run(
            benchmark=file.text("benchmark"),
            method=file.text("method"),
            seed=int(file.json("seed")),
            settings=dict(file.json("settings")),
            tasks=file.text("tasks"),
            fingerprint=file.text("fingerprint"),
            versions=dict(file.json("versions")),
            trace=_read_trace(file) if file.has("trace") else None,
            model=file.text("model"),
            **arrays,
        )
        file.check_digest()
    _check(run, path)
    return run


def _read_trace(file: Reader) -> Trace:
    columns = {name: file.array(f"trace/{name}", dtype, 1) for name, dtype in _TRACE.items()}
    names = file.strings("names", _STATISTICS)
    held = file.names(_STATISTICS)
    if not names or sorted(names) != held:
        raise file.broken(
            f"{_STATISTICS} lists {list(names)} and holds {held}; expected one or more, and the "
            "same"
        )
    statistics = {name: file.array(f"{_STATISTICS}/{name}", "float32", 2) for name in names}
    return Trace(**columns, statistics=statistics)


def _check(run: Run, path: Path) -> None:
    """Shapes that belong together agree, and indices point at something."""
    shape = run.predicted_class.shape
    if run.predicted_task.shape != shape or run.pair_class.shape != shape:
        raise HCLError(
            f"{path}: predicted_class {shape}, predicted_task {run.predicted_task.shape} and "
            f"pair_class {run.pair_class.shape} must be of one shape (J, N)."
        )
    if run.confidence is not None and run.confidence.shape != shape:
        raise HCLError(f"{path}: confidence is {run.confidence.shape}, expected {shape} (J, N).")
    if run.nearest is not None and len(run.nearest) != 2:
        raise HCLError(f"{path}: nearest is {run.nearest.shape}, expected (2, M, K, n).")
    tasks = len(run.added_in)
    if run.predicted_task.size and not -1 <= run.predicted_task.max() < max(tasks, 1):
        raise HCLError(
            f"{path}: predicted_task goes up to {run.predicted_task.max()}, "
            f"but added_in lists {tasks} tasks."
        )
    if run.trace is not None:
        rows = {name: getattr(run.trace, name).shape for name in _TRACE}
        if len(set(rows.values())) != 1:
            raise HCLError(f"{path}: the trace's columns are of different lengths {rows}.")
        for name, values in run.trace.statistics.items():
            expected = (len(run.trace.verdict), 3)
            if values.shape != expected:
                raise HCLError(
                    f"{path}: trace/statistics/{name} is {values.shape}, expected {expected}: "
                    "value, low and high of each batch."
                )
