"""Images, folders, shards and arrays that lie: each ends in one line, soon and in little memory."""

from __future__ import annotations

import io
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from hcl.errors import HCLError
from hcl.extract.backbones import Transform
from hcl.fetch import images, readers
from hcl.records.raw import Content
from tests.support.official_layouts import write_image_folder


def refused(match: str, read: Callable[..., Content], *arguments: object) -> None:
    start = time.process_time()
    with pytest.raises(HCLError, match=match) as caught:
        list(read(*arguments).blocks)
    assert "\n" not in str(caught.value)
    assert time.process_time() - start < 5


def strip(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (width, height)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(("width", "height"), [(20_000, 1), (1, 20_000), (51, 1)])
def test_a_strip_is_refused_when_it_is_fetched(tmp_path: Path, width: int, height: int) -> None:
    write_image_folder(tmp_path)
    (tmp_path / "train" / "dog" / "z.png").write_bytes(strip(width, height))
    said = rf"z.png: not a readable image \({width}×{height} pixels; one side is more"
    refused(said, images.read_folder, tmp_path)


def test_a_strip_is_refused_when_it_is_resized() -> None:
    transform = Transform(224, 224, 0.875, "center", "bicubic", (0.5,) * 3, (0.5,) * 3)
    with pytest.raises(HCLError, match="an image of 20000×1 pixels: one side is more than 50"):
        transform.resize(torch.zeros(1, 3, 1, 20_000, dtype=torch.uint8))
    assert transform.resize(torch.zeros(1, 3, 1, 50, dtype=torch.uint8)).shape == (1, 3, 224, 224)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    write_image_folder(tmp_path)
    os.mkfifo(tmp_path / "train" / "dog" / "z.png")
    refused("z.png: not a file; take it out", images.read_folder, tmp_path)
    refused("z.png: not a file; take it out", images.read_unlabelled, tmp_path)
    for read, suffix in ((images.read_webdataset, "tar"), (images.read_parquet, "parquet")):
        folder = tmp_path / suffix
        folder.mkdir()
        os.mkfifo(folder / f"train-0.{suffix}")
        refused(f"train-0.{suffix}: not a file", read, folder)


def test_links_that_dangle_or_lead_out_are_refused(tmp_path: Path) -> None:
    folder, secret = tmp_path / "set", tmp_path / "secret.png"
    write_image_folder(folder)
    secret.write_bytes(strip(8, 8))
    link = folder / "train" / "dog" / "z.png"
    link.symlink_to(tmp_path / "nowhere")
    refused("z.png: cannot be read", images.read_folder, folder)
    link.unlink()
    link.symlink_to(secret)
    refused("z.png: a link that leads out of", images.read_folder, folder)
    refused("z.png: a link that leads out of", images.read_unlabelled, folder)
    link.unlink()
    link.symlink_to(folder / "train" / "dog" / "0.png")  # within the folder: as good as the file
    assert images.read_folder(folder).count == 11
    link.unlink()
    (folder / "train" / "ant").symlink_to(tmp_path)
    refused("ant: a link that leads out of", images.read_folder, folder)
    refused("ant: a link to a folder", images.read_unlabelled, folder)


@pytest.mark.parametrize(("suffix", "read"), [("tar", images.read_webdataset)])
def test_shards_that_are_links_out_of_the_folder_are_refused(
    tmp_path: Path, suffix: str, read: Callable[..., Content]
) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    (tmp_path / f"a.{suffix}").write_bytes(b"")
    (folder / f"train-0.{suffix}").symlink_to(tmp_path / f"a.{suffix}")
    refused("a link that leads out of", read, folder)


@pytest.mark.parametrize("name", [b"dog\xff", b"dog\x1b[31m", b"d" * 250])
def test_a_class_that_can_not_be_named_is_refused(tmp_path: Path, name: bytes) -> None:
    write_image_folder(tmp_path)
    for part in ("train", "test"):
        dog = tmp_path / part / "dog"
        dog.rename(dog.with_name(os.fsdecode(name)))
    refused("the name of its class", images.read_folder, tmp_path)


def embeddings(**changes: object) -> dict[str, np.ndarray]:
    arrays = {
        "x": np.ones((4, 3), np.float32),
        "y": np.array([0, 1, 0, 1]),
        "split": np.array([0, 0, 1, 1]),
    }
    return arrays | changes  # type: ignore[operator]


def test_an_array_that_nobody_asked_for_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "e.npz"
    np.savez(path, **embeddings())
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)}
    )
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("other.npy", header.getvalue())
    assert readers.read_embeddings(path).count == 4
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("x", "y", "split"):
            archive.writestr(f"{name}.npy", header.getvalue())
    refused(r"e.npz: x claims the shape \(1099511627776,\), but has", readers.read_embeddings, path)


