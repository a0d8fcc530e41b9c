"""Answers as a table, written while they come: CSV, JSON lines or Parquet."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from hcl.errors import HCLError
from hcl.files import replacing

SUFFIXES = (".csv", ".jsonl", ".parquet")


class Row(NamedTuple):
    """One answer; ``None`` where there is nothing to say."""

    input: str  # a path, or a file and a row of it
    class_: str | None
    probability: float | None
    task: int | None  # from 1 on
    novelty: float | None
    error: str | None


COLUMNS = tuple(name.rstrip("_") for name in Row._fields)
Write = Callable[[Sequence[Row]], None]


def known(value: float) -> float | None:
    """A number, or nothing where it is NaN."""
    return None if math.isnan(value) else float(value)


def check_suffix(out: Path) -> None:
    """An error unless the name of a file says how it is to be written."""
    if out.suffix.lower() not in SUFFIXES:
        raise HCLError(f"{out}: how is it to be written? --out ends in {', '.join(SUFFIXES)}.")
    if out.suffix.lower() == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise HCLError(f"{out}: Parquet needs pyarrow: pip install '.[parquet]'.") from None


@contextmanager
def opened(out: Path | None, standard_output: IO[str]) -> Iterator[Write]:
    """What writes rows to ``out``, which appears whole or not at all; or CSV to standard output."""
    if out is None:
        yield _csv(standard_output)
        return
    try:
        with replacing(out) as partial:
            if out.suffix.lower() == ".parquet":
                with _parquet(partial) as write:
                    yield write
                return
            with open(partial, "w", encoding="utf-8", newline="") as file:
                yield _csv(file) if out.suffix.lower() == ".csv" else _json_lines(file)
    except OSError as error:
        raise HCLError(f"{out}: can't be written ({error.strerror}).") from error


def _csv(file: IO[str]) -> Write:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)

    def write(rows: Sequence[Row]) -> None:
        for row in rows:
            short = (f"{value:.6g}" if isinstance(value, float) else value for value in row)
            writer.writerow("" if value is None else value for value in short)

    return write


def _json_lines(file: IO[str]) -> Write:
    def write(rows: Sequence[Row]) -> None:
        for row in rows:
            values = dict(zip(COLUMNS, row, strict=True))
            file.write(json.dumps(values, ensure_ascii=False, allow_nan=False) + "\n")

    return write


@contextmanager
def _parquet(path: Path) -> Iterator[Write]:
    import pyarrow
    from pyarrow import parquet

    kinds = (*["string"] * 2, "double", "int64", "double", "string")
    schema: Any = pyarrow.schema(
        list(zip(COLUMNS, map(pyarrow.type_for_alias, kinds), strict=True))
    )
    held: list[Row] = []
    with parquet.ParquetWriter(path, schema) as writer:

        def flush() -> None:
            columns = [list(column) for column in zip(*held, strict=True)]
            writer.write_table(pyarrow.table(columns, schema=schema))
            held.clear()

        def write(rows: Sequence[Row]) -> None:
            held.extend(rows)
            if len(held) >= 1 << 16:  # a row group: smaller ones would be many
                flush()

        yield write
        if held:
            flush()
