"""The machine that a run computes on: its cores, its device, its threads."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch
from threadpoolctl import get_cached_controller  # type: ignore[import-untyped]

from hcl.errors import HCLError
from hcl.learn.settings import Device


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def pick_device(name: Device) -> torch.device:
    """The device of that name; ``cuda`` without one is an error."""
    if name == "cuda" and not torch.cuda.is_available():
        raise HCLError("device is cuda, but torch finds no GPU. Take device: auto or cpu.")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """On a GPU: convolutions in whole float32, by the same algorithm every time.

    By default they are rounded to 10 bits (TF32) there, which is more than what a flow's inverse
    and its forward pass may differ by. Products of matrices are not.
    """
    if not torch.backends.cudnn.is_available():
        yield
        return
    with torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    ):
        yield


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread, and no denormals: the same result alone or beside other runs, and faster.

    A step at batch 32 is bound by memory, so that runs side by side do more than threads within
    one; Adam's moments of old tasks decay into denormal numbers, which are slow.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        # Cached: to look for libraries with threads takes as long as a small batch.
        with get_cached_controller().limit(limits=1):
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)
