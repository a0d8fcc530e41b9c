from __future__ import annotations

import dataclasses
import errno
import io
import json
import multiprocessing
import os
import pickle
import tracemalloc

import h5py
import numpy as np
import pytest
from PIL import Image

from hcl.errors import HCLError
from hcl.files import sha256_of
from hcl.records.raw import Block, Content, Raw, decode_image, write_raw
from tests.support.official_layouts import encode, random_images
from tests.support.tampering import tampered

CLASSES = ("cat", "dög", "owl")


def images_content(n=10, step=4, shape=(4, 5, 3)):
    images = random_images(n, shape)
    y = np.arange(n) % 3
    split = (np.arange(n) >= n - 3).astype(np.uint8)
    blocks = [
        Block(images[i : i + step], y[i : i + step], split[i : i + step]) for i in range(0, n, step)
    ]
    return Content("images", CLASSES, n, shape, blocks), images, y, split


def encoded_content(step=2):
    files = [encode(random_images(1, (3 + i, 4, 3), seed=i)[0]) for i in range(5)]
    y, split = np.array([0, 1, 2, 0, 1]), np.array([0, 0, 0, 1, 1], np.uint8)
    blocks = [
        Block(files[i : i + step], y[i : i + step], split[i : i + step]) for i in range(0, 5, step)
    ]
    return Content("encoded", CLASSES, 5, (sum(map(len, files)),), blocks), files


def embeddings_content(n=6, d=7):
    x = np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)
    return Content(
        "embeddings", CLASSES, n, (d,), [Block(x, np.arange(n) % 3, np.arange(n) % 2)]
    ), x


def write(path, content):
    write_raw(path, content, dataset="pets", source="a test")
    return path


@pytest.fixture
def images_file(tmp_path):
    return write(tmp_path / "pets.h5", images_content()[0])


@pytest.fixture
def encoded_file(tmp_path):
    return write(tmp_path / "pets.h5", encoded_content()[0])


def test_images_come_back(tmp_path):
    content, images, y, split = images_content()
    raw = Raw(write(tmp_path / "new" / "pets.h5", content))
    assert (raw.kind, raw.dataset, raw.source, raw.classes) == ("images", "pets", "a test", CLASSES)
    assert len(raw) == 10
    np.testing.assert_array_equal(raw.y, y)
    np.testing.assert_array_equal(raw.split, split)
    np.testing.assert_array_equal(raw.data, images)
    part = raw.read_images(3, 7)
    np.testing.assert_array_equal(part, images[3:7])
    assert part.flags.writeable
    assert raw.read_images(8, 99).shape == (2, 4, 5, 3)
    raw.verify()
    with pytest.raises(TypeError, match="not embeddings"):
        _ = raw.x


def test_grey_images_keep_one_channel(tmp_path):
    content, images, _, _ = images_content(shape=(8, 8, 1))
    raw = Raw(write(tmp_path / "pets.h5", content))
    np.testing.assert_array_equal(raw.read_images(0, 10), images)


def test_encoded_files_are_decoded_one_by_one(encoded_file):
    _, files = encoded_content()
    raw = Raw(encoded_file)
    assert raw.kind == "encoded"
    got = raw.read_images(1, 99)
    assert [image.shape for image in got] == [(4, 4, 3), (5, 4, 3), (6, 4, 3), (7, 4, 3)]
    for i, image in enumerate(got, start=1):
        np.testing.assert_array_equal(image, random_images(1, (3 + i, 4, 3), seed=i)[0])
    with h5py.File(encoded_file) as file:
        offsets = file["offsets"][...]
        for i, data in enumerate(files):
            assert file["encoded"][offsets[i] : offsets[i + 1]].tobytes() == data
    raw.verify()


def test_embeddings_come_back(tmp_path):
    content, x = embeddings_content()
    raw = Raw(write(tmp_path / "pets.h5", content))
    assert raw.kind == "embeddings"
    np.testing.assert_array_equal(raw.x, x)
    raw.verify()
    with pytest.raises(TypeError, match="not images"):
        raw.read_images(0, 1)


