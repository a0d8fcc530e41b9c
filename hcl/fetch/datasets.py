"""The data sets that can be fetched, where each comes from, and how it gets into a raw file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Protocol

from hcl.errors import HCLError
from hcl.fetch import images, readers
from hcl.fetch.archives import extract_tar
from hcl.fetch.download import RemoteFile, download
from hcl.records.raw import Content, check_pixels, write_raw
from hcl.settings import Range, check_limits

Source = Literal[
    "digits",
    "cifar10",
    "cifar100",
    "mnist",
    "fashion-mnist",
    "svhn",
    "folder",
    "images",
    "webdataset",
    "parquet",
    "embeddings",
]
# What the path of a user's own data names
OWN = {
    "folder": "the folder",
    "images": "the folder",
    "webdataset": "the folder of tar shards",
    "parquet": "the folder of Parquet files",
    "embeddings": "the .npz or .h5 file",
}
DOWNLOADS = Path("data/downloads")


@dataclass(frozen=True)
class DatasetSettings:
    """Where a data set comes from: one entry of ``datasets`` in the parameters.

    Attributes:
        source: which data set, or which kind of the user's own; ``images`` have no labels.
        path: the user's folder of images, tar shards or Parquet files, or embedding file; for an
            official set the folder that holds its files already, in place of a download.
        partial: accept an official set of which only a part is there.
        pixels: [C, H, W], where the pixels themselves are learned, resized to this; ``None`` for
            the backbone's embeddings.
        image_column: of Parquet files; without it, "image".
        label_column: of Parquet files; without it, "label".
    """

    source: Source
    path: str | None = None
    partial: bool = False
    pixels: tuple[Annotated[int, Range(1, 4_096)], ...] | None = None
    image_column: str | None = None
    label_column: str | None = None

    def __post_init__(self) -> None:
        check_limits(self)
        if self.source in OWN and not self.path:
            what = OWN[self.source]
            raise ValueError(f"path: missing; the source {self.source!r} needs {what} to read.")
        if self.source == "digits" and self.path is not None:
            raise ValueError("path: the source 'digits' is inside scikit-learn and takes none.")
        if self.partial and self.source not in OFFICIAL:
            raise ValueError(f"partial: only for {', '.join(OFFICIAL)}; leave it out.")
        if self.pixels is not None:
            if self.source == "embeddings":
                raise ValueError("pixels: the source 'embeddings' has no images; leave it out.")
            check_pixels(self.pixels)
        for key in ("image_column", "label_column"):
            if getattr(self, key) is not None and self.source != "parquet":
                raise ValueError(f"{key}: only for the source 'parquet'; leave it out.")


class _Reader(Protocol):
    def __call__(self, folder: Path, *, partial: bool) -> Content: ...


@dataclass(frozen=True)
class Official:
    """A data set with an official source.

    Attributes:
        title: what it is, for the raw file.
        folder: its folder in the official layout.
        files: what it holds there; idx files may also end in .gz.
        remotes: what to download: the files themselves, or one archive of them.
        members: of the archive: the files to unpack and their bytes; empty without an archive.
        read: the reader of the folder.
    """

    title: str
    folder: str
    files: tuple[str, ...]
    remotes: tuple[RemoteFile, ...]
    read: _Reader
    members: Mapping[str, int] = field(default_factory=dict)


def _idx(base: str, figures: Mapping[str, tuple[int, str]]) -> tuple[RemoteFile, ...]:
    return tuple(RemoteFile(f"{base}/{n}.gz", size, sha) for n, (size, sha) in figures.items())


_IDX_FILES = tuple(name for part in readers.IDX_FILES for name in part)

# Sizes and checksums: docs/data.md says where they are published.
OFFICIAL: Mapping[str, Official] = {
    "cifar10": Official(
        title="CIFAR-10, binary version",
        folder="cifar-10-batches-bin",
        files=(*readers.CIFAR10_FILES[0], *readers.CIFAR10_FILES[1]),
        remotes=(
            RemoteFile(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                170_052_171,
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
        members={
            f"cifar-10-batches-bin/{name}": 30_730_000
            for part in readers.CIFAR10_FILES
            for name in part
        },
        read=readers.read_cifar10,
    ),
    "cifar100": Official(
        title="CIFAR-100, binary version, fine labels",
        folder="cifar-100-binary",
        files=(*readers.CIFAR100_FILES[0], *readers.CIFAR100_FILES[1]),
        remotes=(
            RemoteFile(
                "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                168_513_733,
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            ),
        ),
        members={
            "cifar-100-binary/train.bin": 153_700_000,
            "cifar-100-binary/test.bin": 30_740_000,
        },
        read=readers.read_cifar100,
    ),
    "mnist": Official(
        title="MNIST",
        folder="MNIST/raw",
        files=_IDX_FILES,
        remotes=_idx(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            {
                "train-images-idx3-ubyte": (
                    9_912_422,
                    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                ),
                "train-labels-idx1-ubyte": (
                    28_881,
                    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                ),
                "t10k-images-idx3-ubyte": (
                    1_648_877,
                    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                ),
                "t10k-labels-idx1-ubyte": (
                    4_542,
                    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                ),
            },
        ),
        read=readers.read_mnist,
    ),
    "fashion-mnist": Official(
        title="Fashion-MNIST",
        folder="FashionMNIST/raw",
        files=_IDX_FILES,
        remotes=_idx(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
            {
                "train-images-idx3-ubyte": (
                    26_421_880,
                    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                ),
                "train-labels-idx1-ubyte": (
                    29_515,
                    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                ),
                "t10k-images-idx3-ubyte": (
                    4_422_102,
                    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                ),
                "t10k-labels-idx1-ubyte": (
                    5_148,
                    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                ),
            },
        ),
        read=readers.read_fashion_mnist,
    ),
    "svhn": Official(
        title="SVHN, cropped digits",
        folder="svhn",
        files=readers.SVHN_FILES,
        remotes=(
            RemoteFile(
                "https://ufldl.stanford.edu/housenumbers/train_32x32.mat",
                182_040_794,
                "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            ),
            RemoteFile(
                "https://ufldl.stanford.edu/housenumbers/test_32x32.mat",
                64_275_384,
                "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            ),
        ),
        read=readers.read_svhn,
    ),
}


def fetch(
    name: str,
    settings: DatasetSettings,
    out: str | Path,
    *,
    data: str | Path | None = None,
    downloads: str | Path = DOWNLOADS,
    official: Mapping[str, Official] = OFFICIAL,
) -> tuple[int, int]:
    """Bring the data set ``name`` into the raw file ``out``; its samples and classes.

    Args:
        name: its name in the parameters.
        settings: where it comes from.
        out: the raw file to write.
        data: a folder with official layouts, looked at before a download.
        downloads: the folder for downloads; what lies there is not downloaded again.
        official: the table of official sets.
    """
    if settings.source == "digits":
        content, source = readers.read_digits(), "scikit-learn's digits"
    elif settings.source == "folder":
        content, source = images.read_folder(_own(name, settings)), "a folder of images"
    elif settings.source == "images":
        content = images.read_unlabelled(_own(name, settings))
        source = "a folder of images without labels"
    elif settings.source == "webdataset":
        content, source = images.read_webdataset(_own(name, settings)), "tar shards of images"
    elif settings.source == "parquet":
        columns = settings.image_column or "image", settings.label_column or "label"
        content = images.read_parquet(_own(name, settings), *columns)
        source = "Parquet files of images"
    elif settings.source == "embeddings":
        content, source = readers.read_embeddings(_own(name, settings)), "ready embeddings"
    else:
        entry = official[settings.source]
        folder = _locate(name, entry, settings, data, Path(downloads))
        content, source = entry.read(folder, partial=settings.partial), entry.title
    write_raw(out, content, dataset=name, source=source)
    return content.count, len(content.classes)


def _path(settings: DatasetSettings) -> Path:
    assert settings.path is not None  # checked when the settings were built
    return Path(settings.path).expanduser()


def _own(name: str, settings: DatasetSettings) -> Path:
    """The user's folder of images, or embedding file."""
    path = _path(settings)
    if not path.exists():
        what = "file" if settings.source == "embeddings" else "folder"
        raise HCLError(
            f"{path}: no such {what}. Mend datasets.{name}.path; one that is not absolute begins "
            f"in the folder where hcl runs, {Path.cwd()}."
        )
    return path


