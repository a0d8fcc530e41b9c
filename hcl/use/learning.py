"""``learn``: go on from a model file with new labelled data, in the order of a stream.

The samples of one data set are shown in an order that is drawn from the run's seed and the number
of samples seen so far: two data sets in one go, or one today and one tomorrow, are the same stream.
Classes of different tasks are not shuffled into each other: where each name is of one task, tasks
follow one another, as in the stream that the learner knows.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hcl.errors import HCLError
from hcl.progress import bar
from hcl.records import embeddings
from hcl.train.saving import Change, Input
from hcl.use.inputs import HDF5_SUFFIXES, IMAGE_SUFFIXES
from hcl.use.predicting import check_same
from hcl.use.trained import Trained

ORDER = 5  # keeps the generator of the order apart from others of the same seed
AT_ONCE = 1024  # embeddings that are handed on together


class Data(Protocol):
    """Labelled samples."""

    names: list[str]  # of each sample's class

    def samples(self, order: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """The samples in ``order``, some at a time."""


def learn(
    trained: Trained,
    data: Sequence[Data],
    *,
    task: int | None = None,
    places: Mapping[str, str] | None = None,
    epochs: int = 1,
    in_order: bool = False,
) -> list[Change]:
    """Learn data sets one after the other; the changes of task that were noticed.

    Args:
        trained: what goes on learning.
        data: each is shown for itself.
        task: its number, for a learner that is told; see ``Trained.learn``.
        places: for a class of a new name, the known class whose place it takes.
        epochs: passes over each data set.
        in_order: take samples as they lie there, a recorded stream, in place of a drawn order.
    """
    about = trained.about
    if epochs > 1 and about.method.sees_once:
        raise HCLError(f"{about.name} sees each sample once: leave --epochs out.")
    changes = []
    total = epochs * sum(len(each.names) for each in data)
    with bar(total=total, desc="learn", unit="sample") as progress:
        for each in data:
            for _ in range(epochs):
                for x, names in _shown(trained, each, in_order):
                    changes += trained.learn(x, names, task, places)
                    progress.update(len(names))
    return changes


def _shown(
    trained: Trained, data: Data, in_order: bool
) -> Iterator[tuple[NDArray[Any], list[str]]]:
    """One pass over a data set."""
    order = np.arange(len(data.names))
    if not in_order:
        seen = trained.about.samples + trained.waiting
        order = np.random.default_rng([trained.about.seed, ORDER, seen]).permutation(order)
        homes = {name: trained.home_of(name) or 0 for name in set(data.names)}
        of_task = np.array([homes[data.names[i]] for i in order])
        order = order[np.argsort(of_task, kind="stable")]
    start = 0
    for x in data.samples(order):
        yield x, [data.names[i] for i in order[start : start + len(x)]]
        start += len(x)


def read_data(trained: Trained, path: Path, again: bool = False) -> Data:
    """A folder of class folders, or embeddings (HDF5 or NPZ) with labels.

    Args:
        trained: what will learn from them.
        path: of the folder or file.
        again: whether they will be passed over more than once, so that images are worth keeping.
    """
    if path.is_dir():
        return _Folder(trained, path, again)
    if not path.exists():
        raise HCLError(f"{path}: no such file or folder.")
    if path.suffix.lower() in HDF5_SUFFIXES:
        return _hdf5(trained, path)
    if path.suffix.lower() == ".npz":
        return _npz(trained, path)
    raise HCLError(f"{path}: labelled data are a folder of class folders, or .h5, .hdf5 or .npz.")


def tasks_in(trained: Trained, data: Data) -> list[int]:
    """The known tasks, from 1, that a data set has classes of, as far as names tell."""
    homes = {trained.home_of(name) for name in set(data.names)}
    return sorted(home for home in homes if home is not None)


def check(trained: Trained, data: Iterable[Data], places: Mapping[str, str]) -> None:
    """An error for a class that is not known, before anything is learned."""
    for each in data:
        for name in sorted(set(each.names)):
            trained.check_name(name, places)


class _Array:
    """Embeddings of a file, perhaps mapped from disk; ``rows`` of it have the classes ``names``."""

    def __init__(
        self, path: Path, x: NDArray[Any], rows: NDArray[np.int64], names: list[str]
    ) -> None:
        self.path, self.x, self.rows, self.names = path, x, rows, names
        if not len(rows):
            raise HCLError(f"{path}: no sample is in its train part.")

    def samples(self, order: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        for start in range(0, len(order), AT_ONCE):
            rows = self.rows[order[start : start + AT_ONCE]]
            x = np.array(self.x[rows])
            finite = np.isfinite(x).all(axis=1)
            if not finite.all():
                row = int(rows[~finite].min())
                raise HCLError(f"{self.path}: row {row} has values that are not finite.")
            yield x


def _hdf5(trained: Trained, path: Path) -> _Array:
    """The training part of an embedding file: its test part is not to be learned."""
    found = embeddings.read(path)
    check_same(trained.about.input, Input.of(found.attributes), path)
    if not found.classes:
        raise HCLError(
            f"{path}: its images have no labels, and learning needs them. Sort them into class "
            "folders (source: folder), and extract them again."
        )
    rows = np.flatnonzero(found.split == embeddings.TRAIN)
    return _Array(path, found.x, rows, [found.classes[label] for label in found.y[rows]])


def _npz(trained: Trained, path: Path) -> _Array:
    """Arrays ``x`` (n, D) and ``y`` (n,), names or numbers; of numbers, ``classes`` are the names.

    Where there is a ``split``, 0 or "train" is learned.
    """
    if not zipfile.is_zipfile(path):  # NumPy would take it for a pickle
        raise HCLError(f"{path}: can't be read (it is not a zip file, as NPZ is).")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {n: archive[n] for n in ("x", "y", "classes", "split") if n in archive.files}
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise HCLError(f"{path}: can't be read ({error}).") from error
    except Exception as error:  # a broken archive raises what its libraries do
        raise HCLError(f"{path}: can't be read ({type(error).__name__}: {error}).") from error
    if not {"x", "y"} <= arrays.keys():
        raise HCLError(f"{path}: holds {', '.join(arrays) or 'nothing'}; expected x and y.")
    x, y = arrays["x"], arrays["y"]
    if x.ndim != 2 or y.shape != x.shape[:1] or not len(x) or y.dtype.kind not in "iuU":
        raise HCLError(
            f"{path}: x is {x.dtype} {x.shape} and y {y.dtype} {y.shape}; expected (n, D) and "
            "(n,), of names or whole numbers."
        )
    size = int(np.prod(trained.about.shape))
    if x.dtype.kind not in "fiu" or x.shape[1] != size:
        raise HCLError(
            f"{path}: x is {x.dtype} {x.shape}, but the model was trained on {size} numbers a row "
            f"({trained.about.input.backbone})."
        )
    rows = np.arange(len(y))
    if "split" in arrays:
        if arrays["split"].shape != y.shape:
            raise HCLError(f"{path}: split is {arrays['split'].shape}; expected {y.shape}, as y.")
        rows = np.flatnonzero(np.isin(arrays["split"].astype(str), ("0", "train")))
    if "classes" in arrays and y.dtype.kind != "U":
        classes = arrays["classes"].astype(str)
        if y.min() < 0 or y.max() >= len(classes):
            raise HCLError(f"{path}: y is {y.min()}…{y.max()}, but there are {len(classes)} names.")
        y = classes[y]
    return _Array(path, x, rows, [str(name) for name in y[rows]])


class _Folder:
    """A folder of class folders of images, embedded while they are shown."""

    def __init__(self, trained: Trained, folder: Path, again: bool) -> None:
        self.reader = trained.images
        self.reader.check()
        self.paths: list[Path] = []
        self.names: list[str] = []
        for place in sorted(folder.iterdir()):
            if place.is_dir() and not place.name.startswith("."):
                self._add(place)
        if not self.paths:
            raise HCLError(f"{folder}: no image in it; expected <class>/*.png and the like.")
        self.kept: list[Any] | None = [None] * len(self.paths) if again else None

    def _add(self, place: Path) -> None:
        for path in sorted(place.iterdir()):
            if path.name.startswith("."):
                continue
            if not path.name.lower().endswith(IMAGE_SUFFIXES):
                known = ", ".join(IMAGE_SUFFIXES)
                raise HCLError(f"{path}: not an image by its name ({known}); take it out.")
            self.paths.append(path)
            self.names.append(place.name)

    def samples(self, order: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        if self.kept is not None and self.kept[0] is not None:
            for start in range(0, len(order), AT_ONCE):
                yield np.stack([self.kept[i] for i in order[start : start + AT_ONCE]])
            return
        start = 0
        for x, errors in self.reader.see(self.paths[i] for i in order):
            for i, error in enumerate(errors):
                if error:
                    path = self.paths[order[start + i]]
                    raise HCLError(f"{path}: not a readable image ({error}). Take it out.")
            if self.kept is not None:
                for i, row in enumerate(x):
                    self.kept[order[start + i]] = row
            start += len(x)
            yield x