def test_layout_is_the_documented_one(images_file, tmp_path):
    with h5py.File(images_file) as file:
        assert file.attrs["format"] == "hcl-raw/2"
        assert json.loads(file.attrs["classes"]) == list(CLASSES)
        kinds = {name: (d.dtype.str, d.ndim, d.chunks) for name, d in file.items()}
    assert kinds == {
        "images": ("|u1", 4, None),
        "y": ("<i8", 1, None),
        "split": ("|u1", 1, None),
    }


@pytest.mark.parametrize("make", [images_content, encoded_content])
def test_bytes_do_not_depend_on_the_blocks(tmp_path, make):
    digests = {
        sha256_of(write(tmp_path / f"{step}.h5", make(step=step)[0])) for step in (1, 2, 3, 10)
    }
    assert len(digests) == 1


def test_content_hash_is_of_the_content(tmp_path):
    def digest(content):
        return Raw(write(tmp_path / "pets.h5", content)).content_sha256

    content, images, y, split = images_content()
    first = digest(content)
    assert digest(images_content()[0]) == first
    changed = [images.copy(), y.copy(), split.copy()]
    for k in range(3):
        arrays = [a.copy() for a in (images, y, split)]
        arrays[k] = changed[k]
        arrays[k].reshape(-1)[0] ^= 1
        assert digest(Content("images", CLASSES, 10, (4, 5, 3), [Block(*arrays)])) != first
    other_shape = Block(images.reshape(10, 5, 4, 3), y, split)
    assert digest(Content("images", CLASSES, 10, (5, 4, 3), [other_shape])) != first


def test_memory_is_one_block(tmp_path):
    n, step = 4000, 100

    def blocks():
        for _ in range(0, n, step):
            yield Block(np.ones((step, 32, 32, 3), np.uint8), np.zeros(step), np.zeros(step))

    path = tmp_path / "big.h5"
    tracemalloc.start()
    write(path, Content("images", CLASSES, n, (32, 32, 3), blocks()))
    raw = Raw(path)
    raw.read_images(0, 100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 12_000_000
    assert peak < 3_000_000


def _sum_in_child(raw, queue):
    queue.put((int(raw.read_images(0, len(raw)).sum()), raw.classes))


def test_goes_to_other_processes(images_file):
    raw = Raw(images_file)
    copy = pickle.loads(pickle.dumps(raw))
    np.testing.assert_array_equal(copy.read_images(0, 10), raw.read_images(0, 10))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_sum_in_child, args=(raw, queue))
    child.start()
    assert queue.get(timeout=30) == (int(raw.data.sum()), CLASSES)
    child.join()


