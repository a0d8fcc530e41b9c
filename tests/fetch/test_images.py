"""A user's own images: in a folder, in WebDataset tar shards, in Parquet files."""

from __future__ import annotations

import gc
import io
import json
import shutil
import sys
import tarfile
import tracemalloc

import numpy as np
import pytest

from hcl.errors import HCLError
from hcl.fetch import images
from hcl.fetch.datasets import DatasetSettings, fetch
from hcl.records.raw import Raw
from tests.support.official_layouts import encode, random_images, write_image_folder


def fails(match, read, *arguments, **options):
    """Reading stops with one line, at the outline or at a block."""
    with pytest.raises(HCLError, match=match) as caught:
        list(read(*arguments, **options).blocks)
    assert "\n" not in str(caught.value)


def test_folder_of_images(tmp_path):
    write_image_folder(tmp_path, classes=("dog", "cat", "10", "9"))
    (tmp_path / "train" / "cat" / ".DS_Store").write_text("hidden")
    (tmp_path / "train" / ".cache").mkdir()
    (tmp_path / "train" / "notes.txt").write_text("beside the classes")
    content = images.read_folder(tmp_path)
    assert content.kind == "encoded"
    assert content.classes == ("10", "9", "cat", "dog")
    assert content.count == 4 * 3 + 4 * 2
    (block,) = content.blocks
    np.testing.assert_array_equal(block.split, [0] * 12 + [1] * 8)
    np.testing.assert_array_equal(block.y, np.repeat([0, 1, 2, 3, 0, 1, 2, 3], [3] * 4 + [2] * 4))
    expected = [
        (tmp_path / part / name / file).read_bytes()
        for part, files in (("train", ("0.png", "1.webp", "2.JPG")), ("test", ("0.png", "1.webp")))
        for name in content.classes
        for file in files
    ]
    assert block.data == expected
    assert content.shape == (sum(map(len, expected)),)


def test_folder_is_read_in_blocks(tmp_path, monkeypatch):
    write_image_folder(tmp_path)
    monkeypatch.setattr(images, "BYTES_AT_ONCE", 400)
    blocks = list(images.read_folder(tmp_path).blocks)
    assert len(blocks) > 3
    assert sum(len(block.data) for block in blocks) == 10


def test_images_without_labels_lie_anywhere_in_a_folder(tmp_path):
    photos = tmp_path / "photos"
    (photos / "2025" / "may").mkdir(parents=True)
    paths = [photos / "2025" / "b.png", photos / "2025" / "may" / "a.webp", photos / "z.jpeg"]
    for i, path in enumerate(paths):
        path.write_bytes(encode(random_images(3, (4 + i, 4, 3))[i], path.suffix[1:]))
    (photos / ".hidden").write_text("not an image")
    fetch("photos", DatasetSettings("images", str(photos)), tmp_path / "photos.h5")
    raw = Raw(tmp_path / "photos.h5")
    raw.verify()
    assert raw.classes == ()
    assert raw.y.tolist() == [-1, -1, -1]
    assert raw.split.tolist() == [0, 0, 0]
    assert raw.read_samples(0, 3) == [path.read_bytes() for path in paths]


def test_images_without_labels_that_are_none(tmp_path):
    fails("nothing: no such folder", images.read_unlabelled, tmp_path / "nothing")
    fails(r"no image in it \(.png", images.read_unlabelled, tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "broken.png").write_bytes(b"text")
    fails(r"broken\.png: not a readable image", images.read_unlabelled, tmp_path)
    (tmp_path / "in" / "scan.heic").write_bytes(b"another format")
    fails(r"scan\.heic: not an image by its name", images.read_unlabelled, tmp_path)


def folder_fails(folder, match):
    fails(match, images.read_folder, folder)


def test_folder_without_parts(tmp_path):
    folder_fails(tmp_path / "nothing", "nothing/train: no such folder; expected train/<class>")
    write_image_folder(tmp_path)
    shutil.rmtree(tmp_path / "test")
    folder_fails(tmp_path, "/test: no such folder")
    (tmp_path / "test").mkdir()
    folder_fails(tmp_path, "/test: no class folders")


