"""Mutated folders, shards, archives and arrays of a user: one line, or a data set."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import h5py
import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from hcl.errors import HCLError
from hcl.fetch import images, readers
from hcl.fetch.archives import extract_tar
from hcl.fetch.datasets import OFFICIAL
from hcl.files import remove
from hcl.records import hdf5
from hcl.records.raw import Content, Raw, write_raw
from tests.fuzz.mutations import BYTES, FRACTION, mutated
from tests.fuzz.verdicts import fuzzed, refused_or
from tests.support.official_layouts import (
    encode,
    random_images,
    write_cifar10,
    write_idx,
    write_image_folder,
    write_svhn,
)


def write_shards(folder: Path) -> None:
    for part in ("train", "test"):
        with tarfile.open(folder / f"{part}-0.tar", "w") as tar:
            for i, image in enumerate(random_images(4, (6, 6, 3))):
                for name, data in ((f"{i}.png", encode(image)), (f"{i}.cls", str(i % 2).encode())):
                    entry = tarfile.TarInfo(name)
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))


def write_parquet(folder: Path) -> None:
    files = [encode(image) for image in random_images(4, (6, 6, 3))]
    for part in ("train", "test"):
        parquet.write_table(
            pyarrow.table({"image": files, "label": [0, 1, 0, 1]}), folder / f"{part}-0.parquet"
        )


def write_npz(folder: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(8, 3)), "y": np.arange(8) % 2, "split": np.arange(8) > 3}
    np.savez_compressed(folder / "e.npz", **arrays)


def write_own_hdf5(folder: Path, **settings: Any) -> None:
    rng = np.random.default_rng(0)
    with h5py.File(folder / "e.h5", "w") as file:
        file.create_dataset("x", data=rng.normal(size=(8, 3)).astype(np.float32), **settings)
        file.create_dataset("y", data=np.arange(8) % 2, **settings)
        file["split"] = np.array([b"train", b"test"])[(np.arange(8) > 3).astype(int)]
        file.attrs["classes"] = '["a", "b"]'


def read_own_hdf5(folder: Path) -> Content:
    """As it is read, but for the process that looks first: forked, not new, and soon given up.

    Over about one file in 700 it does not come to an end. A look at some kilobytes takes
    milliseconds or for ever, and ten thousand cases would mostly wait for its 30 seconds.
    """
    with patch("subprocess.run", looked_at), patch.object(hdf5, "PATIENCE", 2.0):
        return readers.read_embeddings(folder / "e.h5")


# Forks a process for each look: from a small one, because to fork one that holds torch takes long.
FORKER = """
import json, os, signal, sys, time
import h5py
for line in sys.stdin:
    look, sys.argv[1:], seconds = json.loads(line)
    end, child = time.monotonic() + seconds, os.fork()
    if child == 0:
        try:
            exec(look, {})
            os._exit(0)
        except BaseException:
            os._exit(1)
    while (found := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
        time.sleep(0.0005)
    if found == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(found[1]) if found[0] else "late", flush=True)
