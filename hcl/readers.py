"""Readers: from a data set's own files to ``Content``, checked on the way."""

from __future__ import annotations

import numpy as np

from hcl.raw import TEST, TRAIN, Block, Content

DIGIT_NAMES = tuple("0123456789")
DIGITS_TEST_OF_EACH_CLASS = 50


def read_digits() -> Content:
    """scikit-learn's digits: 1,797 grey images of 8×8, inside its package.

    scikit-learn names no test part. Here: 50 images of each digit (500 in all), by a fixed draw.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    y = digits.target.astype(np.int64)
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)[..., None]  # 0…16 → 0…255
    # NumPy promises RandomState's stream for ever, Generator's not: the split outlives upgrades
    draw = np.random.RandomState(0)
    test = np.zeros(len(y), bool)
    for label in range(10):
        test[draw.permutation(np.flatnonzero(y == label))[:DIGITS_TEST_OF_EACH_CLASS]] = True
    order = np.argsort(test, kind="stable")
    split = np.where(test, TEST, TRAIN).astype(np.uint8)
    block = Block(images[order], y[order], split[order])
    return Content("images", DIGIT_NAMES, len(y), images.shape[1:], [block])
