"""Mutated parameter files through the command line: one line, or settings that could be meant."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from hcl.errors import HCLError
from stages.cli import main
from tests.fuzz.mutations import BYTES, FRACTION, NASTY, mutated, replaced
from tests.fuzz.verdicts import fuzzed, refused_or
from tests.support.imports import ROOT

SHOWN = ("split-digits", "split-cifar10-recurring")


def small() -> dict[str, Any]:
    """The project's parameters with a few of its names, and every section that there can be."""
    values = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    kept = {
        "datasets": ("digits", "cifar10"),
        "benchmarks": (*SHOWN, "split-cifar10"),
        "methods": ("er", "curl", "hcl-fr", "hcl-fr-ta", "slda", "hcl-plus"),
    }
    for kind, names in kept.items():
        values[kind] = {name: values[kind][name] for name in names}
    for section in values["benchmarks"].values():
        section.pop("tuned", None)
    values["benchmarks"]["split-digits"]["tuned"] = {"hcl-fr": {"memory": {"alpha": 5}}}
    values["grid"] = {"datasets": ["digits", "cifar10"], "benchmarks": list(SHOWN)}
    values["grid"]["methods"] = ["er", "curl", "hcl-fr-ta", "slda", "hcl-plus"]
    values["tune"] = {"values": {"memory": {"alpha": [1, 5]}}, "seed": 0, "samples_per_task": 10}
    values["moons"] |= {"learning_rate": 1e-3, "seed": 0, "grid": 10, "flow": {"hidden": 4}}
    values["toy_losses"] |= {"steps": 3, "samples": 4}
    values["extract"] |= {"batch_size": 4, "workers": 0, "forward_batch": 2}
    return values


PARAMETERS = small()
TEXT = yaml.safe_dump(PARAMETERS, sort_keys=False).encode()


def run(path: Path, *arguments: str) -> str:
    """What ``hcl`` prints; an ``HCLError`` where it ends with a line."""
    result = CliRunner().invoke(main, [*arguments, "--params", str(path)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code:
        raise HCLError(result.output.removesuffix("\n"))
    return result.output


def settings_of(path: Path) -> str:
    return run(path, "settings")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "params.yaml"


def test_what_is_mutated_is_whole(path: Path) -> None:
    path.write_bytes(TEXT)
    assert "no mistake found" in settings_of(path)


@fuzzed(of=3)
@given(changes=BYTES)
def test_bytes_of_a_parameter_file(path: Path, changes: Any) -> None:
    path.write_bytes(mutated(TEXT, changes))
    refused_or(settings_of, path)


@fuzzed(of=3)
@given(where=FRACTION, value=st.one_of(NASTY, st.just(KeyError)), rename=st.booleans())
def test_values_of_a_parameter_file(path: Path, where: float, value: Any, rename: bool) -> None:
    values = replaced(copy.deepcopy(PARAMETERS), where, value, rename and value is not KeyError)
    try:
        text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True).encode()
    except (yaml.YAMLError, ValueError):
        return  # what no YAML file can hold
    path.write_bytes(text)
    refused_or(settings_of, path)
    refused_or(lambda path: run(path, "settings", "--benchmark", SHOWN[0], "--method", "er"), path)


TAGS = [
    "!!int",
    "!!float",
    "!!bool",
    "!!timestamp",
    "!!binary",
    "!!map",
    "!!set",
    "!!omap",
    "!x",
    "&a",
    "*a",
    "<<:",
]
PIECES = st.lists(
    st.sampled_from(
        [
            *TAGS,
            " ",
            "\n",
            "\n  ",
            "- ",
            ": ",
            "a",
            "b",
            "1",
            "[",
            "]",
            "{",
            "}",
            ",",
            "'",
            '"',
            "|",
            ">",
            "#",
            "0x",
            "9" * 5_000,
            "1_000",
            "2001-12-14t21:59:43.10-05:00",
            "12:30:45",
            ".inf",
            "~",
            "? ",
            "---",
            "%YAML 9",
            "\t",
            "\x07",
            "é",
        ]
    ),
    max_size=40,
).map("".join)


@fuzzed(of=3)
@given(text=PIECES)
def test_texts_made_of_pieces_of_yaml(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    refused_or(settings_of, path)
