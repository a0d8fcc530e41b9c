"""Progress bars: shown on a terminal, silent when piped."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm


def bar(iterable: Iterable[Any] | None = None, **options: Any) -> Any:
    """A tqdm bar on standard error, shown only where standard error is a terminal.

    Takes tqdm's own options (``total``, ``desc``, ``unit``, ``initial``, ``unit_scale``).
    """
    return tqdm(iterable, file=sys.stderr, disable=None, dynamic_ncols=True, **options)
