"""The settings beyond domain-incremental, on digits: every method with three seeds, test part.

    python benchmarks/beyond.py class-incremental
    python benchmarks/beyond.py mixed
    python benchmarks/beyond.py labelled

Needs ``data/embeddings/digits.h5`` (``make repro``), and writes docs/streams/<setting>.csv, a line
for each run: average and overall accuracy and, where tasks bring new classes, average incremental
accuracy, in percent. ``final`` is the accuracy over all test samples in the end. The seed is the
run's and, where labels are missing, also that of the draw of who is labelled. Tables of means and
standard deviations are printed.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hcl.evaluate.scoring import score
from hcl.records.embeddings import Embeddings, read
from hcl.split import make_benchmark
from hcl.train.loop import Job, train_seed
from hcl.train.machine import one_thread
from stages.resolve import Resolved

OUT = Path(__file__).parents[1] / "docs" / "streams"
SHARES = (0.01, 0.05, 0.1, 0.25)
CLOSED = ("slda", "ranpac")
METHODS = {
    "class-incremental": (
        "hcl-fr",
        "hcl-gr",
        "hcl-fr-auto",
        "hcl-gr-auto",
        "hcl-plus",
        "hcl-plus-ta",
    ),
    "mixed": ("hcl-fr", "hcl-fr-mixed", "hcl-gr", "hcl-gr-mixed", "hcl-plus", "hcl-plus-mixed"),
    "labelled": (
        "hcl-fr-labelled",
        "hcl-fr",
        "hcl-gr-labelled",
        "hcl-gr",
        "hcl-plus",
        "hcl-plus-shared",
    ),
}
COLUMNS = ("labelled", "method", "seed", "average", "overall", "final", "incremental")

Row = dict[str, str]


def run(
    parameters: Resolved,
    embeddings: dict[str, Embeddings],
    setting: str,
    method: str,
    labelled: float,
    seed: int,
) -> Row:
    """One run, scored."""
    name = f"split-digits-{setting}"
    stream = parameters.stream(name)
    if setting == "labelled":
        stream = dataclasses.replace(stream, labelled=labelled, seed=seed)
    benchmark = make_benchmark(name, stream, embeddings, f"benchmarks.{name}.stream")
    settings = parameters.run(name, method)
    job = Job(benchmark, embeddings, method, *settings, seed=seed)
    with one_thread():
        finished, _ = train_seed(job)
    found = score(finished, benchmark)
    y = np.concatenate([task.test.y for task in benchmark.tasks])
    values = {
        "average": found.average_accuracy,
        "overall": found.overall_accuracy,
        "final": float((finished.predicted_class[-1] == y).mean()),
        "incremental": None if found.so_far is None else float(found.so_far.mean()),
    }
    shown = {name: "" if v is None else f"{100 * v:.2f}" for name, v in values.items()}
    return {"labelled": f"{labelled:g}", "method": method, "seed": str(seed), **shown}


def print_table(rows: Sequence[Row]) -> None:
    """Mean and standard deviation over seeds."""
    for key in dict.fromkeys((row["labelled"], row["method"]) for row in rows):
        of = [row for row in rows if (row["labelled"], row["method"]) == key]
        cells = []
        for name in COLUMNS[3:]:
            values = [float(row[name]) for row in of if row[name]]
            cells.append(f"{np.mean(values):6.2f} ± {np.std(values):.2f}" if values else "")
        print(*key, *cells, sep="\t")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("setting", choices=list(METHODS))
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    parser.add_argument("--embeddings", type=Path, default=Path("data/embeddings"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", help="these alone; the others' lines stay")
    options = parser.parse_args()
    methods = options.methods or (*CLOSED, *METHODS[options.setting])
    shares = SHARES if options.setting == "labelled" else (1.0,)
    parameters = Resolved(options.params)
    embeddings = {"digits": read(options.embeddings / "digits.h5")}
    path = OUT / f"{options.setting}.csv"
    rows: list[Row] = []
    if path.exists():
        with path.open(encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["method"] not in methods]
    OUT.mkdir(exist_ok=True)
    for labelled in shares:
        for method in methods:
            for seed in options.seeds:
                rows.append(run(parameters, embeddings, options.setting, method, labelled, seed))
                print(*rows[-1].values(), sep="\t", flush=True)
            rows.sort(key=lambda row: (float(row["labelled"]), row["method"], int(row["seed"])))
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
    print_table(rows)


if __name__ == "__main__":
    main()