"""


@cache
def forker() -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", FORKER], text=True, **pipes)


def looked_at(command: list[Any], **settings: Any) -> subprocess.CompletedProcess[bytes]:
    *_, look, path = command
    small = forker()
    assert small.stdin is not None
    assert small.stdout is not None
    print(json.dumps((look, [str(path)], settings["timeout"])), file=small.stdin, flush=True)
    found = small.stdout.readline().strip()
    if found == "late":
        raise subprocess.TimeoutExpired(command, settings["timeout"])
    return subprocess.CompletedProcess(command, int(found))


def read(name: str, folder: Path) -> Content:
    return OFFICIAL[name].read(folder, partial=True)


def within(write: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """For a writer that makes its own folder."""
    return lambda folder: write(folder / "in")


# How a source is written into a folder, and how it is read from there
SOURCES: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Content]]] = {
    "folder": (write_image_folder, images.read_folder),
    "unlabelled": (write_image_folder, images.read_unlabelled),
    "webdataset": (write_shards, images.read_webdataset),
    "parquet": (write_parquet, images.read_parquet),
    "npz": (write_npz, lambda folder: readers.read_embeddings(folder / "e.npz")),
    "own HDF5": (write_own_hdf5, read_own_hdf5),
    "own HDF5 in chunks": (
        partial(write_own_hdf5, chunks=True, maxshape=None, compression="gzip"),
        read_own_hdf5,
    ),
    "cifar10": (within(write_cifar10), lambda folder: read("cifar10", folder / "in")),
    "idx": (
        within(partial(write_idx, packed=True)),
        lambda folder: read("mnist", folder / "in"),
    ),
    "svhn": (within(write_svhn), lambda folder: read("svhn", folder / "in")),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def fresh(folder: Path, name: str) -> tuple[Path, list[Path]]:
    """A new copy of a good source, and its files."""
    whole, copy = folder / f"{name}-whole", folder / name
    if not whole.exists():
        whole.mkdir()
        SOURCES[name][0](whole)
    remove(copy)
    shutil.copytree(whole, copy)
    return copy, sorted(path for path in copy.rglob("*") if path.is_file())


def fetched(name: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> None:
        out = folder.with_suffix(".h5")
        write_raw(out, SOURCES[name][1](folder), dataset=name, source=name)
        Raw(out).verify()

    return read


FOLDERS = ("folder", "unlabelled", "webdataset", "parquet")


@pytest.mark.parametrize("name", FOLDERS)
@fuzzed(of=2)
@given(where=FRACTION, changes=BYTES)
def test_bytes_of_folders(folder: Path, name: str, where: float, changes: Any) -> None:
    read_changed(folder, name, where, changes)


@pytest.mark.parametrize("name", [name for name in SOURCES if name not in FOLDERS])
@fuzzed()
@given(where=FRACTION, changes=BYTES)
def test_bytes_of_files(folder: Path, name: str, where: float, changes: Any) -> None:
    read_changed(folder, name, where, changes)


def read_changed(folder: Path, name: str, where: float, changes: Any) -> None:
    whole = folder / f"{name}-whole"
    if not whole.exists():
        fresh(folder, name)
    files = sorted(path for path in whole.rglob("*") if path.is_file())
    file = files[int(where * len(files))]
    data = file.read_bytes()
    file.write_bytes(mutated(data, changes))
    try:
        refused_or(fetched(name), whole)
    finally:
        file.write_bytes(data)


@pytest.mark.parametrize("name", FOLDERS)
@fuzzed(of=2)
@given(
    where=FRACTION,
    how=st.sampled_from(
        ["fifo", "dangling", "circle", "out", "inside", "folder", "empty", "locked", "twice"]
    ),
    called=st.binary(min_size=1, max_size=12).filter(
        lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
    ),
    deeper=st.booleans(),
)
def test_what_lies_in_folders(
    folder: Path, name: str, where: float, how: str, called: bytes, deeper: bool
) -> None:
    copy, files = fresh(folder, name)
    file = files[int(where * len(files))]
    target = file.parent.parent if deeper and file.parent != copy else file.parent
    new = target / (os.fsdecode(called) + (file.suffix if where < 0.5 else ""))
    if new.exists():
        return
    if how == "fifo":
        os.mkfifo(new)
    elif how == "folder":
        new.mkdir()
    elif how == "empty":
        new.write_bytes(b"")
    elif how == "locked":
        file.chmod(0)
    elif how == "twice":
        shutil.copy(file, new)
    else:
        aims = {"dangling": "nowhere", "circle": new.name, "out": "/etc/passwd", "inside": file}
        new.symlink_to(aims[how])
    refused_or(fetched(name), copy)


@fuzzed()
@given(changes=BYTES, packed=st.booleans())
def test_archives(folder: Path, changes: Any, packed: bool) -> None:
    """Of an archive come the files that are expected, with their bytes, or none."""
    members = {"a/one.bin": bytes(range(200)), "a/two.bin": b"two" * 300}
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as file:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            file.addfile(entry, io.BytesIO(data))
    path, out = folder / "archive.tar.gz", folder / "unpacked"
    data = tar.getvalue()
    if packed:
        path.write_bytes(mutated(gzip.compress(data, mtime=0), changes))
    else:
        path.write_bytes(gzip.compress(mutated(data, changes), mtime=0))
    remove(out)

    def unpack(path: Path) -> dict[str, bytes]:
        extract_tar(path, {name: len(data) for name, data in members.items()}, out)
        return {file.name: file.read_bytes() for file in out.iterdir()}

    expected = {name.removeprefix("a/"): data for name, data in members.items()}
    try:
        refused = refused_or(unpack, path, expected if packed else None)
    finally:
        assert sorted(p.name for p in folder.parent.iterdir() if p.suffix == ".bin") == []
    assert refused == (not out.exists())


def test_what_is_mutated_is_whole(folder: Path) -> None:
    for name in SOURCES:
        copy, _ = fresh(folder, name)
        try:
            fetched(name)(copy)
        except HCLError as error:
            pytest.fail(f"{name}: {error}")
