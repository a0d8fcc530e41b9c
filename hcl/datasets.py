"""The data sets that can be fetched, where each comes from, and how it gets into a raw file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hcl.raw import Content, write_raw
from hcl.readers import read_digits


@dataclass(frozen=True)
class DatasetSettings:
    """Where a data set comes from: one entry of ``datasets`` in the parameters."""

    source: Literal["digits"]


def fetch(name: str, settings: DatasetSettings, out: str | Path) -> None:
    """Bring the data set ``name`` into the raw file ``out``."""
    content: Content = read_digits()
    write_raw(out, content, dataset=name, source="scikit-learn's digits")