def _locate(
    name: str,
    entry: Official,
    settings: DatasetSettings,
    data: str | Path | None,
    downloads: Path,
) -> Path:
    """The folder that holds the set's files: the user's, else the one that we download to."""
    if settings.path is not None:
        path = _path(settings)
        for folder in (path / entry.folder, path):
            if _holds(folder, entry):
                return folder
        raise HCLError(
            f"{path}: neither it nor {entry.folder}/ in it holds {', '.join(entry.files)}. "
            f"Mend datasets.{name}.path, or leave it out to download."
        )
    if data is not None:
        data = Path(data).expanduser()
        if not data.is_dir():
            raise HCLError(f"{data}: no such folder; mend HCL_DATA (or --data), or leave it out.")
        if _holds(data / entry.folder, entry):
            return data / entry.folder
    return _download(name, entry, downloads)


def _holds(folder: Path, entry: Official) -> bool:
    """Whether any of the set's files is there; the reader then asks for all of them."""
    return any((folder / n).is_file() or (folder / f"{n}.gz").is_file() for n in entry.files)


def _download(name: str, entry: Official, downloads: Path) -> Path:
    folder = downloads / entry.folder
    if entry.members:
        if not folder.is_dir():
            (remote,) = entry.remotes
            archive = download(remote, downloads, by_hand=_by_hand(name, entry, downloads))
            extract_tar(archive, entry.members, folder)
        return folder
    for remote in entry.remotes:
        plain = folder / remote.name.removesuffix(".gz")
        if remote.name.endswith(".gz") and plain.is_file():
            continue  # unpacked by the user: the reader takes it
        download(remote, folder, by_hand=_by_hand(name, entry, downloads))
    return folder


def _by_hand(name: str, entry: Official, downloads: Path) -> str:
    where = downloads if entry.members else downloads / entry.folder
    return (
        f"By hand: put {', '.join(r.name for r in entry.remotes)} into {where}, or name a folder "
        f"that holds {entry.folder}/ by HCL_DATA or datasets.{name}.path."
    )
