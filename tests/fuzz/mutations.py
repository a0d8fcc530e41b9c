"""Changes of bytes, of HDF5 structure and of values, as hypothesis draws and shrinks them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np
from hypothesis import strategies as st

FRACTION = st.floats(0, 1, exclude_max=True)
Bytes = list[tuple[str, float, int]]

BYTES = st.lists(
    st.tuples(
        st.sampled_from(["bit", "byte", "cut", "insert", "zero", "repeat", "length"]),
        FRACTION,
        st.integers(0, 2**32 - 1),
    ),
    min_size=1,
    max_size=4,
)


def mutated(data: bytes, changes: Bytes) -> bytes:
    """``data`` after the changes, each at a place that is a fraction of its length."""
    found = bytearray(data)
    for kind, place, value in changes:
        at = int(place * len(found))
        if not found and kind != "insert":
            continue
        if kind == "bit":
            found[at] ^= 1 << value % 8
        elif kind == "byte":
            found[at] = value % 256
        elif kind == "cut":
            del found[at:]
        elif kind == "insert":
            found[at:at] = value.to_bytes(4, "little") * (1 + value % 3)
        elif kind == "zero":
            found[at : at + 1 + value % 64] = bytes(len(found[at : at + 1 + value % 64]))
        elif kind == "repeat":
            found[at:at] = found[at : at + 1 + value % 512]
        elif kind == "length":  # what headers keep their lengths in
            special = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)
            found[at : at + 8] = special[value % len(special)].to_bytes(8, "little")
    return bytes(found)


NUMBERS = [0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 10**18, 10**400, 1e29, 1e308, -0.05, 1e-320]
OTHERS = [
    float("inf"),
    float("nan"),
    None,
    True,
    False,
    "",
    "a" * 5_000,
    "../x",
    "\x00",
    "\ud800",
    "\x1b[2J",
]
NASTY = st.one_of(
    st.sampled_from(
        [*NUMBERS, *OTHERS, "<img src=x onerror=alert(1)>", [], {}, [[]], {"kind": "x"}]
    ),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.recursive(st.none(), lambda inner: st.lists(inner, max_size=2), max_leaves=8),
)


def places_in(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all values within a tree of mappings and lists."""
    found = [place] if place else []
    items: Any = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        found += places_in(inner, (*place, key))
    return found


def replaced(tree: Any, where: float, by: Any, rename: bool = False) -> Any:
    """A copy of a tree with one value replaced, or with one key; ``by`` a ``KeyError`` removes."""
    tree = copy.deepcopy(tree)
    places = places_in(tree)
    *path, last = places[int(where * len(places))]
    holder = tree
    for key in path:
        holder = holder[key]
    if by is KeyError:
        del holder[last]
    elif rename and isinstance(holder, dict):
        holder[by if isinstance(by, str | int | float | None) else "x"] = holder.pop(last)
    else:
        holder[last] = by
    return tree


STRUCTURE = st.tuples(
    st.sampled_from(
        [
            "remove",
            "group",
            "scalar",
            "empty",
            "type",
            "shape",
            "huge",
            "soft",
            "circle",
            "external",
            "outside",
            "virtual",
            "packed",
            "reference",
            "attribute",
            "no attribute",
        ]
    ),
    FRACTION,
    st.one_of(
        st.integers(0, 2**63 - 1),
        st.text(max_size=20),
        st.sampled_from(["[" * 5_000, "{}", "[]", "null", "1e999", '{"a": ' * 500]),
    ),
)


def restructure(file: h5py.File, change: tuple[str, float, Any]) -> None:
    """Change one object or one attribute of an HDF5 file."""
    kind, place, value = change
    names: list[str] = []
    file.visititems(
        lambda name, node: names.append(name) if isinstance(node, h5py.Dataset) else None
    )
    number = value if isinstance(value, int) else len(str(value))
    if kind in ("attribute", "no attribute"):
        attributes = [
            (node, name) for node in (file, *(file[n] for n in names)) for name in node.attrs
        ]
        node, name = attributes[int(place * len(attributes))]
        if kind == "no attribute":
            del node.attrs[name]
        else:
            node.attrs[name] = (
                value
                if isinstance(value, int)
                else value.replace("\x00", "0").encode("utf-8", "replace").decode()
            )
        return
    name = names[int(place * len(names))]
    old = file[name]
    values = old[...] if old.shape is not None else np.zeros(1)
    del file[name]
    if kind == "group":
        file.create_group(name)
    elif kind == "scalar":
        file[name] = 1
    elif kind == "empty":
        file[name] = h5py.Empty(values.dtype)
    elif kind == "type":
        file[name] = values.astype(["f8", "i1", "u8", "S3", "c8"][number % 5])
    elif kind == "shape":
        file[name] = np.resize(values, (number % 5, *values.shape[1:]))
    elif kind == "huge":
        file.create_dataset(name, (2 ** (31 + number % 10),), values.dtype, chunks=(1 << 16,))
    elif kind == "soft":
        file[name] = h5py.SoftLink("/elsewhere")
    elif kind == "circle":
        file[name] = h5py.SoftLink(f"/{name}")
    elif kind == "external":
        file[name] = h5py.ExternalLink("other.h5", "/x")
    elif kind == "outside":
        file.create_dataset(
            name, values.shape, values.dtype, external=[("/dev/zero", 0, h5py.h5f.UNLIMITED)]
        )
    elif kind == "virtual":
        layout = h5py.VirtualLayout(values.shape, values.dtype)
        file.create_virtual_dataset(name, layout)
    elif kind == "packed" and values.ndim:
        file.create_dataset(name, values.shape, values.dtype, compression="gzip", chunks=True)
    elif kind == "reference":
        file[name] = np.array([file.ref] * 2, h5py.ref_dtype)
