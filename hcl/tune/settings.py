"""What is tried, and how the best is told."""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal, Union

from hcl.learn.kinds import AnyMethod
from hcl.learn.settings import Samples
from hcl.settings import Seed, check_limits, did_you_mean

Metric = Literal["average", "overall"]
Value = int | float  # a method's own settings say which
Values = dict[str, tuple[Value, ...] | dict[str, tuple[Value, ...]]]


def _usual_values() -> Values:
    rates = (3e-5, 1e-4, 3e-4)
    decays, ridges = (1e-4, 1e-3, 1e-2), (1e-3, 1e-2, 1e-1)
    return {
        "memory": {"alpha": (1, 5, 10, 100)},
        "learning_rate": rates,
        "weight_decay": decays,
        "power": (0.25, 0.5, 1),
        "ridge": ridges,
        "shrinkage": ridges,
        "rule": {"penalty": ridges, "shrinkage": ridges},
        "flow": {"alpha": (1, 5, 10, 100), "learning_rate": rates, "weight_decay": decays},
        "dropout": (0, 0.25, 0.5),
        "noise": (0, 0.25, 0.5),
        "smoothing": (0, 0.1, 0.2),
    }


@dataclass(frozen=True)
class TuneSettings:
    """What is tried, and how the best is told.

    Attributes:
        values: lists of values, under the keys that they have in a method; a method is tuned in
            those that it has, in this order. An empty list leaves one as it is.
        search: ``coordinate`` takes one parameter after the other, with the others at the best
            values so far; ``grid`` tries every combination.
        metric: ``average`` is the accuracy of classes, mean over tasks; ``overall`` that of (class,
            task) pairs.
        seed: of every trial, and of the draw of its samples.
        samples_per_task: train on at most so many samples of each task; ``None`` takes all.
    """

    values: Values = field(default_factory=_usual_values)
    search: Literal["coordinate", "grid"] = "coordinate"
    metric: Metric = "average"
    seed: Seed = 0
    samples_per_task: Samples | None = None

    def __post_init__(self) -> None:
        check_limits(self)
        known = numbers_of(AnyMethod)
        for key, values in self.listed().items():
            if key not in known:
                raise ValueError(
                    f"values.{key}: no kind of method has such a key{did_you_mean(key, known)}, or "
                    f"no number under it. Allowed: {', '.join(known)}."
                )
            if len(set(values)) != len(values):
                raise ValueError(f"values.{key}: a value stands twice in {list(values)}.")

    def listed(self) -> dict[str, tuple[Value, ...]]:
        """The lists by dotted key, such as ``memory.alpha``."""
        found: dict[str, tuple[Value, ...]] = {}
        for name, values in self.values.items():
            if isinstance(values, tuple):
                found[name] = values
            else:
                found |= {f"{name}.{inner}": listed for inner, listed in values.items()}
        return found


def numbers_of(kind: Any) -> list[str]:
    """The dotted keys under which settings of a type can hold a number, each once."""
    found: list[str] = []
    for settings in _members(kind):
        hints = typing.get_type_hints(settings) if dataclasses.is_dataclass(settings) else {}
        for each in dataclasses.fields(settings) if hints else ():
            members = _members(hints[each.name])
            if int in members or float in members:
                found.append(each.name)
            found += [f"{each.name}.{inner}" for inner in numbers_of(hints[each.name])]
    return list(dict.fromkeys(found))


def _members(kind: Any) -> tuple[Any, ...]:
    """The types of a union; a type alone is one of one."""
    is_union = typing.get_origin(kind) in (Union, types.UnionType)
    return typing.get_args(kind) if is_union else (kind,)
