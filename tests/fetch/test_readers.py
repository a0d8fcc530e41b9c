from __future__ import annotations

import gzip
import re
import shutil

import h5py
import numpy as np
import pytest
from scipy.io import savemat

from hcl.errors import HCLError
from hcl.fetch import readers
from hcl.fetch.datasets import DatasetSettings, fetch
from hcl.files import sha256_of
from hcl.records import hdf5
from hcl.records.raw import Raw, write_raw
from tests.support.official_layouts import (
    CIFAR10_TRAIN,
    cifar_records,
    idx,
    random_images,
    write_cifar10,
    write_cifar100,
    write_idx,
    write_svhn,
)


def gather(content):
    """A reader's blocks as whole arrays; they keep what the outline announced."""
    blocks = list(content.blocks)
    data = np.concatenate([np.asarray(block.data) for block in blocks])
    y = np.concatenate([block.y for block in blocks])
    split = np.concatenate([block.split for block in blocks])
    assert len(y) == len(split) == content.count
    assert data.shape == (content.count, *content.shape)
    assert y.dtype == np.int64
    assert split.dtype == np.uint8
    return data, y, split


def fails(match, read, *arguments, **options):
    """Reading stops with one line, at the outline or at a block."""
    with pytest.raises(HCLError, match=match) as caught:
        list(read(*arguments, **options).blocks)
    assert "\n" not in str(caught.value)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "set"


# Each official reader, its writer, and the counts that the writer's files have
OFFICIAL = [
    pytest.param(readers.read_cifar10, write_cifar10, (20, 6), id="cifar10"),
    pytest.param(readers.read_cifar100, write_cifar100, (7, 3), id="cifar100"),
    pytest.param(readers.read_mnist, write_idx, (5, 3), id="mnist"),
    pytest.param(readers.read_fashion_mnist, write_idx, (5, 3), id="fashion-mnist"),
    pytest.param(readers.read_svhn, write_svhn, (12, 4), id="svhn"),
]
official = pytest.mark.parametrize(("read", "write", "counts"), OFFICIAL)


@official
def test_images_labels_and_split(read, write, counts, folder, monkeypatch):
    images, y = write(folder)
    monkeypatch.setattr(readers, "ROWS_AT_ONCE", 3)
    in_blocks = list(read(folder, counts=counts, partial=False).blocks)
    assert max(len(block.y) for block in in_blocks) == 3
    assert len(in_blocks) > 2
    content = read(folder, counts=counts, partial=False)
    assert content.kind == "images"
    assert len(content.classes) == (100 if read is readers.read_cifar100 else 10)
    data, labels, split = gather(content)
    np.testing.assert_array_equal(data, images)
    np.testing.assert_array_equal(labels, y)
    np.testing.assert_array_equal(split, np.repeat([0, 1], counts))


@official
def test_counts_are_the_official_ones(read, write, counts, folder):
    write(folder)
    train = {readers.read_cifar10: 50_000, readers.read_cifar100: 50_000, readers.read_svhn: 73_257}
    expected = train.get(read, 60_000)
    match = f"{counts[0]} samples in the train part, expected {expected}.*partial: true"
    fails(match, read, folder, partial=False)
    assert read(folder, partial=True).count == sum(counts)


@official
def test_test_part_that_is_not_whole(read, write, counts, folder):
    write(folder)
    expected = (counts[0], counts[1] + 1)
    fails("in the test part, expected", read, folder, counts=expected, partial=False)


@official
def test_too_many_samples(read, write, counts, folder):
    write(folder)
    for partial in (False, True):
        expected = (counts[0] - 1, 10)
        fails("in the train part, expected", read, folder, counts=expected, partial=partial)


@official
def test_missing_files_are_named(read, write, counts, folder):
    write(folder)
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        path.unlink()
        fails(rf"{re.escape(str(path))}: no such file", read, folder, partial=True)
        path.write_bytes(data)
    shutil.rmtree(folder)
    fails("no such file", read, folder, partial=True)


