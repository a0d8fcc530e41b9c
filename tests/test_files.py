"""Outputs appear whole or not at all; digests depend on values, not on the order of keys."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from hcl.errors import HCLError
from hcl.files import (
    canonical_json,
    check_file_to_write,
    check_folder_to_write,
    fingerprint,
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
