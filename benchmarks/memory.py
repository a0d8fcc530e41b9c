"""Memory that does not grow with the data: fetch and extract at two numbers of images.

    python benchmarks/memory.py               fetch of a folder, of tar shards, of Parquet; extract
    python benchmarks/memory.py --driver      images a second that one driver of a cluster can write
    python benchmarks/memory.py --driver --ray ADDRESS     the same with a cluster behind it
    python benchmarks/memory.py --reads       rows of a mapped file that is not in memory, at random
    python benchmarks/memory.py --decode      photographs a second that one core decodes and resizes

Each figure is the peak of memory of its own (not of mapped files) of a new process. The driver's
rate is that of writing embeddings and noting them as finished, the work that no actor can do for
it; on a cluster, actors that compute nothing send them.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import tarfile
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from PIL import Image

CLASSES = 20


def picture(number: int) -> bytes:
    data = io.BytesIO()
    values = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(values).save(data, "png")
    return data.getvalue()


def write_folder(folder: Path, count: int) -> None:
    for part, images in (("train", count * 9 // 10), ("test", count - count * 9 // 10)):
        for i in range(images):
            path = folder / part / f"class {i % CLASSES:02d}" / f"{i:08d}.png"
            if i < CLASSES:
                path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture(i))


def write_webdataset(folder: Path, count: int) -> None:
    """One large shard a part: the worst case for whoever keeps what it has seen of a shard."""
    folder.mkdir(parents=True)
    for part, images in (("train", count * 9 // 10), ("test", count - count * 9 // 10)):
        with tarfile.open(folder / f"{part}.tar", "w") as tar:
            for i in range(images):
                for kind, data in (("png", picture(i)), ("cls", str(i % CLASSES).encode())):
                    entry = tarfile.TarInfo(f"{i:08d}.{kind}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
                tar.members = []  # type: ignore[attr-defined]


def write_parquet(folder: Path, count: int) -> None:
    import pyarrow
    from pyarrow import parquet

    folder.mkdir(parents=True)
    for part, images in (("train", count * 9 // 10), ("test", count - count * 9 // 10)):
        schema = pyarrow.schema([("image", pyarrow.binary()), ("label", pyarrow.int64())])
        with parquet.ParquetWriter(folder / f"{part}-0.parquet", schema) as writer:
            for start in range(0, images, 500):
                numbers = range(start, min(start + 500, images))
                values = [[picture(i) for i in numbers], [i % CLASSES for i in numbers]]
                writer.write_table(pyarrow.table(values, schema=schema))


class Peak(threading.Thread):
    """The largest amount of memory of its own that this process holds, in bytes (Linux only)."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes = 0

    def look(self) -> None:
        _, resident, shared = map(int, Path("/proc/self/statm").read_text().split()[:3])
        self.bytes = max(self.bytes, (resident - shared) * os.sysconf("SC_PAGESIZE"))

    def run(self) -> None:
        while True:
            self.look()
            time.sleep(0.005)


def peak_of_fetch(source: str, folder: Path, out: Path) -> tuple[int, float]:
    """The peak in bytes of this process while it fetches, and the seconds that took."""
    from hcl.fetch.datasets import DatasetSettings, fetch

    peak, start = Peak(), time.perf_counter()
    peak.start()
    fetch("memory", DatasetSettings(source, str(folder)), out)  # type: ignore[arg-type]
    return peak.bytes, time.perf_counter() - start


def peak_of_extract(backbone: str, weights: str, raw: Path, out: Path) -> tuple[int, float]:
    """The peak in bytes of this process while it extracts, and the seconds that took."""
    from hcl.extract.extraction import extract
    from hcl.extract.settings import ExtractSettings

    settings = ExtractSettings(backbone, weights, image_size=32, device="cpu", compile=False)
    peak, start = Peak(), time.perf_counter()
    peak.start()
    extract(raw, out, settings)
    return peak.bytes, time.perf_counter() - start


