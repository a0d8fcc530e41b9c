from __future__ import annotations

import gzip
import io
import tarfile

import pytest

from hcl.errors import HCLError
from hcl.fetch.archives import extract_tar, opened

MEMBERS = {"set/a.bin": 3000, "set/b.bin": 5}
CONTENT = {"set/a.bin": b"a" * 3000, "set/b.bin": b"hello"}


def entry(name, data=b"", kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(data)
    return info, data


def write_tar(path, *extra, content=CONTENT):
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("set/readme.html"))
        for name, data in content.items():
            info, _ = entry(name, data)
            tar.addfile(info, io.BytesIO(data))
        for info, data in extra:
            tar.addfile(info, io.BytesIO(data))
    return path


def refused(archive, folder, match):
    with pytest.raises(HCLError, match=match) as caught:
        extract_tar(archive, MEMBERS, folder)
    assert str(archive) in str(caught.value)
    assert not folder.exists()
    assert {p.name for p in folder.parent.iterdir()} <= {archive.name}


def test_only_the_expected_files_come_out(tmp_path):
    archive = write_tar(tmp_path / "x.tar.gz", entry("set/more.txt", b"more"))
    extract_tar(archive, MEMBERS, tmp_path / "out")
    found = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    assert found == {"a.bin": CONTENT["set/a.bin"], "b.bin": CONTENT["set/b.bin"]}


def test_a_folder_entry_is_passed_over(tmp_path):
    archive = write_tar(tmp_path / "x.tar.gz", entry("set", kind=tarfile.DIRTYPE))
    extract_tar(archive, MEMBERS, tmp_path / "out")
    assert len(list((tmp_path / "out").iterdir())) == 2


@pytest.mark.parametrize(
    "name", ["../evil", "set/../../evil", "/evil", "set\\..\\evil", "C:/evil", ".."]
)
def test_unsafe_paths(tmp_path, name):
    refused(write_tar(tmp_path / "x.tar.gz", entry(name, b"!")), tmp_path / "out", "unsafe path")


@pytest.mark.parametrize(
    ("kind", "link"),
    [
        (tarfile.SYMTYPE, "/etc/passwd"),
        (tarfile.LNKTYPE, "set/a.bin"),
        (tarfile.CHRTYPE, ""),
        (tarfile.BLKTYPE, ""),
        (tarfile.FIFOTYPE, ""),
    ],
)
def test_links_and_devices(tmp_path, kind, link):
    archive = write_tar(tmp_path / "x.tar.gz", entry("set/thing", kind=kind, link=link))
    refused(archive, tmp_path / "out", "link or a device")


def test_a_link_in_place_of_an_expected_file(tmp_path):
    archive = write_tar(
        tmp_path / "x.tar.gz",
        entry("set/b.bin", kind=tarfile.SYMTYPE, link="/etc/passwd"),
        content={"set/a.bin": CONTENT["set/a.bin"]},
    )
    refused(archive, tmp_path / "out", "link or a device")


def test_missing_member(tmp_path):
    archive = write_tar(tmp_path / "x.tar.gz", content={"set/b.bin": b"hello"})
    refused(archive, tmp_path / "out", r"missing in it: set/a\.bin")


def test_member_of_another_size(tmp_path):
    archive = write_tar(tmp_path / "x.tar.gz", content={**CONTENT, "set/b.bin": b"hello!"})
    refused(archive, tmp_path / "out", r"set/b\.bin has 6 bytes, expected 5")


def test_member_that_comes_twice(tmp_path):
    archive = write_tar(tmp_path / "x.tar.gz", entry("set/b.bin", b"other"))
    refused(archive, tmp_path / "out", r"holds set/b\.bin twice")


def test_bomb_in_a_member_that_nobody_wants(tmp_path):
    archive = write_tar(tmp_path / "x.tar.gz", entry("set/zeros", bytes(2 << 20)), content={})
    assert archive.stat().st_size < 10_000
    refused(archive, tmp_path / "out", "unpacks to more")


def test_bomb_in_a_header(tmp_path):
    # A pax header of 2 MiB, which tarfile would read into memory whole
    archive = tmp_path / "x.tar.gz"
    info, _ = entry("set/a.bin")
    info.pax_headers = {"comment": "x" * (2 << 20)}
    archive.write_bytes(gzip.compress(info.tobuf(tarfile.PAX_FORMAT)))
    refused(archive, tmp_path / "out", "unpacks to more")


def test_cut_off(tmp_path):
    whole = write_tar(tmp_path / "x.tar.gz").read_bytes()
    for size in (0, 5, 40, len(whole) // 2, len(whole) - 20, len(whole) - 4):
        archive = tmp_path / "cut.tar.gz"
        archive.write_bytes(whole[:size])
        with pytest.raises(HCLError, match=r"cut\.tar\.gz"):
            extract_tar(archive, MEMBERS, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_flipped_byte(tmp_path):
    archive = write_tar(tmp_path / "x.tar.gz", content=CONTENT)
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 0xFF
    archive.write_bytes(data)
    with pytest.raises(HCLError, match=r"x\.tar\.gz"):
        extract_tar(archive, MEMBERS, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "data",
    [b"not gzip at all", gzip.compress(b"not a tar" * 100)],
    ids=["no gzip", "no tar"],  # gzip's bytes hold the time: as an id they differ between workers
)
def test_not_an_archive(tmp_path, data):
    archive = tmp_path / "x.tar.gz"
    archive.write_bytes(data)
    refused(archive, tmp_path / "out", r"damaged|missing")


def test_no_archive(tmp_path):
    with pytest.raises(HCLError, match=r"x\.tar\.gz: no such file"):
        extract_tar(tmp_path / "x.tar.gz", MEMBERS, tmp_path / "out")


def test_what_was_there_stays_when_the_new_one_is_refused(tmp_path):
    folder = tmp_path / "out"
    extract_tar(write_tar(tmp_path / "x.tar.gz"), MEMBERS, folder)
    bad = write_tar(tmp_path / "bad.tar.gz", entry("../evil"))
    with pytest.raises(HCLError):
        extract_tar(bad, MEMBERS, folder)
    assert (folder / "b.bin").read_bytes() == b"hello"


def test_opened_reads_plain_and_packed(tmp_path):
    (tmp_path / "plain").write_bytes(b"text")
    (tmp_path / "packed.gz").write_bytes(gzip.compress(b"text"))
    for name in ("plain", "packed.gz"):
        with opened(tmp_path / name) as file:
            assert file.read() == b"text"


@pytest.mark.parametrize("cut", [3, 15, 25])
def test_opened_names_a_damaged_file(tmp_path, cut):
    path = tmp_path / "packed.gz"
    path.write_bytes(gzip.compress(b"text" * 10)[:cut])
    with pytest.raises(HCLError, match=r"packed\.gz: damaged or cut off"), opened(path) as file:
        file.read()


def test_opened_names_a_missing_file(tmp_path):
    with pytest.raises(HCLError, match="nothing: no such file"), opened(tmp_path / "nothing"):
        pass
