from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from hcl.files import sha256_of
from hcl.records import embeddings
from hcl.records.raw import Raw
from stages import extract
from stages.fetch import command
from tests.support.official_layouts import encode, random_images, write_image_folder, write_svhn
from tests.support.tiny_backbone import NAME, save_weights

PARAMS = """
datasets:
  digits: {source: digits}
  pets: {source: folder, path: pets}
  ready: {source: embeddings, path: x.npz}
  svhn: {source: svhn, partial: true}
  wrong: {source: digits, pth: x}
"""


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HCL_DATA", raising=False)
    (tmp_path / "params.yaml").write_text(PARAMS)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(command, list(arguments))


def fetch(name):
    return run("--dataset", name, "--out", f"data/raw/{name}.h5")


def fails(result, *parts):
    assert result.exit_code == 1
    assert len(result.output.strip().splitlines()) == 1
    for part in parts:
        assert part in result.output


def test_digits():
    result = fetch("digits")
    said = "data/raw/digits.h5: 1797 samples of 10 classes\n"
    assert (result.exit_code, result.output) == (0, said)
    raw = Raw("data/raw/digits.h5")
    raw.verify()
    assert raw.dataset == "digits"
    np.testing.assert_array_equal(np.bincount(raw.split), [1297, 500])
    first = sha256_of("data/raw/digits.h5")
    fetch("digits")
    assert sha256_of("data/raw/digits.h5") == first


def test_own_images_without_labels_are_embedded_without_labels(project):
    (project / "photos").mkdir()
    for i, image in enumerate(random_images(3, (8, 8, 3))):
        (project / "photos" / f"{i}.png").write_bytes(encode(image))
    params = (project / "params.yaml").read_text()
    params = params.replace("datasets:", "datasets:\n  photos: {source: images, path: photos}", 1)
    weights = save_weights(project / "tiny.pth")
    params += f"\nextract: {{backbone: {NAME}, weights: {weights}}}\n"
    (project / "params.yaml").write_text(params)
    result = fetch("photos")
    assert result.output == "data/raw/photos.h5: 3 samples without labels\n"
    paths = ["--raw", "data/raw/photos.h5", "--out", "data/photos.h5"]
    done = CliRunner().invoke(extract.command, paths)
    assert done.exit_code == 0, done.output
    found = embeddings.read("data/photos.h5")
    assert (found.classes, found.y.tolist()) == ([], [-1, -1, -1])


def test_own_folder(project):
    write_image_folder(project / "pets")
    assert fetch("pets").exit_code == 0
    assert Raw("data/raw/pets.h5").classes == ("cat", "dog")


def test_data_folder_by_variable_and_by_option(project, monkeypatch):
    write_svhn(project / "sets" / "svhn")
    assert run("--dataset", "svhn", "--out", "a.h5", "--data", "sets").exit_code == 0
    monkeypatch.setenv("HCL_DATA", "sets")
    assert fetch("svhn").exit_code == 0
    assert sha256_of("data/raw/svhn.h5") == sha256_of("a.h5")
    assert len(Raw("a.h5")) == 16


def test_other_parameter_file(project):
    (project / "params.yaml").rename(project / "other.yaml")
    fails(fetch("digits"), "params.yaml: no such parameter file")
    assert run("--params", "other.yaml", "--dataset", "digits", "--out", "d.h5").exit_code == 0


def test_mistakes_are_one_line(project):
    fails(fetch("digit"), "params.yaml", "'datasets.digit'", "did you mean 'digits'?")
    fails(fetch("wrong"), "params.yaml: datasets.wrong.pth", "did you mean 'path'?")
    fails(fetch("pets"), "pets: no such folder. Mend datasets.pets.path", str(project))
    fails(fetch("ready"), "x.npz: no such file. Mend datasets.ready.path")
    assert not (project / "data").exists()


def test_broken_image_stops_with_its_name(project):
    write_image_folder(project / "pets")
    (project / "pets" / "test" / "dog" / "1.webp").write_bytes(b"RIFF")
    fails(fetch("pets"), "pets/test/dog/1.webp: not a readable image")
    assert list((project / "data" / "raw").iterdir()) == []


def test_missing_options_are_asked_for():
    assert run("--out", "d.h5").exit_code == 2
    assert run("--dataset", "digits").exit_code == 2
