"""The catalogue: complete for every method that can be run, and sensible for any other name."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from hcl.report import catalogue, figures
from hcl.report.paper import paper_tables
from hcl.settings import load_yaml

PARAMS = Path(__file__).parents[2] / "params.yaml"


@pytest.mark.parametrize("name", catalogue.METHODS)
def test_everything_is_said_of_every_method(name: str) -> None:
    method = catalogue.METHODS[name]
    assert all(getattr(method, field.name) for field in fields(method)[:-1]), method
    assert method.colour in figures.PALETTE
    assert method.origin in get_args(catalogue.Origin)
    assert method.take_it.endswith(".")
    assert not method.sentence.endswith(".")


def test_no_two_methods_share_a_label() -> None:
    labels = [method.label for method in catalogue.METHODS.values()]
    assert len(set(labels)) == len(labels)


def test_every_method_of_the_parameters_is_known() -> None:
    methods = load_yaml(PARAMS)["methods"]
    assert len(methods) > 10
    unknown = [name for name in methods if catalogue.entry(name).origin == "your own"]
    assert unknown == []


def test_the_paper_s_methods_are_those_that_it_prints() -> None:
    printed = {name for table in paper_tables() for name in table.results}
    ours = {name for name, m in catalogue.METHODS.items() if m.origin == "the paper's"}
    assert ours == printed


def test_who_sees_all_data_again_is_an_upper_bound() -> None:
    bounds = [name for name, m in catalogue.METHODS.items() if m.upper_bound]
    assert bounds == ["mtl", "joint"]


def test_a_task_agnostic_method_is_said_and_drawn_like_its_other_self() -> None:
    agnostic = [name for name in catalogue.METHODS if name.endswith("-ta")]
    assert len(agnostic) > 2
    for name in agnostic:
        method, told = catalogue.entry(name), catalogue.entry(name.removesuffix("-ta"))
        assert method.label == f"{told.label} (TA)"
        assert method.colour == told.colour
        assert catalogue.TASK_AGNOSTIC in method.sentence


@pytest.mark.parametrize(
    ("name", "label", "colour", "origin"),
    [
        ("hcl-fr", "HCL-FR", "blue", "the paper's"),
        ("hcl-gr-ta", "HCL-GR (TA)", "vermillion", "the paper's"),
        ("hcl-fr-measured-ta", "HCL-FR, measured draws (TA)", "blue", "beyond the paper"),
        ("hcl-gr-odd", "HCL-GR, odd", "vermillion", "beyond the paper"),
        ("hcl-gr-odd-ta", "HCL-GR, odd (TA)", "vermillion", "beyond the paper"),
        ("hcl-fr-measured-wide", "HCL-FR, measured draws, wide", "blue", "beyond the paper"),
        ("er-ta", "ER (TA)", "orange", "beyond the paper"),
        ("mine", "mine", "teal", "your own"),
        ("mine-ta", "mine (TA)", "teal", "your own"),
        ("errant", "errant", "teal", "your own"),
        ("-ta", "-ta", "teal", "your own"),
        ("a\nb\x1b[1m", "a b[1m", "teal", "your own"),
        ("hcl-fr-a\nb", "HCL-FR, a b", "blue", "beyond the paper"),
        ("", "", "teal", "your own"),
    ],
)
def test_a_name_that_is_not_listed_falls_back(
    name: str, label: str, colour: str, origin: str
) -> None:
    method = catalogue.entry(name)
    assert (method.label, method.colour, method.origin) == (label, colour, origin)
    assert catalogue.label(name) == label
    assert (catalogue.TASK_AGNOSTIC in method.sentence) == label.endswith(" (TA)")
    if name not in catalogue.METHODS:
        assert method.take_it == ""


def test_a_variant_is_told_from_its_base() -> None:
    base, variant = catalogue.entry("hcl-fr"), catalogue.entry("hcl-fr-auto")
    assert base.marker != variant.marker
    assert base.sentence != variant.sentence


def test_each_metric_says_what_it_counts_in_one_sentence() -> None:
    for metric in catalogue.METRICS.values():
        assert re.fullmatch(r"[A-Z][^.]*\.", metric.sentence), metric
    assert "the first or the second" in catalogue.METRICS["average_accuracy"].sentence
    assert [m.lower_is_better for m in catalogue.METRICS.values()] == [False, True, False]


def test_the_document_says_the_same_of_the_metrics() -> None:
    text = " ".join((PARAMS.parent / "docs/evaluation.md").read_text(encoding="utf-8").split())
    for metric in catalogue.METRICS.values():
        said = metric.sentence[0].lower() + metric.sentence[1:]
        assert f"**{metric.label.capitalize()}**: {said}" in text


def test_statistics_have_labels_and_others_their_names() -> None:
    assert catalogue.statistic_label("log_px") == "log-likelihood S₁"
    assert catalogue.statistic_label("surprise") == "surprise"


def test_it_needs_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys, hcl.report.catalogue;"
        "print([m for m in ('torch', 'matplotlib', 'h5py') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