@pytest.mark.parametrize(("here", "there"), [("train", "test"), ("test", "train")])
def test_folder_with_other_classes_in_test(tmp_path, here, there):
    write_image_folder(tmp_path)
    shutil.copytree(tmp_path / here / "cat", tmp_path / here / "owl")
    folder_fails(tmp_path, f"{there}/ lacks classes that {here}/ has: owl")


def test_folder_with_an_empty_class(tmp_path):
    write_image_folder(tmp_path)
    for path in (tmp_path / "train" / "cat").iterdir():
        path.unlink()
    folder_fails(tmp_path, "train/cat: a class without images")


@pytest.mark.parametrize("name", ["label.txt", "image.bmp", "image", "more"])
def test_folder_with_something_else_among_the_images(tmp_path, name):
    write_image_folder(tmp_path)
    path = tmp_path / "test" / "dog" / name
    if name == "more":
        path.mkdir()
    else:
        path.write_bytes(encode(random_images(1, (4, 4, 3))[0]))
    folder_fails(tmp_path, f"test/dog/{name}: not an image by its name")


def test_folder_with_an_image_outside_of_the_classes(tmp_path):
    write_image_folder(tmp_path)
    shutil.copy(tmp_path / "train" / "cat" / "0.png", tmp_path / "train" / "lost.PNG")
    folder_fails(tmp_path, r"train/lost\.PNG: an image outside of a class folder")


@pytest.mark.parametrize("content", [b"", b"no image", "cut"])
def test_folder_with_a_broken_image(tmp_path, content):
    write_image_folder(tmp_path)
    path = tmp_path / "train" / "dog" / "2.JPG"
    if content == "cut":
        content = encode(random_images(1, (64, 64, 3))[0], "JPEG")[:-200]
    path.write_bytes(content)
    folder_fails(tmp_path, r"train/dog/2\.JPG: not a readable image")


def test_classes_of_a_folder_keep_the_order_of_their_names(tmp_path):
    write_image_folder(tmp_path, classes=("2", "10"))
    assert images.read_folder(tmp_path).classes == ("10", "2")


def test_a_folder_with_a_file_too_large_for_an_image(tmp_path):
    write_image_folder(tmp_path)
    with open(tmp_path / "train" / "dog" / "0.png", "wb") as file:
        file.truncate(images.LARGEST_IMAGE + 1)  # a hole: it takes no room
    folder_fails(tmp_path, r"train/dog/0\.png: 268435457 bytes, more than the 268435456")


# WebDataset

PICTURES = [encode(random_images(1, (4 + i, 5, 3), seed=i)[0]) for i in range(6)]


def add(tar, name, data, **changes):
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    for key, value in changes.items():
        setattr(entry, key, value)
    tar.addfile(entry, io.BytesIO(data))


