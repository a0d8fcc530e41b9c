"""``hcl report``, ``hcl moons`` and ``hcl toy-losses`` from the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stages.cli import main
from tests.support.made_runs import make_benchmark, write_result

PARAMS = """
grid: {datasets: [pictures], benchmarks: [toy], methods: [METHODS]}
moons: {steps: 2, samples: 20, grid: 6, flow: {couplings: 2, hidden_layers: 1, hidden: 4}}
toy_losses: {gamma: 2.0, highest: 4.0, steps: 8, samples: 50}
"""


def hcl(folder: Path, command: str, *arguments: str, methods: str = "hcl-fr") -> Result:
    path = folder / "params.yaml"
    path.write_text(PARAMS.replace("METHODS", methods))
    return CliRunner().invoke(main, [command, "--params", str(path), *arguments])


def report(folder: Path, *more: str, methods: str = "hcl-fr") -> Result:
    given = (f"--scores={folder / 'scores'}", f"--out={folder / 'report'}")
    return hcl(folder, "report", *given, *more, methods=methods)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result, and both studies made by their commands."""
    folder = tmp_path_factory.mktemp("stages")
    write_result(folder, make_benchmark(), "hcl-fr", [[(2, 0)]])
    for command in ("moons", "toy-losses"):
        result = hcl(folder, command, "--out", str(folder / command))
        assert result.exit_code == 0, result.output
        (folder / f"{command}.txt").write_text(result.output)
    return folder


def test_report_prints_the_headline_and_where_the_page_is(made: Path) -> None:
    studies = [f"--{name}={made / name}" for name in ("moons", "toy-losses")]
    result = report(made, *studies)
    assert result.exit_code == 0, result.output
    assert "91.67* " in result.output
    assert "±" not in result.output  # one seed has no spread
    assert result.output.rstrip().endswith(f"Report: {made / 'report/index.html'}")
    page = (made / "report/index.html").read_text()
    assert "Two moons" in page
    assert "<pre>dvc repro evaluate@toy-hcl-fr\ndvc repro -s report</pre>" in page
    assert "toy flow" in page
    numbers = json.loads((made / "moons/moons.json").read_text())
    before = f"{numbers['first_moon_log_likelihood_before']:.2f}".replace("-", "−")
    assert f"<td>{before}</td>" in page


def test_report_without_studies_is_whole_too(made: Path) -> None:
    result = report(made)
    assert result.exit_code == 0, result.output
    assert "Two moons" not in (made / "report/index.html").read_text()


def test_a_method_without_result_is_named_and_the_old_report_stays(made: Path) -> None:
    (made / "report").mkdir(exist_ok=True)
    (made / "report/index.html").write_text("old")
    result = report(made, methods="hcl-fr, ranpac")
    assert result.exit_code == 1
    assert "ranpac/about.json: no such result" in result.output
    assert "make it with `hcl evaluate` of ranpac on toy" in result.output
    assert (made / "report/index.html").read_text() == "old"


def test_a_name_that_the_file_does_not_declare_is_named(made: Path) -> None:
    """A slip should not send its maker to a stage that there is not."""
    sections = "methods: {hcl-fr: {}}\nbenchmarks: {toy: {}}\ndatasets: {pictures: {}}\n"
    path = made / "declared.yaml"
    path.write_text(sections + PARAMS.replace("METHODS", "hlc-fr"))
    given = ["--scores", str(made / "scores"), "--out", str(made / "report")]
    arguments = ["report", "--params", str(path), *given]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert "grid.methods[0] is 'hlc-fr'" in result.output
    assert "did you mean 'hcl-fr'?" in result.output


def test_an_empty_grid_is_an_error(made: Path) -> None:
    result = report(made, methods="")
    assert result.exit_code == 1
    assert "grid.methods: is empty" in result.output


def test_a_method_that_stands_twice_is_an_error(made: Path) -> None:
    result = report(made, methods="hcl-fr, hcl-fr")
    assert result.exit_code == 1
    assert "grid.methods: a name stands twice" in result.output


@pytest.mark.parametrize(
    ("study", "file"), [("moons", "arrays.npz"), ("toy-losses", "toy-losses.csv")]
)
def test_a_study_that_is_missing_or_damaged_is_named(
    made: Path, tmp_path: Path, study: str, file: str
) -> None:
    result = report(made, f"--{study}", str(tmp_path / "nowhere"))
    assert result.exit_code == 1
    assert f"no such study; `hcl {study}` makes it." in result.output
    shutil.copytree(made / study, tmp_path / study)
    (tmp_path / study / file).write_text("theta,gr,fr\nnot at all\n")
    result = report(made, f"--{study}", str(tmp_path / study))
    assert result.exit_code == 1
    assert f"{file}: damaged" in result.output


def test_moons_writes_and_prints_what_it_found(made: Path) -> None:
    files = sorted(path.name for path in (made / "moons").iterdir())
    assert files == ["arrays.npz", "moons.json", "moons.png", "moons.svg"]
    numbers = json.loads((made / "moons/moons.json").read_text())
    printed = (made / "moons.txt").read_text()
    for method, label in (("gr", "HCL-GR"), ("fr", "HCL-FR")):
        after = numbers[method]["first_moon_log_likelihood_after"]
        assert f"{label}: after {after:.2f} " in printed
        drop = numbers["first_moon_log_likelihood_before"] - after
        assert numbers[method]["first_moon_log_likelihood_drop"] == pytest.approx(drop, abs=2e-4)


def test_toy_losses_writes_and_prints_where_they_are_least(made: Path) -> None:
    files = sorted(path.name for path in (made / "toy-losses").iterdir())
    assert files == ["toy-losses.csv", "toy-losses.json", "toy-losses.png", "toy-losses.svg"]
    lines = (made / "toy-losses/toy-losses.csv").read_text().splitlines()
    assert lines[0] == "theta,gr,fr"
    assert len(lines) == 1 + 8
    assert lines[4].startswith("2,")
    assert float(lines[4].split(",")[2]) == 0.0
    printed = (made / "toy-losses.txt").read_text()
    assert "GR loss: least at θ = 2 (γ = 2)" in printed
    assert "FR loss: least at θ = 2 (γ = 2)" in printed


def test_a_bad_parameter_of_a_study_is_named(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("moons: {steps: 0}\ntoy_losses: {gamma: -1.0}\n")
    for command, message in (
        ("moons", "moons.steps: is 0; expected"),
        ("toy-losses", "toy_losses.gamma"),
    ):
        arguments = [command, "--params", str(path), "--out", str(tmp_path / "out")]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 1
        assert message in result.output
        assert not (tmp_path / "out").exists()
