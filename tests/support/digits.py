"""scikit-learn's digits as pixels, 8 × 8 and grey, cut into tasks of two: small, and real."""

from __future__ import annotations

import json

import numpy as np
from sklearn.datasets import load_digits

from hcl.records.embeddings import Embeddings
from hcl.records.tasks import Benchmark
from hcl.split import EqualTasks, StreamSettings, make_benchmark

SHAPE = (1, 8, 8)


def digits_as_pixels(classes: int = 4) -> Embeddings:
    """The first few classes, every fourth sample of each for the test."""
    digits = load_digits()
    chosen = digits.target < classes
    x = np.rint(digits.data[chosen] * (255 / 16)).astype(np.uint8)
    y = digits.target[chosen].astype(np.int64)
    split = (np.arange(len(y)) % 4 == 0).astype(np.uint8)
    names = [str(label) for label in range(classes)]
    return Embeddings(
        x,
        y,
        split,
        {
            "content_sha256": "digits",
            "classes": json.dumps(names),
            "pixels": json.dumps(SHAPE),
        },
    )


def pixel_benchmark(epochs: int = 1, **stream: int) -> tuple[dict[str, Embeddings], Benchmark]:
    """Two tasks of two digits."""
    embeddings = {"digits-8": digits_as_pixels()}
    settings = StreamSettings(tasks=EqualTasks("digits-8", 2), epochs=epochs, **stream)
    return embeddings, make_benchmark("pixels", settings, embeddings, "params.yaml: stream")
