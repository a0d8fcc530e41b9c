from __future__ import annotations

import functools
import gzip
import hashlib
import io
import re
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from hcl.errors import HCLError
from hcl.fetch import readers
from hcl.fetch.datasets import OFFICIAL, DatasetSettings, Official, fetch
from hcl.fetch.download import RemoteFile
from hcl.files import sha256_of
from hcl.records.raw import Raw
from hcl.settings import build
from tests.support.file_server import FileServer
from tests.support.official_layouts import (
    write_cifar10,
    write_cifar100,
    write_idx,
    write_image_folder,
    write_svhn,
)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = FileServer({})
    yield server
    server.close()


def serve(server, path, data):
    server.files[path] = data
    return RemoteFile(server.url + path, len(data), hashlib.sha256(data).hexdigest())


def pack(folder, inside):
    """A .tar.gz of the folder's files, as the CIFAR archives are."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        tar.add(folder, inside)
    return data.getvalue()


@pytest.fixture
def small(server, tmp_path):
    """The table of official sets, but with small files from the server on this machine."""
    table = {}
    for name, write, counts in (
        ("cifar10", write_cifar10, (20, 6)),
        ("cifar100", write_cifar100, (7, 3)),
        ("mnist", functools.partial(write_idx, packed=True), (5, 3)),
        ("fashion-mnist", functools.partial(write_idx, train=6, packed=True), (6, 3)),
        ("svhn", write_svhn, (12, 4)),
    ):
        real = OFFICIAL[name]
        folder = tmp_path / "server" / real.folder
        write(folder)
        members = {m: (folder / m.rsplit("/")[-1]).stat().st_size for m in real.members}
        if members:
            archive = pack(folder, real.folder)
            remotes = (serve(server, f"/{name}/{real.remotes[0].name}", archive),)
        else:
            remotes = tuple(
                serve(server, f"/{name}/{r.name}", (folder / r.name).read_bytes())
                for r in real.remotes
            )
        read = functools.partial(real.read, counts=counts)
        table[name] = Official(real.title, real.folder, real.files, remotes, read, members)
    return table


NAMES = list(OFFICIAL)
COUNTS = {"cifar10": 26, "cifar100": 10, "mnist": 8, "fashion-mnist": 9, "svhn": 16}


@pytest.fixture
def run(small, tmp_path):
    def run(name, data=None, **settings):
        out = tmp_path / "raw" / f"{name}.h5"
        where = {"downloads": tmp_path / "downloads", "data": data, "official": small}
        fetch(name, DatasetSettings(name, **settings), out, **where)
        return Raw(out)

    return run


def test_the_table_is_sound():
    assert set(OFFICIAL) == {"cifar10", "cifar100", "mnist", "fashion-mnist", "svhn"}
    for entry in OFFICIAL.values():
        for remote in entry.remotes:
            assert remote.url.startswith("https://")
            assert re.fullmatch("[0-9a-f]{64}", remote.sha256)
        assert len({remote.sha256 for remote in entry.remotes}) == len(entry.remotes)
        if entry.members:
            assert {m.rsplit("/", 1)[1] for m in entry.members} == set(entry.files)
            assert all(m.startswith(entry.folder + "/") for m in entry.members)
        else:
            assert {r.name.removesuffix(".gz") for r in entry.remotes} == set(entry.files)
    # 60,000 records each: a label byte (CIFAR-100: two) and 3,072 pixels
    assert sum(OFFICIAL["cifar10"].members.values()) == 60_000 * 3073
    assert sum(OFFICIAL["cifar100"].members.values()) == 60_000 * 3074


@pytest.mark.parametrize("name", NAMES)
def test_download(run, server, tmp_path, name):
    raw = run(name)
    assert len(raw) == COUNTS[name]
    assert raw.dataset == name
    assert raw.source == OFFICIAL[name].title
    raw.verify()
    first = sha256_of(raw.path)
    asked = len(server.requests)
    assert asked == len(OFFICIAL[name].remotes)
    assert sha256_of(run(name).path) == first
    assert len(server.requests) == asked  # what is there is not fetched again


@pytest.mark.parametrize("name", NAMES)
def test_folder_gives_the_same_bytes_as_the_download(run, server, tmp_path, name):
    first = sha256_of(run(name).path)
    asked = len(server.requests)
    official = tmp_path / "server"
    for options in (
        {"data": official},
        {"path": str(official)},
        {"path": str(official / OFFICIAL[name].folder)},
    ):
        (tmp_path / "raw" / f"{name}.h5").unlink()
        assert sha256_of(run(name, **options).path) == first
    assert len(server.requests) == asked


def test_path_comes_before_the_data_folder(run, tmp_path):
    shutil.copytree(tmp_path / "server", tmp_path / "other")
    (tmp_path / "other" / "svhn" / "test_32x32.mat").unlink()
    with pytest.raises(HCLError, match=r"other/svhn/test_32x32\.mat: no such file"):
        run("svhn", data=tmp_path / "server", path=str(tmp_path / "other"))


def test_data_folder_without_the_set_means_download(run, server, tmp_path):
    (tmp_path / "empty").mkdir()
    run("mnist", data=tmp_path / "empty")
    assert len(server.requests) == 4


def test_data_folder_that_is_not_there(run, server, tmp_path):
    with pytest.raises(HCLError, match="nothing: no such folder; mend HCL_DATA"):
        run("mnist", data=tmp_path / "nothing")
    assert server.requests == []


def test_path_without_the_set(run, server, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        HCLError, match=r"nor svhn/ in it holds train_32x32.mat.*datasets\.svhn\.path"
    ):
        run("svhn", path=str(tmp_path / "empty"))
    assert server.requests == []


def test_home_is_known(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(run("svhn", path="~/server")) == 16


@pytest.mark.parametrize("name", NAMES)
def test_by_hand_into_the_downloads_folder(run, server, tmp_path, name):
    """What the message of a failed download tells the user to do works."""
    server.status = 503
    with pytest.raises(HCLError, match="answers 503") as caught:
        run(name)
    message = str(caught.value)
    files, folder = re.search(r"By hand: put (.*) into (\S+), or name a folder", message).groups()
    assert f"holds {OFFICIAL[name].folder}/ by HCL_DATA or datasets.{name}.path" in message
    asked = len(server.requests)
    for file in files.split(", "):
        target = tmp_path / folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(server.files[f"/{name}/{file}"])
    assert len(run(name)) == COUNTS[name]
    assert len(server.requests) == asked


def test_unpacked_idx_files_in_the_downloads_folder(run, server, tmp_path):
    folder = tmp_path / "downloads" / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for path in (tmp_path / "server" / "MNIST" / "raw").iterdir():
        (folder / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    assert len(run("mnist")) == 8
    assert server.requests == []


def test_failed_download_leaves_no_raw_file(run, server, tmp_path):
    server.files["/cifar10/cifar-10-binary.tar.gz"] = b"x" * 10
    with pytest.raises(HCLError, match="has 10 bytes"):
        run("cifar10")
    assert not (tmp_path / "raw").exists()
    assert not (tmp_path / "downloads" / "cifar-10-batches-bin").exists()


def test_archive_that_is_not_what_it_should_be(run, server, small, tmp_path):
    archive = pack(tmp_path / "server" / "cifar-100-binary", "cifar-10-batches-bin")
    remote = serve(server, "/cifar10/cifar-10-binary.tar.gz", archive)
    real = small["cifar10"]
    small["cifar10"] = Official(
        real.title, real.folder, real.files, (remote,), real.read, real.members
    )
    with pytest.raises(HCLError, match=r"cifar-10-binary\.tar\.gz: these files are missing"):
        run("cifar10")
    assert not (tmp_path / "downloads" / "cifar-10-batches-bin").exists()


def test_partial(run, tmp_path, small):
    entry = small["svhn"]
    read = functools.partial(readers.read_svhn, counts=(73_257, 26_032))
    small["svhn"] = Official(entry.title, entry.folder, entry.files, entry.remotes, read)
    with pytest.raises(HCLError, match=r"12 samples in the train part, expected 73257.*partial"):
        run("svhn")
    assert len(run("svhn", partial=True)) == 16


def test_digits(tmp_path):
    fetch("eights", DatasetSettings("digits"), tmp_path / "eights.h5")
    raw = Raw(tmp_path / "eights.h5")
    assert (len(raw), raw.dataset, raw.source) == (1797, "eights", "scikit-learn's digits")
    assert raw.read_images(0, 1).shape == (1, 8, 8, 1)


def test_own_folder(tmp_path):
    write_image_folder(tmp_path / "pets")
    settings = DatasetSettings("folder", path=str(tmp_path / "pets"))
    digests = set()
    for name in ("one", "two"):
        fetch("pets", settings, tmp_path / f"{name}.h5")
        digests.add(sha256_of(tmp_path / f"{name}.h5"))
    assert len(digests) == 1
    raw = Raw(tmp_path / "one.h5")
    raw.verify()
    assert raw.classes == ("cat", "dog")
    np.testing.assert_array_equal(raw.y, [0, 0, 0, 1, 1, 1, 0, 0, 1, 1])
    assert [image.shape for image in raw.read_images(0, 4)] == [
        (5, 6, 3),
        (6, 6, 3),
        (7, 6, 3),
        (5, 7, 3),
    ]


def test_bytes_do_not_name_the_place(tmp_path):
    digests = set()
    for place in ("here", "there"):
        write_image_folder(tmp_path / place)
        settings = DatasetSettings("folder", path=str(tmp_path / place))
        fetch("pets", settings, tmp_path / f"{place}.h5")
        digests.add(sha256_of(tmp_path / f"{place}.h5"))
    assert len(digests) == 1


def test_own_embeddings(tmp_path):
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    y, split = np.arange(8) % 2, (np.arange(8) // 2) % 2
    np.savez(tmp_path / "own.npz", x=x, y=y, split=split)
    fetch("own", DatasetSettings("embeddings", path=str(tmp_path / "own.npz")), tmp_path / "o.h5")
    raw = Raw(tmp_path / "o.h5")
    assert raw.kind == "embeddings"
    np.testing.assert_array_equal(raw.x, x)
    np.testing.assert_array_equal(raw.split, split)


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({}, r"p\.yaml: datasets\.d\.source is missing"),
        ({"source": "imagenet"}, r"datasets\.d\.source is 'imagenet'; expected one of digits, "),
        ({"source": "folder"}, r"datasets\.d\.path: missing; the source 'folder' needs the folder"),
        ({"source": "embeddings"}, r"datasets\.d\.path: missing.*\.npz or \.h5"),
        ({"source": "folder", "path": ""}, r"datasets\.d\.path: missing"),
        ({"source": "digits", "path": "x"}, r"datasets\.d\.path: .*takes none"),
        ({"source": "digits", "partial": True}, r"datasets\.d\.partial: only for cifar10"),
        ({"source": "folder", "path": "x", "partial": True}, "partial: only for"),
        ({"source": "svhn", "partial": "yes"}, "partial is 'yes'; expected true or false"),
        ({"source": "svhn", "folder": "x"}, "folder is not a known key"),
    ],
)
def test_settings_that_cannot_be(values, match):
    with pytest.raises(HCLError, match=match):
        build(DatasetSettings, values, "p.yaml", "datasets.d")


def test_the_docs_have_the_same_table():
    text = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    found = (re.fullmatch(r".*`([0-9a-f]{64})` \|", line) for line in text.splitlines())
    rows = {match[1]: match[0] for match in found if match}
    remotes = [remote for entry in OFFICIAL.values() for remote in entry.remotes]
    assert set(rows) == {remote.sha256 for remote in remotes}
    for remote in remotes:
        assert f"/{remote.name}" in rows[remote.sha256]
        assert f" {remote.size:,} " in rows[remote.sha256]
