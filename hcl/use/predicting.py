"""``predict``: answers for images and embeddings, written while they come, in flat memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hcl.errors import HCLError
from hcl.progress import bar
from hcl.train.saving import Input
from hcl.use.inputs import Images, Rows, Table
from hcl.use.tables import Row, Write, known
from hcl.use.trained import Answers, Trained, without_broken

NOT_FINITE = "values that are not finite"


class Done(NamedTuple):
    """How many rows were written, and how many of them have an error."""

    rows: int
    errors: int


def predict(trained: Trained, inputs: Sequence[Images | Table], write: Write) -> Done:
    """Write a row for each image and each embedding, in the order of the inputs."""
    rows = errors = 0
    total = None
    if all(isinstance(each, Table) for each in inputs):
        total = sum(each.count for each in inputs if isinstance(each, Table))
    with bar(total=total, desc="predict", unit="row") as progress:
        for each in inputs:
            parts = _images(trained, each) if isinstance(each, Images) else _table(trained, each)
            for names, answers in parts:
                write(_rows(names, answers))
                rows += len(names)
                errors += sum(map(bool, answers.error))
                progress.update(len(names))
    return Done(rows, errors)


def check(trained: Trained, inputs: Sequence[Images | Table]) -> None:
    """An error where an input is not of the kind that the model was trained on."""
    for each in inputs:
        if isinstance(each, Images):
            trained.images.check()
        else:
            check_table(trained, each)


def check_table(trained: Trained, table: Table) -> None:
    """An error where embeddings are not of the model's backbone, or not of its size."""
    said = trained.about.input
    if table.attributes is not None:
        check_same(said, Input.of(table.attributes), table.path)
    elif said.pixels is not None:
        raise HCLError(
            f"{table.path}: the model was trained on pixels {list(said.pixels)}; it takes images, "
            "or a file of pixels that `hcl extract` wrote."
        )
    size = int(np.prod(trained.about.shape))
    if table.size != size:
        raise HCLError(
            f"{table.path}: has {table.size} features a row, but the model was trained on {size} "
            f"({said.backbone})."
        )


def check_same(model: Input, file: Input, path: Path) -> None:
    """An error where two kinds of samples were made in different ways."""
    for what, of_model, of_file in (
        ("pixels", model.pixels, file.pixels),
        ("the backbone", model.backbone, file.backbone),
        ("the weights", model.weights_sha256, file.weights_sha256),
        ("the transform", model.transform, file.transform),
    ):
        if of_model != of_file:
            raise HCLError(
                f"{path}: was made in another way than what the model was trained on: {what} "
                f"{of_file}, expected {of_model}. Extract it again like that."
            )


def _images(trained: Trained, images: Images) -> Iterator[tuple[list[str], Answers]]:
    waiting: deque[str] = deque()

    def noted() -> Iterator[str]:
        for path in images.paths:
            waiting.append(path)
            yield path

    for answers in trained.answer_images(noted()):
        yield [_shown(waiting.popleft()) for _ in answers.name], answers


def _shown(path: str) -> str:
    """A path as UTF-8 can say it; a name of other bytes with these escaped."""
    return path.encode("utf-8", "backslashreplace").decode()


def _table(trained: Trained, table: Table) -> Iterator[tuple[list[str], Answers]]:
    for start, x in table.read():
        for first in range(0, len(x), 1024):
            part = Rows(start + first, x[first : first + 1024])
            names = [_shown(f"{table.path}:{part.start + i}") for i in range(len(part.x))]
            yield names, _answers(trained, part)


def _answers(trained: Trained, part: Rows) -> Answers:
    x = part.x
    if x.dtype != np.uint8:
        with np.errstate(over="ignore"):
            x = x.astype(np.float32)
        finite = np.isfinite(x).all(axis=1)
        x = np.where(finite[:, None], x, np.float32(0))
        return without_broken(trained.predict(x), ["" if good else NOT_FINITE for good in finite])
    return trained.predict(x)


def _rows(names: list[str], answers: Answers) -> list[Row]:
    return [
        Row(
            name,
            of_class or None,
            known(probability),
            None if task < 0 else int(task) + 1,
            known(novelty),
            error or None,
        )
        for name, of_class, probability, task, novelty, error in zip(names, *answers, strict=True)
    ]
