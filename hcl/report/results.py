"""How a method is called in tables and figures."""

from __future__ import annotations

LABELS = {
    "adam": "Adam",
    "mtl": "MTL",
    "er": "ER",
    "curl": "CURL",
    "hcl-gr": "HCL-GR",
    "hcl-fr": "HCL-FR",
    "hcl-fr-measured": "HCL-FR, measured draws",
    "hcl-fr-trimmed": "HCL-FR, trimmed",
    "hcl-plus": "HCL+",
    "ncm": "NCM",
    "slda": "SLDA",
    "ranpac": "RanPAC",
}


def method_label(method: str) -> str:
    """``hcl-fr-ta`` is "HCL-FR (TA)", as in the paper's tables."""
    base = method.removesuffix("-ta")
    return LABELS.get(base, base) + (" (TA)" if base != method else "")
