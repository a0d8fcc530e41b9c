"""Embeddings of images without labels: they are answered, and are no lesson."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hcl.errors import HCLError
from hcl.records import embeddings
from hcl.use.learning import read_data
from hcl.use.trained import load
from tests.support import served


def test_learning_asks_for_labels(tmp_path: Path) -> None:
    trained = load(served.on_blobs(tmp_path / "blobs.safetensors"))
    said = trained.about.input
    provenance = dict.fromkeys(embeddings.PROVENANCE[1:], "none") | {"classes": "[]"}
    provenance |= {"backbone": said.backbone, "transform": "{}"}
    x, _ = served.blobs(0, 5)
    embeddings.write(tmp_path / "x.h5", x, np.full(5, -1), np.zeros(5, np.uint8), provenance)
    assert len(trained.predict(embeddings.read(tmp_path / "x.h5").x).name) == 5
    with pytest.raises(HCLError, match=r"x\.h5: its images have no labels"):
        read_data(trained, tmp_path / "x.h5", False)
