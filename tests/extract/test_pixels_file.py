"""Images as pixels: which bytes, in which shape, and what is said of them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from hcl.errors import HCLError
from hcl.extract.pixels import as_pixels, extract_pixels
from hcl.records.embeddings import PIXELS, read
from hcl.records.raw import Block, Content, write_raw

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 6, 5, 1), dtype=np.uint8)
Y = np.arange(12) % 3
SPLIT = (np.arange(12) % 4 == 0).astype(np.uint8)


def raw_file(path, images=IMAGES, kind="images"):
    content = Content(kind, ("a", "b", "c"), 12, images.shape[1:], [Block(images, Y, SPLIT)])
    write_raw(path, content, dataset="trees", source="made")
    return path


def test_images_of_the_shape_keep_their_bytes(tmp_path):
    assert extract_pixels(raw_file(tmp_path / "raw.h5"), tmp_path / "x.h5", (1, 6, 5)) == 12
    found = read(tmp_path / "x.h5")
    assert found.x.dtype == np.uint8
    np.testing.assert_array_equal(found.x, IMAGES.reshape(12, -1))
    np.testing.assert_array_equal(found.y, Y)
    np.testing.assert_array_equal(found.split, SPLIT)
    assert found.pixels == (1, 6, 5)
    assert found.classes == ["a", "b", "c"]
    assert found.attributes["format"] == PIXELS
    assert found.attributes["backbone"] == "none (pixels)"
    assert json.loads(found.attributes["transform"]) == {"filter": "bilinear", "mode": "L"}


def test_the_same_images_give_the_same_bytes(tmp_path):
    raw_file(tmp_path / "raw.h5")
    for name in ("one.h5", "two.h5"):
        extract_pixels(tmp_path / "raw.h5", tmp_path / name, (3, 8, 8))
    assert (tmp_path / "one.h5").read_bytes() == (tmp_path / "two.h5").read_bytes()


def test_grey_becomes_rgb_by_repetition_and_is_resized_by_the_bilinear_filter():
    made = as_pixels(IMAGES[0], (3, 8, 9)).reshape(3, 8, 9)
    grey = Image.fromarray(IMAGES[0, ..., 0]).resize((9, 8), Image.Resampling.BILINEAR)
    for channel in made:
        np.testing.assert_array_equal(channel, np.asarray(grey))


def test_channels_come_first_and_rgb_becomes_grey_by_luma():
    image = np.zeros((2, 3, 3), np.uint8)
    image[..., 0], image[..., 2] = 200, 50
    planes = as_pixels(image, (3, 2, 3)).reshape(3, 2, 3)
    assert [int(plane[0, 0]) for plane in planes] == [200, 0, 50]
    assert abs(int(as_pixels(image, (1, 2, 3))[0]) - (0.299 * 200 + 0.114 * 50)) <= 1


def test_embeddings_have_no_pixels(tmp_path):
    raw_file(tmp_path / "raw.h5", np.ones((12, 7), np.float32), "embeddings")
    with pytest.raises(HCLError, match=r"ready-made embeddings.*datasets.trees.pixels"):
        extract_pixels(tmp_path / "raw.h5", tmp_path / "x.h5", (1, 6, 5))
