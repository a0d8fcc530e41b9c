"""From a YAML file to frozen dataclasses; every mistake is one line that names file and key.

A module keeps its settings in a frozen dataclass beside the code that they configure. ``build``
fills one from parsed YAML by its type annotations and accepts what these can say: ``bool``,
``int``, ``float``, ``str``, ``None``, ``Literal``, unions, ``tuple[X, ...]``, ``dict[str, X]``
and further dataclasses. In a union of dataclasses the key ``kind`` tells which one is meant; one of
them may be meant without it (``unless_said``).

Every number has a ``Range`` of what a user could mean: ``Annotated[int, Range(1, 1_000)]``. It is
checked wherever settings are made, by ``check_limits`` in ``__post_init__``. What types can't say,
the dataclass checks there too, and raises ``ValueError("key: what is wrong and what is allowed")``.

``Layered`` merges mappings before they are built, and remembers where each value stands, so that
what is wrong is named where it was written.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import numbers
import os
import re
import types
import typing
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union

import yaml

from hcl.errors import HCLError

T = TypeVar("T")

LARGEST_FILE = 1 << 18  # bytes of a parameter file
MOST_VALUES = 100_000  # in a parameter file, each counted as often as an alias (*) repeats it
DEEPEST = 50  # sections within sections
LONGEST_NAME = 100  # letters: a name becomes part of the names of files
_64_BITS = 1 << 63


@dataclass(frozen=True)
class Range:
    """The numbers from ``low`` to ``high``; with ``above``, ``low`` is not one of them."""

    low: float
    high: float
    above: bool = False

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, numbers.Real) or isinstance(value, bool):
            return False
        number: Any = value
        return (self.low < number if self.above else self.low <= number) and number <= self.high

    def __str__(self) -> str:
        low, high = (
            f"{end:,}" if isinstance(end, int) else f"{end:g}" for end in (self.low, self.high)
        )
        return f"above {low}, up to {high}" if self.above else f"from {low} to {high}"


@dataclass(frozen=True)
class Named:
    """Texts that can be part of a file's name, of a stage's and of a page."""

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, str) or len(value) > LONGEST_NAME:
            return False
        return re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", value) is not None

    def __str__(self) -> str:
        return (
            f"of at most {LONGEST_NAME} letters (a to z), digits, '-', '_' and '.', the first a "
            "letter, a digit or '_'"
        )


Name = Annotated[str, Named()]
Seed = Annotated[int, Range(0, _64_BITS - 1)]


_TOO_DEEP = f"sections lie more than {DEEPEST} deep in each other"


def _refused(why: str, mark: yaml.Mark) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, why, mark)


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML keeps the last of two equal keys; here the second one is an error.

    YAML 1.1 reads ``1e-4`` as a text and ``on`` or ``no`` as true or false, which a person who
    writes them does not mean: numbers and truth values are those of YAML 1.2, which DVC reads.
    """

    depth = 0  # of the node that is being composed

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.depth > DEEPEST:
            raise _refused(_TOO_DEEP, self.peek_event().start_mark)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except Exception as error:  # !!float foo, a 25th hour, 5,000 digits: anything is raised
            reason = " ".join(str(error).split())[:100] or type(error).__name__
            tag = node.tag.rpartition(":")[2]
            raise _refused(f"this is no {tag} ({reason})", node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise _refused("a key must be a text", key_node.start_mark)
            if key in seen:
                raise _refused(f"the key {key!r} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_UniqueKeyLoader.yaml_implicit_resolvers = {
    first: [entry for entry in entries if entry[0] != "tag:yaml.org,2002:bool"]
    for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_UniqueKeyLoader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_UniqueKeyLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def load_yaml(path: str | Path) -> dict[str, Any]:
    """The parsed file: a mapping, or an error that says what is wrong and where."""
    path = Path(path)
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_FILE + 1)
        text = data.decode("utf-8")
    except FileNotFoundError:
        raise HCLError(f"{path}: no such parameter file. Name one with --params.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise HCLError(f"{path}: cannot be read ({error}).") from error
    if len(data) > LARGEST_FILE:
        raise HCLError(
            f"{path}: has more than {LARGEST_FILE:,} bytes, which are no parameters. Name another "
            "file with --params."
        )
    try:
        values = _parsed(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise HCLError(f"{path}{where}: not valid YAML: {problem}.") from None
    except Exception as error:  # the scanner raises others too, over a %YAML of 5,000 digits
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        raise HCLError(f"{path}: not valid YAML ({reason}).") from None
    if not isinstance(values, dict):
        raise HCLError(f"{path}: expected sections (key: value), found {_show(values)}.")
    return values


def _parsed(text: str) -> Any:
    """The values of a YAML text, once it is known that they are not more than they should be."""
    loader = _UniqueKeyLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check_size(node)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _check_size(root: yaml.Node) -> None:
    """An error over a few lines that aliases and merge keys (<<) blow up to more than is sane."""
    sizes: dict[int, int] = {}  # of the nodes that were counted; 0 while one is being counted

    def size(node: yaml.Node, depth: int) -> int:
        if depth > DEEPEST:
            raise _refused(_TOO_DEEP, node.start_mark)
        if id(node) in sizes:
            if not sizes[id(node)]:
                raise _refused("this holds itself", node.start_mark)
            return sizes[id(node)]
        sizes[id(node)] = 0
        inside = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            inside = [each for pair in inside for each in pair]
        found = 1 + sum(size(each, depth + 1) for each in inside)
        if found > MOST_VALUES:
            raise _refused(
                f"aliases make more than {MOST_VALUES:,} values of this", node.start_mark
            )
        sizes[id(node)] = found
        return found

    size(root, 0)


def section(values: Mapping[str, Any], key: str, where: str | Path) -> Any:
    """What stands under a dotted ``key``; a missing part is named, with what is there instead."""
    node: Any = values
    done: list[str] = []
    parts = key.split(".")
    for place, part in enumerate(parts):
        whole = ".".join(parts[place:])
        if isinstance(node, Mapping) and whole in node:  # a name may have dots
            return node[whole]
        if not isinstance(node, Mapping) or part not in node:
            there = ".".join(done) or "the file"
            choices = sorted(map(str, node)) if isinstance(node, Mapping) else []
            raise HCLError(
                f"{where}: there is no {key!r}{did_you_mean(part, choices)}. "
                f"In {there}: {', '.join(choices) or 'nothing'}."
            )
        node = node[part]
        done.append(part)
    return node


@dataclass(frozen=True)
class Place:
    """Where a value stands, for messages.

    Attributes:
        where: the file.
        key: the dotted key, empty for the file itself.
        origins: for values that were merged: the key under which each was written, by ``key``.
    """

    where: str
    key: str = ""
    origins: Mapping[str, str] = field(default_factory=dict)

    def at(self, name: object) -> Place:
        """The place of one entry."""
        return Place(self.where, f"{self.key}.{name}" if self.key else str(name), self.origins)

    def item(self, index: int) -> Place:
        """The place of one item of a list."""
        return Place(self.where, f"{self.key}[{index}]", self.origins)

    def __str__(self) -> str:
        # An item of a list, or a key that is missing, stands where what holds it was written.
        held = self.key
        while held and held not in self.origins:
            held = held[: max(held.rfind("."), held.rfind("["), 0)]
        inside = self.key[len(held) :].removeprefix(".")
        written = self.origins.get(held, held)
        if written and inside and not inside.startswith("["):
            written += "."
        return written + inside or "the file"


def build(
    cls: type[T],
    values: Any,
    where: str | Path,
    key: str = "",
    origins: Mapping[str, str] | None = None,
) -> T:
    """An instance of the dataclass ``cls`` from parsed YAML.

    Args:
        cls: a frozen dataclass, or a union of them.
        values: the mapping that stands in the file under ``key``.
        where: the file, for messages.
        key: the dotted key of ``values`` in the file, for messages.
        origins: of ``Layered``: where merged values were written.
    """
    return typing.cast(T, _convert(cls, values, Place(str(where), key, origins or {})))


def memory_of_this_machine() -> int:
    """Bytes of memory, or fewer where a container grants fewer."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        granted = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return total
    return min(total, int(granted)) if granted.isdecimal() else total


def check_memory(needed: float, what: str, lower: str) -> None:
    """An error where ``needed`` bytes are more than this machine has; before they are asked for.

    Args:
        needed: an estimate.
        what: would need them.
        lower: the settings that make it smaller.
    """
    there = memory_of_this_machine()
    if needed > there:
        raise HCLError(
            f"{what} would need about {needed / 2**30:,.0f} GiB of memory, but this machine has "
            f"{there / 2**30:.0f}. Lower {lower}."
        )


def check_limits(settings: Any) -> None:
    """A ``ValueError`` over the first value that its type's ``Range`` or ``Named`` leaves out."""
    cls: type = type(settings)
    for name, kind in _hints(cls).items():
        value = getattr(settings, name)
        if not _within(kind, value):
            raise ValueError(f"{name}: is {_show(value)}; expected {describe(kind)}.")


@functools.cache
def _types(cls: type) -> dict[str, Any]:
    """The types of a dataclass's fields, without their limits."""
    return typing.get_type_hints(cls)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """The types of a dataclass's fields, with their limits."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {each.name: hints[each.name] for each in dataclasses.fields(cls) if each.init}


def _within(kind: Any, value: Any) -> bool:
    """Whether no number and no name in a value of type ``kind`` is beyond its limits."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return all(value in limit for limit in kind.__metadata__)
    if origin in (Union, types.UnionType):
        return any(_within(each, value) for each in arguments)
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, (tuple, list)) and all(
            _within(arguments[0], each) for each in value
        )
    if origin is dict:
        return isinstance(value, Mapping) and all(_within(arguments[1], v) for v in value.values())
    return isinstance(value, numbers.Real if kind in (int, float) else kind)


def _convert(kind: Any, value: Any, place: Place) -> Any:
    if typing.get_origin(kind) is Annotated:
        try:
            converted = _convert(kind.__origin__, value, place)
        except HCLError:
            raise _unexpected(value, kind, place) from None
        if not _within(kind, converted):
            raise _unexpected(value, kind, place)
        return converted
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _convert_dataclass(kind, value, place)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return _convert_union(arguments, value, place)
    if origin is Literal:
        if value in arguments and type(value) in {type(a) for a in arguments}:
            return value
    elif origin is tuple:
        if isinstance(value, (list, tuple)):
            return tuple(_convert(arguments[0], v, place.item(i)) for i, v in enumerate(value))
    elif origin is dict:
        if isinstance(value, Mapping):
            for name in value:
                if not isinstance(name, str):
                    raise HCLError(
                        f"{place.where}: {place}: the key {_show(name)} must be a text; quote it."
                    )
            return {n: _convert(arguments[1], v, place.at(n)) for n, v in value.items()}
    elif kind is float:
        if type(value) is float and math.isfinite(value):
            return value
        if type(value) is int and abs(value) < _64_BITS:
            return float(value)
    elif kind in (int, str, bool, type(None)):
        if type(value) is kind and (kind is not int or abs(value) < _64_BITS):
            return value
    else:
        raise TypeError(f"settings can't hold {kind!r} ({place})")
    raise _unexpected(value, kind, place)


def _unexpected(value: Any, kind: Any, place: Place) -> HCLError:
    return HCLError(f"{place.where}: {place} is {_show(value)}; expected {describe(kind)}.")


def _convert_dataclass(kind: type, value: Any, place: Place) -> Any:
    if not isinstance(value, Mapping):
        raise _unexpected(value, kind, place)
    fields = {f.name: f for f in dataclasses.fields(kind) if f.init}
    for name in value:
        if name not in fields:
            hint = did_you_mean(str(name), list(fields))
            raise HCLError(
                f"{place.where}: {place.at(name)} is not a known key{_of_kind(kind, value)}"
                f"{hint}. Allowed: {', '.join(fields)}."
            )
    hints, described = _types(kind), _hints(kind)
    arguments = {}
    for name, field_ in fields.items():
        if name in value:
            arguments[name] = _convert_field(
                hints[name], described[name], value[name], place.at(name)
            )
        elif (
            field_.default is dataclasses.MISSING and field_.default_factory is dataclasses.MISSING
        ):
            raise HCLError(
                f"{place.where}: {place.at(name)} is missing; expected {describe(described[name])}."
            )
    try:
        return kind(**arguments)
    except ValueError as error:
        name, colon, reason = str(error).partition(":")
        raise HCLError(f"{place.where}: {place.at(name)}{colon}{reason}") from None


def _convert_field(kind: Any, limited: Any, value: Any, place: Place) -> Any:
    """A field's value; over a number that no setting could hold, the message has the limits."""
    try:
        return _convert(kind, value, place)
    except HCLError:
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise _unexpected(value, limited, place) from None
        raise


def _of_kind(kind: type, value: Mapping[str, Any]) -> str:
    return f" of kind {value['kind']}" if kind_of(kind) == value.get("kind") is not None else ""


def kind_of(settings: Any) -> str | None:
    """The value of the key ``kind`` that stands for a dataclass; ``None`` where it has none."""
    if not dataclasses.is_dataclass(settings):
        return None
    hint = _types(settings if isinstance(settings, type) else type(settings)).get("kind")
    names = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
    return str(names[0]) if len(names) == 1 else None


def _convert_union(choices: tuple[Any, ...], value: Any, place: Place) -> Any:
    if isinstance(value, Mapping):
        fitting = [
            c for c in choices if dataclasses.is_dataclass(c) or typing.get_origin(c) is dict
        ]
        kinds = {kind_of(choice): choice for choice in fitting}
        if len(fitting) > 1 and None not in kinds:
            return _convert(_chosen(kinds, value, place), value, place)
    elif isinstance(value, (list, tuple)):
        fitting = [c for c in choices if typing.get_origin(c) is tuple]
    else:
        fitting = []
    if len(fitting) == 1:  # only one choice has this form: its own message is the precise one
        return _convert(fitting[0], value, place)
    for choice in choices:
        try:
            return _convert(choice, value, place)
        except HCLError:
            continue
    raise _unexpected(value, Union[choices], place)  # noqa: UP007


def _chosen(kinds: Mapping[str | None, Any], value: Mapping[str, Any], place: Place) -> Any:
    """Which of several dataclasses a mapping means, by its ``kind``.

    One of them may be meant where the key is left out: it has ``unless_said``.
    """
    named = ", ".join(str(name) for name in kinds)
    if "kind" not in value:
        for choice in kinds.values():
            if getattr(choice, "unless_said", False):
                return choice
        raise HCLError(f"{place.where}: {place.at('kind')} is missing; expected one of {named}.")
    kind = value["kind"]
    if not isinstance(kind, str) or kind not in kinds:
        hint = did_you_mean(str(kind), [str(name) for name in kinds])
        raise HCLError(
            f"{place.where}: {place.at('kind')} is {_show(kind)}{hint}; expected one of {named}."
        )
    return kinds[kind]


class Layered:
    """Mappings laid one over the other, with the key under which each value was written.

    A mapping is merged with the one below it, key by key; one that names another ``kind`` stands
    in its place, as does anything that is no mapping.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}

    def lay(
        self,
        values: Any,
        key: str,
        where: str | Path,
        leave_out: Sequence[str] = (),
        origins: Mapping[str, str] | None = None,
    ) -> None:
        """Lay what stands in the file ``where`` under ``key`` over what is there.

        Args:
            values: the mapping.
            key: its key in the file or, with ``origins``, in the layers that it was taken from.
            where: the file.
            leave_out: keys that are not taken over.
            origins: of those layers.
        """
        if not isinstance(values, Mapping):
            written = (origins or {}).get(key, key)
            raise HCLError(f"{where}: {written} is {_show(values)}; expected a section.")
        self.origins.setdefault("", (origins or {}).get(key, key))
        kept = {name: value for name, value in values.items() if name not in leave_out}
        self.values = self._merged(self.values, kept, "", key, origins or {})

    def _merged(
        self,
        below: Any,
        above: Mapping[str, Any],
        path: str,
        key: str,
        origins: Mapping[str, str],
    ) -> dict[str, Any]:
        keeps = isinstance(below, Mapping) and above.get("kind", below.get("kind")) == below.get(
            "kind"
        )
        merged: dict[str, Any] = dict(below) if keeps else {}
        for name, value in above.items():
            inner, written = _join(path, name), _join(key, name)
            self.origins[inner] = origins.get(written, written)
            if isinstance(value, Mapping):
                merged[name] = self._merged(merged.get(name), value, inner, written, origins)
            else:
                merged[name] = value
        return merged

    def build(self, cls: type[T], where: str | Path) -> T:
        """An instance of ``cls`` from all layers."""
        return build(cls, self.values, where, "", self.origins)


def describe(kind: Any) -> str:
    """What a value of a type looks like in the file, in words."""
    if typing.get_origin(kind) is Annotated:
        return " ".join([describe(kind.__origin__), *map(str, kind.__metadata__)])
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        kinds = [kind for kind in map(kind_of, arguments) if kind is not None]
        others = [describe(a) for a in arguments if kind_of(a) is None]
        tagged = [f"a section whose kind is one of {', '.join(kinds)}"] if kinds[1:] else []
        return " or ".join([*tagged, *others] if tagged else map(describe, arguments))
    if origin is Literal:
        choices = (str(a).lower() if isinstance(a, bool) else str(a) for a in arguments)
        return "one of " + ", ".join(choices)
    if origin in (tuple, Iterable):
        return f"a list, each item {describe(arguments[0])}"
    if origin is dict or (dataclasses.is_dataclass(kind) and isinstance(kind, type)):
        names = [f.name for f in dataclasses.fields(kind)] if origin is None else []
        return "a section" + (f" with the keys {', '.join(names)}" if names else "")
    words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    return words.get(kind, "null")


def _show(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    try:
        text = "null" if value is None else repr(value)
    except ValueError:  # Python writes no number of more than 4,300 digits
        text = f"{type(value).__name__} with too many digits"
    return text if len(text) <= 60 else text[:57] + "…"


def _join(key: str, name: object) -> str:
    return f"{key}.{name}" if key else str(name)


def did_you_mean(name: str, choices: list[str]) -> str:
    """A hint for a message, with a blank before it; empty where no choice comes close."""
    close = difflib.get_close_matches(name, choices, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