def test_failed_write_leaves_nothing(tmp_path):
    def blocks():
        yield images_content()[0].blocks[0]
        raise HCLError("the source broke")

    with pytest.raises(HCLError, match="the source broke"):
        write(tmp_path / "pets.h5", Content("images", CLASSES, 10, (4, 5, 3), blocks()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [9, 11])
def test_source_that_gives_another_number_than_announced(tmp_path, count):
    content = images_content()[0]
    with pytest.raises(HCLError, match="changed while they were read"):
        write(tmp_path / "pets.h5", Content("images", CLASSES, count, (4, 5, 3), content.blocks))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError("Can't write data (errno 28, No space left on device)"),
    ],
)
@pytest.mark.parametrize("where", ["pwrite", "fsync"])
def test_a_full_disk(tmp_path, monkeypatch, error, where):
    def fail(*_):
        raise error

    monkeypatch.setattr(os, where, fail)
    with pytest.raises(HCLError, match=r"pets\.h5: can't be written: no space left on the disk"):
        write(tmp_path / "pets.h5", images_content()[0])
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_ends_the_reading(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    content, seen = images_content()[0], []
    blocks = list(content.blocks)

    def watched():
        for block in blocks:
            seen.append(block)
            yield block

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(HCLError, match="no space left"):
        write(tmp_path / "pets.h5", dataclasses.replace(content, blocks=watched()))
    assert len(seen) == 1 < len(blocks)


def broken(path, match, advice="Make it again with `hcl fetch`."):
    with pytest.raises(HCLError, match=match) as caught:
        Raw(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert message.endswith(advice)
    assert "\n" not in message


def test_missing_file(tmp_path):
    broken(tmp_path / "pets.h5", "no such raw file", advice=" `hcl fetch` makes it.")


@pytest.mark.parametrize("content", [b"", b"not HDF5", bytes(5000)])
def test_not_hdf5(tmp_path, content):
    (tmp_path / "pets.h5").write_bytes(content)
    broken(tmp_path / "pets.h5", "its end, the seal, is missing")


def test_folder_in_place_of_the_file(tmp_path):
    (tmp_path / "pets.h5").mkdir()
    broken(tmp_path / "pets.h5", "is not a plain file")


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_truncated(images_file, part):
    data = images_file.read_bytes()
    images_file.write_bytes(data[: int(len(data) * part)])
    broken(images_file, "its end, the seal, is missing")


def edit(path, change):
    with tampered(path) as file:
        change(file)


def replace(file, name, values, **options):
    del file[name]
    file.create_dataset(name, data=values, **options)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda f: f.attrs.__setitem__("format", "hcl-raw/9"), "format is 'hcl-raw/9'"),
        (lambda f: f.attrs.__delitem__("format"), "attribute format is missing"),
        (lambda f: f.attrs.__delitem__("dataset"), "attribute dataset is missing"),
        (lambda f: f.attrs.__delitem__("content_sha256"), "content_sha256 is missing"),
        (lambda f: f.attrs.__setitem__("classes", "{"), "classes is not JSON"),
        (lambda f: f.attrs.__setitem__("classes", '{"a": 1}'), "not a JSON list"),
        (lambda f: f.attrs.__setitem__("classes", '["a", "b", "d"]'), "its fingerprint does not"),
        (lambda f: f.attrs.__setitem__("source", "elsewhere"), "its fingerprint does not"),
        (lambda f: f.attrs.__setitem__("classes", '["a"]'), "labels are 0…2 but it has 1 classes"),
        (lambda f: f.__delitem__("images"), "exactly one of"),
        (lambda f: f.create_dataset("x", data=np.zeros((10, 2), "f4")), "exactly one of"),
        (lambda f: f.__delitem__("y"), "dataset y is missing"),
        (lambda f: f.__delitem__("split"), "dataset split is missing"),
        (lambda f: replace(f, "y", np.zeros(10, "i4")), "y is int32"),
        (lambda f: replace(f, "y", np.zeros((10, 1), "i8")), r"y is int64 \(10, 1\)"),
        (lambda f: replace(f, "y", np.zeros(9, "i8")), "split has 10 entries, y has 9"),
        (lambda f: f["y"].__setitem__(0, -1), "labels are -1"),
        (lambda f: f["y"].__setitem__(0, 3), "labels are 0…3"),
        (lambda f: f["split"].__setitem__(0, 2), "split holds 2"),
        (lambda f: replace(f, "images", np.zeros((9, 4, 5, 3), "u1")), "9 samples but 10 labels"),
        (lambda f: replace(f, "images", np.zeros((10, 4, 5, 2), "u1")), "2 channels"),
        (lambda f: replace(f, "images", np.zeros((10, 4, 5, 3), "f4")), "images is float32"),
        (lambda f: replace(f, "images", np.zeros((10, 4, 5), "u1")), "4 dimensions"),
        (
            lambda f: replace(f, "images", np.zeros((10, 4, 5, 3), "u1"), chunks=(1, 4, 5, 3)),
            "not stored contiguously",
        ),
    ],
)
def test_broken_layout(images_file, change, match):
    edit(images_file, change)
    broken(images_file, match)


def test_no_samples(images_file):
    def change(file):
        for name in ("y", "split", "images"):
            replace(file, name, file[name][:0])

    edit(images_file, change)
    broken(images_file, "not stored contiguously|no samples")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda f: f.__delitem__("offsets"), "dataset offsets is missing"),
        (lambda f: f["offsets"].__setitem__(0, 1), "do not fit"),
        (lambda f: f["offsets"].__setitem__(-1, 10**6), "do not fit"),
        (lambda f: replace(f, "offsets", f["offsets"][1:]), "do not fit"),
        (lambda f: f["offsets"].__setitem__(2, f["offsets"][1]), "do not rise"),
    ],
)
def test_broken_offsets(encoded_file, change, match):
    edit(encoded_file, change)
    broken(encoded_file, match)