def write_tar(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            add(tar, name, data)
    return path


def sample(key, picture, label):
    return [(f"{key}.png", PICTURES[picture]), (f"{key}.cls", str(label).encode())]


@pytest.fixture
def shards(tmp_path):
    """Two shards of train, one of test; labels of three kinds of places."""
    first = [*sample("a/000", 0, 10), ("a/000.txt", b"a caption"), *sample("a/001", 1, 9)]
    second = [
        ("002.json", json.dumps({"label": 10, "width": 5}).encode()),
        ("002.png", PICTURES[2]),
        ("002.seg.png", b"a mask, which is no image here"),
        *sample("003", 3, "9\n"),
    ]
    write_tar(tmp_path / "train-000000.tar", first)
    write_tar(tmp_path / "train-000001.tar", second)
    write_tar(tmp_path / "test-000000.tar", [*sample("x", 4, 9), *sample("y", 5, 10)])
    (tmp_path / "README.md").write_text("beside the shards")
    return tmp_path


def shards_fail(folder, match):
    fails(match, images.read_webdataset, folder)


def check_six(content, classes):
    assert content.kind == "encoded"
    assert content.classes == classes
    assert content.count == 6
    blocks = list(content.blocks)
    assert [data for block in blocks for data in block.data] == PICTURES
    np.testing.assert_array_equal(np.concatenate([b.split for b in blocks]), [0, 0, 0, 0, 1, 1])
    np.testing.assert_array_equal(np.concatenate([b.y for b in blocks]), [1, 0, 1, 0, 0, 1])
    assert content.shape == (sum(map(len, PICTURES)),)


def test_tar_shards(shards):
    check_six(images.read_webdataset(shards), ("9", "10"))


def test_tar_shards_in_folders_of_their_parts(shards):
    for path in sorted(shards.glob("*.tar")):
        part, number = path.stem.split("-")
        (shards / part).mkdir(exist_ok=True)
        path.rename(shards / part / f"{number}.tar")
    check_six(images.read_webdataset(shards), ("9", "10"))


def test_tar_shards_with_named_classes(shards):
    for path in shards.glob("*.tar"):
        path.unlink()
    write_tar(shards / "train.tar", [*sample("0", 0, "owl"), *sample("1", 1, "cat")])
    write_tar(shards / "test.tar", [*sample("0", 2, "cat"), *sample("1", 3, "owl")])
    content = images.read_webdataset(shards)
    assert content.classes == ("cat", "owl")
    (block,) = content.blocks
    np.testing.assert_array_equal(block.y, [1, 0, 0, 1])


def test_tar_shards_become_a_raw_file_that_is_whole(shards, tmp_path):
    fetch("pets", DatasetSettings("webdataset", str(shards)), tmp_path / "pets.h5")
    raw = Raw(tmp_path / "pets.h5")
    raw.verify()
    assert raw.source == "tar shards of images"
    assert [image.shape for image in raw.read_images(0, 2)] == [(4, 5, 3), (5, 5, 3)]


@pytest.mark.parametrize(
    ("members", "match"),
    [
        ([("a.cls", b"9")], r"train-000000\.tar: a: no image \(\.png"),
        ([("a.bmp", b"x"), ("a.cls", b"9")], r"train-000000\.tar: a: no image"),
        ([("a.png", PICTURES[0])], r"train-000000\.tar: a: no class; expected a \.cls"),
        ([("a.png", PICTURES[0]), ("a.cls", b" ")], "a: no class"),
        ([("a.png", PICTURES[0]), ("a.json", b"{}")], "a: no class"),
        ([("a.png", PICTURES[0]), ("a.json", b"{")], r"a\.json: not JSON"),
        ([("a.png", PICTURES[0]), ("a.json", b'{"label": 1.5}')], r"a\.json: its label is 1\.5"),
        ([("a.png", PICTURES[0]), ("a.jpg", PICTURES[0]), ("a.cls", b"9")], "two images of one"),
        ([("a.png", b"no image"), ("a.cls", b"9")], r"000\.tar: a\.png: not a readable image"),
        ([("a.png", PICTURES[0][:60]), ("a.cls", b"9")], r"a\.png: not a readable image"),
        ([("a.png", PICTURES[0]), ("a.cls", b"owl")], "test/ lacks classes that train/ has: .*owl"),
        ([("../a.png", PICTURES[0])], r"refused: it holds the unsafe path '\.\./a\.png'"),
        ([("/a.png", PICTURES[0])], r"refused: it holds the unsafe path '/a\.png'"),
        ([("a.cls", b"9" * (2**20 + 1))], r"a\.cls: 1048577 bytes are no label"),
    ],
)
def test_tar_shards_with_something_wrong(shards, members, match):
    write_tar(shards / "train-000000.tar", members)
    shards_fail(shards, match)


def test_a_tar_shard_with_a_link_or_a_hole_is_refused(shards):
    with tarfile.open(shards / "train-000000.tar", "w") as tar:
        add(tar, "a.png", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd")
    shards_fail(shards, r"refused: 'a\.png' in it is a link or a device")
    headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(2**40), "GNU.sparse.name": "a.png"}
    with tarfile.open(shards / "train-000000.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        add(tar, "a.png", b"", pax_headers=headers)
    shards_fail(shards, r"refused: 'a\.png' in it is sparse")


def test_a_tar_shard_with_a_picture_that_unpacks_to_too_much(shards):
    """A PNG of a few bytes that says it has 400 million pixels."""
    bomb = bytearray(encode(np.zeros((1, 1, 3), np.uint8)))
    bomb[16:24] = (20_000).to_bytes(4, "big") * 2
    write_tar(shards / "train-000000.tar", [("a.png", bytes(bomb)), ("a.cls", b"9")])
    shards_fail(shards, r"train-000000\.tar: a\.png: not a readable image")


@pytest.mark.parametrize("left", [0, 100, 512, 1024, 1536, 2048, 2600])
def test_a_tar_shard_that_is_cut_off(shards, left):
    path = shards / "train-000001.tar"
    path.write_bytes(path.read_bytes()[:left])
    shards_fail(shards, r"train-000001\.tar: (damaged or cut off|00[23]: no (image|class))")


def test_a_tar_shard_with_a_damaged_header_does_not_end_there(shards):
    path = shards / "train-000001.tar"
    data = bytearray(path.read_bytes())
    start = data.index(b"003.png")
    data[start + 148 : start + 156] = b"99999999"  # its checksum
    path.write_bytes(data)
    shards_fail(shards, r"train-000001\.tar: damaged or cut off after \d+ bytes")


def test_shards_that_belong_nowhere(shards):
    write_tar(shards / "validation-000000.tar", sample("a", 0, 9))
    shards_fail(shards, r"validation-000000\.tar: belongs to no part by its name")
    (shards / "validation-000000.tar").rename(shards / "trains.tar")
    shards_fail(shards, r"trains\.tar: belongs to no part by its name")
    (shards / "trains.tar").rename(shards / "train-2.tar.gz")
    shards_fail(shards, r"train-2\.tar\.gz: a packed shard; unpack it")
    (shards / "train-2.tar.gz").unlink()
    write_tar(shards / "train" / "0.tar", sample("a", 0, 9))
    shards_fail(shards, "train shards both in train/ and beside it")


def test_shards_that_are_missing(shards, tmp_path):
    (shards / "test-000000.tar").unlink()
    shards_fail(shards, r"no test shards; expected test/\*\.tar or test-\*\.tar")
    shards_fail(tmp_path / "nowhere", "nowhere: no such folder")


# Parquet


@pytest.fixture
def tables(tmp_path):
    """Writes Parquet files of six pictures, as Hugging Face's ``datasets`` lays them out."""
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow, of the extra dev")
    from pyarrow import parquet

    def write(pictures=PICTURES, labels=(1, 0, 1, 0, 0, 1), form="struct", names=None, **columns):
        values = [{"bytes": p, "path": "x.png"} for p in pictures] if form == "struct" else pictures
        for name, rows in (
            ("train-0", slice(0, 3)),
            ("train-1", slice(3, 4)),
            ("test-0", slice(4, 6)),
        ):
            # The label before the image: a reader may not rely on their order
            table = pyarrow.table({"label": list(labels)[rows], "image": list(values)[rows]})
            table = table.rename_columns([columns.get(n, n) for n in table.column_names])
            if names:
                features = {"label": {"names": list(names), "_type": "ClassLabel"}}
                notes = json.dumps({"info": {"features": features}})
                table = table.replace_schema_metadata({"huggingface": notes})
            parquet.write_table(table, tmp_path / f"{name}.parquet", row_group_size=2)
        return tmp_path

    return write


def parquet_fails(folder, match, **columns):
    fails(match, images.read_parquet, folder, **columns)


@pytest.mark.parametrize("form", ["struct", "bytes"])
def test_parquet(tables, form):
    check_six(images.read_parquet(tables(form=form)), ("0", "1"))


def test_parquet_with_texts_and_with_numbers_that_have_names(tables):
    texts = ["owl", "cat", "owl", "cat", "cat", "owl"]
    check_six(images.read_parquet(tables(labels=texts)), ("cat", "owl"))
    check_six(images.read_parquet(tables(names=("zebra", "ant"))), ("zebra", "ant"))


def test_parquet_with_other_columns(tables, tmp_path):
    folder = tables(image="img", label="fine_label")
    parquet_fails(folder, r"train-0\.parquet: no column 'image', but fine_label, img\. Set image_c")
    settings = {"image_column": "img", "label_column": "fine_label"}
    fetch("pets", DatasetSettings("parquet", str(folder), **settings), tmp_path / "pets.h5")
    raw = Raw(tmp_path / "pets.h5")
    raw.verify()
    assert len(raw) == 6


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"pictures": [*PICTURES[:3], b"no", *PICTURES[4:]]},
            r"train-1\.parquet: row 0: not a rea",
        ),
        ({"pictures": [*PICTURES[:5], None], "form": "bytes"}, "test-0.*row 1: no image in the c"),
        ({"pictures": [*PICTURES[:2], None, *PICTURES[3:]]}, "train-0.*row 2: no image in the c"),
        ({"pictures": list("abcdef"), "form": "bytes"}, "column 'image' is string; expected bytes"),
        ({"labels": (1, 0, None, 0, 0, 1)}, r"train-0\.parquet: row 2: no class in the column"),
        ({"labels": (1, 0.5, 1, 0, 0, 1)}, "column 'label' is double; expected texts or whole"),
        ({"labels": (1, 0, 2, 0, 0, 1)}, "test/ lacks classes that train/ has: 2"),
        ({"names": ("zebra",)}, "the class 1 has no name; 1 are noted"),
    ],
)
def test_parquet_with_something_wrong(tables, changes, match):
    parquet_fails(tables(**changes), match)


