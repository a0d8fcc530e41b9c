"""Names as they meet a format: tasks by their classes, and any text harmless where it stands.

Benchmarks, methods and classes are named by users and by data sets. HTML is escaped by
``html.escape`` where it is written, CSV is quoted by ``csv``; what they lack is here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

SEPARATOR = " · "
_LONGEST = 24  # characters of a task's name, about


def class_names(task: Mapping[str, Any]) -> list[str]:
    """The names of a task's classes; their numbers in the data set where there are no names."""
    return [one_line(str(name)) for name in task.get("class_names") or task["classes"]]


def task_names(tasks: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each task of a benchmark is called, short enough for a table's head.

    "cat · dog" by its classes, "apple … bus (10)" where there are many. Tasks that are whole data
    sets go by these; where classes alone would not tell tasks apart, the data set stands before.
    """
    datasets = [one_line(str(task["dataset"])) for task in tasks]
    if len(tasks) > 1 and len(set(datasets)) == len(tasks):
        return datasets
    names = [_listed(class_names(task)) for task in tasks]
    if len(set(datasets)) > 1:
        names = [f"{dataset}: {name}" for dataset, name in zip(datasets, names, strict=True)]
    return names


def _listed(names: Sequence[str]) -> str:
    whole = SEPARATOR.join(names)
    if len(whole) <= _LONGEST or len(names) < 3:
        return whole
    return f"{names[0]} … {names[-1]} ({len(names)})"


def fitted(names: Sequence[str], width: int) -> list[str]:
    """Names of tasks in one or two lines of ``width`` characters; all empty where one is longer."""
    two = f"{SEPARATOR.rstrip()}\n"
    lines = [name if len(name) <= width else name.replace(SEPARATOR, two) for name in names]
    fit = all(n.count("\n") < 2 and max(map(len, n.split("\n"))) <= width for n in lines)
    return lines if fit else [""] * len(names)


def slug(name: str) -> str:
    """``name`` for an id or a file: itself where it is letters, digits and dashes.

    Else what is left of it, and the beginning of its digest, which keeps two names apart.
    """
    left = re.sub(r"[^A-Za-z0-9_-]+", "-", name)
    if left == name and name:
        return name
    return f"{left.strip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}".lstrip("-")


_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
}


def latex(text: str) -> str:
    """``text`` as LaTeX prints it; on one line."""
    return "".join(_LATEX.get(sign, sign) for sign in one_line(text))


def markdown(text: str) -> str:
    """``text`` as Markdown shows it, in a table's cell too; on one line."""
    return re.sub(r"([\\`*_\[\]<>|&#])", r"\\\1", one_line(text))


def one_line(text: str) -> str:
    """``text`` without line breaks and signs that are not printed: what a comment can't leave."""
    return "".join(sign for sign in " ".join(text.split()) if sign.isprintable())
