"""The settings beyond domain-incremental: every method with three seeds, test part.

    python benchmarks/beyond.py split-digits-class-incremental
    python benchmarks/beyond.py split-digits-mixed
    python benchmarks/beyond.py split-digits-labelled
    python benchmarks/beyond.py split-cifar10-class-incremental --methods slda hcl-fr --seeds 0

Needs the embeddings of the benchmark's data set (``make repro``, or `hcl fetch` and `hcl extract`),
and writes docs/streams/<benchmark>.csv, a line for each run, as soon as it is done: average and
overall accuracy, ``final``, over all test samples in the end, and, where tasks bring new classes,
average incremental accuracy, in percent; of a learner that is not told its tasks the changes that
it found, those that it should have, and its false alarms. The seed is the run's and, where labels
are missing, also that of the draw of who is labelled. ``--validation`` takes the validation part in
place of the test part, and writes <benchmark>-validation.csv. `docs/streams/page.py` makes tables
of the files.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
from pathlib import Path

import numpy as np

from hcl.evaluate.scoring import score
from hcl.files import replacing
from hcl.records.embeddings import Embeddings, read
from hcl.split import make_benchmark
from hcl.train.loop import Job, train_seed
from hcl.train.machine import one_thread
from hcl.tune.search import TuneSettings, on_validation
from stages.resolve import Resolved

OUT = Path(__file__).parents[1] / "docs" / "streams"
SHARES = (0.01, 0.05, 0.1, 0.25)
METHODS = {
    "class-incremental": (
        *("ncm", "slda", "ranpac", "hcl-plus", "hcl-plus-ta"),
        *("hcl-fr", "hcl-gr", "hcl-fr-auto", "hcl-gr-auto"),
    ),
    "mixed": (
        *("slda", "ranpac", "hcl-plus", "hcl-plus-mixed", "hcl-plus-ta"),
        *("hcl-fr", "hcl-fr-mixed", "hcl-fr-auto", "hcl-gr", "hcl-gr-mixed", "hcl-gr-auto"),
    ),
    "labelled": (
        *("slda", "ranpac", "hcl-plus", "hcl-plus-shared", "hcl-plus-ta"),
        *("hcl-fr-labelled", "hcl-fr", "hcl-fr-auto", "hcl-gr-labelled", "hcl-gr", "hcl-gr-auto"),
    ),
}
CHANGES = ("found", "true", "false")
COLUMNS = (
    *("labelled", "method", "seed", "average", "overall", "final", "incremental"),
    *CHANGES,
)

Row = dict[str, str]


@dataclasses.dataclass(frozen=True)
class Setting:
    """A benchmark of the parameters, on its test part or its validation part."""

    name: str
    parameters: Resolved
    embeddings: dict[str, Embeddings]
    validation: bool

    def run(self, method: str, labelled: float, seed: int) -> Row:
        """One run, scored."""
        stream = self.parameters.stream(self.name)
        if stream.labelled < 1:
            stream = dataclasses.replace(stream, labelled=labelled, seed=seed)
        benchmark = make_benchmark(
            self.name, stream, self.embeddings, f"benchmarks.{self.name}.stream"
        )
        if self.validation:
            benchmark = on_validation(benchmark, TuneSettings())
        settings = self.parameters.run(self.name, method)
        with one_thread():
            finished, _ = train_seed(Job(benchmark, self.embeddings, method, *settings, seed=seed))
        found = score(finished, benchmark)
        y = np.concatenate([task.test.y for task in benchmark.tasks])
        values = {
            "average": found.average_accuracy,
            "overall": found.overall_accuracy,
            "final": float((finished.predicted_class[-1] == y).mean()),
            "incremental": None if found.so_far is None else float(found.so_far.mean()),
        }
        shown = {name: "" if v is None else f"{100 * v:.2f}" for name, v in values.items()}
        changes = {name: str((found.changes or {}).get(name, "")) for name in CHANGES}
        return {
            **{"labelled": f"{labelled:g}", "method": method, "seed": str(seed)},
            **shown,
            **changes,
        }


def key_of(row: Row) -> tuple[float, str, int]:
    """A run's, by which lines are sorted."""
    return float(row["labelled"]), row["method"], int(row["seed"])


def put(path: Path, row: Row) -> None:
    """Write a run's line in place of the one that was there."""
    rows = {}
    if path.exists():
        with path.open(encoding="utf-8") as file:
            rows = {key_of(each): each for each in csv.DictReader(file)}
    rows[key_of(row)] = row
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as partial, open(partial, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[key] for key in sorted(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("benchmark")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    parser.add_argument("--embeddings", type=Path, default=Path("data/embeddings"))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", help="these alone; the others' lines stay")
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="of labels")
    options = parser.parse_args()
    parameters, name = Resolved(options.params), options.benchmark
    stream = parameters.stream(name)
    methods = options.methods or next(v for k, v in METHODS.items() if name.endswith(k))
    embeddings = {d: read(options.embeddings / f"{d}.h5") for d in stream.datasets}
    setting = Setting(name, parameters, embeddings, options.validation)
    path = options.out / f"{name}{'-validation' if options.validation else ''}.csv"
    for labelled in options.shares if stream.labelled < 1 else (1.0,):
        for seed in options.seeds:
            for method in methods:
                row = setting.run(method, labelled, seed)
                put(path, row)
                print(*row.values(), sep="\t", flush=True)


if __name__ == "__main__":
    main()
