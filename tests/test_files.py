"""Outputs appear whole or not at all; digests depend on values, not on the order of keys."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from hcl import files
from hcl.errors import HCLError
from hcl.files import (
    JSON_DEPTH,
    Sink,
    canonical_json,
    check_file_to_write,
    check_folder_to_write,
    fingerprint,
    parse_json,
    replacing,
    sha256_of,
    write_json,
)


class Stopped(Exception):
    pass


def test_a_file_replaces_the_old_one_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out.txt"
    with replacing(path) as partial:
        partial.write_text("first")
        assert not path.exists()
    with pytest.raises(Stopped), replacing(path) as partial:
        partial.write_text("half of the sec")
        raise Stopped
    assert path.read_text() == "first"
    with replacing(path) as partial:
        partial.write_text("second")
        assert path.read_text() == "first"
    assert path.read_text() == "second"
    assert [p.name for p in path.parent.iterdir()] == ["out.txt"]


def test_a_folder_replaces_the_old_one_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "out"
    for text in ("first", "second"):
        with replacing(path) as partial:
            partial.mkdir()
            (partial / text).write_text(text)
        assert [p.name for p in path.iterdir()] == [text]
    with pytest.raises(Stopped), replacing(path) as partial:
        partial.mkdir()
        raise Stopped
    assert [p.name for p in path.iterdir()] == ["second"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_fingerprints_tell_values_apart_but_not_the_order_of_keys() -> None:
    assert fingerprint({"a": 1, "b": [1, 2]}) == fingerprint({"b": [1, 2], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
    assert fingerprint([1, 2]) != fingerprint([2, 1])
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"a": float("nan")})


def test_the_digest_is_that_of_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc" * 100_000)
    assert sha256_of(path) == hashlib.sha256(b"abc" * 100_000).hexdigest()


def test_json_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"λ": 5})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"λ": float("inf")})
    assert path.read_text() == '{\n  "λ": 5\n}\n'


def test_a_folder_that_holds_others_files_is_not_for_writing(tmp_path: Path) -> None:
    check_folder_to_write(tmp_path / "new", "--out", ("run-*.h5",))
    (tmp_path / "run-1.h5").touch()
    check_folder_to_write(tmp_path, "--out", ("run-*.h5",))
    for name in "dcba":
        (tmp_path / name).touch()
    with pytest.raises(HCLError, match=r"did not write \(a, b, c, …\), and would lose it; .*--out"):
        check_folder_to_write(tmp_path, "--out", ("run-*.h5",))
    with pytest.raises(HCLError, match="is a file; --out names the folder to write"):
        check_folder_to_write(tmp_path / "a", "--out", ())
    assert len(list(tmp_path.iterdir())) == 5


def test_a_file_can_be_written_where_its_folder_can(tmp_path: Path) -> None:
    check_file_to_write(tmp_path / "new/deep/file", "--out")
    assert not (tmp_path / "new").exists()  # nothing is made before there is something to write
    (tmp_path / "file").touch()
    check_file_to_write(tmp_path / "file", "--out")
    with pytest.raises(HCLError, match="is a folder; --out names the file to write"):
        check_file_to_write(tmp_path, "--out")
    with pytest.raises(HCLError, match=r"x/y: can't be written, because .*file can't be"):
        check_file_to_write(tmp_path / "file/x/y", "--out")
    with pytest.raises(HCLError, match="can't be written"), replacing("/proc/none/file"):
        pass


def test_the_present_folder_can_be_replaced(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with replacing(".") as partial:
        partial.mkdir()
        (partial / "file").touch()
    assert (tmp_path / "here" / "file").exists()


# Stops


def dead_pid() -> int:
    """The number of a process that is gone."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_content_reaches_the_disk_before_its_name_does(tmp_path: Path, monkeypatch) -> None:
    done = []
    real_sync, real_replace = os.fsync, os.replace

    def fsync(file: int) -> None:
        done.append(("sync", Path(f"/proc/self/fd/{file}").readlink().name.split(".")[1:2]))
        real_sync(file)

    def replace(source: Path, target: Path) -> None:
        done.append(("name", [Path(target).name]))
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    with replacing(tmp_path / "out") as partial:
        partial.write_text("content")
    assert done == [("sync", ["out"]), ("name", ["out"]), ("sync", [])]
    done.clear()
    with replacing(tmp_path / "folder") as partial:
        (partial / "deep").mkdir(parents=True)
        (partial / "deep" / "a.txt").write_text("content")
    kinds = [kind for kind, _ in done]
    assert kinds == [*["sync"] * 3, "name", "sync"]  # a.txt and both folders


