"""Small files in the layouts of the official data sets, made of random pixels."""

from __future__ import annotations

import gzip
import io
import struct
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

CIFAR10_TRAIN = [f"data_batch_{i}.bin" for i in range(1, 6)]


def random_images(n, shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def cifar_records(images, *labels):
    """Label columns, then the planes: written out pixel by pixel, as the format's page says."""
    out = bytearray()
    for i, image in enumerate(images):
        out += bytes(int(column[i]) for column in labels)
        for channel in range(3):
            for row in range(32):
                out += bytes(image[row, :, channel])
    return bytes(out)


def write_cifar10(folder: Path, each=4, test=6):
    """Returns images and labels in the order train, test."""
    folder.mkdir(parents=True)
    images = random_images(5 * each + test, (32, 32, 3))
    y = np.arange(len(images)) % 10
    for i, name in enumerate(CIFAR10_TRAIN):
        rows = slice(i * each, (i + 1) * each)
        (folder / name).write_bytes(cifar_records(images[rows], y[rows]))
    (folder / "test_batch.bin").write_bytes(cifar_records(images[5 * each :], y[5 * each :]))
    return images, y


def write_cifar100(folder: Path, train=7, test=3):
    folder.mkdir(parents=True)
    images = random_images(train + test, (32, 32, 3))
    coarse, fine = np.arange(len(images)) % 20, (np.arange(len(images)) * 11) % 100
    for name, rows in (("train.bin", slice(0, train)), ("test.bin", slice(train, None))):
        (folder / name).write_bytes(cifar_records(images[rows], coarse[rows], fine[rows]))
    return images, fine


def idx(array):
    array = np.asarray(array, np.uint8)
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def write_idx(folder: Path, train=5, test=3, packed=False):
    folder.mkdir(parents=True)
    images = random_images(train + test, (28, 28))
    y = np.arange(len(images)) % 10
    for part, rows in (("train", slice(0, train)), ("t10k", slice(train, None))):
        for name, values in (
            (f"{part}-images-idx3-ubyte", images),
            (f"{part}-labels-idx1-ubyte", y),
        ):
            data = idx(values[rows])
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(data))
            else:
                (folder / name).write_bytes(data)
    return images[..., None], y


def write_svhn(folder: Path, train=12, test=4):
    """SVHN's own labels are 1…10, where 10 stands for the digit 0."""
    folder.mkdir(parents=True)
    images = random_images(train + test, (32, 32, 3))
    labels = np.arange(len(images)) % 10 + 1
    for part, rows in (("train", slice(0, train)), ("test", slice(train, None))):
        content = {
            "X": images[rows].transpose(1, 2, 3, 0),
            "y": labels[rows, None].astype(np.uint8),
        }
        savemat(folder / f"{part}_32x32.mat", content, do_compression=True)
    return images, np.where(labels == 10, 0, labels)


def encode(image, kind="PNG", **options):
    data = io.BytesIO()
    Image.fromarray(image).save(data, kind, **options)
    return data.getvalue()


def write_image_folder(folder: Path, classes=("cat", "dog"), train=3, test=2):
    """PNG, lossless WebP and JPEG files of several sizes."""
    for part, count in (("train", train), ("test", test)):
        for k, name in enumerate(classes):
            target = folder / part / name
            target.mkdir(parents=True)
            for i in range(count):
                image = random_images(1, (5 + i, 6 + k, 3), seed=10 * k + i)[0]
                kind, suffix = [("PNG", "png"), ("WEBP", "webp"), ("JPEG", "JPG")][i % 3]
                options = {"lossless": True} if kind == "WEBP" else {}
                (target / f"{i}.{suffix}").write_bytes(encode(image, kind, **options))
