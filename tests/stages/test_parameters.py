"""What is wrong in the parameter file stops the first stage: names, keys, merged values."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from hcl.learn.flow.settings import BufferSettings
from stages.cli import main
from stages.resolve import Resolved
from tests.support.imports import ROOT
from tests.support.projects import environment

PARAMS = (ROOT / "params.yaml").read_text(encoding="utf-8")
INPUTS = ["--benchmark", "split-digits", "--embeddings", "embeddings"]
COMMANDS = {
    "fetch": ["--dataset", "digits"],
    "split": INPUTS,
    "train": [*INPUTS, "--method", "adam", "--tasks", "tasks.h5"],
    "tune": [*INPUTS, "--method", "adam", "--tasks", "tasks.h5"],
}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(stage: str, grid: Any) -> Result:
    return run_with(stage, {**yaml.safe_load(PARAMS), "grid": grid})


def run_with(stage: str, values: dict[str, Any]) -> Result:
    Path("params.yaml").write_text(yaml.safe_dump(values))
    return CliRunner().invoke(main, [stage, *COMMANDS[stage], "--out", "out"])


@pytest.mark.parametrize("stage", COMMANDS)
@pytest.mark.parametrize(
    ("key", "name", "meant"),
    [
        ("methods", "hcl-frta", "hcl-fr-ta"),
        ("benchmarks", "split-digit", "split-digits"),
        ("datasets", "digts", "digits"),
    ],
)
def test_the_key_the_value_and_the_nearest_name(
    stage: str, key: str, name: str, meant: str
) -> None:
    result = run(stage, {key: [meant, name]})
    assert result.exit_code == 1
    assert f"params.yaml: grid.{key}[1] is {name!r}" in result.output
    assert f"(did you mean {meant!r}?)" in result.output
    assert result.output.count("\n") == 1
    assert not Path("out").exists()


def test_a_name_in_place_of_a_list() -> None:
    assert "grid.methods is 'adam'; expected a list" in run("split", {"methods": "adam"}).output


@pytest.mark.parametrize("grid", [None, {}, yaml.safe_load(PARAMS)["grid"]])
def test_names_that_are_declared_pass_and_so_does_no_grid(grid: Any) -> None:
    result = run("fetch", grid)
    assert result.exit_code == 0, result.output
    assert Path("out").exists()


@pytest.mark.parametrize("stage", COMMANDS)
def test_a_key_of_a_benchmark_that_nothing_reads(stage: str) -> None:
    values = yaml.safe_load(PARAMS)
    values["benchmarks"]["split-cifar10"]["trainings"] = {"batch_size": 8}
    result = run_with(stage, values)
    assert result.exit_code == 1
    assert result.output == (
        "Error: params.yaml: benchmarks.split-cifar10.trainings is not a known key (did you mean "
        "'training'?). Allowed: like, stream, flow, training, tuned.\n"
    )


def test_a_section_that_looks_like_a_slip_and_one_that_does_not() -> None:
    values = yaml.safe_load(PARAMS)
    result = run_with("fetch", {**values, "seed": [7]})
    assert result.exit_code == 1
    assert (
        result.output == "Error: params.yaml: there is no section 'seed' (did you mean 'seeds'?).\n"
    )
    assert run_with("fetch", {**values, "deployment": {"replicas": 2}}).exit_code == 0


def test_a_stream_of_a_data_set_that_is_not_declared() -> None:
    values = yaml.safe_load(PARAMS)
    values["benchmarks"]["split-digits"]["stream"]["tasks"]["dataset"] = "digit"
    result = run_with("split", values)
    assert result.exit_code == 1
    assert "benchmarks.split-digits.stream.tasks names the data set 'digit'" in result.output
    assert "(did you mean 'digits'?)" in result.output
    assert result.output.count("\n") == 1


SLIPS = [
    (["methods", "adam", "alpha"], 1, "methods.adam.alpha is not a known key of kind flow"),
    (["methods", "hcl-fr", "ridge"], 1, "methods.hcl-fr.ridge is not a known key of kind flow"),
    (["methods", "hcl-fr", "learning_rate"], 0, "methods.hcl-fr.learning_rate: is 0; expected a"),
    (["methods", "hcl-fr", "learning_rate"], -1, "methods.hcl-fr.learning_rate: is -1; expected"),
    (["methods", "hcl-fr", "weight_decay"], -1, "methods.hcl-fr.weight_decay: is -1; expected"),
    (["methods", "er", "memory", "kind"], "bufer", "methods.er.memory.kind is 'bufer' (did you"),
    (["methods", "hcl-fr-ta", "like"], "hcl-f", "methods.hcl-fr-ta.like: 'hcl-f' is not there"),
    (["methods", "hcl-fr", "like"], "hcl-fr-ta", "methods.hcl-fr-ta.like: 'hcl-fr' is like itself"),
    (
        ["methods", "hcl-fr-ta", "detection"],
        {"trim": 16},
        "methods.hcl-fr-ta.detection.trim: is 16",
    ),
    (
        ["benchmarks", "split-digits", "training", "learning_rate"],
        0,
        "learning_rate: is 0; expected",
    ),
    (
        ["benchmarks", "split-digits", "tuned", "hcl-fr", "memory", "alpha"],
        -3,
        "benchmarks.split-digits.tuned.hcl-fr.memory.alpha: is -3; expected a number from 0 to",
    ),
    (
        ["benchmarks", "split-digits", "tuned", "hcl-fr", "memory", "size"],
        3,
        "benchmarks.split-digits.tuned.hcl-fr.memory.size is not a known key of kind functional",
    ),
    (
        ["benchmarks", "split-digits", "tuned", "hcl-ff"],
        {},
        "benchmarks.split-digits.tuned.hcl-ff: there is no method of that name (did you mean",
    ),
    (["benchmarks", "split-digits", "like"], "split-cifra10", "'split-cifra10' is not there (did"),
]


@pytest.mark.parametrize(("keys", "value", "message"), SLIPS)
def test_a_slip_is_one_line_that_names_where_it_was_written(
    keys: list[str], value: Any, message: str
) -> None:
    values = yaml.safe_load(PARAMS)
    node = values
    for key in keys[:-1]:
        node = node[key]
    node[keys[-1]] = value
    Path("params.yaml").write_text(yaml.safe_dump(values))
    result = CliRunner().invoke(main, ["settings", "--out", "out"])
    assert result.exit_code == 1, result.output
    assert result.output.startswith("Error: params.yaml: ")
    assert message in result.output
    assert result.output.count("\n") == 1
    assert not Path("out").exists()


def resolved(text: str) -> Resolved:
    Path("params.yaml").write_text(text)
    return Resolved(Path("params.yaml"))


LIKE = """
methods:
  fr: {kind: flow, memory: {kind: functional, alpha: 10}}
  fr-ta: {like: fr, detection: {window: 50}}
  er: {like: fr, memory: {kind: buffer}}