@official
def test_truncated_files_are_named(read, write, counts, folder):
    write(folder)
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        for size in (0, 3, len(data) // 2 - 1, len(data) - 1):
            path.write_bytes(data[:size])
            fails(re.escape(str(path)), read, folder, partial=True)
        path.write_bytes(data)
    gather(read(folder, partial=True))


@official
def test_other_content_is_named(read, write, counts, folder):
    write(folder)
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        path.write_bytes(b"<html>Please log in</html>")
        fails(re.escape(str(path)), read, folder, partial=True)
        path.write_bytes(data)


def test_digits():
    content = readers.read_digits()
    images, y, split = gather(content)
    assert images.shape == (1797, 8, 8, 1)
    assert images.dtype == np.uint8
    assert (images.min(), images.max()) == (0, 255)
    np.testing.assert_array_equal(np.bincount(y[split == 1]), [50] * 10)
    np.testing.assert_array_equal(np.bincount(split), [1297, 500])
    from sklearn.datasets import load_digits

    original = load_digits()
    # Every image with its own label, each once
    key = np.concatenate([images.reshape(1797, -1), y[:, None]], axis=1)
    scaled = np.rint(original.data * 255 / 16).astype(int)
    expected = np.concatenate([scaled, original.target[:, None]], axis=1)
    np.testing.assert_array_equal(key[np.lexsort(key.T)], expected[np.lexsort(expected.T)])


def test_digits_are_split_in_one_way_for_ever(tmp_path):
    write_raw(tmp_path / "digits.h5", readers.read_digits(), dataset="digits", source="")
    digest = Raw(tmp_path / "digits.h5").content_sha256
    assert digest == "a44253d6de9f2d64f19081ab4ac8777176bb6f862316e18521a23a77137b880b"


def test_cifar10_label_out_of_range(folder):
    write_cifar10(folder)
    path = folder / CIFAR10_TRAIN[2]
    path.write_bytes(cifar_records(random_images(4, (32, 32, 3)), [0, 1, 10, 2]))
    match = r"data_batch_3\.bin: labels are 0…10, expected 0…9"
    fails(match, readers.read_cifar10, folder, partial=True)


def test_cifar100_takes_the_fine_label(folder):
    folder.mkdir()
    images = random_images(2, (32, 32, 3))
    for name in ("train.bin", "test.bin"):
        (folder / name).write_bytes(cifar_records(images, [19, 0], [99, 42]))
    content = readers.read_cifar100(folder, counts=(2, 2), partial=False)
    _, y, _ = gather(content)
    np.testing.assert_array_equal(y, [99, 42, 99, 42])
    assert (content.classes[0], content.classes[42], content.classes[99]) == (
        "apple",
        "leopard",
        "worm",
    )


def test_cifar_of_the_other_number_of_classes(folder):
    write_cifar10(folder)
    for name, source in (("train.bin", "data_batch_1.bin"), ("test.bin", "test_batch.bin")):
        shutil.copy(folder / source, folder / name)
    fails(r"train\.bin: .*3074-byte records", readers.read_cifar100, folder, partial=True)


def test_idx_files_may_be_packed(folder):
    images, y = write_idx(folder, packed=True)
    data, labels, _ = gather(readers.read_mnist(folder, counts=(5, 3), partial=False))
    np.testing.assert_array_equal(data, images)
    np.testing.assert_array_equal(labels, y)


@pytest.mark.parametrize("size", [0, 5, 30, -1])
def test_packed_idx_file_that_is_cut_off(folder, size):
    write_idx(folder, packed=True)
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        path.write_bytes(data[:size])
        fails(re.escape(str(path)), readers.read_mnist, folder, partial=True)
        path.write_bytes(data)


def test_packed_idx_bomb_is_not_unpacked(folder):
    write_idx(folder, packed=True)
    path = folder / "train-images-idx3-ubyte.gz"
    head = idx(random_images(5, (28, 28)))
    path.write_bytes(gzip.compress(head + bytes(50 << 20)))
    fails("goes on after the samples", readers.read_mnist, folder, partial=True)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("train-images-idx3-ubyte", idx(np.zeros((5, 28, 27))), "are 28×27, expected 28×28"),
        ("train-images-idx3-ubyte", idx(np.zeros((6, 28, 28))), "5 labels, but .* has 6 images"),
        ("train-images-idx3-ubyte", idx(np.zeros((5, 28, 28))) + b"x", "goes on after"),
        ("train-images-idx3-ubyte", idx(np.zeros((5, 784))), "not an idx file of bytes with 3"),
        ("train-labels-idx1-ubyte", idx([0, 1, 2, 3, 10]), "labels are 0…10, expected 0…9"),
        ("train-labels-idx1-ubyte", idx([0, 1, 2, 3, 4]) + b"x", "goes on after"),
        ("t10k-labels-idx1-ubyte", idx([0, 1]), "2 labels, but .* has 3 images"),
        ("t10k-labels-idx1-ubyte", b"\0\0\x0d\1\0\0\0\3abc", "not an idx file of bytes"),
    ],
)
def test_idx_files_that_do_not_fit(folder, name, content, match):
    write_idx(folder)
    (folder / name).write_bytes(content)
    fails(match, readers.read_mnist, folder, counts=(5, 3), partial=True)


