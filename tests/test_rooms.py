"""Which room of ``hcl/`` may import which: imports point one way, and the picture shows it.

A room is a sub-package, or a module of its own at the top; the four modules that everyone may stand
on are, with the version, the ground. After a change of imports, ``python -m tests.test_rooms``
draws the picture in CONTRIBUTING.md again.
"""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.support.imports import ROOT, imports_in

GROUND = ("errors", "files", "progress", "settings", "__version__")
MAY_IMPORT = {
    "hcl": (),  # the package itself, which imports what it offers when it is asked
    "ground": (),
    "cluster": (),
    "records": (),
    "split": ("records",),
    "fetch": ("records",),
    "extract": ("cluster", "records"),
    "model": (),
    "detect": ("records",),
    "learn": ("records", "model", "detect"),
    "train": ("records", "model", "detect", "learn"),
    "sweep": ("cluster", "records", "model", "detect", "learn", "train"),
    "evaluate": ("records", "model"),
    "watch": ("records", "model", "detect", "learn", "train", "evaluate"),
    "tune": ("records", "model", "detect", "learn", "train", "evaluate"),
    "estimator": ("records", "model", "detect", "learn", "train"),
    "report": ("records",),
    "use": ("records", "model", "learn", "train", "extract", "estimator"),
    "studies": ("records", "model"),
    "serve": ("records", "use"),
}  # and each its own modules and the ground
NEVER = ("click", "dvc", "stages", "tests")
TORCH = ("torch", "torchvision", "timm", "safetensors.torch")
TORCH_FREE = ("hcl", "ground", "cluster", "records", "split", "fetch", "evaluate", "report")
# The one view of a trained model: the rest of its room scores files.
PROJECTION = Path("hcl/evaluate/projection.py")

PACKAGE = Path("hcl/__init__.py")
MODULES = sorted(path.relative_to(ROOT) for path in (ROOT / "hcl").rglob("*.py"))
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
BLOCK = re.compile(r"(?<=<!-- rooms: drawn by tests/test_rooms.py -->\n).*?(?=<!-- end -->)", re.S)


def room_of(module: str) -> str:
    """The room of a module of the package, by its full name; "hcl" for the package itself."""
    top = f"{module}.hcl".split(".")[1]
    return "ground" if top in GROUND else top


def module_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def breaks_a_rule(path: Path, name: str) -> bool:
    """Whether ``path`` may not import ``name``."""
    room, top = room_of(module_of(path)), name.split(".")[0]
    if top in NEVER:
        return True
    if top != "hcl":
        heavy = any(name == other or name.startswith(f"{other}.") for other in TORCH)
        return heavy and room in TORCH_FREE and path != PROJECTION
    other = room_of(name)
    if (room, other) == ("evaluate", "model"):
        return path != PROJECTION
    return other not in (room, "ground", *MAY_IMPORT[room])


def room_graph() -> dict[str, set[str]]:
    """The rooms that each room imports."""
    graph: dict[str, set[str]] = {room: set() for room in MAY_IMPORT}
    for path in MODULES:
        names = [name for _, name in imports_in(path) if name.split(".")[0] == "hcl"]
        room = room_of(module_of(path))
        graph[room] = graph.get(room, set()) | {room_of(name) for name in names} - {room}
    return graph


def behind(graph: dict[str, set[str]], room: str) -> set[str]:
    """All rooms that a room imports, itself or by way of others."""
    direct = graph[room]
    return direct.union(*(behind(graph, other) for other in direct))


def mermaid() -> str:
    """The picture; an arrow that follows from two others, and the ground, are left out."""
    graph = room_graph()
    lines = ["```mermaid", "graph LR"]
    for room in sorted(set(graph) - {"hcl", "ground"}):
        others = graph[room] - {"ground"}
        implied = set().union(*(behind(graph, other) for other in others))
        lines += [f"  {room} --> {other}" for other in sorted(others - implied)]
        if not others and not any(room in found for found in graph.values()):
            lines.append(f"  {room}")
    return "\n".join([*lines, "```", ""])


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_a_module_imports_only_what_its_room_may(path: Path) -> None:
    room = room_of(module_of(path))
    assert room in MAY_IMPORT, f"{path}: say in MAY_IMPORT what the room {room} may import"
    lines = [f"{path}:{n}: {name}" for n, name in imports_in(path) if breaks_a_rule(path, name)]
    assert lines == [], f"{room} may import the ground, {', '.join(MAY_IMPORT[room])}"


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_no_text_of_a_module_names_dvc(path: Path) -> None:
    """A message says which command makes a file; whoever runs ``hcl`` may do so without DVC."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    texts = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    assert [f"{path}:{n.lineno}: {n.value}" for n in texts if re.search(r"\bdvc\b", n.value)] == []


def test_imports_between_rooms_have_no_cycle() -> None:
    assert len(list(TopologicalSorter(MAY_IMPORT).static_order())) == len(MAY_IMPORT)
    order = list(TopologicalSorter(room_graph()).static_order())
    assert set(MAY_IMPORT) <= set(order)


@pytest.mark.parametrize("path", [p for p in MODULES if p.name == "__init__.py" and p != PACKAGE])
def test_a_room_s_init_says_what_the_room_is_and_no_more(path: Path) -> None:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    assert len(tree.body) == 1


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("hcl/model/flows.py", "hcl.learn.contract.Batch"),
        ("hcl/learn/flow/memory.py", "hcl.train.loop"),
        ("hcl/errors.py", "hcl.records.raw"),
        ("hcl/records/raw.py", "torch.Tensor"),
        ("hcl/report/page.py", "torch"),
        ("hcl/evaluate/metrics.py", "torch"),
        ("hcl/evaluate/scoring.py", "hcl.model.hybrid"),
        ("hcl/train/loop.py", "click"),
        ("hcl/estimator.py", "stages.options"),
        ("hcl/train/loop.py", "hcl.HCLClassifier"),
        ("hcl/__init__.py", "hcl.estimator"),
    ],
)
def test_the_rules_refuse_what_they_should(path: str, name: str) -> None:
    assert breaks_a_rule(Path(path), name)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("hcl/learn/flow/memory.py", "hcl.learn.contract.Batch"),
        ("hcl/learn/kinds.py", "hcl.model.losses"),
        ("hcl/evaluate/projection.py", "hcl.model.model_file"),
        ("hcl/model/flows.py", "torch.nn"),
        ("hcl/report/page.py", "hcl.errors.HCLError"),
    ],
)
def test_the_rules_allow_what_they_should(path: str, name: str) -> None:
    assert not breaks_a_rule(Path(path), name)


def test_the_picture_of_the_rooms_is_what_the_code_says() -> None:
    shown = BLOCK.search(CONTRIBUTING.read_text(encoding="utf-8"))
    assert shown is not None
    assert shown[0] == mermaid(), "run `python -m tests.test_rooms`"


if __name__ == "__main__":
    text = CONTRIBUTING.read_text(encoding="utf-8")
    CONTRIBUTING.write_text(BLOCK.sub(lambda _: mermaid(), text), encoding="utf-8")
