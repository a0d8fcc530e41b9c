"""A Ray cluster, where one is named: the only module that knows how to reach it.

Ray is an extra (``pip install 'hcl[ray]'``) and is imported when a cluster is asked for. The
workers are given this very source of ``hcl``; what it imports must be installed where they run.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hcl.errors import HCLError

ANY = "auto"  # the cluster of RAY_ADDRESS, or the one that runs on this machine
SECONDS_TO_ANSWER = 10.0


@contextmanager
def connect(address: str) -> Iterator[Any]:
    """Yield the module ``ray``, connected to a cluster; a connection made here ends with the block.

    Args:
        address: ``host:port`` of the cluster's head, or ``auto`` for that of the environment
            variable ``RAY_ADDRESS`` or, without it, the cluster that this machine belongs to.
    """
    ray = _imported()
    if ray.is_initialized():  # whoever connected before, ends it
        yield ray
        return
    if address == ANY:
        address = os.environ.get("RAY_ADDRESS", ANY)
    _check_that_it_answers(address)
    try:
        ray.init(
            address=address,
            logging_level="ERROR",
            log_to_driver=False,
            runtime_env={"py_modules": [str(Path(__file__).parent)]},
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        why = str(error).strip().splitlines()[0]
        raise HCLError(
            f"There is no Ray cluster at {address!r} ({why}). Start one with "
            "`ray start --head`, or name another address."
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _imported() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise HCLError("A cluster needs Ray: pip install 'hcl[ray]'.") from None


def _check_that_it_answers(address: str) -> None:
    """Whether anything listens at ``host:port``: Ray itself tries for minutes before it says so."""
    host, colon, port = address.rpartition(":")
    if address == ANY or "://" in address:
        return
    if not colon or not port.isdigit():
        raise HCLError(
            f"{address!r} is not the address of a Ray cluster; expected host:port, such as "
            f"127.0.0.1:6379, or {ANY}."
        )
    try:
        socket.create_connection((host, int(port)), SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise HCLError(
            f"No Ray cluster answers at {address} ({error}). Start one with `ray start --head`, "
            "or name another address."
        ) from None
