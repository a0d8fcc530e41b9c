from __future__ import annotations

import errno
import hashlib
import io
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import hcl.fetch.download
from hcl.errors import HCLError
from hcl.fetch.download import RemoteFile, download
from tests.support.file_server import FileServer

DATA = np.random.default_rng(0).bytes(1_000_000)
BY_HAND = "By hand: put it there."


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = FileServer({"/set/data.bin": DATA})
    yield server
    server.close()


@pytest.fixture
def remote(server):
    return RemoteFile(f"{server.url}/set/data.bin", len(DATA), hashlib.sha256(DATA).hexdigest())


def get(remote, folder, **options):
    return download(remote, folder, by_hand=BY_HAND, **options)


def fails(remote, folder, match, **options):
    with pytest.raises(HCLError, match=match) as caught:
        get(remote, folder, **options)
    message = str(caught.value)
    assert remote.url in message
    assert "\n" not in message
    assert not (folder / "data.bin").exists()
    return message


def test_whole_file(server, remote, tmp_path):
    path = get(remote, tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "data.bin"
    assert path.read_bytes() == DATA
    assert [p.name for p in path.parent.iterdir()] == ["data.bin"]
    assert server.requests == [("/set/data.bin", None)]


def test_what_is_there_is_not_fetched_again(server, remote, tmp_path):
    (tmp_path / "data.bin").write_bytes(DATA)
    get(remote, tmp_path)
    assert server.requests == []


@pytest.mark.parametrize("content", [DATA[:-1], DATA[:-1] + bytes([DATA[-1] ^ 1])])
def test_a_wrong_file_in_place_is_neither_used_nor_overwritten(server, remote, tmp_path, content):
    (tmp_path / "data.bin").write_bytes(content)
    with pytest.raises(HCLError, match=r"data\.bin: not the file that .* Remove it"):
        get(remote, tmp_path)
    assert (tmp_path / "data.bin").read_bytes() == content
    assert server.requests == []


def test_broken_connections_are_resumed_where_they_broke(server, remote, tmp_path):
    server.stop_after = 400_000
    assert get(remote, tmp_path).read_bytes() == DATA
    assert [wanted for _, wanted in server.requests] == [None, "bytes=400000-", "bytes=800000-"]


def test_a_second_run_continues_the_first(server, remote, tmp_path):
    server.stop_after = 300_000
    message = fails(remote, tmp_path, "ended after 300000 of 1000000 bytes", attempts=1)
    assert "first 300000 bytes are kept" in message
    assert BY_HAND in message
    assert (tmp_path / "data.bin.part").read_bytes() == DATA[:300_000]
    server.stop_after = None
    assert get(remote, tmp_path).read_bytes() == DATA
    assert server.requests[-1] == ("/set/data.bin", "bytes=300000-")
    assert not (tmp_path / "data.bin.part").exists()


def test_a_part_that_is_complete_needs_no_server(server, remote, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(DATA)
    assert get(remote, tmp_path).read_bytes() == DATA
    assert server.requests == []


def test_a_part_that_is_too_long_is_started_afresh(server, remote, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(DATA + b"more")
    assert get(remote, tmp_path).read_bytes() == DATA
    assert server.requests == [("/set/data.bin", None)]


def test_server_that_ignores_ranges_sends_it_all_again(server, remote, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(DATA[:1000])
    server.ranges = False
    assert get(remote, tmp_path).read_bytes() == DATA
    assert server.requests == [("/set/data.bin", "bytes=1000-")]


def test_server_that_sends_another_range_is_asked_for_the_whole(server, remote, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(DATA[:1000])
    server.shift = 5
    assert get(remote, tmp_path).read_bytes() == DATA
    assert [wanted for _, wanted in server.requests] == ["bytes=1000-", None]


def test_server_that_refuses_the_range_is_asked_for_the_whole(server, remote, tmp_path):
    server.files["/set/data.bin"] = DATA[:10]
    (tmp_path / "data.bin.part").write_bytes(DATA[:1000])
    fails(remote, tmp_path, "has 10 bytes, expected 1000000")
    assert [wanted for _, wanted in server.requests] == ["bytes=1000-", None]


def test_wrong_checksum_is_removed(server, remote, tmp_path):
    server.files["/set/data.bin"] = DATA[:500] + b"!" + DATA[501:]
    message = fails(remote, tmp_path, "SHA-256 .*, expected .*; removed")
    assert BY_HAND in message
    assert list(tmp_path.iterdir()) == []


def test_a_bad_part_does_not_get_through(server, remote, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(bytes(1000))
    fails(remote, tmp_path, "SHA-256")
    assert list(tmp_path.iterdir()) == []
    assert get(remote, tmp_path).read_bytes() == DATA


@pytest.mark.parametrize(("ranges", "part"), [(True, b""), (False, DATA[:9]), (True, DATA[:9])])
def test_wrong_size_is_refused_before_the_transfer(server, remote, tmp_path, ranges, part):
    server.files["/set/data.bin"] = DATA + b"more"
    server.ranges = ranges
    (tmp_path / "data.bin.part").write_bytes(part)
    fails(remote, tmp_path, "has 1000004 bytes, expected 1000000")
    assert (tmp_path / "data.bin.part").read_bytes() == part


def test_no_length_announced(server, remote, tmp_path):
    server.length = ""
    assert get(remote, tmp_path).read_bytes() == DATA


def test_no_length_announced_and_cut_off(server, remote, tmp_path):
    server.length = ""
    server.stop_after = 1000
    fails(remote, tmp_path, "ended after 1000 of", attempts=1)


@pytest.mark.parametrize("status", [403, 404, 503])
def test_http_error(server, remote, tmp_path, status):
    server.status = status
    message = fails(remote, tmp_path, f"the server answers {status}")
    assert BY_HAND in message
    assert len(server.requests) == 1


def test_no_network(remote, tmp_path):
    with socket.socket() as taken:  # bound but not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/set/data.bin"
        gone = RemoteFile(url, remote.size, remote.sha256)
        message = fails(gone, tmp_path, "no connection")
    assert BY_HAND in message


def test_unknown_host(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    remote = RemoteFile("https://nowhere.invalid/data.bin", 1, "0" * 64)
    fails(remote, tmp_path, "no connection")


def test_silent_server(server, remote, tmp_path):
    server.silent = True
    start = time.monotonic()
    fails(remote, tmp_path, "no (answer|connection)", timeout=0.2)
    assert time.monotonic() - start < 25  # it does not wait the 30 s of a download


def test_server_that_falls_silent(server, remote, tmp_path):
    server.stop_after, server.stall = 300_000, True
    fails(
        remote,
        tmp_path,
        "the connection broke off .*300000 bytes are kept",
        attempts=1,
        timeout=3,  # on a busy machine, the server may need some of it for what it does send
    )
    server.stop_after, server.stall = None, False
    assert get(remote, tmp_path).read_bytes() == DATA
    assert server.requests[-1][1] == "bytes=300000-"


def test_killed_and_run_again(server, remote, tmp_path):
    server.stop_after, server.stall = 600_000, True
    code = (
        "from hcl.fetch.download import RemoteFile, download\n"
        f"download({remote!r}, {str(tmp_path)!r}, by_hand='')"
    )
    child = subprocess.Popen([sys.executable, "-c", code])
    part = tmp_path / "data.bin.part"
    until = time.monotonic() + 300
    while (not part.exists() or part.stat().st_size == 0) and time.monotonic() < until:
        time.sleep(0.01)
    child.kill()
    child.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["data.bin.part"]
    kept = part.read_bytes()
    assert kept
    assert DATA.startswith(kept)
    server.stop_after, server.stall = None, False
    assert get(remote, tmp_path).read_bytes() == DATA
    assert server.requests[-1][1] == f"bytes={len(kept)}-"


def test_full_disk(server, remote, tmp_path, monkeypatch):
    class FullDisk(io.FileIO):
        def write(self, data):
            if self.tell() > 500_000:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    monkeypatch.setattr(hcl.fetch.download, "open", FullDisk, raising=False)
    message = fails(remote, tmp_path, "the disk is full")
    assert str(tmp_path) in message
    assert BY_HAND in message
    kept = (tmp_path / "data.bin.part").read_bytes()
    assert 500_000 < len(kept) < len(DATA)
    monkeypatch.undo()
    assert get(remote, tmp_path).read_bytes() == DATA
    assert server.requests[-1][1] == f"bytes={len(kept)}-"


def test_folder_that_cannot_be_made(server, remote, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HCLError, match=r"cannot be saved as .*file/data\.bin\.part"):
        get(remote, tmp_path / "file")
