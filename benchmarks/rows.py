"""``hcl predict`` on files of more and more embeddings: memory must not grow with them.

    python benchmarks/rows.py --model results/runs/split-digits/hcl-plus-ta/seed-0.safetensors \
        --embeddings data/embeddings/digits.h5 --rows 1000 100000 1000000

Writes each file with rows of ``--embeddings``, repeated with a little noise, as an NPZ with an
array ``x`` in half precision (2.6 GB for a million rows of 1,280 features), or as Parquet with a
column ``x`` of lists; runs ``hcl predict`` on it, in a process of its own; and prints rows a
second, loading included, and the largest memory of that process. The files are removed again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hcl.records.embeddings import read

AT_ONCE = 10_000
DOOR = "from stages.cli import main; main()"


def parts(source: NDArray[np.float32], rows: int) -> Iterator[NDArray[np.float16]]:
    """So many rows, some at a time."""
    random = np.random.default_rng(0)
    for start in range(0, rows, AT_ONCE):
        count = min(AT_ONCE, rows - start)
        drawn = source[random.integers(0, len(source), count)]
        noise = random.random(drawn.shape[0], np.float32)[:, None]
        yield (drawn * (0.95 + 0.1 * noise)).astype(np.float16)


def write_npz(path: Path, source: NDArray[np.float32], rows: int) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("x.npy", "w", force_zip64=True) as file:
            shape = (rows, source.shape[1])
            header = {"descr": "<f2", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)  # type: ignore[arg-type]
            for part in parts(source, rows):
                file.write(part.tobytes())


def write_parquet(path: Path, source: NDArray[np.float32], rows: int) -> None:
    import pyarrow
    from pyarrow import parquet

    kind = pyarrow.list_(pyarrow.float32(), source.shape[1])
    with parquet.ParquetWriter(path, pyarrow.schema([("x", kind)])) as writer:
        for part in parts(source, rows):
            values = pyarrow.array(part.astype(np.float32).ravel())
            column = pyarrow.FixedSizeListArray.from_arrays(values, source.shape[1])
            writer.write_table(pyarrow.table({"x": column}))


def measured(model: Path, file: Path) -> tuple[float, float]:
    """Seconds, and the largest memory in MB, of ``hcl predict``."""
    options = ["predict", "--model", str(model), str(file), "--out", f"{file}.csv"]
    start = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-c", DOOR, *options], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"hcl predict ended with {os.waitstatus_to_exitcode(status)}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--embeddings", type=Path, required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 100_000, 1_000_000])
    parser.add_argument("--format", choices=["npz", "parquet"], default="npz")
    options = parser.parse_args()
    source = np.array(read(options.embeddings).x, np.float32)
    write = write_npz if options.format == "npz" else write_parquet
    print("     rows   seconds    rows/s   largest memory, MB", flush=True)
    for rows in options.rows:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"rows.{options.format}"
            write(file, source, rows)
            seconds, memory = measured(options.model, file)
        print(f"{rows:9,}{seconds:10.1f}{rows / seconds:10,.0f}{memory:21.0f}", flush=True)


if __name__ == "__main__":
    main()
