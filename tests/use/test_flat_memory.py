"""Answers for more rows than there is room for, each format in a process with a limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from hcl.records import embeddings
from tests.support.imports import ROOT
from tests.support.projects import environment
from tests.support.trained import train_model

ROWS, FEATURES = 300_000, 64  # 77 MB
ROOM = 56  # MB above what the program has after a first answer
CODE = """
import resource, sys
from pathlib import Path
from hcl.use.inputs import find
from hcl.use.predicting import predict
from hcl.use.tables import opened
from hcl.use.trained import load

model, small, large, out, room = sys.argv[1:]
trained = load(model)
with opened(Path(out), sys.stdout) as write:
    predict(trained, find([small], []), write)
status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
data = 1024 * int(status["VmData"].split()[0])
resource.setrlimit(resource.RLIMIT_DATA, (data + (int(room) << 20),) * 2)
with opened(Path(out), sys.stdout) as write:
    print(predict(trained, find([large], []), write).rows)
"""


def write(path: Path, count: int) -> Path:
    """Rows of numbers, written a part at a time."""
    x = np.random.default_rng(0).normal(size=(count, FEATURES)).astype(np.float32)
    if path.suffix == ".h5":
        said = dict.fromkeys(embeddings.PROVENANCE[1:], "none") | {"transform": "{}"}
        said["classes"] = '["ash"]'
        zero = np.zeros(count, np.int64)
        embeddings.write(path, x, zero, zero.astype(np.uint8), said)
    elif path.suffix == ".npz":
        np.savez(path, x=x)
    else:
        lists = pyarrow.FixedSizeListArray.from_arrays(x.reshape(-1), FEATURES)
        table = pyarrow.table({"x": lists})
        pyarrow.parquet.write_table(table, path, row_group_size=10_000)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "to"), [(".h5", ".csv"), (".npz", ".jsonl"), (".parquet", ".parquet")]
)
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, suffix: str, to: str) -> None:
    train_model(tmp_path / "model", "slda")
    small, large = (write(tmp_path / f"{n}{suffix}", n) for n in (3000, ROWS))
    arguments = [tmp_path / "model", small, large, tmp_path / f"out{to}", ROOM]
    done = subprocess.run(
        [sys.executable, "-c", CODE, *map(str, arguments)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == f"{ROWS}\n"
