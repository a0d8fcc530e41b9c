"""What the service does, without HTTP: it answers, learns, saves, and remembers its stream.

One thing changes the model, ``learn``, and it is over when the model's file is saved: the file is
written beside its place and moved into it, so that a process killed at any moment loses at most the
request that it was working on. Where learning or saving fails, the model goes back to its file.

Each answer has a number, under which its sample can be labelled later. Accuracy is counted on what
was labelled: by the answer given before, or, for a sample that comes with its label, by what the
model says of it before it learns it.
"""

from __future__ import annotations

import json
import math
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hcl.errors import HCLError
from hcl.files import replacing, unwritable
from hcl.records.raw import image_size
from hcl.use.trained import Answers, Trained, load

REMEMBERED = 4096  # answers that can be labelled later
POINTS = 2000  # of the stream that are kept to be shown
LARGEST_PICTURE = 50_000_000  # pixels: a small file may unpack to a picture that fills the memory


class Answer(NamedTuple):
    """What the model says of one sample."""

    id: int | None  # to label it by; None at an error
    name: str | None
    probability: float | None
    task: int | None  # from 1
    novelty: float | None
    error: str | None


@dataclass(frozen=True)
class Point:
    """A request in the stream: what came, and how the model saw it.

    Attributes:
        kind: "predict" or "learn".
        count: samples in it.
        samples: labelled samples that had come by its end, those that wait for a batch included.
        probability: mean over its samples; ``None`` where the method gives none.
        novelty: mean p-value; ``None`` where the method gives none.
        right: of those labelled, how many had been answered rightly.
        changes: that were noticed: (batch, verdict, task from 1).
    """

    kind: str
    count: int
    samples: int
    probability: float | None
    novelty: float | None
    right: int | None = None
    changes: tuple[tuple[int, str, int], ...] = ()


class _Kept(NamedTuple):
    """A sample that was answered, until it is labelled or forgotten."""

    x: NDArray[Any]
    name: str


class Unknown(HCLError):
    """A number under which no answer is remembered."""


class NotSaved(HCLError):
    """The model could not be saved, and has not learned."""


