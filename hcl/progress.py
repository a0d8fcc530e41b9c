"""Progress bars: shown on a terminal, silent when piped, or told to somebody who shows them."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable
from typing import Any

from tqdm import tqdm

_listeners: list[Callable[[float], Any]] = []


def bar(iterable: Iterable[Any] | None = None, **options: Any) -> Any:
    """A tqdm bar on standard error, shown only where standard error is a terminal.

    Takes tqdm's own options (``total``, ``desc``, ``unit``, ``initial``, ``unit_scale``).
    """
    if _listeners:
        return _Told(iterable, file=io.StringIO(), mininterval=1.0, **options)
    return tqdm(iterable, file=sys.stderr, disable=None, dynamic_ncols=True, **options)


def listen(listener: Callable[[float], Any]) -> None:
    """From now on bars of this process draw nothing: they tell which fraction is done.

    For a process that trains one of many runs, whose progress another process shows.
    """
    _listeners[:] = [listener]


class _Told(tqdm):
    monitor_interval = 0  # no thread that would speak at the same time

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if self.total:
            _listeners[0](self.n / self.total)
