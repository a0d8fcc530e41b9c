"""Readers: from the files of official sets and of embeddings to ``Content``, checked on the way.

A reader looks at the outline at once (files, sizes, shapes, counts) and reads the samples block by
block when they are written. The official sets have known numbers of samples; ``partial`` lets fewer
through. A mistake in the files is an ``HCLError`` that names the file.
"""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hcl.errors import HCLError
from hcl.fetch.archives import opened
from hcl.files import parse_json, sha256_of
from hcl.records.hdf5 import array_of, probe
from hcl.records.raw import TEST, TRAIN, Block, Content
from hcl.settings import memory_of_this_machine

LONGEST_CLASS = 200  # letters of the name of a class
DIGIT_NAMES = tuple("0123456789")
CIFAR10_NAMES = tuple(
    "airplane automobile bird cat deer dog frog horse ship truck".split()  # noqa: SIM905
)
CIFAR100_NAMES = tuple(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle
    bowl boy bridge bus butterfly camel can castle caterpillar cattle
    chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
    dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
    lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain
    mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree
    plain plate poppy porcupine possum rabbit raccoon ray road rocket
    rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm
    """.split()  # noqa: SIM905 (a hundred quoted names read worse)
)
FASHION_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
CIFAR10_FILES = tuple(f"data_batch_{i}.bin" for i in range(1, 6)), ("test_batch.bin",)
CIFAR100_FILES = ("train.bin",), ("test.bin",)
IDX_FILES = (
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)
SVHN_FILES = "train_32x32.mat", "test_32x32.mat"

Counts = tuple[int, int]  # samples in train, in test

_DIGITS_TEST_OF_EACH_CLASS = 50
ROWS_AT_ONCE = 5_000  # samples of an official set in one block
BYTES_AT_ONCE = 1 << 25  # of embeddings in one block


def read_digits() -> Content:
    """scikit-learn's digits: 1,797 grey images of 8×8, inside its package.

    scikit-learn names no test part. Here: 50 images of each digit (500 in all), by a fixed draw.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    y = digits.target.astype(np.int64)
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)[..., None]  # 0…16 → 0…255
    # NumPy promises RandomState's stream for ever, Generator's not: the split outlives upgrades
    draw = np.random.RandomState(0)
    test = np.zeros(len(y), bool)
    for label in range(10):
        test[draw.permutation(np.flatnonzero(y == label))[:_DIGITS_TEST_OF_EACH_CLASS]] = True
    order = np.argsort(test, kind="stable")
    split = np.where(test, TEST, TRAIN).astype(np.uint8)
    block = Block(images[order], y[order], split[order])
    return Content("images", DIGIT_NAMES, len(y), images.shape[1:], [block])


def read_cifar10(folder: Path, *, counts: Counts = (50_000, 10_000), partial: bool) -> Content:
    """CIFAR-10, binary version: a label byte, then the red, green and blue plane of 32×32."""
    return _read_cifar(folder, CIFAR10_FILES, 1, CIFAR10_NAMES, counts, partial)


def read_cifar100(folder: Path, *, counts: Counts = (50_000, 10_000), partial: bool) -> Content:
    """CIFAR-100, binary version, with its fine labels: coarse label, fine label, three planes."""
    return _read_cifar(folder, CIFAR100_FILES, 2, CIFAR100_NAMES, counts, partial)


def read_mnist(folder: Path, *, counts: Counts = (60_000, 10_000), partial: bool) -> Content:
    """MNIST: idx files, plain or as .gz."""
    return _read_idx(folder, DIGIT_NAMES, counts, partial)


def read_fashion_mnist(
    folder: Path, *, counts: Counts = (60_000, 10_000), partial: bool
) -> Content:
    """Fashion-MNIST: idx files, plain or as .gz."""
    return _read_idx(folder, FASHION_NAMES, counts, partial)


