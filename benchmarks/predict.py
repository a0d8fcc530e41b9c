"""``hcl predict`` beside bare extraction: images a second of both, by turns, on the same images.

    python benchmarks/predict.py --raw data/raw/cifar10.h5 --images 400

Extraction reads the image files out of a raw file and writes embeddings; prediction reads them from
a folder, embeds them by the same backbone, asks a flow of the paper's size (8 couplings of three
layers of 512) and writes a table. Loading, and compiling where it is asked for, come before.
Beside the clock's time stands the processor's, of all threads: on a machine that does other things
as well, it is the one to go by.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from hcl.extract import forward
from hcl.extract.backbones import load_backbone
from hcl.extract.extraction import embed_all, extract, find_lanes
from hcl.extract.forward import freed_memory_kept, make_embedders
from hcl.extract.partial import Partial
from hcl.extract.settings import ExtractSettings
from hcl.learn.flow.settings import FlowMethod
from hcl.learn.settings import TrainingSettings
from hcl.model.settings import FlowSettings
from hcl.records import embeddings
from hcl.records.raw import Block, Content, Raw, write_raw
from hcl.records.tasks import Benchmark, Part, Segment, Source, Task
from hcl.train.loop import Job, train_seed
from hcl.train.saving import about_run, write_learner
from hcl.use import tables
from hcl.use.inputs import Images
from hcl.use.predicting import predict
from hcl.use.trained import load


def draw(raw: Path, folder: Path, count: int) -> list[Path]:
    """The first images of a raw file as PNG files, in a folder and in a raw file of their own."""
    source = Raw(raw)
    paths = []
    (folder / "images").mkdir()
    for i, image in enumerate(source.read_images(0, count)):
        picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
        paths.append(folder / "images" / f"{i:06}.png")
        picture.save(paths[-1])
    files = [path.read_bytes() for path in paths]
    y, split = source.y[:count] % 2, (np.arange(count) % 2).astype(np.uint8)
    block = Block(files, y, split)
    content = Content("encoded", ("a", "b"), count, (sum(map(len, files)),), [block])
    write_raw(folder / "encoded.h5", content, dataset="images", source="a benchmark")
    return paths


def train(folder: Path) -> Path:
    """A flow of the paper's size, hardly trained: how well it answers is not the question."""
    found = embeddings.read(folder / "embeddings.h5")
    rows = [np.flatnonzero(found.split == part)[:64] for part in (0, 1)]
    train, test = (Part(r, found.y[r]) for r in rows)
    task = Task("images", (0, 1), train, Part(rows[0][:0], rows[0][:0]), test)
    source = Source("images", found.attributes["content_sha256"])
    benchmark = Benchmark("benchmark", (task,), (Segment(0, 1),), (source,))
    flow, training = FlowSettings(couplings=8, hidden_layers=3, hidden=512), TrainingSettings()
    job = Job(benchmark, {"images": found}, "adam", FlowMethod(), flow, training, seed=0)
    run, learner = train_seed(job)
    write_learner(folder / "model", about_run(job, run, learner), learner)
    return folder / "model"


class Taken(NamedTuple):
    """Seconds that extraction and prediction took, by the clock and of the processor."""

    bare: float
    whole: float
    bare_processor: float
    whole_processor: float


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def measure(raw: Path, count: int, rounds: int) -> Iterator[Taken]:
    """What each round took."""
    settings = ExtractSettings(device="cpu")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = draw(raw, folder, count)
        extract(folder / "encoded.h5", folder / "embeddings.h5", settings)
        trained = load(train(folder), device="cpu")
        lanes = find_lanes("cpu")
        backbone = load_backbone(settings.backbone)
        files = Raw(folder / "encoded.h5")
        embedders, _ = make_embedders(
            backbone, lanes, settings, forward.FORWARD_BATCH["cpu"], count
        )
        for turn in range(rounds + 1):
            start = now()
            with (
                freed_memory_kept(),
                Partial(folder / f"part-{turn}", count, backbone.size, 8) as partial,
            ):
                embed_all(files, backbone.transform, embedders, settings, partial)
            between = now()
            with tables.opened(folder / "table.csv", None) as write:  # type: ignore[arg-type]
                predict(trained, [Images(map(str, paths))], write)
            end = now()
            if turn:  # the first one warms up
                yield Taken(
                    between[0] - start[0],
                    end[0] - between[0],
                    between[1] - start[1],
                    end[1] - between[1],
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--raw", type=Path, default=Path("data/raw/digits.h5"))
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    asked = parser.parse_args()
    if asked.compile:
        forward.COMPILE_FROM["cpu"] = asked.images
    taken = []
    print("round  extraction  prediction  ratio  ratio of processor time")
    for turn, each in enumerate(measure(asked.raw, asked.images, asked.rounds), start=1):
        taken.append(each)
        speeds = (f"{asked.images / seconds:8.1f}/s" for seconds in each[:2])
        ratio, processor = each.bare / each.whole, each.bare_processor / each.whole_processor
        print(f"{turn:5}", *speeds, f"{ratio:5.3f}  {processor:5.3f}", sep="  ", flush=True)
    ratio = statistics.median(each.bare / each.whole for each in taken)
    processor = statistics.median(each.bare_processor / each.whole_processor for each in taken)
    print(f"speed of prediction over that of extraction, median: {ratio:.3f} by the clock,")
    print(f"{processor:.3f} of the processor")


if __name__ == "__main__":
    main()