def test_idx_sizes_beyond_the_data_are_not_believed(folder):
    write_idx(folder)
    for name, size in (("train-images-idx3-ubyte", 16), ("train-labels-idx1-ubyte", 8)):
        data = bytearray((folder / name).read_bytes())
        data[4:8] = (60_000).to_bytes(4, "big")
        assert len(data) > size
        (folder / name).write_bytes(data)
    fails("cut off", readers.read_mnist, folder, partial=True)


def test_svhn_label_ten_is_the_digit_zero(folder):
    write_svhn(folder)
    _, y, _ = gather(readers.read_svhn(folder, partial=True))
    np.testing.assert_array_equal(y, [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6])


X = random_images(4, (32, 32, 3)).transpose(1, 2, 3, 0)
Y = np.array([[1], [2], [3], [10]], np.uint8)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ({"X": X}, "y has the shape"),
        ({"y": Y}, "X is nothing"),
        ({"X": X, "y": Y[:3]}, r"y has the shape \(3, 1\), expected \(4, 1\) as X has 4 images"),
        ({"X": X.astype(float), "y": Y}, r"X is double \(32, 32, 3, 4\), expected uint8"),
        ({"X": X.transpose(3, 0, 1, 2), "y": Y}, r"X is uint8 \(4, 32, 32, 3\)"),
        ({"X": X, "y": Y % 10}, "labels are 0…3, expected 1…10"),
        ({"X": X, "y": Y + 1}, "labels are 2…11, expected 1…10"),
    ],
)
def test_svhn_files_that_do_not_fit(folder, content, match):
    write_svhn(folder)
    savemat(folder / "test_32x32.mat", content)
    fails(rf"test_32x32\.mat: {match}", readers.read_svhn, folder, partial=True)