def read_svhn(folder: Path, *, counts: Counts = (73_257, 26_032), partial: bool) -> Content:
    """SVHN, cropped digits: X (32, 32, 3, n), y (n, 1) in MATLAB files; y = 10 is the digit 0."""
    from scipy.io import loadmat, whosmat

    paths = [_existing(folder / name) for name in SVHN_FILES]
    found = []
    for path in paths:
        with _naming(path):
            outline = {name: (shape, kind) for name, shape, kind in whosmat(path)}
        (*shape, n), kind = outline.get("X", ((0,), "nothing"))
        if tuple(shape) != (32, 32, 3) or kind != "uint8":
            raise HCLError(f"{path}: X is {kind} {(*shape, n)}, expected uint8 (32, 32, 3, n).")
        labels, _ = outline.get("y", ((0,), "nothing"))
        if labels not in ((n, 1), (1, n)):
            raise HCLError(
                f"{path}: y has the shape {labels}, expected {(n, 1)} as X has {n} images."
            )
        found.append(n)
    _check_counts(folder, found, counts, partial)

    def blocks() -> Iterator[Block]:
        for path, split in zip(paths, (TRAIN, TEST), strict=True):
            with _naming(path):
                content = loadmat(path, variable_names=["X", "y"])
            images, labels = content["X"], content["y"].reshape(-1)
            _check_labels(path, labels, 1, 10)
            y = labels.astype(np.int64) % 10
            for rows in _slices(len(y), ROWS_AT_ONCE):
                yield _block(images[..., rows].transpose(3, 0, 1, 2), y[rows], split)

    return Content("images", DIGIT_NAMES, sum(found), (32, 32, 3), blocks())


