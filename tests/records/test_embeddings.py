from __future__ import annotations

import json
import tracemalloc

import h5py
import numpy as np
import pytest

import hcl.records.embeddings
from hcl.errors import HCLError
from hcl.records.embeddings import (
    ATTRIBUTES,
    FORMAT,
    PIXELS,
    PROVENANCE,
    provenance_fingerprint,
    read,
    write,
)
from tests.support.tampering import tampered

N, D = 40, 6
X = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
Y = np.arange(N) % 3
SPLIT = (np.arange(N) % 5 == 0).astype(np.uint8)


def provenance(**changes):
    values = dict.fromkeys(PROVENANCE, "text")
    values |= {"format": FORMAT, "dataset": "trees", "classes": json.dumps(["a", "bé", "c"])}
    return values | changes


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "trees.h5"
    write(path, X, Y, SPLIT, provenance())
    return path


def test_what_is_written_is_read(path):
    embeddings = read(path)
    np.testing.assert_array_equal(embeddings.x, X)
    np.testing.assert_array_equal(embeddings.y, Y)
    np.testing.assert_array_equal(embeddings.split, SPLIT)
    assert embeddings.x.dtype == np.float32
    assert embeddings.y.dtype == np.int64
    assert embeddings.split.dtype == np.uint8
    assert embeddings.classes == ["a", "bé", "c"]
    assert set(embeddings.attributes) == set(ATTRIBUTES)


def test_a_set_without_labels_has_no_classes(tmp_path):
    without = provenance(classes="[]")
    write(tmp_path / "without.h5", X, np.full(N, -1), SPLIT, without)
    assert read(tmp_path / "without.h5").classes == []
    for y, attributes in (
        (np.full(N, -1), provenance()),
        (np.arange(N) - 1, without),
        (Y, without),
    ):
        write(tmp_path / "half.h5", X, y, SPLIT, attributes)
        with pytest.raises(HCLError, match="labels are "):
            read(tmp_path / "half.h5")