def test_more_than_the_memory_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "e.npz", **embeddings(x=np.zeros((4, 100_000), np.float32)))
    monkeypatch.setattr(readers, "memory_of_this_machine", lambda: 1 << 20)
    refused("e.npz: its arrays unpack to .* GiB", readers.read_embeddings, tmp_path / "e.npz")


def test_a_label_beyond_the_samples_is_refused_before_its_classes_are_listed(
    tmp_path: Path,
) -> None:
    np.savez(tmp_path / "e.npz", **embeddings(y=np.array([0, 1, 0, 20_000_000])))
    refused(
        r"y takes the values 0…20000000, but there", readers.read_embeddings, tmp_path / "e.npz"
    )


def test_a_dictionary_that_repeats_an_image_is_read_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"image": [strip(50, 50)] * 100, "label": ["a", "b"] * 50})
    for part in ("train", "test"):
        parquet.write_table(table, tmp_path / f"{part}.parquet")
    monkeypatch.setattr(images, "_ROWS_BYTES", 300)
    taken = []
    rows_at_once = images._rows_at_once
    monkeypatch.setattr(
        images, "_rows_at_once", lambda f: taken.append(rows_at_once(f)) or taken[-1]
    )
    assert images.read_parquet(tmp_path).count == 200
    assert max(taken) < 8


def test_columns_of_a_parquet_file_are_not_asked_for_their_sizes() -> None:
    """Over damaged statistics of a column, pyarrow ends the process when that is asked for."""
    groups = [SimpleNamespace(total_byte_size=size) for size in (1 << 27, 1 << 26)]
    metadata = SimpleNamespace(num_row_groups=2, row_group=lambda number: groups[number])
    assert images._rows_at_once(SimpleNamespace(metadata=metadata)) == 8


def test_a_column_of_parquet_whose_name_is_no_text(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"image": [strip(5, 5)] * 2, "label": ["a", "b"], "other": [1, 2]})
    for part in ("train", "test"):
        path = tmp_path / f"{part}.parquet"
        parquet.write_table(table, path, store_schema=False)
        path.write_bytes(path.read_bytes().replace(b"other", b"oth\xa2r"))
    refused("not a whole Parquet file .*codec can't decode", images.read_parquet, tmp_path)


@pytest.mark.parametrize("aim", ["nowhere", "oak"])
def test_a_class_that_is_a_link_to_nowhere_is_not_passed_over(tmp_path: Path, aim: str) -> None:
    write_image_folder(tmp_path)
    (tmp_path / "train" / "oak").symlink_to(aim)
    refused("oak: a link that leads nowhere; take it out", images.read_folder, tmp_path)


@pytest.mark.parametrize("name", ["split", "classes"])
@pytest.mark.parametrize("kind", ["<U0", "|S0"])
def test_texts_of_no_bytes_are_not_any_number(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / "e.npz"
    arrays = {"x": np.ones((4, 2)), "y": np.arange(4) % 2, "split": np.arange(4) > 1}
    arrays.pop(name, None)
    np.savez(path, **arrays)
    outline = {"descr": kind, "fortran_order": False, "shape": (10**15,)}
    with zipfile.ZipFile(path, "a") as archive, archive.open(f"{name}.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, outline)
    refused(f"{name} claims the shape", readers.read_embeddings, path)
