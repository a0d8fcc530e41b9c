"""How the catalogue's methods are drawn: the same in every figure.

Apart from ``figures``, so that what is said of a method is no part of the studies, which draw too.
"""

from __future__ import annotations

from hcl.report import catalogue
from hcl.report.figures import PALETTE, Style


def style_of(method: str, task_agnostic: bool) -> Style:
    """How the catalogue has the method drawn."""
    said = catalogue.entry(method)
    return Style(PALETTE[said.colour], said.marker, task_agnostic)