def embeddings(n=8, d=5):
    x = np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)
    return {"x": x, "y": np.arange(n) % 2, "split": (np.arange(n) // 2) % 2}


def write_embeddings(path, arrays, attributes=None):
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for name, values in arrays.items():
                if values.dtype.kind == "U":
                    values = values.astype(object)
                file.create_dataset(name, data=values)
            file.attrs.update(attributes or {})
    return path


both = pytest.mark.parametrize("name", ["own.npz", "own.h5", "own.hdf5"])


@both
@pytest.mark.parametrize("kind", ["numbers", "booleans", "texts", "bytes"])
def test_embeddings(tmp_path, name, kind, monkeypatch):
    monkeypatch.setattr(readers, "BYTES_AT_ONCE", 3 * 5 * 4)  # three rows in a block
    arrays = embeddings()
    split = arrays["split"]
    texts = np.where(split == 1, "test", "train")
    kinds = {"numbers": split, "booleans": split == 1, "texts": texts, "bytes": texts.astype("S")}
    path = write_embeddings(tmp_path / name, {**arrays, "split": kinds[kind]})
    content = readers.read_embeddings(path)
    assert content.kind == "embeddings"
    assert content.classes == ("0", "1")
    x, y, parts = gather(content)
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x, arrays["x"])
    np.testing.assert_array_equal(y, arrays["y"])
    np.testing.assert_array_equal(parts, split)


@both
def test_embeddings_with_names(tmp_path, name):
    arrays = {**embeddings(), "classes": np.array(["cat", "dög"])}
    path = write_embeddings(tmp_path / name, arrays)
    assert readers.read_embeddings(path).classes == ("cat", "dög")


def test_embeddings_with_names_in_an_attribute(tmp_path):
    path = write_embeddings(tmp_path / "own.h5", embeddings(), {"classes": '["cat", "dög"]'})
    assert readers.read_embeddings(path).classes == ("cat", "dög")


def test_embeddings_in_other_precisions(tmp_path):
    for kind in (np.float16, np.float64):
        arrays = embeddings()
        path = write_embeddings(tmp_path / "own.npz", {**arrays, "x": arrays["x"].astype(kind)})
        x, _, _ = gather(readers.read_embeddings(path))
        np.testing.assert_allclose(x, arrays["x"], rtol=1e-3, atol=1e-3)


def _with(name, change):
    arrays = embeddings()
    arrays[name] = change(arrays[name])
    return arrays


def _set(index, value):
    def change(values):
        values = values.copy()
        values[index] = value
        return values

    return change


@both
@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        (_with("x", lambda x: x[0]), r"x is float32 \(5,\), expected floats \(n, D\)"),
        (_with("x", lambda x: x[:, :0]), "expected floats"),
        (_with("x", lambda x: x.astype(int)), "x is int64"),
        (_with("x", _set((6, 1), np.nan)), "x has a value in row 6 that is not finite"),
        (_with("x", _set((0, 0), -np.inf)), "row 0"),
        (_with("x", lambda x: _set((3, 0), 1e300)(x.astype(float))), "row 3"),
        (_with("y", lambda y: y.astype(float)), "y is float64, expected whole numbers"),
        (_with("y", lambda y: y[:-1]), r"y has the shape \(7,\), expected \(8,\)"),
        (_with("y", lambda y: y[:, None]), r"y has the shape \(8, 1\)"),
        (_with("y", lambda y: y - 1), "y takes the values -1…0"),
        (_with("y", lambda y: y + 1), "no sample of class 0"),
        (_with("y", _set(slice(4, None), 0)), None),
        (_with("split", lambda s: s[:-1]), r"split has the shape \(7,\)"),
        (_with("split", lambda s: s + 1), "split must be 0 and 1"),
        (_with("split", lambda s: s.astype(float)), "split must be 0 and 1"),
        (_with("split", lambda s: np.where(s == 1, "test", "valid")), "split must be 0 and 1"),
        (_with("split", lambda s: s * 0), "no sample is in the test part"),
        (_with("split", lambda s: s * 0 + 1), "no sample is in the train part"),
        (_with("split", lambda s: np.arange(8) % 2), "train part has no sample of class 1"),
        ({**embeddings(), "classes": np.array(["a"])}, "y takes the values 0…1, expected 0…0"),
        ({**embeddings(), "classes": np.array(["a", "b", "c"])}, "no sample of class 2"),
    ],
)
def test_embeddings_that_do_not_fit(tmp_path, name, arrays, match):
    path = write_embeddings(tmp_path / name, arrays)
    if match is None:
        gather(readers.read_embeddings(path))
    else:
        fails(rf"own\.\w+: .*{match}", readers.read_embeddings, path)