def test_parquet_that_unpacks_to_too_much(tables, monkeypatch):
    folder = tables()
    monkeypatch.setattr(images, "_LARGEST_ROW_GROUP", 100)
    parquet_fails(folder, r"train-0\.parquet: row group 0 unpacks to \d+ bytes, more than 100")


@pytest.mark.parametrize("left", [0, 3, 200])
def test_parquet_that_is_cut_off(tables, left):
    path = tables() / "train-1.parquet"
    path.write_bytes(path.read_bytes()[:left])
    parquet_fails(path.parent, r"train-1\.parquet: not a whole Parquet file")


def test_without_pyarrow_one_line_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    parquet_fails(tmp_path, r"reading Parquet needs pyarrow: pip install '\.\[parquet\]'")


# Memory


@pytest.mark.slow
def test_a_walk_holds_neither_the_files_nor_their_names(tmp_path, monkeypatch):
    """Ten times the images: the peak stays, but for the names of the files of one class."""
    monkeypatch.setattr(images, "BYTES_AT_ONCE", 4_000)
    picture = encode(random_images(1, (4, 4, 3))[0])

    def peak(count, write, read):
        folder = tmp_path / f"{read.__name__}-{count}"
        for part in ("train", "test"):
            write(folder, part, count)
        gc.collect()
        tracemalloc.start()
        assert sum(len(block.data) for block in read(folder).blocks) == 2 * count
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    def in_folder(folder, part, count):
        for i in range(count):
            path = folder / part / f"class {i % 20:02d}" / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture)

    def in_tar(folder, part, count):
        members = [m for i in range(count) for m in ((f"{i}.png", picture), (f"{i}.cls", b"0"))]
        write_tar(folder / f"{part}.tar", members)

    for write, read in ((in_folder, images.read_folder), (in_tar, images.read_webdataset)):
        peak(20, write, read)  # what is imported and made once
        few, many = peak(100, write, read), peak(1_000, write, read)
        # 1,800 images more: over 200 bytes each if their names or entries were kept
        assert many - few < 100_000, (read.__name__, few, many)