class Service:
    """A model, the file that it is saved to, and the stream that it has seen.

    Args:
        model: the file to begin with; it is never written to.
        state: the file that is saved after each lesson; where it is there, it goes on from it.
        weights: of the backbone: as ``extract.weights``.
        device: where images are embedded.
    """

    def __init__(
        self, model: Path, state: Path, weights: str = "auto", device: str = "auto"
    ) -> None:
        self.model, self.state_file = model, state
        if state.absolute() == model.absolute():
            raise HCLError(f"{state}: is the model to begin with. Name another file by --state.")
        self._weights, self._device = weights, device
        self.resumed = state.exists()
        self._trained: Trained = load(state if self.resumed else model, weights, device)
        self._seeing = threading.Lock()  # the backbone
        self._thinking = threading.Lock()  # the model, and all below
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._next = 1
        self._points: deque[Point] = deque(maxlen=POINTS)
        self._labelled = self._right = 0
        if self.resumed:
            self._read_stream()

    # Requests

    def predict(self, x: ArrayLike) -> list[Answer]:
        """Answers for samples as the model was trained on."""
        with self._thinking:
            answers = self._trained.predict(x)
            return self._noted(np.asarray(x), answers)

    def predict_images(self, images: Sequence[bytes]) -> list[Answer]:
        """Answers for image files; one that can't be read has an error."""
        x, errors = self._see(images)
        readable = [i for i, error in enumerate(errors) if not error]
        found = iter(self.predict(x[readable]) if readable else [])
        return [_broken(error) if error else next(found) for error in errors]

    def learn(
        self,
        x: ArrayLike,
        labels: Sequence[str],
        places: Mapping[str, str] | None = None,
        task: int | None = None,
    ) -> Point:
        """Learn samples with the names of their classes, and save the model.

        Args:
            x: samples as the model was trained on.
            labels: of each, the name of its class.
            places: for a class of a new name, the known class whose place it takes.
            task: for a model that must be told its tasks: the number, from 1.
        """
        with self._thinking:
            answered = self._trained.predict(x)
            return self._learn(np.asarray(x), labels, answered.name, answered, places, task)

    def learn_images(
        self,
        images: Sequence[bytes],
        labels: Sequence[str],
        places: Mapping[str, str] | None = None,
        task: int | None = None,
    ) -> Point:
        """The same for image files; unless all can be read, nothing is learned."""
        x, errors = self._see(images)
        for i, error in enumerate(errors):
            if error:
                raise HCLError(f"image {i + 1}: {error}. Nothing was learned.")
        return self.learn(x, labels, places, task)

    def learn_answered(
        self,
        ids: Sequence[int],
        labels: Sequence[str],
        places: Mapping[str, str] | None = None,
        task: int | None = None,
    ) -> Point:
        """The same for samples that were answered before, by the numbers of their answers."""
        with self._thinking:
            missing = [str(i) for i in ids if i not in self._kept]
            if missing:
                raise Unknown(
                    f"no answer is remembered under {', '.join(missing[:5])}: it was labelled "
                    f"already, or lies more than {REMEMBERED} answers or a restart back. Send "
                    "the sample again."
                )
            if len(set(ids)) != len(ids):
                raise HCLError("an id stands twice. Label each answer once.")
            kept = [self._kept[i] for i in ids]
            if not kept:
                raise HCLError("no samples are given.")
            x = np.stack([sample.x for sample in kept])
            before = [sample.name for sample in kept]
            point = self._learn(x, labels, before, self._trained.predict(x), places, task)
            for i in ids:
                del self._kept[i]
            return point

    def state(self) -> dict[str, Any]:
        """What the model is, what it saw and noticed, and the stream as far as it is kept."""
        with self._thinking:
            about, trained = self._trained.about, self._trained
            return {
                "model": about.name,
                "benchmark": about.benchmark,
                "input": {
                    "backbone": about.input.backbone,
                    "pixels": about.input.pixels,
                    "features": math.prod(about.shape),
                },
                "told_tasks": trained.is_told,
                "tasks": [{"task": i, "classes": n} for i, n in enumerate(trained.names, start=1)],
                "classes": trained.classes,
                "changes": [_change(change) for change in about.changes],
                "samples": about.samples,
                "waiting": trained.waiting,
                "batch_size": about.training.batch_size,
                "labelled": {"samples": self._labelled, "right": self._right},
                "stream": [asdict(point) for point in self._points],
                "saved_to": self.state_file.name,
            }

    # What they share

    def _see(self, images: Sequence[bytes]) -> tuple[NDArray[Any], list[str]]:
        """Samples (n, D) of image files, and why one can't be read; empty where it can."""
        if not images:
            raise HCLError("no images are given.")
        large = [_too_large(image) for image in images]
        pictures: Iterable[bytes] = (
            b"" if big else i for i, big in zip(images, large, strict=True)
        )
        with self._seeing:
            seen = list(self._trained.images.see(pictures))
        errors = [error for part in seen for error in part.errors]
        x = np.concatenate([part.x for part in seen])
        return x, [big or error for big, error in zip(large, errors, strict=True)]

    def _noted(self, x: NDArray[Any], answers: Answers) -> list[Answer]:
        numbers = range(self._next, self._next + len(x))
        self._next += len(x)
        for number, sample, name in zip(numbers, x, answers.name, strict=True):
            self._kept[number] = _Kept(np.array(sample), name)
        while len(self._kept) > REMEMBERED:
            self._kept.popitem(last=False)
        if len(x):
            self._points.append(self._point("predict", answers))
        return [
            Answer(number, name, _known(p), None if task < 0 else int(task) + 1, _known(new), None)
            for number, name, p, task, new in zip(numbers, *answers[:4], strict=True)
        ]

    def _point(self, kind: str, answers: Answers, **more: Any) -> Point:
        samples = self._trained.about.samples + self._trained.waiting
        means = (_mean(answers.probability), _mean(answers.novelty))
        return Point(kind, len(answers.name), samples, *means, **more)

    def _learn(
        self,
        x: NDArray[Any],
        labels: Sequence[str],
        before: Sequence[str],
        answers: Answers,
        places: Mapping[str, str] | None,
        task: int | None,
    ) -> Point:
        if not labels or len(x) != len(labels):
            raise HCLError(f"{len(x)} samples, but {len(labels)} labels. Give each its own.")
        for name in sorted(set(labels)):
            self._check_label(name, places)
        trained = self._trained
        try:
            changes = trained.learn(x, labels, task, places)
        except BaseException:
            self._go_back()
            raise
        try:
            trained.save(self.state_file)
        except (OSError, HCLError) as error:
            self._go_back()
            why = unwritable(self.state_file, error) if isinstance(error, OSError) else error
            raise NotSaved(f"{why} Nothing was learned.") from error
        right = sum(a == b for a, b in zip(before, labels, strict=True))
        said = tuple((c.batch, str(c.verdict), c.task + 1) for c in changes)
        point = self._point("learn", answers, right=right, changes=said)
        self._add(point)
        self._write_stream(point)
        return point

    def _check_label(self, name: str, places: Mapping[str, str] | None) -> None:
        try:
            self._trained.check_name(name, places)
        except HCLError as error:  # it names the option of ``hcl learn``; here it is a field
            raise HCLError(str(error).replace("--as ", "as ")) from None

    def _go_back(self) -> None:
        """To the model as it lies in its file."""
        eyes = self._trained.images
        path = self.state_file if self.state_file.exists() else self.model
        self._trained = load(path, self._weights, self._device)
        self._trained.images = eyes  # its backbone is loaded

    # The stream, beside the model: a line for each lesson

    @property
    def stream_file(self) -> Path:
        """What was learned, request by request, as JSON lines."""
        return self.state_file.with_name(f"{self.state_file.name}.stream.jsonl")

    def _add(self, point: Point) -> None:
        self._points.append(point)
        self._labelled += point.count
        self._right += point.right or 0

    def _write_stream(self, point: Point) -> None:
        try:
            with open(self.stream_file, "a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(point)) + "\n")
        except OSError:  # the model is saved: what is lost is a point of a drawing
            return

    def _read_stream(self) -> None:
        """The lessons before; a line that a kill cut short is taken out."""
        if not self.stream_file.exists():
            return
        whole = []
        for line in self.stream_file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                values = json.loads(line)
                point = Point(**{**values, "changes": tuple(map(tuple, values["changes"]))})
            except (ValueError, TypeError, KeyError):
                continue
            whole.append(line)
            self._add(point)
        with replacing(self.stream_file) as partial:
            partial.write_text("".join(f"{line}\n" for line in whole), encoding="utf-8")


def _change(change: Any) -> dict[str, Any]:
    return {"batch": change.batch, "verdict": change.verdict, "task": change.task + 1}


def _too_large(image: bytes) -> str:
    """Why a picture is not even decoded; empty where it is."""
    try:
        width, height = image_size(image)
    except ValueError:
        return ""  # decoding says what is wrong
    if width * height > LARGEST_PICTURE:
        return f"{width}×{height} pixels, more than the {LARGEST_PICTURE} that are taken"
    return ""


def _broken(error: str) -> Answer:
    return Answer(None, None, None, None, None, error)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _mean(values: NDArray[np.float64]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None
