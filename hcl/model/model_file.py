"""The model file: all that a learner knows and all that it saw, in one file without pickle.

Layout ``hcl-model/2``: safetensors, with one metadata key, ``hcl``, that holds canonical JSON (with
more than one key, the file's bytes would differ from run to run):

- ``format``, and ``about``: what JSON can say of the learner; see ``hcl.train.saving``;
- ``state``: the learner's state as a tree whose leaves are numbers, texts, or names of tensors;
- ``sha256``: over all of that and over every tensor's name, type, shape and bytes.

Equal contents give equal bytes. A file is read whole, bounded and checked before any of it is used:
what was cut off, changed by a bit, or never ours is an error in one line.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from hcl.errors import HCLError
from hcl.files import canonical_json, replacing
from hcl.model.hybrid import HybridModel, build_model
from hcl.model.settings import FlowSettings
from hcl.settings import build

FORMAT = "hcl-model/2"
KEY = "hcl"
LARGEST_HEADER = 1 << 24  # bytes of JSON: what grows with the data belongs into tensors
DEEPEST = 32  # levels of a state
_LENGTH = 8  # bytes before the header, which hold its length
# What a learner raises when it is built or restored from values that are not those of one.
UNFIT = (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError, AttributeError)


class Content(NamedTuple):
    """What a model file holds."""

    about: dict[str, Any]
    state: Any


def write_model(path: str | Path, about: Mapping[str, Any], state: Any) -> None:
    """Write a state, and ``about`` it what JSON can say; the file appears whole or not at all."""
    tensors: dict[str, Tensor] = {}
    header = {"format": FORMAT, "about": about, "state": _encoded(state, "", tensors)}
    header["sha256"] = _digest(header, tensors)
    text = canonical_json(header)
    if len(text.encode()) > LARGEST_HEADER:
        raise ValueError(f"{len(text)} characters of JSON are too many: keep arrays as tensors")
    content = safetensors.torch.save(tensors, metadata={KEY: text})
    try:
        with replacing(path) as partial:
            partial.write_bytes(content)  # save_file's would be a file that only its owner can read
    except OSError as error:
        full = error.errno == errno.ENOSPC
        why = "the disk is full; make room and run again" if full else error.strerror
        raise HCLError(f"{path}: can't be written ({why}).") from error


def read_model(path: str | Path, device: torch.device | str = "cpu") -> Content:
    """Read and check a model file; its tensors come on ``device``. Any fault is an ``HCLError``."""
    _check_plain(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error
    header = _header(path, data[: _LENGTH + LARGEST_HEADER], len(data))
    try:
        tensors = safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise _damaged(path, str(error)) from error
    if _digest(header, tensors) != header.get("sha256"):
        raise _damaged(path, "its content does not have the SHA-256 that it names")
    try:
        state = _decoded(header["state"], tensors, torch.device(device))
        return Content(header["about"], state)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error


def read_about(path: str | Path) -> dict[str, Any]:
    """What a model file says of itself, without its tensors, and so without a check of these."""
    _check_plain(path)
    try:
        with open(path, "rb") as file:
            start = file.read(_LENGTH + LARGEST_HEADER)
            header = _header(path, start, file.seek(0, 2))
    except OSError as error:
        raise _unreadable(path, error) from error
    about: dict[str, Any] = header["about"]
    return about


def _check_plain(path: str | Path) -> None:
    """An error over a pipe, which would be waited for, and over a device without end."""
    if Path(path).exists() and not Path(path).is_file():
        raise HCLError(f"{path}: can't be read (not a plain file). Name a model file.")


def hybrid_model(content: Content, path: str | Path) -> HybridModel:
    """The flow and its Gaussians out of the state of a learner that has them."""
    about, state = content
    try:
        training = about["settings"]["training"]
        model = build_model(
            build(FlowSettings, about["settings"]["flow"], path, "settings.flow"),
            tuple(about["shape"]),
            about["num_classes"],
            torch.Generator(),
            training["mean_scale"],
        )
        model.load(state["learner"]["model"])
        if model.latent.means.shape[1] != about["num_classes"]:
            raise ValueError(f"means of {model.latent.means.shape[1]} classes")
        return model
    except UNFIT as error:
        reason = str(error).replace("\n", " ")
        raise HCLError(f"{path}: its weights don't fit its settings ({reason}).") from error


# The header


def _header(path: str | Path, start: bytes, size: int) -> dict[str, Any]:
    """Our own part of a file's header, from the file's first bytes; bounded before it is parsed."""
    length = int.from_bytes(start[:_LENGTH], "little") if len(start) >= _LENGTH else -1
    if not 2 <= length <= size - _LENGTH:
        raise _damaged(path, "it is cut off, or no safetensors file")
    if length > LARGEST_HEADER:
        raise _damaged(path, f"its header has {length} bytes, more than {LARGEST_HEADER}")
    try:
        table = json.loads(start[_LENGTH : _LENGTH + length])
        header = json.loads(table.get("__metadata__", {}).get(KEY, "{}"))
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise _damaged(path, f"its header is not JSON: {error}") from error
    found = header.get("format") if isinstance(header, dict) else None
    if found != FORMAT:
        older = isinstance(found, str) and found.startswith("hcl-model/")
        what = "of another version of this program" if older else "not a model of this program"
        raise HCLError(
            f"{path}: {what} (format {found!r}, expected {FORMAT!r}). Train it again with "
            "training.save_model: true."
        )
    if not isinstance(header.get("about"), dict) or "state" not in header:
        raise _damaged(path, "its header lacks about or state")
    return header


def _digest(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    said = {name: value for name, value in header.items() if name != "sha256"}
    digest = hashlib.sha256(canonical_json(said).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _unreadable(path: str | Path, error: OSError) -> HCLError:
    if isinstance(error, FileNotFoundError):
        return HCLError(f"{path}: no such model file.")
    return HCLError(f"{path}: can't be read ({error.strerror}).")


def _damaged(path: str | Path, why: str) -> HCLError:
    reason = " ".join(why.split())[:200]
    return HCLError(f"{path}: not a model file, or damaged ({reason}).")


# A state as a tree of JSON, and back. A list stands for itself; a tensor, a tuple, a dict and a
# number that JSON lacks are objects whose key (of two, the later one) says what they are.


def _encoded(value: Any, place: str, tensors: dict[str, Tensor], depth: int = 0) -> Any:
    if depth > DEEPEST:
        raise ValueError(f"{place}: a state of more than {DEEPEST} levels")
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Tensor):
        axes = _axes(value)
        named = {"tensor": _kept(value.permute(axes), place, tensors)}
        return named if axes == sorted(axes) else {**named, "axes": axes}
    if isinstance(value, np.generic):  # before numbers: float64 is a float, too
        return {"scalar": _encoded(np.asarray(value), place, tensors)}
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "UO":
            return {"texts": _texts(value, place), "dtype": value.dtype.str}
        return {"array": _kept(torch.from_numpy(np.array(value, order="C")), place, tensors)}
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, list | tuple):
        items = [
            _encoded(item, _below(place, str(i)), tensors, depth + 1)
            for i, item in enumerate(value)
        ]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping):
        return {"dict": list(_pairs(value, place, tensors, depth))}
    raise TypeError(f"{place}: a model file can't hold a {type(value).__name__}")


def _pairs(
    value: Mapping[Any, Any], place: str, tensors: dict[str, Tensor], depth: int
) -> Iterator[list[Any]]:
    for key, item in value.items():
        if isinstance(key, bool) or not isinstance(key, int | str):
            raise TypeError(f"{place}: the key {key!r} is neither a text nor a whole number")
        yield [key, _encoded(item, _below(place, str(key)), tensors, depth + 1)]


def _below(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _axes(tensor: Tensor) -> list[int]:
    """The dimensions as they lie in memory, which products of matrices round by.

    A solver's result often lies by columns. It comes back like that, so that a learner goes on to
    the last bit as if never stopped.
    """
    order = sorted(range(tensor.ndim), key=lambda axis: -tensor.stride()[axis])
    return order if tensor.permute(order).is_contiguous() else list(range(tensor.ndim))


def _kept(tensor: Tensor, place: str, tensors: dict[str, Tensor]) -> str:
    """The name under which a copy is kept: safetensors refuses views of shared memory."""
    name, number = place or "state", 1
    while name in tensors:
        name, number = f"{place}~{number}", number + 1
    copy = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    tensors[name] = copy
    return name


def _texts(value: np.ndarray, place: str) -> Any:
    if value.dtype.kind == "O" and not all(isinstance(item, str) for item in value.flat):
        raise TypeError(f"{place}: an array of objects that are not all texts")
    return value.tolist()


def _decoded(tree: Any, tensors: dict[str, Tensor], device: torch.device) -> Any:
    if isinstance(tree, list):
        return [_decoded(item, tensors, device) for item in tree]
    if not isinstance(tree, dict):
        return tree
    kind = next(iter(sorted(tree, reverse=True)))
    value = tree[kind]
    match kind:
        case "tensor":
            # A copy, as torch aligns it: elsewhere in a file's bytes, sums may round differently.
            tensor = tensors[value].clone().to(device)
            axes = tree.get("axes")
            return tensor if axes is None else tensor.permute(np.argsort(axes).tolist())
        case "array":
            return tensors[value].clone().numpy()
        case "scalar":
            return _decoded(value, tensors, device)[()]
        case "texts":
            return np.array(value, dtype=tree["dtype"])
        case "float":
            return float(value)
        case "tuple":
            return tuple(_decoded(item, tensors, device) for item in value)
        case "dict":
            return {key: _decoded(item, tensors, device) for key, item in value}
    raise ValueError(f"its state has an unknown part, {kind!r}")