def peak_of_actor(backbone_name: str, weights: str, raw: Path) -> tuple[int, float]:
    """The peak in bytes of an actor of a cluster that embeds all of it, and the seconds."""
    from hcl.extract.backbones import load_backbone
    from hcl.extract.forward import Cut
    from hcl.extract.on_ray import Actor, Plan
    from hcl.extract.settings import ExtractSettings
    from hcl.records.raw import Raw

    opened = Raw(raw)
    settings = ExtractSettings(backbone_name, weights, image_size=32, compile=False)
    plan = Plan(settings, "cpu", Cut(len(opened), 8), (raw, opened.content_sha256))
    peak, start = Peak(), time.perf_counter()
    peak.start()
    actor = Actor()
    actor.prepare(load_backbone(backbone_name, weights, 32), plan)
    for first in range(0, len(plan.cut), 32):
        actor.embed(first, min(first + 32, len(plan.cut)), None)
    return peak.bytes, time.perf_counter() - start


def in_a_new_process(function, *arguments):  # type: ignore[no-untyped-def]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def memory(counts: list[int], backbone: str, weights: str, place: Path) -> None:
    print(f"{'':12} {'images':>8} {'peak':>10} {'time':>8}")
    writers = {"folder": write_folder, "webdataset": write_webdataset, "parquet": write_parquet}
    for source, write in writers.items():
        for count in counts:
            folder, raw = place / f"{source}-{count}", place / f"{source}-{count}.h5"
            try:
                write(folder, count)
            except ImportError:
                print(f"{source:12} not measured: pyarrow is not installed")
                break
            peak, seconds = in_a_new_process(peak_of_fetch, source, folder, raw)
            print(f"{source:12} {count:8} {peak / 2**20:6.1f} MiB {seconds:6.1f} s", flush=True)
    for count in counts:
        raw, out = place / f"folder-{count}.h5", place / f"embedded-{count}.h5"
        peak, seconds = in_a_new_process(peak_of_extract, backbone, weights, raw, out)
        print(f"{'extract':12} {count:8} {peak / 2**20:6.1f} MiB {seconds:6.1f} s", flush=True)
        peak, seconds = in_a_new_process(peak_of_actor, backbone, weights, raw)
        print(f"{'actor':12} {count:8} {peak / 2**20:6.1f} MiB {seconds:6.1f} s", flush=True)


