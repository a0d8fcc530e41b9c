"""Counts what would make a CPU wait for its GPU, in a step that is run on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Each hands a value, or a size that depends on values, to the CPU.
READS = {
    "_local_scalar_dense",  # item, bool, float, int
    "_unique",
    "_unique2",
    "bincount",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
}
INDEXES = {"index", "index_put", "index_put_", "_index_put_impl_"}  # by a mask: nonzero within
COPIES = (Tensor.cpu, Tensor.tolist, Tensor.__array__)  # which on the CPU are no operation
CHECK = "_linalg_check_errors"  # that a factorisation has gone well


class Looks:
    """Within it, ``seen`` lists what reads a value, ``checks`` counts factorisations."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.checks = 0
        self._modes = (_Calls(self), _Operations(self))

    def __enter__(self) -> Looks:
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)


class _Calls(TorchFunctionMode):
    def __init__(self, looks: Looks) -> None:
        super().__init__()
        self.looks = looks

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if function in COPIES:
            self.looks.seen.append(function.__name__)
        return function(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __init__(self, looks: Looks) -> None:
        super().__init__()
        self.looks = looks

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        name = function.overloadpacket.__name__
        masks = name in INDEXES and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        counted = function is torch.ops.aten.repeat_interleave.Tensor
        if name in READS or masks or counted:
            self.looks.seen.append(name)
        self.looks.checks += name == CHECK
        return function(*args, **(kwargs or {}))