def test_x_is_mapped_and_read_only(path):
    embeddings = read(path)
    assert isinstance(embeddings.x, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        embeddings.x[0, 0] = 1


def test_layout_is_contiguous_and_documented(path):
    with h5py.File(path) as file:
        assert sorted(file) == ["split", "x", "y"]
        assert all(file[name].chunks is None for name in file)
        assert sorted(file.attrs) == sorted(ATTRIBUTES)
        assert file.attrs["format"] == "hcl-embeddings/2"


def test_same_content_gives_same_bytes_whatever_is_in_memory_at_once(path, tmp_path, monkeypatch):
    monkeypatch.setattr(hcl.records.embeddings, "BYTES_AT_ONCE", 7 * 4 * D)
    again = tmp_path / "again.h5"
    write(again, X, Y, SPLIT, provenance())
    assert again.read_bytes() == path.read_bytes()
    np.testing.assert_array_equal(read(again).x, X)


def test_fingerprint_covers_every_line_of_the_provenance():
    before = provenance_fingerprint(provenance())
    for name in PROVENANCE:
        assert provenance_fingerprint(provenance(**{name: "other"})) != before


def test_content_digest_covers_every_array(path, tmp_path):
    digests = {read(path).attributes["content_sha256"]}
    for i, arrays in enumerate([(X + 1, Y, SPLIT), (X, (Y + 1) % 3, SPLIT), (X, Y, 1 - SPLIT)]):
        write(tmp_path / f"{i}.h5", *arrays, provenance())
        digests.add(read(tmp_path / f"{i}.h5").attributes["content_sha256"])
    assert len(digests) == 4


def replace(file, name, values):
    del file[name]
    file[name] = values


def nan(file):
    file["x"][17, 3] = np.nan


def infinity(file):
    file["x"][39, 5] = np.inf


def flipped_bit(file):
    file["x"][5, 0] = file["x"][5, 0] + 1


def relabelled(file):
    file["y"][0] = 1


def chunked(file):
    del file["x"]
    file.create_dataset("x", data=X, chunks=(8, D))


FAULTS = {
    "format": (lambda f: f.attrs.__setitem__("format", "hcl-raw/1"), "its format is 'hcl-raw/1'"),
    "no format": (lambda f: f.attrs.__delitem__("format"), "the attribute format is missing"),
    "no attribute": (lambda f: f.attrs.__delitem__("weights"), "the attribute weights is missing"),
    "fingerprint": (lambda f: f.attrs.__setitem__("backbone", "x"), "fingerprint does not fit"),
    "no x": (lambda f: f.__delitem__("x"), "the dataset x is missing"),
    "no y": (lambda f: f.__delitem__("y"), "the dataset y is missing"),
    "no split": (lambda f: f.__delitem__("split"), "the dataset split is missing"),
    "float64": (lambda f: replace(f, "x", X.astype(float)), r"x is float64 \(40, 6\), expected"),
    "flat x": (lambda f: replace(f, "x", X.ravel()), r"x is float32 \(240,\), expected"),
    "int32": (lambda f: replace(f, "y", Y.astype(np.int32)), "y is int32"),
    "empty": (lambda f: replace(f, "x", X[:0]), "x is empty"),
    "rows": (lambda f: replace(f, "y", Y[:-1]), "have 40, 39 and 40 rows"),
    "chunked": (chunked, "not stored contiguously"),
    "label": (lambda f: f["y"].__setitem__(3, 3), "labels are 0…3, but it names 3 classes"),
    "negative": (lambda f: f["y"].__setitem__(3, -1), "labels are -1…2"),
    "split": (lambda f: f["split"].__setitem__(3, 2), "split holds 2"),
    "nan": (nan, "row 17 of x is not finite"),
    "infinity": (infinity, "row 39 of x is not finite"),
    "flipped bit": (flipped_bit, "does not have the SHA-256"),
    "relabelled": (relabelled, "does not have the SHA-256"),
    "group": (lambda f: (f.__delitem__("x"), f.create_group("x")), "the dataset x is missing"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_names_the_file_and_what_to_run(path, fault):
    spoil, message = FAULTS[fault]
    with tampered(path) as file:
        spoil(file)
    with pytest.raises(HCLError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "Make it again with `hcl extract`" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("classes", ["not JSON", "3", "[1, 2, 3]"])
def test_classes_that_are_no_names(tmp_path, classes):
    write(tmp_path / "trees.h5", X, Y, SPLIT, provenance(classes=classes))
    with pytest.raises(HCLError, match="classes is not a JSON list"):
        read(tmp_path / "trees.h5")


@pytest.mark.parametrize("kept", [0, 7, 100, 800, 0.5, 0.99])
def test_truncated_at_any_place(path, kept):
    whole = path.read_bytes()
    path.write_bytes(whole[: kept if isinstance(kept, int) else int(kept * len(whole))])
    with pytest.raises(HCLError, match=r"trees\.h5: .*again with `hcl extract`"):
        read(path)


def test_not_hdf5_and_not_there(path):
    path.write_text("not HDF5")
    with pytest.raises(HCLError, match=r"trees\.h5: .*no HDF5 file.*again with `hcl extract`"):
        read(path)
    path.unlink()
    with pytest.raises(HCLError, match=r"no such embedding file\. `hcl extract` makes it"):
        read(path)


def test_values_that_are_not_finite_are_not_written(path):
    before = path.read_bytes()
    x = X.copy()
    x[9, 0] = np.nan
    with pytest.raises(HCLError, match="row 9 of x is not finite"):
        write(path, x, Y, SPLIT, provenance())
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["trees.h5"]


def test_reading_keeps_little_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(hcl.records.embeddings, "BYTES_AT_ONCE", 1 << 18)
    n = 20_000
    x = np.ones((n, 100), np.float32)  # 8 MB
    write(tmp_path / "trees.h5", x, np.zeros(n, np.int64), np.zeros(n, np.uint8), provenance())
    tracemalloc.start()
    read(tmp_path / "trees.h5")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


def test_what_was_found_whole_is_not_read_again_until_it_is_touched(path, tmp_path, monkeypatch):
    memory = tmp_path / "memory" / "checked.json"
    read(path, memory)
    looked_at = []
    monkeypatch.setattr(
        hcl.records.embeddings, "_check_finite", lambda *arguments: looked_at.append(arguments)
    )
    np.testing.assert_array_equal(read(path, memory).x, X)
    assert not looked_at
    write(path, X + 1, Y, SPLIT, provenance())
    looked_at.clear()  # writing looks as well
    read(path, memory)
    assert looked_at
    with tampered(path) as file:
        file["x"][3, 2] = 7
    with pytest.raises(HCLError, match="SHA-256"):
        read(path, memory)
    memory.write_text("[]")
    write(path, X, Y, SPLIT, provenance())
    np.testing.assert_array_equal(read(path, memory).x, X)


BYTES = np.random.default_rng(1).integers(0, 256, (N, 12), dtype=np.uint8)


def write_bytes(path, shape="[3, 2, 2]"):
    values = provenance(pixels=shape)
    del values["format"]
    write(path, BYTES, Y, SPLIT, values)
    return path


def test_pixels_are_bytes_with_their_shape(tmp_path):
    found = read(write_bytes(tmp_path / "x.h5"))
    assert found.attributes["format"] == PIXELS
    assert found.pixels == (3, 2, 2)
    assert found.x.dtype == np.uint8
    np.testing.assert_array_equal(found.x, BYTES)


def test_embeddings_have_no_pixels(path):
    assert read(path).pixels is None


def test_pixels_that_do_not_fit_their_shape_are_named(tmp_path):
    with pytest.raises(HCLError, match=r"x has 12 bytes a row, but pixels is \[1, 2, 2\]"):
        read(write_bytes(tmp_path / "x.h5", "[1, 2, 2]"))


def test_the_shape_is_part_of_the_fingerprint(tmp_path):
    with tampered(write_bytes(tmp_path / "x.h5")) as file:
        file.attrs["pixels"] = "[1, 2, 6]"
    with pytest.raises(HCLError, match="fingerprint"):
        read(tmp_path / "x.h5")
