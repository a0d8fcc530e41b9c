"""Reading what the evaluation wrote: one ``Result`` for each method on each benchmark."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcl.errors import HCLError

LABELS = {
    "adam": "Adam",
    "mtl": "MTL",
    "er": "ER",
    "curl": "CURL",
    "hcl-gr": "HCL-GR",
    "hcl-fr": "HCL-FR",
    "hcl-fr-measured": "HCL-FR, measured draws",
    "hcl-fr-trimmed": "HCL-FR, trimmed",
    "hcl-plus": "HCL+",
    "ncm": "NCM",
    "slda": "SLDA",
    "ranpac": "RanPAC",
}

Column = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Result:
    """One method on one benchmark; numbers in percent, tasks counted from 0."""

    benchmark: str
    method: str
    summary: dict[str, Any]  # the metrics file
    about: dict[str, Any]
    accuracy: NDArray[np.float64]  # (seeds, M, J)
    by_seed: list[dict[str, str]]  # metrics.csv
    trace: Column | None  # trace.csv, by column
    latent: list[dict[str, str]] | None  # latent.csv

    @property
    def label(self) -> str:
        """The method's name as the paper writes it."""
        return method_label(self.method)

    @property
    def task_agnostic(self) -> bool:
        return bool(self.about["task_agnostic"])

    @property
    def stream(self) -> tuple[int, ...]:
        """The task of each segment."""
        return tuple(segment["task"] - 1 for segment in self.about["stream"])

    @property
    def epochs(self) -> int | None:
        """A segment's epochs, where all of them have the same."""
        epochs = {segment["epochs"] for segment in self.about["stream"]}
        return epochs.pop() if len(epochs) == 1 else None

    def metric(self, name: str) -> tuple[float | None, float | None]:
        """Mean and standard deviation over seeds."""
        value = self.summary[name]
        return value["mean"], value["std"]


def method_label(method: str) -> str:
    """``hcl-fr-ta`` is "HCL-FR (TA)", as in the paper's tables."""
    base = method.removesuffix("-ta")
    return LABELS.get(base, base) + (" (TA)" if base != method else "")


def read_result(metrics: Path, scores: Path, benchmark: str, method: str) -> Result:
    """Read one method's files; what is missing is named, with the command that makes it."""
    make = f"make it with `dvc repro evaluate@{benchmark}-{method}`"
    folder = scores / benchmark / method
    summary = _read_json(metrics / benchmark / f"{method}.json", make)
    about = _read_json(folder / "about.json", make)
    rows = _read_csv(folder / "accuracy.csv", make)
    seeds = list(dict.fromkeys(row["seed"] for row in rows))
    shape = (len(seeds), len(about["tasks"]), len(about["stream"]))
    accuracy = np.full(shape, np.nan)
    for row in rows:
        place = (seeds.index(row["seed"]), int(row["task"]) - 1, int(row["segment"]) - 1)
        accuracy[place] = float(row["accuracy"])
    if np.isnan(accuracy).any():
        raise HCLError(f"{folder / 'accuracy.csv'}: not every accuracy is there; {make}.")
    return Result(
        benchmark=benchmark,
        method=method,
        summary=summary,
        about=about,
        accuracy=accuracy,
        by_seed=_read_csv(folder / "metrics.csv", make),
        trace=_columns(_read_csv(folder / "trace.csv", make)) if about["task_agnostic"] else None,
        latent=_read_csv(folder / "latent.csv", make) if (folder / "latent.csv").exists() else None,
    )


def _read_json(path: Path, make: str) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HCLError(f"{path}: no such result; {make}.") from None
    except ValueError as error:
        raise HCLError(f"{path}: not valid JSON ({error}); {make}.") from None
    return value


def _read_csv(path: Path, make: str) -> list[dict[str, str]]:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        raise HCLError(f"{path}: no such result; {make}.") from None


def _columns(rows: list[dict[str, str]]) -> Column:
    names = list(rows[0]) if rows else []
    return {n: np.array([float(row[n]) if row[n] else np.nan for row in rows]) for n in names}
