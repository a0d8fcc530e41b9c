"""A GPU that only knows shapes: tensors of torch's ``FakeTensorMode`` on the device ``cuda``.

Where two devices meet in one operation it raises. What ``FakeTensorMode`` lacks is stood in for:
``Module.to`` carries shapes over, a backward pass leaves no gradient, a CUDA generator draws
shapes, and a value that is read back is always ``value``. Where the CPU would wait is counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from hcl.train import loop

CUDA = torch.device("cuda")
Generator = torch.Generator  # the real one
READS = {  # one value, as Python has it
    Tensor.__bool__: bool,
    Tensor.__float__: float,
    Tensor.__int__: int,
    Tensor.item: float,
}
COPIES = (Tensor.to, Tensor.cpu, Tensor.copy_, torch.as_tensor, Tensor.type_as)


class AnyGenerator(Generator):
    """Lives where it is wanted."""

    def __new__(cls, device: Any = "cpu") -> AnyGenerator:
        made: AnyGenerator = super().__new__(cls)
        made._where = torch.device(device)
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._where


class _Shapes(FakeTensorMode):
    def __deepcopy__(self, memo: dict[int, Any]) -> _Shapes:
        return self


class FakeGPU(TorchFunctionMode):
    """What each call does on a GPU beside its shapes.

    Attributes:
        value: of everything that is read back.
        looks: times that a value was read back.
        uploads: copies to the GPU for which the CPU waits: of memory that is not pinned.
    """

    def __init__(self) -> None:
        self.value = 1.0
        self.looks = 0
        self.uploads = 0
        self._pinned: dict[int, Tensor] = {}

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        generator = kwargs.pop("generator", None)
        if function is Tensor.backward:
            return None
        if function is Tensor.pin_memory:
            copy = args[0].clone()
            self._pinned[id(copy)] = copy
            return copy
        if function in READS:
            self.looks += args[0].device.type == "cuda"
            return READS[function](self.value)
        if function is Tensor.numpy:
            if args[0].device.type == "cuda":
                raise TypeError("can't convert cuda:0 device type tensor to numpy")
            kind = np.float64 if args[0].is_floating_point() else np.int64
            return np.full(args[0].shape, self.value, kind)
        given = [v for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor)]
        if function not in COPIES:
            _check_devices(function, given)
        made = function(*args, **kwargs)
        if isinstance(made, Tensor):
            self._check(function, given, kwargs, made, generator)
        return made

    def read(self, values: Tensor) -> Any:
        """All values at once, as lists."""
        self.looks += values.device.type == "cuda"
        return np.full(values.shape, self.value).tolist()

    def _check(
        self, function: Callable, given: list[Tensor], kwargs: dict, made: Tensor, generator: Any
    ) -> None:
        if generator is not None and made.device.type != generator.device.type:
            raise RuntimeError(f"a generator on {generator.device}, but values on {made.device}")
        came = {tensor.device.type for tensor in given}
        if made.device.type == "cpu" and "cuda" in came and function is not Tensor.copy_:
            self.looks += 1
        if made.device.type == "cuda":
            fetched = kwargs.get("non_blocking") and id(given[0]) in self._pinned
            waits = "cpu" in came and not fetched
            self.uploads += waits or function in (torch.tensor, Tensor.new_tensor)


def _check_devices(function: Callable, given: list[Tensor]) -> None:
    """One number on the CPU may meet others on the GPU; anything else may not, an index neither."""
    kinds = {t.device.type for t in given if t.dim() > 0 or function is Tensor.__getitem__}
    if len(kinds) > 1:
        raise RuntimeError(f"{function.__name__}: tensors on {' and '.join(sorted(kinds))}")


def _carried(module: nn.Module, device: Any = None, **_: Any) -> nn.Module:
    """What ``Module.to`` would leave."""
    if device is None or torch.device(device).type != "cuda":
        return module
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                values = torch.empty(parameter.shape, dtype=parameter.dtype, device=CUDA)
                part._parameters[name] = nn.Parameter(values, parameter.requires_grad)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device=CUDA)
    return module


@contextlib.contextmanager
def fake_gpu() -> Iterator[FakeGPU]:
    """Within it, runs are trained on the GPU; whatever is made, there or on the CPU, is a shape."""
    gpu = FakeGPU()
    patches = (
        mock.patch.object(torch, "Generator", AnyGenerator),
        mock.patch.object(nn.Module, "to", _carried),
        mock.patch.object(nn.utils, "skip_init", lambda kind, *args, **kw: kind(*args, **kw)),
        mock.patch.object(FakeTensor, "tolist", lambda values: gpu.read(values)),
        mock.patch.object(loop, "pick_device", return_value=CUDA),
    )
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        stack.enter_context(_Shapes(allow_non_fake_inputs=True))
        yield stack.enter_context(gpu)
