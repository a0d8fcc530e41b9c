"""The run file: what one seed of one method answered after each segment of the stream.

Layout (``hcl-run/3``, HDF5, contiguous; J segments of the stream, N test samples in all):

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
===================  ================  ==========================================================

In the trace, ``statistics`` is a group: under the name of each statistic float32 (B, 3), its value
for the batch and the bounds, low and high, that the verdict used. A bound is NaN where no verdict
was possible, or where the verdict does not look at this statistic, and infinite where one side is
open. The names stand in the attribute ``names``, the one to show first first. The paper's rule has
``log_px``, ``log_pz`` and ``log_det``, sums over the batch that are scaled to the full batch size
(epochs are cut into batches of nearly equal, not equal size); HCL+'s test has ``mean_shift`` and
``evidence``; a new detector brings its own.

Nothing here needs torch: the evaluation reads runs on any machine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hcl.errors import HCLError
from hcl.files import canonical_json, replacing

FORMAT = "hcl-run/3"

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
    confidence: NDArray[np.float32] | None = None


_TYPES = {
    "predicted_class": np.int16,
    "predicted_task": np.int16,
    "pair_class": np.int16,
    "confidence": np.float32,
    "added_in": np.int16,
    "loss": np.float32,
    "samples": np.uint8,
}
_TRACE_TYPES = {
    "segment": np.int16,
    "true_task": np.int16,
    "learner_task": np.int16,
    "verdict": np.int8,
}


def write_run(path: str | Path, run: Run) -> None:
    """Write ``run``, whole or not at all; equal runs give equal bytes."""
    with replacing(path) as partial, h5py.File(partial, "w") as file:
        file.attrs["format"] = FORMAT
        file.attrs["benchmark"] = run.benchmark
        file.attrs["method"] = run.method
        file.attrs["seed"] = run.seed
        file.attrs["settings"] = canonical_json(run.settings)
        file.attrs["tasks"] = run.tasks
        file.attrs["fingerprint"] = run.fingerprint
        file.attrs["versions"] = canonical_json(run.versions)
        for name, kind in _TYPES.items():
            values = getattr(run, name)
            if values is not None:
                file.create_dataset(name, data=np.asarray(values, kind))
        if run.trace is not None:
            group = file.create_group("trace")
            for name, dtype in _TRACE_TYPES.items():
                group.create_dataset(name, data=np.asarray(getattr(run.trace, name), dtype))
            _write_statistics(group.create_group("statistics"), run.trace.statistics)


def _write_statistics(group: h5py.Group, statistics: dict[str, NDArray[np.float32]]) -> None:
    for name in statistics:
        # A name is a column of trace.csv too, beside name_low and name_high.
        if not name.isidentifier() or name.endswith(("_low", "_high")):
            raise ValueError(f"{name!r} can't name a statistic: use letters, digits and _.")
    group.attrs["names"] = json.dumps(list(statistics))
    for name, values in statistics.items():
        group.create_dataset(name, data=np.asarray(values, np.float32))


def read_run(path: str | Path) -> Run:
    """Read and check a run file; what is wrong with it is said in one line."""
    path = Path(path)
    if not path.exists():
        raise HCLError(f"{path}: no such run. Make it with `hcl train`.")
    try:
        with h5py.File(path, "r") as file:
            found = file.attrs.get("format")
            if found != FORMAT:
                raise HCLError(
                    f"{path}: not a run file (format {found!r}, expected {FORMAT!r}). Make it "
                    "with `hcl train`."
                )
            arrays = {n: _read(file, n, kind, path) for n, kind in _TYPES.items() if n in file}
            trace = None
            if "trace" in file:
                group = file["trace"]
                parts = {n: _read(group, n, kind, path) for n, kind in _TRACE_TYPES.items()}
                trace = Trace(**parts, statistics=_read_statistics(group["statistics"], path))
            run = Run(
                benchmark=str(file.attrs["benchmark"]),
                method=str(file.attrs["method"]),
                seed=int(file.attrs["seed"]),
                settings=json.loads(file.attrs["settings"]),
                tasks=str(file.attrs["tasks"]),
                fingerprint=str(file.attrs["fingerprint"]),
                versions=json.loads(file.attrs["versions"]),
                trace=trace,
                **arrays,
            )
    except HCLError:
        raise
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise HCLError(f"{path}: damaged run file ({error}). Run `hcl train` again.") from error
    _check(run, path)
    return run


def _read(group: h5py.Group, name: str, kind: Any, path: Path) -> Any:
    values = group[name][...]
    if values.dtype != kind:
        raise HCLError(f"{path}: {name} holds {values.dtype}, expected {np.dtype(kind)}.")
    return values


def _read_statistics(group: h5py.Group, path: Path) -> dict[str, NDArray[np.float32]]:
    names = json.loads(group.attrs["names"])
    if not names or sorted(names) != sorted(group):
        raise HCLError(
            f"{path}: trace/statistics lists {names} and holds {sorted(group)}; expected one or "
            "more, and the same. Run `hcl train` again."
        )
    return {name: _read(group, name, np.float32, path) for name in names}


def _check(run: Run, path: Path) -> None:
    """Shapes that belong together agree, and indices point at something."""
    shape = run.predicted_class.shape
    if len(shape) != 2 or run.predicted_task.shape != shape or run.pair_class.shape != shape:
        raise HCLError(
            f"{path}: predicted_class {shape}, predicted_task {run.predicted_task.shape} and "
            f"pair_class {run.pair_class.shape} must be of one shape (J, N)."
        )
    if run.confidence is not None and run.confidence.shape != shape:
        raise HCLError(f"{path}: confidence is {run.confidence.shape}, expected {shape} (J, N).")
    tasks = len(run.added_in)
    if run.predicted_task.size and not -1 <= run.predicted_task.max() < max(tasks, 1):
        raise HCLError(
            f"{path}: predicted_task goes up to {run.predicted_task.max()}, "
            f"but added_in lists {tasks} tasks."
        )
    if run.trace is not None:
        rows = {name: getattr(run.trace, name).shape for name in _TRACE_TYPES}
        if len(set(rows.values())) != 1 or len(run.trace.verdict.shape) != 1:
            raise HCLError(f"{path}: the trace's columns are of different lengths {rows}.")
        for name, values in run.trace.statistics.items():
            expected = (len(run.trace.verdict), 3)
            if values.shape != expected:
                raise HCLError(
                    f"{path}: trace/statistics/{name} is {values.shape}, expected {expected}: "
                    "value, low and high of each batch."
                )