def check_class_name(name: str, where: str | Path) -> None:
    """An error over the name of a class that no file or page could bear."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise HCLError(f"{where}: the name of its class {name!r} is not UTF-8.") from None
    if len(name) > LONGEST_CLASS or not name.isprintable():
        raise HCLError(
            f"{where}: the name of its class, {name[:LONGEST_CLASS]!r}, has signs that are not "
            f"printed, or more than {LONGEST_CLASS} letters. Take another."
        )


def read_embeddings(path: Path) -> Content:
    """Ready embeddings in .npz or HDF5: ``x`` (n, D) floats, ``y`` (n,) whole numbers, ``split``.

    ``split`` is 0 and 1, or "train" and "test". Names of classes are optional: an array
    ``classes``, or in HDF5 an attribute with a JSON list (as our own embedding files have it).
    """
    _existing(path)
    if path.suffix == ".npz":
        with _naming(path), np.load(path, allow_pickle=False) as archive:
            wanted = [name for name in ("x", "y", "split", "classes") if name in archive.files]
            _check_npz(path, wanted)
            arrays = {name: archive[name] for name in wanted}
        x = arrays.get("x")
        return _embeddings(path, arrays, x, lambda rows: arrays["x"][rows])
    if path.suffix not in (".h5", ".hdf5"):
        raise HCLError(f"{path}: embeddings are read from .npz, .h5 or .hdf5 files.")

    def read(rows: slice) -> NDArray[Any]:
        with h5py.File(path, "r") as file:
            return file["x"][rows]

    probe(path)
    with _naming(path), h5py.File(path, "r") as file:
        found = {name: array_of(file, name, path) for name in ("x", "y", "split", "classes")}
        x = found.pop("x")
        for name, values in found.items():  # before they are read: a length may be anything
            if values is not None and x is not None and x.ndim == 2 and values.size > x.shape[0]:
                raise HCLError(
                    f"{path}: {name} has the shape {values.shape}, but x has {x.shape[0]} rows."
                )
        arrays = {name: values[...] for name, values in found.items() if values is not None}
        if isinstance(file.attrs.get("classes"), str):
            arrays.setdefault("classes", np.asarray(parse_json(file.attrs["classes"])))
        return _embeddings(path, arrays, x, read)


def _check_npz(path: Path, names: list[str]) -> None:
    """Each array as long as its header says, and all of them within half of the memory."""
    room = memory_of_this_machine() // 2
    total = 0
    with zipfile.ZipFile(path) as archive:
        for name in names:
            size = archive.getinfo(f"{name}.npy").file_size
            with archive.open(f"{name}.npy") as file:
                major = np.lib.format.read_magic(file)[0]
                read = {1: np.lib.format.read_array_header_1_0}.get(
                    major, np.lib.format.read_array_header_2_0
                )
                shape, _, dtype = read(file)
            # Items of no bytes, such as empty texts, may be any number of them in no bytes at all.
            if math.prod(shape) * max(dtype.itemsize, 1) > size:
                raise HCLError(f"{path}: {name} claims the shape {shape}, but has {size} bytes.")
            total += size
    if total > room:
        raise HCLError(
            f"{path}: its arrays unpack to {total / 2**30:.1f} GiB, more than half of this "
            "machine's memory. Store them as HDF5 (.h5), which is read part by part."
        )


def _embeddings(
    path: Path, arrays: dict[str, Any], x: Any, read: Callable[[slice], NDArray[Any]]
) -> Content:
    """Check the arrays of an embedding file; ``read`` gives rows of ``x`` later, block by block."""
    for name, value in (("x", x), ("y", arrays.get("y")), ("split", arrays.get("split"))):
        if value is None:
            raise HCLError(f"{path}: there is no {name!r} in it; expected x, y and split.")
    if x.ndim != 2 or x.dtype.kind != "f" or 0 in x.shape:
        raise HCLError(f"{path}: x is {x.dtype} {x.shape}, expected floats (n, D).")
    y, split = arrays["y"], _split_of(path, arrays["split"])
    if y.dtype.kind not in "iu":
        raise HCLError(f"{path}: y is {y.dtype}, expected whole numbers 0…K−1.")
    for name, values in (("y", y), ("split", split)):
        if values.shape != x.shape[:1]:
            raise HCLError(f"{path}: {name} has the shape {values.shape}, expected {x.shape[:1]}.")
    for part, code in (("train", TRAIN), ("test", TEST)):
        if not (split == code).any():
            raise HCLError(f"{path}: no sample is in the {part} part.")
    names = _class_names(path, arrays.get("classes"), y)
    for part, code in (("train", TRAIN), ("test", TEST)):
        missing = sorted(set(range(len(names))) - set(np.unique(y[split == code]).tolist()))
        if missing:
            raise HCLError(
                f"{path}: the {part} part has no sample of class {missing[0]}; y must take each of "
                f"0…{len(names) - 1} in both parts."
            )
    y = y.astype(np.int64)
    step = max(1, BYTES_AT_ONCE // (4 * x.shape[1]))

    def blocks() -> Iterator[Block]:
        for rows in _slices(len(y), step):
            with _naming(path), np.errstate(over="ignore"):
                part = read(rows).astype(np.float32)
            finite = np.isfinite(part).all(axis=1)
            if not finite.all():
                row = rows.start + int(np.argmin(finite))
                raise HCLError(f"{path}: x has a value in row {row} that is not finite.")
            yield Block(part, y[rows], split[rows])

    return Content("embeddings", names, len(y), x.shape[1:], blocks(), sha256_of(path))


def _split_of(path: Path, values: NDArray[Any]) -> NDArray[np.uint8]:
    if values.dtype.kind in "SO":
        values = np.array([v.decode() if isinstance(v, bytes) else str(v) for v in values.flat])
    if values.dtype.kind == "U":
        values = np.select([values == "train", values == "test"], [TRAIN, TEST], 2)
    if values.dtype.kind not in "biu" or not np.isin(values, (TRAIN, TEST)).all():
        raise HCLError(f'{path}: split must be 0 and 1, or "train" and "test".')
    return values.astype(np.uint8)


def _class_names(path: Path, names: NDArray[Any] | None, y: NDArray[Any]) -> tuple[str, ...]:
    low, high = int(y.min()), int(y.max())
    if high >= len(y):
        raise HCLError(
            f"{path}: y takes the values {low}…{high}, but there are {len(y)} samples; expected "
            "0…K−1, each in both parts."
        )
    if names is None:
        count = high + 1
        texts = tuple(str(i) for i in range(count))
    else:
        texts = tuple(v.decode() if isinstance(v, bytes) else str(v) for v in names.reshape(-1))
        count = len(texts)
        for text in texts:
            check_class_name(text, path)
    if low < 0 or high >= count:
        raise HCLError(f"{path}: y takes the values {low}…{high}, expected 0…{count - 1}.")
    return texts


def _read_cifar(
    folder: Path,
    names: tuple[tuple[str, ...], tuple[str, ...]],
    label_bytes: int,
    classes: tuple[str, ...],
    counts: Counts,
    partial: bool,
) -> Content:
    record = label_bytes + 3 * 32 * 32
    parts = [[_existing(folder / name) for name in part] for part in names]
    for path in (path for part in parts for path in part):
        size = path.stat().st_size
        if size == 0 or size % record:
            raise HCLError(
                f"{path}: {size} bytes are not a whole number of {record}-byte records; it is cut "
                "off or not of the binary version."
            )
    found = [sum(path.stat().st_size // record for path in part) for part in parts]
    _check_counts(folder, found, counts, partial)

    def blocks() -> Iterator[Block]:
        for part, split in zip(parts, (TRAIN, TEST), strict=True):
            for path in part:
                with opened(path) as file:
                    for rows in _slices(path.stat().st_size // record, ROWS_AT_ONCE):
                        data = _exactly(file, (rows.stop - rows.start) * record, path)
                        records = np.frombuffer(data, np.uint8).reshape(-1, record)
                        labels = records[:, label_bytes - 1]  # of CIFAR-100 the fine one
                        _check_labels(path, labels, 0, len(classes) - 1)
                        planes = records[:, label_bytes:].reshape(-1, 3, 32, 32)
                        yield _block(planes.transpose(0, 2, 3, 1), labels, split)

    return Content("images", classes, sum(found), (32, 32, 3), blocks())


def _read_idx(folder: Path, classes: tuple[str, ...], counts: Counts, partial: bool) -> Content:
    parts = [tuple(_plain_or_gz(folder / name) for name in part) for part in IDX_FILES]
    found = []
    for images, labels in parts:
        with opened(images) as file:
            n, *shape = _idx_header(file, images, 3)
        if shape != [28, 28]:
            raise HCLError(f"{images}: its images are {shape[0]}×{shape[1]}, expected 28×28.")
        with opened(labels) as file:
            (of_labels,) = _idx_header(file, labels, 1)
        if of_labels != n:
            raise HCLError(f"{labels}: {of_labels} labels, but {images.name} has {n} images.")
        found.append(n)
    _check_counts(folder, found, counts, partial)

    def blocks() -> Iterator[Block]:
        for (images, labels), n, split in zip(parts, found, (TRAIN, TEST), strict=True):
            with opened(labels) as file:
                _idx_header(file, labels, 1)
                y = np.frombuffer(_exactly(file, n, labels), np.uint8)
                _check_end(file, labels)
            _check_labels(labels, y, 0, len(classes) - 1)
            with opened(images) as file:
                _idx_header(file, images, 3)
                for rows in _slices(n, ROWS_AT_ONCE):
                    data = _exactly(file, len(y[rows]) * 28 * 28, images)
                    pixels = np.frombuffer(data, np.uint8).reshape(-1, 28, 28, 1)
                    yield _block(pixels, y[rows], split)
                _check_end(file, images)

    return Content("images", classes, sum(found), (28, 28, 1), blocks())


def _idx_header(file: IO[bytes], path: Path, dimensions: int) -> tuple[int, ...]:
    """The sizes that an idx file announces: 0, 0, type 8 (bytes), dimensions, then each of them."""
    header = _exactly(file, 4 + 4 * dimensions, path)
    if header[:4] != bytes((0, 0, 8, dimensions)):
        raise HCLError(f"{path}: not an idx file of bytes with {dimensions} dimensions.")
    return struct.unpack(f">{dimensions}I", header[4:])


def _check_counts(folder: Path, found: list[int], expected: Counts, partial: bool) -> None:
    for part, have, full in zip(("train", "test"), found, expected, strict=True):
        if have > full or have == 0:
            raise HCLError(f"{folder}: {have} samples in the {part} part, expected {full}.")
        if have < full and not partial:
            raise HCLError(
                f"{folder}: {have} samples in the {part} part, expected {full}. "
                "If a part of the data set is what you want, set `partial: true`."
            )


def _check_labels(path: Path, labels: NDArray[Any], low: int, high: int) -> None:
    if labels.min() < low or labels.max() > high:
        raise HCLError(
            f"{path}: labels are {labels.min()}…{labels.max()}, expected {low}…{high}; "
            "the file is damaged or of another data set."
        )


def _block(data: NDArray[Any], y: NDArray[Any], split: int) -> Block:
    return Block(data, y.astype(np.int64), np.full(len(y), split, np.uint8))


def _slices(n: int, step: int) -> Iterator[slice]:
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def _exactly(file: IO[bytes], size: int, path: Path) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise HCLError(f"{path}: cut off: {size - len(data)} bytes are missing. Get it again.")
    return data


def _check_end(file: IO[bytes], path: Path) -> None:
    if file.read(1):
        raise HCLError(f"{path}: it goes on after the samples that it announces.")


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise HCLError(f"{path}: no such file.")
    return path


def _plain_or_gz(path: Path) -> Path:
    packed = path.with_name(path.name + ".gz")
    if not path.is_file() and not packed.is_file():
        raise HCLError(f"{path}: no such file, nor {packed.name}.")
    return path if path.is_file() else packed


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in whatever a format's library raises over broken bytes (which is anything)."""
    try:
        yield
    except (HCLError, MemoryError):
        raise
    except Exception as error:
        raise HCLError(f"{path}: cannot be read ({type(error).__name__}: {error}).") from error
