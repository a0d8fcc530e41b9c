"""A user's own images: a folder of files, WebDataset tar shards, Parquet with an image column.

Whatever they lie in, the files are kept as they are, and pass the same checks: each is decoded once
here, so that a broken one is found before hours of extraction; train and test have the same
classes. A folder may also hold images of which nothing is known (``read_unlabelled``). A source is
gone through twice: for its outline (the number of images, their bytes, the classes), then block by
block. What is held meanwhile is a block, the names of the classes, and of a folder the names of the
files of one class.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hcl.errors import HCLError
from hcl.fetch.archives import check_entry, opened
from hcl.fetch.readers import check_class_name
from hcl.records.raw import TEST, TRAIN, UNLABELLED, Block, Content, decode_image

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
PARTS = (("train", TRAIN), ("test", TEST))
BYTES_AT_ONCE = 1 << 25  # of image files in one block
IMAGES_AT_ONCE = 1_000  # in one block, however small they are
LARGEST_IMAGE = 1 << 28  # bytes of a file: more is no image, and would not fit into memory
MOST_CLASSES = 100_000
_LARGEST_LABEL = 1 << 20  # bytes of a .cls or .json in a tar shard
_LARGEST_ROW_GROUP = 1 << 32  # bytes of images in a row group of Parquet, unpacked
_ROWS_AT_ONCE = 64  # of a Parquet file
_ROWS_BYTES = 1 << 30  # about what they may hold: a dictionary can repeat an image in every row
_PACKED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


@dataclass(frozen=True)
class ImageFile:
    """One image on its way: how messages call it, its bytes when they are asked for, its class."""

    name: str
    size: int
    read: Callable[[], bytes]
    label: str
    split: int


# Goes once through a part, "train" or "test", with its number; without ``content`` the images'
# ``read`` is not called.
_Walk = Callable[[str, int, bool], Iterator[ImageFile]]


def read_folder(folder: Path) -> Content:
    """``train/<class>/*`` and ``test/<class>/*``."""

    def walk(part: str, split: int, content: bool) -> Iterator[ImageFile]:
        return _walk_folder(folder / part, split)

    return _content(folder, walk, sorted)


def read_unlabelled(folder: Path) -> Content:
    """All images of a folder and of the folders in it, in the order of their paths; no classes."""
    count, total = 0, 0
    for file in _walk_anywhere(folder):
        _check_size(file)
        count += 1
        total += file.size
    if not count:
        raise HCLError(f"{folder}: no image in it ({', '.join(IMAGE_SUFFIXES)}).")
    blocks = _blocks(_walk_anywhere(folder), {"": UNLABELLED})
    return Content("encoded", (), count, (total,), blocks)


def read_webdataset(folder: Path) -> Content:
    """Tar shards in which the files of a sample share a key: ``key.jpg`` with ``key.cls``.

    In place of ``key.cls``, ``key.json`` may hold an object with a ``label``. Other files of a
    sample are passed over.
    """
    shards = {part: _find_shards(folder, part, ".tar") for part, _ in PARTS}

    def walk(part: str, split: int, content: bool) -> Iterator[ImageFile]:
        for shard in shards[part]:
            yield from _walk_tar(shard, split, content)

    return _content(folder, walk, _in_order)


def read_parquet(folder: Path, image: str = "image", label: str = "label") -> Content:
    """Parquet files with a column of images (bytes, or a struct with ``bytes``) and one of labels.

    Labels are texts or whole numbers; the names that Hugging Face's ``datasets`` notes for
    numbers are used.
    """
    _import_pyarrow(folder)
    shards = {part: _find_shards(folder, part, ".parquet") for part, _ in PARTS}

    def walk(part: str, split: int, content: bool) -> Iterator[ImageFile]:
        for shard in shards[part]:
            yield from _walk_parquet(shard, split, image, label, content)

    outline = _content(folder, walk, _in_order)
    names = _names_of_labels([shard for part in shards.values() for shard in part], label)
    if names is None or not all(number.isdecimal() for number in outline.classes):
        return outline
    if int(outline.classes[-1]) >= len(names):
        raise HCLError(
            f"{folder}: the class {outline.classes[-1]} has no name; {len(names)} are noted."
        )
    return replace(outline, classes=tuple(names[int(number)] for number in outline.classes))


# What all sources share


def _content(folder: Path, walk: _Walk, in_order: Callable[[Iterable[str]], list[str]]) -> Content:
    """The outline by a first walk, and the blocks of a second one."""
    count, total = 0, 0
    found: dict[str, dict[str, None]] = {}  # a set that keeps its order
    for part, split in PARTS:
        labels = found.setdefault(part, {})
        for file in walk(part, split, False):
            _check_size(file)
            _check_label(file, labels)
            labels.setdefault(file.label)
            count += 1
            total += file.size
        if not labels:
            raise HCLError(f"{folder}: no image in the {part} part.")
    for here, there in (("train", "test"), ("test", "train")):
        missing = in_order(set(found[here]) - set(found[there]))
        if missing:
            listed = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
            raise HCLError(
                f"{folder}: {there}/ lacks classes that {here}/ has: {listed}. "
                "Both need the same ones."
            )
    classes = in_order(found["train"])
    files = (file for part, split in PARTS for file in walk(part, split, True))
    numbers = {name: number for number, name in enumerate(classes)}
    return Content("encoded", tuple(classes), count, (total,), _blocks(files, numbers))


def _check_size(file: ImageFile) -> None:
    if file.size > LARGEST_IMAGE:
        raise HCLError(
            f"{file.name}: {file.size} bytes, more than the {LARGEST_IMAGE} that an image "
            "may have. Take it out."
        )


def _check_label(file: ImageFile, labels: Mapping[str, None]) -> None:
    """An error over a class that could not be named, and over too many of them."""
    check_class_name(file.label, file.name)
    if len(labels) >= MOST_CLASSES and file.label not in labels:
        raise HCLError(f"{file.name}: more than {MOST_CLASSES:,} classes. Take fewer.")


def _in_order(labels: Iterable[str]) -> list[str]:
    """The classes of shards: by number if all of them are numbers, else by name."""
    labels = list(labels)
    if all(re.fullmatch(r"0|[1-9][0-9]*", label, re.ASCII) for label in labels):
        return sorted(labels, key=int)
    return sorted(labels)


def _blocks(files: Iterable[ImageFile], numbers: Mapping[str, int]) -> Iterator[Block]:
    def load(file: ImageFile) -> bytes:
        try:
            data = file.read()
            decode_image(data)
        except (OSError, ValueError) as error:
            raise HCLError(f"{file.name}: not a readable image ({error}).") from error
        return data

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow decodes outside of Python's lock
        for group in _groups(files):
            for file in group:
                if file.label not in numbers:
                    raise HCLError(f"{file.name}: its class {file.label!r} is new. Run it again.")
            data = list(pool.map(load, group))
            y = np.array([numbers[file.label] for file in group], np.int64)
            yield Block(data, y, np.array([file.split for file in group], np.uint8))


def _groups(files: Iterable[ImageFile]) -> Iterator[list[ImageFile]]:
    """Consecutive files, together about ``BYTES_AT_ONCE`` long."""
    group: list[ImageFile] = []
    total = 0
    for file in files:
        group.append(file)
        total += file.size
        if total >= BYTES_AT_ONCE or len(group) == IMAGES_AT_ONCE:
            yield group
            group, total = [], 0
    if group:
        yield group


# A folder


def _walk_folder(folder: Path, split: int) -> Iterator[ImageFile]:
    """The image files of each class folder, both in the order of their names."""
    if not folder.is_dir():
        raise HCLError(f"{folder}: no such folder; expected train/<class>/* and test/<class>/*.")
    classes = []
    root = os.path.realpath(folder.parent)
    _check_inside(str(folder), root)
    for child in sorted(folder.iterdir()):
        if child.is_file() and child.suffix.lower() in IMAGE_SUFFIXES:
            raise HCLError(f"{child}: an image outside of a class folder; move it into one.")
        if child.is_symlink() and not child.exists():
            raise HCLError(f"{child}: a link that leads nowhere; take it out.")
        if child.is_dir() and not child.name.startswith("."):
            classes.append(child)
    if not classes:
        raise HCLError(f"{folder}: no class folders in it; expected {folder.name}/<class>/*.")
    for child in classes:
        _check_inside(str(child), root)
        with os.scandir(child) as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
        if not names:
            raise HCLError(f"{child}: a class without images.")
        for name in names:
            path = os.path.join(child, name)  # noqa: PTH118 (pathlib keeps names that it has seen)
            yield _image_file(path, child.name, split, "a class folder", root)


def _walk_anywhere(folder: Path, root: str = "") -> Iterator[ImageFile]:
    """The image files under a folder, however deep, in the order of their paths."""
    root = root or os.path.realpath(folder)
    if not folder.is_dir():
        raise HCLError(f"{folder}: no such folder; expected images in it.")
    for child in sorted(folder.iterdir()):
        if child.name.startswith("."):
            continue
        if child.is_dir():
            if child.is_symlink():
                raise HCLError(f"{child}: a link to a folder; name that folder, or copy it.")
            yield from _walk_anywhere(child, root)
        else:
            yield _image_file(str(child), "", TRAIN, "a folder of images", root)


def _check_inside(path: str, root: str) -> None:
    """An error over a link that leads out of the folder ``root``."""
    if os.path.islink(path) and not Path(os.path.realpath(path)).is_relative_to(root):  # noqa: PTH114
        raise HCLError(
            f"{path}: a link that leads out of {root}, and is not followed. Copy what it leads to."
        )


def _image_file(path: str, label: str, split: int, place: str, root: str) -> ImageFile:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError as error:
        raise HCLError(f"{path}: cannot be read ({error.strerror}).") from error
    _check_inside(path, root)
    if not path.lower().endswith(IMAGE_SUFFIXES):
        raise HCLError(
            f"{path}: not an image by its name; {place} holds "
            f"{', '.join(IMAGE_SUFFIXES)} files only (hidden ones are passed over)."
        )
    if not stat.S_ISREG(found.st_mode):
        raise HCLError(f"{path}: not a file; take it out.")
    return ImageFile(path, found.st_size, partial(_read_file, path), label, split)


def _read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


# Shards


def _find_shards(folder: Path, part: str, suffix: str) -> list[Path]:
    """A part's shards in the order of their names: ``train/*.tar``, or ``train-*.tar`` beside it.

    A shard that belongs to no part is an error, so that no image gets lost unnoticed.
    """
    if not folder.is_dir():
        raise HCLError(f"{folder}: no such folder; expected {part}/*{suffix} or {part}-*{suffix}.")
    inside, beside = folder / part, []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.is_dir():
            continue
        _check_not_packed(path, suffix)
        if path.suffix != suffix:
            continue
        words = [name for name, _ in PARTS if re.match(rf"{name}(?![a-zA-Z0-9])", path.name)]
        if not words:
            raise HCLError(
                f"{path}: belongs to no part by its name; shards are train/*{suffix} and "
                f"test/*{suffix}, or train-*{suffix} and test-*{suffix}. Rename it or move it away."
            )
        if words == [part]:
            beside.append(path)
    found = []
    if inside.is_dir():
        for path in sorted(inside.iterdir()):
            _check_not_packed(path, suffix)
            if path.suffix == suffix and not path.name.startswith("."):
                found.append(path)
    for path in (*found, *beside):
        _check_inside(str(path), os.path.realpath(folder))
        if not path.is_file():
            raise HCLError(f"{path}: not a file, or one that is not there; take it out.")
    if found and beside:
        raise HCLError(f"{folder}: {part} shards both in {part}/ and beside it; keep one.")
    if not found and not beside:
        raise HCLError(
            f"{folder}: no {part} shards; expected {part}/*{suffix} or {part}-*{suffix}."
        )
    return found or beside


def _check_not_packed(path: Path, suffix: str) -> None:
    if suffix == ".tar" and path.name.endswith(_PACKED) and not path.name.startswith("."):
        raise HCLError(f"{path}: a packed shard; unpack it to a plain .tar file.")


# WebDataset


def _walk_tar(shard: Path, split: int, content: bool) -> Iterator[ImageFile]:
    sample = _Sample(shard, "", split)
    with opened(shard) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        while (entry := tar.next()) is not None:
            check_entry(entry, shard)
            tar.members = []  # type: ignore[attr-defined]  # tarfile would keep every entry
            place, slash, name = entry.name.rpartition("/")
            if not entry.isfile() or name.startswith("."):
                continue
            stem, _, kind = name.partition(".")
            key = f"{place}{slash}{stem}"
            if key != sample.key:
                if sample.key:
                    yield sample.file()
                sample = _Sample(shard, key, split)
            sample.add(entry, f".{kind.lower()}", tar, content)
        if sample.key:
            yield sample.file()
        file.seek(tar.offset)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            # tarfile takes both for the end of an archive
            raise HCLError(f"{shard}: damaged or cut off after {tar.offset} bytes. Get it again.")


class _Sample:
    """The files of a tar shard that share a key, as they come."""

    def __init__(self, shard: Path, key: str, split: int) -> None:
        self.shard, self.key, self.split = shard, key, split
        self.name = f"{shard}: {key}"
        self.image: tuple[str, int, bytes] | None = None
        self.labels: dict[str, str] = {}

    def add(self, entry: tarfile.TarInfo, kind: str, tar: tarfile.TarFile, content: bool) -> None:
        if kind in IMAGE_SUFFIXES:
            if self.image is not None:
                raise HCLError(f"{self.name}: two images of one sample; give each its own key.")
            wanted = content and entry.size <= LARGEST_IMAGE
            self.image = (entry.name, entry.size, _read(tar, entry) if wanted else b"")
        elif kind in (".cls", ".json"):
            if entry.size > _LARGEST_LABEL:
                raise HCLError(f"{self.name}{kind}: {entry.size} bytes are no label.")
            text = _read(tar, entry).decode("utf-8", "replace").strip()
            label = text if kind == ".cls" else _label_of_json(text, f"{self.name}{kind}")
            if label is not None:
                self.labels[kind] = label

    def file(self) -> ImageFile:
        if self.image is None:
            raise HCLError(f"{self.name}: no image ({', '.join(IMAGE_SUFFIXES)}) of this sample.")
        label = self.labels.get(".cls", self.labels.get(".json", ""))
        if not label:
            raise HCLError(f'{self.name}: no class; expected a .cls, or a .json with a "label".')
        name, size, data = self.image
        return ImageFile(f"{self.shard}: {name}", size, lambda: data, label, self.split)


def _read(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    source = tar.extractfile(entry)
    assert source is not None  # a plain file, as check_entry saw
    return source.read()


def _label_of_json(text: str, name: str) -> str | None:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise HCLError(f"{name}: not JSON ({error}).") from error
    label = value.get("label") if isinstance(value, dict) else None
    if label is not None and (isinstance(label, bool) or not isinstance(label, int | str)):
        raise HCLError(f"{name}: its label is {label!r}; expected a text or a whole number.")
    return None if label is None else str(label)


# Parquet


def _import_pyarrow(folder: Path) -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise HCLError(
            f"{folder}: reading Parquet needs pyarrow: pip install '.[parquet]' ({error})."
        ) from None


def _walk_parquet(
    shard: Path, split: int, image: str, label: str, content: bool
) -> Iterator[ImageFile]:
    import pyarrow
    from pyarrow import compute, parquet

    try:
        with parquet.ParquetFile(shard, buffer_size=1 << 20) as file:
            column = _image_column(shard, file, image, label)
            row = 0
            for batch in file.iter_batches(
                _rows_at_once(file), columns=[column, label], use_threads=False
            ):
                images = batch.column(image)
                if column != image:
                    images = compute.struct_field(images, "bytes")
                sizes = compute.binary_length(images).to_pylist()
                for i, value in enumerate(batch.column(label).to_pylist()):
                    name = f"{shard}: row {row + i}"
                    if sizes[i] is None:
                        raise HCLError(f"{name}: no image in the column {image!r}.")
                    if value is None or value == "":
                        raise HCLError(f"{name}: no class in the column {label!r}.")
                    read = _giving(images[i].as_py() if content else b"")
                    yield ImageFile(name, sizes[i], read, str(value), split)
                row += len(sizes)
    except (pyarrow.ArrowException, OSError, ValueError) as error:  # a name that is no UTF-8
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise HCLError(f"{shard}: not a whole Parquet file ({reason}). Get it again.") from error


def _rows_at_once(file: Any) -> int:
    """As many rows as hold ``_ROWS_BYTES``, were each as large as the whole of its group.

    Columns are not asked for their own sizes: over a damaged one pyarrow ends the process.
    """
    groups = range(file.metadata.num_row_groups)
    largest = max((file.metadata.row_group(i).total_byte_size for i in groups), default=1)
    return int(min(max(_ROWS_BYTES // max(largest, 1), 1), _ROWS_AT_ONCE))


def _giving(data: bytes) -> Callable[[], bytes]:
    return lambda: data


def _image_column(shard: Path, file: Any, image: str, label: str) -> str:
    """The column, or its field ``bytes``, that holds the images; both columns are checked."""
    import pyarrow

    schema = file.schema_arrow
    for key, name in (("image_column", image), ("label_column", label)):
        if schema.get_field_index(name) < 0:
            raise HCLError(
                f"{shard}: no column {name!r}, but {', '.join(schema.names)}. Set {key} to one."
            )
    kind, column = schema.field(image).type, image
    if pyarrow.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind, column = kind.field("bytes").type, f"{image}.bytes"
    if not (pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind)):
        raise HCLError(
            f"{shard}: the column {image!r} is {kind}; expected bytes, or a struct with bytes."
        )
    labels = schema.field(label).type
    if pyarrow.types.is_dictionary(labels):
        labels = labels.value_type
    known = (pyarrow.types.is_integer, pyarrow.types.is_string, pyarrow.types.is_large_string)
    if not any(is_known(labels) for is_known in known):
        raise HCLError(
            f"{shard}: the column {label!r} is {labels}; expected texts or whole numbers."
        )
    for group in range(file.metadata.num_row_groups):
        size = file.metadata.row_group(group).total_byte_size
        if size > _LARGEST_ROW_GROUP:
            raise HCLError(
                f"{shard}: row group {group} unpacks to {size} bytes, more than "
                f"{_LARGEST_ROW_GROUP}. Write it with smaller row groups."
            )
    return column


def _names_of_labels(shards: list[Path], label: str) -> list[str] | None:
    """The names of numbered classes, where Hugging Face's ``datasets`` wrote them down."""
    from pyarrow import parquet

    noted: dict[tuple[str, ...], Path] = {}
    for shard in shards:
        try:
            notes = json.loads(parquet.read_schema(shard).metadata[b"huggingface"])
            names = notes["info"]["features"][label]["names"]
        except (KeyError, TypeError, ValueError):
            return None
        if not isinstance(names, list):
            return None
        noted.setdefault(tuple(map(str, names)), shard)
    if len(noted) > 1:
        one, other, *_ = noted.values()
        raise HCLError(f"{other}: notes other names of classes than {one}. Make them alike.")
    return list(next(iter(noted)))