@pytest.mark.parametrize("name", ["images", "y", "split"])
def test_verify_finds_a_flipped_bit(images_file, name):
    def change(file):
        values = file[name][...]
        values.reshape(-1)[0] ^= 1
        file[name][...] = values

    edit(images_file, change)
    raw = Raw(images_file)
    with pytest.raises(HCLError, match=r"SHA-256.*again with `hcl fetch`"):
        raw.verify()


def test_verify_covers_the_offsets(encoded_file):
    edit(encoded_file, lambda f: f["offsets"].__setitem__(2, f["offsets"][2] + 1))
    with pytest.raises(HCLError, match="SHA-256"):
        Raw(encoded_file).verify()


def test_sample_that_is_no_image_is_named(encoded_file):
    edit(encoded_file, lambda f: f["encoded"].__setitem__(slice(f["offsets"][2], None), 0))
    raw = Raw(encoded_file)
    assert len(raw.read_images(0, 2)) == 2
    with pytest.raises(HCLError, match="sample 2 is not a readable image"):
        raw.read_images(2, 3)


def test_decode_formats():
    image = random_images(1, (9, 7, 3))[0]
    np.testing.assert_array_equal(decode_image(encode(image, "PNG")), image)
    np.testing.assert_array_equal(decode_image(encode(image, "WEBP", lossless=True)), image)
    assert decode_image(encode(image, "JPEG")).shape == image.shape
    grey = image[..., 0]
    np.testing.assert_array_equal(decode_image(encode(grey)), np.repeat(grey[..., None], 3, 2))


def test_decode_deep_grey_is_scaled_not_clipped():
    deep = np.array([[0, 255, 256, 65535]], np.uint16)
    np.testing.assert_array_equal(decode_image(encode(deep))[0, :, 0], [0, 0, 1, 255])


def test_decode_puts_transparency_on_white():
    pixel = np.array([[[200, 0, 0, 0], [200, 0, 0, 255]]], np.uint8)
    np.testing.assert_array_equal(decode_image(encode(pixel))[0], [[255, 255, 255], [200, 0, 0]])


def test_decode_turns_upright():
    image = np.zeros((4, 8, 3), np.uint8)
    image[:, :4] = 255  # bright on the left
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° clockwise: left becomes top
    data = io.BytesIO()
    Image.fromarray(image).save(data, "JPEG", exif=exif, quality=95)
    upright = decode_image(data.getvalue())
    assert upright.shape == (8, 4, 3)
    assert upright[:4].mean() > 200 > 50 > upright[4:].mean()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_decode_refuses_what_is_cut_off(kind):
    data = encode(random_images(1, (40, 40, 3))[0], kind)
    for size in (0, 3, 20, len(data) // 2):
        with pytest.raises(ValueError):
            decode_image(data[:size])


@pytest.mark.parametrize(
    ("kind", "sizes"), [("PNG", (5, 8, 12, 30, 40)), ("JPEG", (3, 20)), ("WEBP", (12,))]
)
def test_a_header_that_is_cut_off_is_not_called_another_format(kind, sizes):
    data = encode(random_images(1, (40, 40, 3))[0], kind)
    for size in sizes:
        with pytest.raises(ValueError, match=f"^begins as {kind}, but its header is cut off"):
            decode_image(data[:size])
    with pytest.raises(ValueError, match="an empty file"):
        decode_image(b"")


def test_decode_refuses_other_formats():
    with pytest.raises(ValueError, match="PNG, JPEG, WEBP"):
        decode_image(encode(random_images(1, (4, 4, 3))[0], "BMP"))


@pytest.mark.parametrize(("side", "match"), [(20, "exceeds limit"), (11, "11×11 pixels, more")])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_decode_refuses_a_bomb(monkeypatch, side, match):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ValueError, match=match):
        decode_image(encode(np.zeros((side, side, 3), np.uint8)))
    decode_image(encode(np.zeros((10, 10, 3), np.uint8)))


@pytest.mark.parametrize(("width", "height"), [(51, 1), (1, 51)])
def test_decode_refuses_a_strip(width, height):
    """In a prediction it is then a row with an error, not the end of all."""
    with pytest.raises(ValueError, match=f"{width}×{height} pixels; one side is more than 50"):
        decode_image(encode(np.zeros((height, width, 3), np.uint8)))
    decode_image(encode(np.zeros((1, 50, 3), np.uint8)))