def driver_rate(place: Path, size: int = 1280, batch: int = 256, seconds: float = 10.0) -> None:
    """Embeddings a second that ``Partial.write`` takes, as the driver of a cluster calls it."""
    from hcl.extract.partial import Partial

    values = np.random.default_rng(0).normal(size=(128, size)).astype(np.float32)
    for runs in (1, 16):  # as they come: one alone, or those of sixteen actors together
        count = 400_000
        with Partial(place / f"driver-{runs}", count, size, 128) as partial:
            blocks = iter(range(len(partial.cut)))
            written, start = 0, time.perf_counter()
            while time.perf_counter() - start < seconds:
                outputs = {next(blocks): values for _ in range(runs * batch // 128)}
                partial.write(outputs)
                written += len(outputs) * 128
                if written + runs * batch > count:
                    break
            rate = written / (time.perf_counter() - start)
        print(
            f"driver, {runs:2} runs of {batch} together: {rate:8.0f} embeddings of {size} a second "
            f"({rate * size * 4 / 2**20:.0f} MiB/s)",
            flush=True,
        )


class Idle:
    """An actor that has its embeddings at hand: what is left is the driver's work."""

    def prepare(self, backbone, plan):  # type: ignore[no-untyped-def]
        from hcl.extract.forward import versions

        self.cut = plan.cut
        return {"made": {**versions(), "compiled": False}, "hardware": "none"}

    def embed(self, first, stop, sent):  # type: ignore[no-untyped-def]
        images = sum(self.cut.images_in(block) for block in range(first, stop))
        return np.ones((images, 1280), np.float32)


def driver_rate_on_ray(place: Path, address: str, count: int = 200_000) -> None:
    """Embeddings a second that a driver receives and writes, with actors that only send them."""
    from hcl.cluster import connect
    from hcl.extract import on_ray
    from hcl.extract.partial import Partial
    from hcl.extract.settings import ExtractSettings

    on_ray.Actor = Idle  # type: ignore[assignment, misc]
    raw = SimpleNamespace(path=place, content_sha256="", dataset="idle", kind="images")
    settings = ExtractSettings(compile=False, forward_batch=128)
    memory = Peak()
    with connect(address) as ray:
        actors = int(ray.cluster_resources().get("CPU", 0))
        warm = Partial(place / "warm", 10_000, 1280, 128)
        for partial in (warm, Partial(place / "measured", count, 1280, 128)):
            with partial:
                start = time.perf_counter()
                memory.look()
                before = memory.bytes
                on_ray.embed_all(ray, raw, None, settings, "cpu", partial, True)  # type: ignore[arg-type]
                seconds = time.perf_counter() - start
                memory.look()
    print(
        f"driver with {actors} idle actors, {count} embeddings: {count / seconds:.0f} a second, "
        f"start of the actors included; memory {before / 2**20:.0f} MiB before, "
        f"{memory.bytes / 2**20:.0f} MiB at most"
    )


def decode_rate(seconds: float = 4.0) -> None:
    """Photographs of ImageNet's usual size that one core decodes and resizes to 224 px."""
    import torch

    from hcl.extract.backbones import Transform
    from hcl.records.raw import decode_image

    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    coarse = Image.fromarray(generator.integers(0, 256, (47, 63, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC)).astype(int)
    values = np.clip(smooth + generator.integers(-25, 26, smooth.shape), 0, 255).astype(np.uint8)
    data = io.BytesIO()
    Image.fromarray(values).save(data, "jpeg", quality=88)
    transform = Transform(224, 224, 0.875, "center", "bicubic", (0.5,) * 3, (0.5,) * 3)
    done, start = 0, time.process_time()
    while time.process_time() - start < seconds:
        image = decode_image(data.getvalue())
        transform.resize(torch.from_numpy(image[None]).permute(0, 3, 1, 2))
        done += 1
    size = len(data.getvalue())
    rate = done / (time.process_time() - start)
    print(f"decode and resize, 500×375, {size} bytes: {rate:.0f} a second of one core")


def from_disk() -> int:
    """Bytes that this process has had fetched from a disk (Linux only)."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


def read_rate(place: Path, rows: int = 100_000, size: int = 1280, batch: int = 32) -> None:
    """Rows a second from a mapped file of which nothing is in memory, in batches."""
    path = place / "rows"
    with open(path, "wb") as file:
        for _ in range(rows // 1000):
            file.write(os.urandom(1000 * size * 4))
        file.flush()
        os.fsync(file.fileno())
    order = np.random.default_rng(0).permutation(rows)
    for label in ("at random", "sorted within a batch", "in the order of the file"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        x = np.memmap(path, np.float32, "r", shape=(rows, size))
        start, read, before = time.perf_counter(), 0, from_disk()
        for first in range(0, rows, batch):
            chosen = order[first : first + batch]
            if label == "sorted within a batch":
                chosen = np.sort(chosen)
            elif label == "in the order of the file":
                chosen = np.arange(first, first + len(chosen))
            x[chosen]  # a copy
            read += len(chosen)
            if time.perf_counter() - start > 15:
                break
        seconds = time.perf_counter() - start
        per_batch = 1000 * seconds * batch / read
        print(
            f"read {label:24}: {read / seconds:.0f} rows/s, {per_batch:.2f} ms a batch of {batch}; "
            f"from the disk {(from_disk() - before) / 2**20:.0f} MiB for "
            f"{read * size * 4 / 2**20:.0f} MiB of rows"
        )
        del x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, nargs=2, default=[2_000, 20_000])
    parser.add_argument("--backbone", default="tf_efficientnet_lite0.in1k")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--driver", action="store_true", help="the rate of one driver instead")
    parser.add_argument("--reads", action="store_true", help="random reads of a file instead")
    parser.add_argument("--ray", metavar="ADDRESS", help="with --driver: a cluster to try it on")
    parser.add_argument("--decode", action="store_true", help="the rate of decoding instead")
    parser.add_argument("--place", type=Path, help="a folder on the disk to measure")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.place) as folder:
        if options.driver and options.ray:
            driver_rate_on_ray(Path(folder), options.ray)
        elif options.driver:
            driver_rate(Path(folder))
        elif options.decode:
            decode_rate()
        elif options.reads:
            read_rate(Path(folder))
        else:
            memory(options.images, options.backbone, options.weights, Path(folder))


if __name__ == "__main__":
    main()
