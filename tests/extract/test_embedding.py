"""``hcl.embed``: the bytes of ``hcl extract``, from whatever images are handed over."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import hcl
from hcl.errors import HCLError
from hcl.extract.extraction import extract
from hcl.extract.settings import ExtractSettings
from hcl.records import embeddings
from tests.support.tiny_backbone import (
    NAME,
    SIZE,
    random_images,
    save_raw,
    save_raw_files,
    save_weights,
)

COUNT = 11  # a block of eight, and one that is not full


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(tmp_path_factory.mktemp("weights") / "tiny.pth")


def extracted(raw: Path, weights: Path) -> np.ndarray:
    settings = ExtractSettings(backbone=NAME, weights=str(weights), device="cpu")
    extract(raw, raw.with_name("embeddings.h5"), settings)
    return np.array(embeddings.read(raw.with_name("embeddings.h5")).x)


@pytest.mark.parametrize("shape", [(20, 20, 3), (8, 8, 1)])
def test_an_array_gives_the_bytes_of_extract(tmp_path, weights, shape):
    images = random_images(COUNT, shape)
    expected = extracted(save_raw(tmp_path / "raw.h5", images), weights)
    assert expected.shape == (COUNT, SIZE)
    given = images[..., 0] if shape[2] == 1 else images
    found = hcl.embed(given, NAME, weights=weights, device="cpu")
    assert found.dtype == np.float32
    assert found.tobytes() == expected.tobytes()
    assert hcl.embed(list(images), NAME, weights=weights, device="cpu").tobytes() == (
        expected.tobytes()
    )


def test_paths_bytes_and_pillow_images_give_the_bytes_of_extract(tmp_path, weights):
    pictures = [random_images(1, (20 + i, 30, 3))[0] for i in range(COUNT)]
    expected = extracted(save_raw_files(tmp_path / "raw.h5", pictures), weights)
    paths, files = [], []
    for number, picture in enumerate(pictures):
        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, "png")
        paths.append(tmp_path / f"{number}.png")
        paths[-1].write_bytes(buffer.getvalue())
        files.append(buffer.getvalue())
    for given in (paths, [str(p) for p in paths], files, [Image.open(p) for p in paths], pictures):
        found = hcl.embed(given, NAME, weights=weights, device="cpu")
        assert found.tobytes() == expected.tobytes()


def test_a_pillow_image_is_turned_upright_and_put_on_white_like_a_file(tmp_path, weights):
    image = Image.fromarray(random_images(1, (20, 30, 4))[0], "RGBA")
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    image.save(tmp_path / "turned.png", exif=exif)
    as_file = hcl.embed([tmp_path / "turned.png"], NAME, weights=weights, device="cpu")
    with Image.open(tmp_path / "turned.png") as opened:
        assert np.array_equal(hcl.embed([opened], NAME, weights=weights, device="cpu"), as_file)


def test_no_images_are_no_rows(weights):
    assert hcl.embed([], NAME, weights=weights).shape == (0, SIZE)


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (["none.png"], r"none\.png: not a readable image \(No such file"),
        ([b"text"], r"image 0: not a readable image \(not one of PNG"),
        ([np.zeros((4, 4, 3))], r"image 0 is float64; expected bytes 0…255"),
        (np.zeros((2, 4, 4), np.float32), "image 0 is float32"),
        ([np.zeros((4, 4, 2), np.uint8)], r"image 0 has the shape \(4, 4, 2\)"),
        (np.zeros((4, 4), np.uint8), r"the array of images has the shape \(4, 4\)"),
        ("one.png", "one image is given; expected a list"),
    ],
)
def test_a_mistake_names_the_image(tmp_path, monkeypatch, weights, images, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HCLError, match=f"embed: {said}") as caught:
        hcl.embed(images, NAME, weights=weights, device="cpu")
    assert "\n" not in str(caught.value)


def test_a_setting_out_of_range_is_named(weights):
    with pytest.raises(HCLError, match=r"^embed: image_size: is 8; expected .*[^.]\.$"):
        hcl.embed([], NAME, weights=weights, image_size=8)