def test_what_a_killed_process_left_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    gone, alive = dead_pid(), os.getppid()
    left = [f".out.{gone}.part", f".out.{gone}@{files._HOST}.part", f".out.{gone}.previous"]
    foreign = f".out.{gone}@elsewhere.part"
    kept = [f".out.{alive}.part", f".other.{gone}.part", foreign, ".out.x.part", "out"]
    for name in (*left, *kept):
        (tmp_path / name).write_text("x")
    with replacing(tmp_path / "out") as partial:
        partial.write_text("new")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(kept)
    os.utime(tmp_path / foreign, (time.time() - 2 * 24 * 3600,) * 2)
    with replacing(tmp_path / "out") as partial:
        partial.write_text("new")
    assert not (tmp_path / foreign).exists()


def test_what_a_zombie_left_goes(tmp_path: Path) -> None:
    """Dead, with a number that is still taken: its parent, this test, has not asked for it yet."""
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    left = tmp_path / f".out.{process.pid}@{files._HOST}.part"
    left.touch()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    try:
        files.remove_orphans(tmp_path / "out")
        assert not left.exists()
    finally:
        process.communicate()


def test_a_folder_that_stepped_aside_for_one_that_never_came_is_put_back(tmp_path: Path) -> None:
    aside = tmp_path / f".out.{dead_pid()}.previous"
    aside.mkdir()
    (aside / "a").touch()
    with pytest.raises(Stopped), replacing(tmp_path / "out") as partial:
        partial.mkdir()
        raise Stopped
    assert [p.name for p in tmp_path.rglob("*")] == ["out", "a"]


def test_two_that_replace_one_folder_both_succeed(tmp_path: Path, monkeypatch) -> None:
    """Many rounds at once, under names as of two processes: one of the two is there, whole."""
    numbers = threading.local()
    monkeypatch.setattr(files, "_owner", lambda: f"{os.getpid()}@{numbers.mine}")
    failures: list[Exception] = []

    def work(mine: int) -> None:
        numbers.mine = mine
        try:
            for _ in range(60):
                with replacing(tmp_path / "out") as partial:
                    partial.mkdir()
                    (partial / str(mine)).touch()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(list((tmp_path / "out").iterdir())) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


# Full disks


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_line_and_leaves_what_was_there(tmp_path: Path, number: int) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    message = "out: can't be written: no space left on the disk; make room and run again."
    with pytest.raises(HCLError, match=message), replacing(path) as partial:
        partial.write_text("half")
        raise OSError(number, os.strerror(number))
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert path.read_text() == "old"
    with pytest.raises(FileNotFoundError), replacing(path):  # no fault of the disk
        (tmp_path / "input").read_bytes()


def test_hdf5_survives_a_write_that_fails_and_the_reason_is_told(tmp_path: Path) -> None:
    """By itself it crashes, often at the end of the process: hence one of its own."""
    program = """
import errno, os, sys, h5py, numpy as np
from pathlib import Path
from hcl.files import Sink, replacing
room, write = int(sys.argv[1]), os.pwrite
def pwrite(file, data, offset):
    if offset + len(data) > room:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return write(file, data, offset)
os.pwrite = pwrite
try:
    with replacing("out.h5") as partial, Sink(partial) as sink, h5py.File(sink, "w") as file:
        for name in "abc":
            file.create_dataset(name, data=np.arange(5000))
            file[name].attrs["text"] = "x" * 900
except Exception as error:
    print(error)
"""
    environment = os.environ | {"PYTHONPATH": str(Path(files.__file__).parents[1])}
    for room, printed in ((0, "no space left"), (3000, "no space left"), (10**6, "")):
        done = subprocess.run(
            [sys.executable, "-c", program, str(room)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert printed in done.stdout
        assert [p.name for p in tmp_path.iterdir()] == ([] if printed else ["out.h5"])
    with h5py.File(tmp_path / "out.h5") as file:
        np.testing.assert_array_equal(file["c"], np.arange(5000))


def test_a_sink_is_a_file(tmp_path: Path) -> None:
    with Sink(tmp_path / "a") as sink:
        assert sink.write(b"abcdef") == 6
        assert sink.digest.hexdigest() == hashlib.sha256(b"abcdef").hexdigest()
        assert sink.seek(1) == 1
        sink.write(b"BC")
        assert sink.tell() == 3
        sink.seek(-2, io.SEEK_END)
        assert sink.read() == b"ef"
        sink.truncate(5)
    assert (tmp_path / "a").read_bytes() == b"aBCde"


def test_a_json_text_is_bounded_in_size_and_depth(monkeypatch) -> None:
    deep = "[" * JSON_DEPTH + "]" * JSON_DEPTH
    assert parse_json(deep) == json.loads(deep)
    assert parse_json('["[[[\\"[[["]') == ['[[["[[[']
    with pytest.raises(ValueError, match="nested more than"):
        parse_json(f"[{deep}]")
    with pytest.raises(ValueError, match="nested more than"):
        parse_json("[" * 1_000_000)
    with pytest.raises(ValueError):
        parse_json('"' + '\\"' * 200_000)  # in linear time
    monkeypatch.setattr(files, "JSON_LIMIT", 10)
    with pytest.raises(ValueError, match="has 11 characters"):
        parse_json('"' + 9 * "a" + '"')
