from __future__ import annotations

import sys

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from hcl.records import embeddings
from stages.cli import main
from tests.support.tiny_backbone import NAME, SIZE, labels, random_images, save_raw, save_weights


@pytest.fixture
def run(tmp_path):
    weights = save_weights(tmp_path / "tiny.pth")
    save_raw(tmp_path / "raw.h5", random_images(11))
    out = tmp_path / "made" / "trees.h5"

    def run(raw="raw.h5", **changes):
        values = {"backbone": NAME, "weights": str(weights), "device": "cpu"} | changes
        (tmp_path / "params.yaml").write_text(yaml.safe_dump({"extract": values}))
        command = ["extract", "--params", tmp_path / "params.yaml", "--raw", tmp_path / raw]
        return CliRunner().invoke(main, [*map(str, command), "--out", str(out)]), out

    return run


def test_writes_the_embedding_file(run):
    result, out = run()
    assert result.exit_code == 0, result.output
    assert result.output == f"{out}: 11 embeddings of {SIZE} numbers\n"
    found = embeddings.read(out)
    assert found.x.shape == (11, SIZE)
    assert len(np.unique(found.x, axis=0)) == 11
    np.testing.assert_array_equal(found.y, labels(11)[0])
    assert found.attributes["backbone"] == NAME


def test_another_batch_size_gives_the_same_bytes(run):
    _, out = run()
    before = out.read_bytes()
    result, _ = run(batch_size=3)
    assert result.exit_code == 0
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": "many"}, "extract.batch_size is 'many'; expected a whole number"),
        ({"backbone": "efficientnet_b0"}, "Close to it: efficientnet_b0.ra"),
        ({"weights": "nowhere.pth"}, "nowhere.pth: no such file"),
        ({"batchsize": 3}, "extract.batchsize is not a known key (did you mean 'batch_size'?)"),
        ({"raw": "none.h5"}, "none.h5: no such raw file. `hcl fetch` makes it."),
        ({"raw": "params.yaml"}, "params.yaml: not a whole raw file"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(run, changes, message):
    result, out = run(**changes)
    assert result.exit_code == 1
    assert message in result.output
    assert result.output.startswith("Error: ")
    assert result.output.count("\n") == 1
    assert not out.exists()


def test_the_section_must_be_there(run, tmp_path):
    (tmp_path / "params.yaml").write_text("grid: {}\n")
    command = ["extract", "--params", tmp_path / "params.yaml", "--raw", "x", "--out", "y"]
    result = CliRunner().invoke(main, [*map(str, command)])
    assert result.exit_code == 1
    assert "there is no 'extract'" in result.output


def test_a_cluster_is_an_option_or_a_variable_and_sharing_needs_one(tmp_path, monkeypatch):
    (tmp_path / "params.yaml").write_text("extract: {}\n")
    save_raw(tmp_path / "raw.h5", random_images(3))
    command = ["extract", "--params", tmp_path / "params.yaml", "--raw", tmp_path / "raw.h5"]
    command = [*map(str, command), "--out", str(tmp_path / "out.h5")]
    result = CliRunner().invoke(main, [*command, "--shared"])
    assert result.exit_code == 2
    assert "name it with --ray" in result.output
    monkeypatch.setitem(sys.modules, "ray", None)  # as where it is not installed
    by_option = CliRunner().invoke(main, [*command, "--ray", "auto"])
    by_variable = CliRunner().invoke(main, command, env={"HCL_RAY": "auto"})
    assert by_option.output == by_variable.output
    assert by_option.output.startswith("Error: A cluster needs Ray: pip install")
    assert by_option.output.count("\n") == 1
