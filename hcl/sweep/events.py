"""What an engine says of the runs that it was given: they start, move on, and end."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from hcl.errors import HCLError
from hcl.sweep.planning import Order
from hcl.train.jobs import train_into


class Failure(NamedTuple):
    """Why a run ended early: in one line, and the whole story where it is a fault of the code."""

    why: str
    story: str = ""


class Started(NamedTuple):
    """The run with this number was begun."""

    number: int


class Moved(NamedTuple):
    """A fraction of the run is done."""

    number: int
    fraction: float


class Ended(NamedTuple):
    """The run is in the store, or failed."""

    number: int
    failure: Failure | None = None


class Waited(NamedTuple):
    """Nothing happened for a while."""


Event = Started | Moved | Ended | Waited


class Engine(Protocol):
    """Trains orders into the store, several at once, the first ones first."""

    @property
    def slots(self) -> int:
        """How many runs it trains at once."""

    def run(self, orders: Sequence[Order], kept: Path) -> Iterator[Event]:
        """Train all of them; what is left is stopped where the iterator is closed."""


def carry_out(order: Order, folder: Path) -> Failure | None:
    """Train one run in this process into a folder of the store, from its checkpoint if it has one.

    Returns what went wrong: a failure of one run is an answer, not an accident.
    """
    try:
        job = order.opened()
        train_into(job, folder)
    except HCLError as error:
        return Failure(str(error))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{type(error).__name__}: {str(error).strip() or 'no message'}".splitlines()[0]
        return Failure(f"{why} ({Path(last.filename).name}:{last.lineno})", traceback.format_exc())
    return None
