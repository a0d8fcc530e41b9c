"""What is to be answered: images by their paths, or embeddings in files, a part at a time.

An input is an image file, a folder (all images in it, however deep), ``-`` (a list of paths on
standard input), or a file of embeddings: our own HDF5, NPZ with an array ``x``, or Parquet with a
column ``x`` of lists, or a column for each feature. None is read whole.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hcl.errors import HCLError
from hcl.records import embeddings

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
HDF5_SUFFIXES = (".h5", ".hdf5")
EMBEDDING_SUFFIXES = (*HDF5_SUFFIXES, ".npz", ".parquet")
STANDARD_INPUT = "-"
BYTES_AT_ONCE = 1 << 23  # of embeddings in memory


class Rows(NamedTuple):
    """Some embeddings of a file, the first of which is row ``start``."""

    start: int
    x: NDArray[Any]


@dataclass(frozen=True)
class Images:
    """Paths of images, one after the other; drawn once."""

    paths: Iterator[str]


@dataclass(frozen=True)
class Table:
    """A file of embeddings.

    Attributes:
        path: of the file.
        count: rows.
        size: features, D.
        attributes: what made them, where the file says it.
        read: goes once through them.
    """

    path: Path
    count: int
    size: int
    attributes: dict[str, str] | None
    read: Callable[[], Iterator[Rows]]


def find(inputs: Sequence[str], standard_input: Iterable[str]) -> list[Images | Table]:
    """The inputs in their order; images that follow each other are one. What is not there is said.

    Args:
        inputs: as they stand on the command line.
        standard_input: the lines that ``-`` stands for.
    """
    if list(inputs).count(STANDARD_INPUT) > 1:
        raise HCLError("-: standard input can be read once; name it once.")
    found = [_find(each, standard_input) for each in inputs]
    grouped: list[Images | Table] = []
    for kind, some in groupby(found, type):
        if kind is Images:
            paths = [each.paths for each in some if isinstance(each, Images)]
            grouped.append(Images(chain.from_iterable(paths)))
        else:
            grouped.extend(some)
    return grouped


def _find(name: str, standard_input: Iterable[str]) -> Images | Table:
    if name == STANDARD_INPUT:
        lines = (line.rstrip("\r\n") for line in standard_input)
        return Images(_some((line for line in lines if line), "-: no path on standard input."))
    path = Path(name)
    if path.is_dir():
        listed = ", ".join(IMAGE_SUFFIXES)
        return Images(_some(_walk(name), f"{name}: no image in this folder ({listed})."))
    if not path.exists():
        raise HCLError(f"{name}: no such file or folder.")
    if path.suffix.lower() in EMBEDDING_SUFFIXES:
        return read_table(path)
    if path.suffix.lower() not in IMAGE_SUFFIXES:
        known = ", ".join((*IMAGE_SUFFIXES, *EMBEDDING_SUFFIXES))
        raise HCLError(f"{name}: neither an image nor embeddings by its name; known are {known}.")
    return Images(iter([name]))


def _some(paths: Iterator[str], otherwise: str) -> Iterator[str]:
    """The paths; none at all is an error, at once."""
    first = next(paths, None)
    if first is None:
        raise HCLError(otherwise)
    return chain([first], paths)


def _walk(folder: str) -> Iterator[str]:
    """All images of a folder and those within it, by their names; hidden ones are passed over."""

    def refuse(error: OSError) -> None:
        raise HCLError(f"{error.filename}: can't be read ({error.strerror}).")

    for place, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith("."):
                yield os.path.join(place, name)  # noqa: PTH118 (pathlib keeps names it has seen)


# Embeddings


def read_table(path: Path) -> Table:
    """A file of embeddings, by its suffix."""
    suffix = path.suffix.lower()
    if suffix in HDF5_SUFFIXES:
        return _hdf5(path)
    return _npz(path) if suffix == ".npz" else _parquet(path)


def _step(size: int) -> int:
    return max(1, BYTES_AT_ONCE // (4 * max(size, 1)))


def _hdf5(path: Path) -> Table:
    found = embeddings.read(path)
    count, size = found.x.shape

    def read() -> Iterator[Rows]:
        for start in range(0, count, _step(size)):
            yield Rows(start, np.array(found.x[start : start + _step(size)]))

    return Table(path, count, size, found.attributes, read)


def _npz(path: Path) -> Table:
    """``x`` of an NPZ, row by row out of the archive, packed or not."""
    with _naming(path), zipfile.ZipFile(path) as archive, archive.open("x.npy") as file:
        shape, by_columns, dtype = _npy_header(file)
    if len(shape) != 2 or 0 in shape or dtype.kind not in "fiu" or by_columns:
        order = ", by columns" if by_columns else ""
        raise HCLError(f"{path}: x is {dtype} {shape}{order}; expected numbers (n, D), by rows.")
    count, size = shape

    def read() -> Iterator[Rows]:
        with _naming(path), zipfile.ZipFile(path) as archive, archive.open("x.npy") as file:
            _npy_header(file)
            for start in range(0, count, _step(size)):
                rows = min(_step(size), count - start)
                data = file.read(rows * size * dtype.itemsize)
                yield Rows(start, np.frombuffer(data, dtype).reshape(rows, size))

    return Table(path, count, size, None, read)


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


def _parquet(path: Path) -> Table:
    """A column ``x`` of lists, or every column a feature, in their order."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise HCLError(f"{path}: Parquet needs pyarrow: pip install '.[parquet]'.") from None
    with _naming(path), parquet.ParquetFile(path) as file:
        schema, count = file.schema_arrow, file.metadata.num_rows
        listed = schema.get_field_index("x") >= 0
        columns = ["x"] if listed else schema.names
        numbers = (pyarrow.types.is_floating, pyarrow.types.is_integer)
        for name in columns:
            kind = schema.field(name).type
            if listed and pyarrow.types.is_nested(kind):
                kind = kind.value_type
            if not any(is_number(kind) for is_number in numbers):
                raise HCLError(
                    f"{path}: the column {name!r} is {schema.field(name).type}; expected a column "
                    "x of lists of numbers, or nothing but columns of numbers."
                )
        if not count:
            raise HCLError(f"{path}: it has no rows.")

    def read() -> Iterator[Rows]:
        start = 0
        with _naming(path), parquet.ParquetFile(path, buffer_size=1 << 20) as file:
            for batch in file.iter_batches(1024, columns=columns, use_threads=False):
                if listed:
                    x = _of_lists(batch.column("x"), path, start)
                else:
                    x = np.stack([column.to_numpy(False) for column in batch.columns], axis=1)
                yield Rows(start, x)
                start += len(x)

    size = next(read()).x.shape[1]
    return Table(path, count, size, None, read)


def _of_lists(column: Any, path: Path, start: int) -> NDArray[Any]:
    lengths = set(column.value_lengths().to_pylist()) if hasattr(column, "value_lengths") else {0}
    if column.null_count or len(lengths) != 1:
        raise HCLError(f"{path}: x has lists of different lengths, or none, from row {start} on.")
    values: NDArray[Any] = column.flatten().to_numpy(zero_copy_only=False)
    return values.reshape(len(column), -1)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in whatever a format's library raises over broken bytes."""
    try:
        yield
    except (HCLError, MemoryError):
        raise
    except Exception as error:
        what = "there is no array x in it" if isinstance(error, KeyError) else str(error)
        reason = " ".join(what.split())[:160] or type(error).__name__
        raise HCLError(f"{path}: can't be read ({reason}).") from error
