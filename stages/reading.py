"""What the stages after ``split`` read alike: the seeds, and the tasks of a benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hcl.errors import HCLError
from hcl.settings import build, section

if TYPE_CHECKING:
    from hcl.records.tasks import Benchmark


def read_seeds(values: Mapping[str, Any], params: Path) -> tuple[int, ...]:
    """The section ``seeds``: one run each."""
    seeds = build(tuple[int, ...], section(values, "seeds", params), params, "seeds")
    if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0:
        raise HCLError(
            f"{params}: seeds is {list(seeds)}; expected one or more, each once, from 0 on."
        )
    return seeds


def read_tasks(tasks: Path, benchmark: str) -> Benchmark:
    """The tasks file, which must be the benchmark's."""
    from hcl.records.tasks import read_benchmark

    stream = read_benchmark(tasks)
    if stream.name != benchmark:
        raise HCLError(
            f"{tasks}: holds the tasks of {stream.name}, expected {benchmark}; name another file "
            "with --tasks, or the other benchmark."
        )
    return stream
