"""What the store hands out is the user's own."""

from __future__ import annotations

from pathlib import Path

from hcl.train.store import Entry


def finished_entry(folder: Path) -> Entry:
    entry = Entry(folder)
    folder.mkdir()
    entry.run.write_bytes(b"a run")
    entry.model.write_bytes(b"a model")
    return entry


def test_an_output_edited_in_place_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    entry = finished_entry(tmp_path / "entry")
    entry.deliver(tmp_path, "seed-0")
    outputs = {"seed-0.h5": b"a run", "seed-0.safetensors": b"a model"}
    for name, content in outputs.items():
        with (tmp_path / name).open("r+b") as file:
            assert file.read() == content
            file.write(b", edited")
    assert entry.run.read_bytes() == b"a run"
    assert entry.model.read_bytes() == b"a model"


def test_an_output_has_the_mode_that_the_umask_gives(tmp_path: Path) -> None:
    entry = finished_entry(tmp_path / "entry")
    entry.run.chmod(0o600)
    (tmp_path / "any").touch()
    entry.deliver(tmp_path, "seed-0")
    assert (tmp_path / "seed-0.h5").stat().st_mode == (tmp_path / "any").stat().st_mode
