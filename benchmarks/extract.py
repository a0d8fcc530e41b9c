"""Extraction beside timm's own eager forward: images a second, in one run.

    python benchmarks/extract.py              speed on this machine
    python benchmarks/extract.py --memory     peak memory at two numbers of images

timm's forward is measured as its users run it: one float32 batch of 100 through the model, without
reading, resizing or writing, in a process of its own. Ours is the whole path from the raw file to
the rows on disk. The contenders take turns, and the best round counts: images for each second that
passes, all cores at work; and for each second of processor time (user and system), for which timm
runs on one thread, because threads that wait for each other burn it. Other work on the machine
disturbs the second figure less.
"""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch

from hcl.extract.backbones import load_backbone
from hcl.extract.extraction import embed_all, extract, find_lanes
from hcl.extract.forward import freed_memory_kept, make_embedders
from hcl.extract.partial import Partial
from hcl.extract.settings import ExtractSettings
from hcl.records import embeddings
from hcl.records.raw import Block, Content, Raw, write_raw

BATCH = 100


class Clock:
    """Time and processor time since it was made."""

    def __init__(self) -> None:
        self.start, self.busy = time.perf_counter(), time.process_time()

    def rates(self, images: int) -> tuple[float, float]:
        passed, busy = time.perf_counter() - self.start, time.process_time() - self.busy
        return images / passed, images / busy


def write_images(path: Path, count: int, side: int = 32) -> Raw:
    """A raw file of smooth random images, a block in memory at a time."""
    generator = np.random.default_rng(0)

    def blocks():  # type: ignore[no-untyped-def]
        for start in range(0, count, 1000):
            n = min(1000, count - start)
            coarse = generator.integers(0, 256, (n, side // 4, side // 4, 3), dtype=np.uint8)
            images = coarse.repeat(4, axis=1).repeat(4, axis=2)
            yield Block(images, np.zeros(n, np.int64), np.zeros(n, np.uint8))

    content = Content("images", ("any",), count, (side, side, 3), blocks())
    write_raw(path, content, dataset="random", source="benchmarks/extract.py")
    return Raw(path)


def timm_child(backbone_name: str, raw_path: str, out: str) -> None:
    """Answer every line on standard input with the images a second of timm's eager forward."""
    backbone = load_backbone(backbone_name)
    images = torch.from_numpy(Raw(raw_path).read_images(0, BATCH)).permute(0, 3, 1, 2)
    x = backbone.transform.normalise(backbone.transform.resize(images)).contiguous()
    with torch.no_grad():
        np.save(out, backbone.model(x).numpy())
        for _ in sys.stdin:
            clock = Clock()
            backbone.model(x)
            wall, _ = clock.rates(BATCH)
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            clock = Clock()
            backbone.model(x)
            _, busy = clock.rates(BATCH)
            torch.set_num_threads(threads)
            print(wall, busy, flush=True)


def speed(backbone_name: str, count: int, block: int, rounds: int, folder: Path) -> None:
    raw = write_images(folder / "raw.h5", count)
    command = [sys.executable, __file__, "--timm-child", str(raw.path), str(folder / "timm.npy")]
    child = subprocess.Popen(
        [*command, "--backbone", backbone_name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin
    assert child.stdout
    backbone = load_backbone(backbone_name)
    lanes = find_lanes("auto")
    rates: dict[str, list[tuple[float, ...]]] = {"timm eager, batch 100": []}
    preparation = {"timm eager, batch 100": 0.0}
    ours = {}
    with freed_memory_kept():
        for label, compiled in (("hcl eager", False), ("hcl compiled", True)):
            settings = ExtractSettings(backbone=backbone_name, compile=compiled)
            start = time.perf_counter()
            ours[label], done = make_embedders(backbone, lanes, settings, block, count)
            preparation[label] = time.perf_counter() - start
            if done != compiled:
                print("There is no C++ compiler here: eager only.")
                del ours[label]
                continue
            rates[label] = []
        rows = {}
        for number in range(rounds):
            child.stdin.write("\n")
            child.stdin.flush()
            answer = child.stdout.readline().split()
            rates["timm eager, batch 100"].append(tuple(map(float, answer)))
            for label, embedders in ours.items():
                target = folder / f"{label}-{number}"
                with Partial(target, count, backbone.size, block) as partial:
                    clock = Clock()
                    embed_all(raw, backbone.transform, embedders, ExtractSettings(), partial)
                    rates[label].append(clock.rates(count))
                    rows[label] = np.array(partial.rows()[:BATCH])
    child.stdin.close()
    child.wait()
    reference = np.load(folder / "timm.npy")
    best = {label: [max(column) for column in zip(*r, strict=True)] for label, r in rates.items()}
    base = best["timm eager, batch 100"]
    print(
        f"{backbone_name}, {lanes[0].type}, {len(lanes)} lanes of {block}, "
        f"{count} images, best of {rounds}"
    )
    print(f"{'':22} images/s ratio  per CPU s ratio  preparation  largest difference")
    for label, (wall, busy) in best.items():
        difference = np.abs(rows[label] - reference).max() if label in rows else 0.0
        print(
            f"{label:22} {wall:8.1f} {wall / base[0]:5.2f} {busy:10.1f} {busy / base[1]:5.2f} "
            f"{preparation[label]:10.1f} s {difference:19.1e}"
        )


class PeakMemory(threading.Thread):
    """The largest amount of memory of its own (not of mapped files) that this process holds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0

    def run(self) -> None:
        while True:
            _, resident, shared = map(int, Path("/proc/self/statm").read_text().split()[:3])
            self.peak = max(self.peak, (resident - shared) * 4096)
            time.sleep(0.01)


def peak_memory(backbone_name: str, weights: str, count: int, folder: Path) -> int:
    """The peak memory in bytes of this process while it extracts ``count`` images (Linux only)."""
    raw = write_images(folder / f"{count}.h5", count, side=128)
    settings = ExtractSettings(backbone_name, weights, device="cpu", compile=False)
    memory = PeakMemory()
    memory.start()
    extract(raw.path, folder / "out.h5", settings)
    assert len(embeddings.read(folder / "out.h5").x) == count
    return memory.peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", default="tf_efficientnet_lite0.in1k")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--images", type=int, default=400, help="images a round (400)")
    parser.add_argument("--forward-batch", type=int, default=8, help="images at once (8)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", action="store_true", help="measure memory instead of speed")
    parser.add_argument("--timm-child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.timm_child:
        timm_child(options.backbone, *options.timm_child)
        return
    with tempfile.TemporaryDirectory() as folder:
        if options.memory:
            for count in (options.images, 4 * options.images):
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                    arguments = (options.backbone, options.weights, count, Path(folder))
                    peak = pool.submit(peak_memory, *arguments).result()
                print(f"{count:7} images: peak {peak / 2**20:6.0f} MiB")
        else:
            block = options.forward_batch
            speed(options.backbone, options.images, block, options.rounds, Path(folder))


if __name__ == "__main__":
    main()