benchmarks:
  a:
    stream: {tasks: {dataset: digits, classes_per_task: 2}}
    flow: {couplings: 2}
    tuned: {fr: {memory: {alpha: 3}}, fr-ta: {detection: {threshold: 4}}}
  b: {like: a, flow: {hidden: 8}, tuned: {fr: {learning_rate: 0.5}}}
"""


def test_methods_and_benchmarks_start_from_others_with_what_was_tuned_for_them() -> None:
    parameters = resolved(LIKE)
    told, agnostic = (parameters.run("a", name).method for name in ("fr", "fr-ta"))
    assert (told.memory.alpha, told.detection) == (3, None)
    assert agnostic.memory == told.memory
    assert (agnostic.detection.window, agnostic.detection.threshold) == (50, 4)
    there = parameters.run("b", "fr")
    assert (there.flow.couplings, there.flow.hidden) == (2, 8)
    assert (there.method.memory.alpha, there.method.learning_rate) == (3, 0.5)
    assert parameters.stream("b") == parameters.stream("a")


def test_another_kind_replaces_a_section_instead_of_being_merged_with_it() -> None:
    parameters = resolved(LIKE.replace("tuned: {fr: {memory: {alpha: 3}}, ", "tuned: {"))
    assert parameters.run("a", "er").method.memory == BufferSettings(size=1000)


def test_what_a_method_never_reads_is_not_in_its_settings() -> None:
    shown = {}
    names_and_stream = {"benchmark", "method", "seeds", "stream"}
    for method in ("ncm", "curl", "hcl-plus", "hcl-fr"):
        Path("params.yaml").write_text(PARAMS)
        names = ["--benchmark", "split-digits", "--method", method]
        result = CliRunner().invoke(main, ["settings", *names])
        assert result.exit_code == 0, result.output
        shown[method] = set(yaml.safe_load(result.output)) - names_and_stream
    both = {"method_settings", "training"}
    expected = {"ncm": both, "curl": both, "hcl-plus": both}  # of ncm: save_model alone
    assert shown == {**expected, "hcl-fr": {*both, "flow"}}


def test_a_closed_form_reads_the_size_of_a_batch_where_the_stream_is_made_of_batches() -> None:
    values = yaml.safe_load(PARAMS)
    values["benchmarks"]["split-digits"]["stream"]["batches"] = 20
    Path("params.yaml").write_text(yaml.safe_dump(values))
    result = CliRunner().invoke(
        main, ["settings", "--benchmark", "split-digits", "--method", "ncm"]
    )
    assert result.exit_code == 0, result.output
    shown = yaml.safe_load(result.output)
    assert shown["stream"]["batches"] == 20
    assert shown["training"]["batch_size"] == 32


def test_parameters_are_checked_before_torch_is_imported() -> None:
    check = (
        "import sys; from pathlib import Path; from stages.resolve import Resolved\n"
        f"Resolved(Path({str(ROOT / 'params.yaml')!r})).check()\n"
        "sys.exit('torch' in sys.modules or 'timm' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", check], env=environment()).returncode == 0


LATER = [
    (["grid", "datasets"], ["cifar10"], "needs the data set 'digits'; add it to grid.datasets"),
    (["toy_losses", "gama"], 1, "toy_losses.gama is not a known key"),
    (["moons", "steps"], 0, "moons.steps"),
    (["extract", "backbon"], "x", "extract.backbon is not a known key"),
    (["datasets", "digits", "sorce"], "x", "datasets.digits.sorce is not a known key"),
    (["benchmarks", "split-digits", "stream", "order"], [0], "split-digits.stream.order[0]: there"),
    (["tune"], {"seed": -1}, "tune.seed: is -1"),
    (["seeds"], [2**64], "seeds[0] is 18446744073709551616"),
    (["methods", "unused"], {"like": "ncm", "learning_rate": -1}, "methods.unused.learning_rate"),
    (["benchmarks", "unused"], {"training": {"learning_rate": 0}}, "unused.training.learning_rate"),
    (["benchmarks", "unused"], {"flow": {"hidden": 10**18}}, "benchmarks.unused.flow.hidden"),
    (
        ["benchmarks", "split-digits", "tuned"],
        {"hcl-gr": {"learning_rate": -0.05}},
        "split-digits.tuned.hcl-gr.learning_rate",
    ),
]


@pytest.mark.parametrize(("keys", "value", "message"), LATER)
@pytest.mark.parametrize("command", [["settings"], ["fetch", "--dataset", "digits", "--out", "x"]])
def test_the_first_command_refuses_what_a_later_stage_would(
    command: list[str], keys: list[str], value: Any, message: str
) -> None:
    values = yaml.safe_load(PARAMS)
    node = values
    for key in keys[:-1]:
        node = node[key]
    node[keys[-1]] = value
    Path("params.yaml").write_text(yaml.safe_dump(values))
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1, result.output
    assert message in result.output
    assert result.output.count("\n") == 1


def test_settings_alone_checks_the_whole_file() -> None:
    Path("params.yaml").write_text(PARAMS)
    result = CliRunner().invoke(main, ["settings"])
    assert result.output == "params.yaml: no mistake found\n"


def test_a_file_of_settings_and_names_are_not_taken_together() -> None:
    Path("params.yaml").write_text(PARAMS)
    inputs = ["--tasks", "t", "--embeddings", "e", "--out", "o"]
    for command in (
        ["train", "--settings", "s.json", "--method", "ncm", *inputs],
        ["split", "--settings", "s.json", "--benchmark", "b", *inputs[2:]],
        ["settings", "--out", "o", "--method", "ncm"],
        ["settings", "--method", "ncm"],
    ):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 2, result.output
        assert not Path("o").exists()


INPUTS = ["--tasks", "t", "--embeddings", "e", "--out", "o"]


@pytest.mark.parametrize(
    "command",
    [
        ["settings", "--params"],
        ["moons", "--out", "o", "--params"],
        ["split", *INPUTS[2:], "--benchmark", "b", "--params"],
        ["split", *INPUTS[2:], "--settings"],
        ["train", *INPUTS, "--settings"],
    ],
    ids=" ".join,
)
def test_what_is_no_plain_file_is_not_waited_for(command: list[str]) -> None:
    os.mkfifo("pipe")
    for path in (".", "/dev/zero", "pipe"):  # without the check, the last is waited for
        result = CliRunner().invoke(main, [*command, path])
        assert result.exit_code == 1, result.output
        assert f"{path}: not a plain file." in result.output
        assert result.output.count("\n") == 1


@pytest.mark.parametrize("text", ["[" * 100_000, "", "[1]", '{"seeds": ' * 3_000, "\udcff"])
def test_a_file_of_settings_that_is_none_is_refused_in_one_line(text: str) -> None:
    Path("s.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    result = CliRunner().invoke(main, ["train", *INPUTS, "--settings", "s.json"])
    assert result.exit_code == 1, result.output
    assert result.output.startswith("Error: s.json: ")
    assert result.output.count("\n") == 1


@pytest.mark.parametrize("stage", COMMANDS)
@pytest.mark.parametrize("kind", ["datasets", "benchmarks", "methods"])
@pytest.mark.parametrize("name", ['"><svg onload=alert(2)>b', "..", "a/b", "a" * 300, "a\nb", 1])
def test_a_name_that_no_file_or_page_could_bear_is_refused(
    stage: str, kind: str, name: Any
) -> None:
    values = yaml.safe_load(PARAMS)
    values[kind][name] = next(iter(values[kind].values()))
    result = run_with(stage, values)
    assert result.exit_code == 1
    assert f"params.yaml: {kind} has the name " in result.output
    assert result.output.count("\n") == 1
