"""Pictures of a user's own, their embeddings by a tiny backbone, and a model trained on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from hcl.extract.extraction import extract
from hcl.extract.settings import ExtractSettings
from hcl.fetch.images import read_folder
from hcl.learn.closed_form.settings import StreamingLDAMethod
from hcl.learn.settings import TrainingSettings
from hcl.model.settings import FlowSettings
from hcl.records import embeddings
from hcl.records.raw import write_raw
from hcl.records.tasks import Benchmark, Part, Segment, Source, Task
from hcl.train.loop import Job, train_seed
from hcl.train.saving import about_run, write_learner
from tests.support.tiny_backbone import NAME, save_weights

CLASSES = ("ash", "birch", "cedar", "dogwood")


def picture(label: int, index: int) -> np.ndarray:
    generator = np.random.default_rng([label, index])
    image = generator.integers(0, 60, (24, 20 + index % 5, 3), dtype=np.uint8)
    image[..., label % 3] += 120
    image[: 6 * label] //= 2
    return image


def draw(folder: Path, count: int, first: int = 0) -> None:
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for index in range(first, first + count):
            Image.fromarray(picture(label, index)).save(folder / name / f"{index:02}.png")


def make_model(folder: Path) -> Path:
    """Pictures, ``pictures.h5``, and ``model.safetensors``: SLDA on two tasks of them."""
    weights = save_weights(folder / "weights.pth")
    draw(folder / "pictures/train", 12)
    draw(folder / "pictures/test", 4, first=12)
    content = read_folder(folder / "pictures")
    write_raw(folder / "raw.h5", content, dataset="pictures", source="drawn")
    settings = ExtractSettings(NAME, str(weights), device="cpu")
    extract(folder / "raw.h5", folder / "pictures.h5", settings)
    found = embeddings.read(folder / "pictures.h5")
    tasks = []
    for classes in ((0, 1), (2, 3)):
        rows = [
            np.flatnonzero((found.split == part) & np.isin(found.y, classes)) for part in (0, 1)
        ]
        train, test = (Part(r, found.y[r] - classes[0]) for r in rows)
        tasks.append(Task("pictures", classes, train, Part(test.rows[:0], test.y[:0]), test))
    source = Source("pictures", found.attributes["content_sha256"])
    benchmark = Benchmark("trees", tuple(tasks), (Segment(0, 1), Segment(1, 1)), (source,))
    method, training = StreamingLDAMethod(shrinkage=0.1), TrainingSettings(batch_size=8)
    job = Job(benchmark, {"pictures": found}, "slda", method, FlowSettings(), training, seed=0)
    run, learner = train_seed(job)
    write_learner(folder / "model.safetensors", about_run(job, run, learner), learner)
    return folder