@both
@pytest.mark.parametrize("missing", ["x", "y", "split"])
def test_embeddings_without_an_array(tmp_path, name, missing):
    arrays = embeddings()
    del arrays[missing]
    path = write_embeddings(tmp_path / name, arrays)
    fails(f"there is no '{missing}'", readers.read_embeddings, path)


@both
def test_embeddings_in_a_broken_file(tmp_path, name):
    path = write_embeddings(tmp_path / name, embeddings())
    data = path.read_bytes()
    for size in (0, 10, len(data) // 2):
        path.write_bytes(data[:size])
        fails(re.escape(str(path)), readers.read_embeddings, path)
    path.unlink()
    fails("no such file", readers.read_embeddings, path)


class _Trap:
    def __reduce__(self):
        return pytest.fail, ("a pickle was loaded",)


def test_embeddings_are_never_unpickled(tmp_path):
    trap = np.empty(8, object)
    trap[:] = [_Trap()] * 8
    for name in ("x", "y", "split", "classes"):
        path = tmp_path / "own.npz"
        np.savez(path, **{**embeddings(), name: trap})
        fails("own.npz: cannot be read", readers.read_embeddings, path)


def test_embeddings_in_another_kind_of_file(tmp_path):
    (tmp_path / "own.csv").write_text("1,2")
    fails(r"own\.csv: embeddings are read from", readers.read_embeddings, tmp_path / "own.csv")


def own_file(tmp_path, change):
    path = tmp_path / "own.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.ones((8, 3), "f4")
        file["y"] = np.arange(8) % 2
        file["split"] = np.arange(8) // 4
        change(file)
    return path


def in_another_file(file):
    with h5py.File(file.filename + ".other.h5", "w") as other:
        other["x"] = np.ones((8, 3), "f4")
    del file["x"]
    file["x"] = h5py.ExternalLink(file.filename + ".other.h5", "/x")


def claimed(name, shape, **options):
    def change(file):
        del file[name]
        file.create_dataset(name, shape, "f4" if name == "x" else "i8", **options)

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (in_another_file, "x is no dataset of this file"),
        (claimed("x", (1 << 33, 3)), "which the file does not hold"),
        (claimed("x", (1 << 33, 3), chunks=(1 << 20, 3)), "more than a file of"),
        (claimed("x", (8, 3), chunks=(4, 3)), "x is not written in full"),
        (claimed("y", (1 << 33,)), "which the file does not hold"),
        (lambda file: file.__setitem__("classes", ["a"] * 9), r"classes has the shape \(9,\)"),
    ],
)
def test_embeddings_of_a_user_s_file_that_lies(tmp_path, change, said):
    path = own_file(tmp_path, change)
    with pytest.raises(HCLError, match=said) as caught:
        readers.read_embeddings(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_embeddings_that_are_compressed_are_read(tmp_path):
    def compress(file):
        del file["x"]
        file.create_dataset("x", data=np.ones((8, 3), "f4"), chunks=(3, 3), compression="gzip")

    content = readers.read_embeddings(own_file(tmp_path, compress))
    assert content.count == 8


def test_a_file_over_which_hdf5_does_not_come_to_an_end(tmp_path, monkeypatch):
    path = own_file(tmp_path, lambda file: None)
    monkeypatch.setattr(hdf5, "PATIENCE", 0.001)
    with pytest.raises(HCLError, match="HDF5 does not come to an end"):
        readers.read_embeddings(path)


def test_the_digest_of_a_user_s_file_is_recorded(tmp_path):
    path = own_file(tmp_path, lambda file: None)
    settings = DatasetSettings("embeddings", str(path))
    fetch("own", settings, tmp_path / "raw.h5")
    assert Raw(tmp_path / "raw.h5").source_sha256 == sha256_of(path)
