"""A trained learner out of its model file: it answers, goes on learning, and is saved again.

Answers are by name. A class of a task has the name under which it was learned, and the answer is
the name that is likeliest: with p(y, t | x) of the learner, every pair of class and task,

    p(name | x) = Σ p(y, t | x) over the pairs (y, t) of that name.

Where tasks share their names, that is the paper's Bayes' rule, marginalised over tasks; where each
task has its own, it is the likeliest pair.

Learning goes on in batches of the training's size, cut from the samples in their order. What does
not fill a batch waits, in the file too: a stream that was cut anywhere, saved and loaded, leaves
the same bytes as one that never was.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from hcl.errors import HCLError
from hcl.learn.contract import Batch, Learner, Posterior, Surprise, TaskBatch
from hcl.records.runs import SAME
from hcl.settings import did_you_mean
from hcl.train.machine import full_precision, one_thread
from hcl.train.saving import (
    About,
    Change,
    Counts,
    NoArchive,
    looks_back,
    noticed,
    read_learner,
    write_learner,
)
from hcl.use.images import ImageReader, Picture

AT_ONCE = 1024  # samples that are answered together


class Answers(NamedTuple):
    """What a learner says of samples, in their order."""

    name: list[str]  # of the class; empty where there is an error
    probability: NDArray[np.float64]  # p(name | x); NaN where the learner gives none
    task: NDArray[np.int64]  # the learner's, from 0; −1 where it knows no tasks, or at an error
    novelty: NDArray[np.float64]  # a p-value, small where x is unlike all; NaN where it gives none
    error: list[str]  # why a sample could not be read; empty where it could


class _Waiting(NamedTuple):
    """Samples that do not fill a batch yet."""

    x: Tensor
    y: Tensor
    names: list[str]
    number: int | None  # of their task, where the learner is told


def load(path: str | Path, weights: str = "auto", device: str = "auto") -> Trained:
    """The learner of a model file, ready to answer and to go on.

    Args:
        path: the file that ``hcl train`` wrote with ``training.save_model: true``, or ``save``.
        weights: of the backbone that the file names, if images are to be seen: as
            ``extract.weights``. Their SHA-256 must be the file's.
        device: where images are embedded, as ``extract.device``.
    """
    about, learner, waiting = read_learner(path)
    return Trained(about, learner, waiting, ImageReader(about.input, path, weights, device))


class Trained:
    """A learner, what it saw, and the samples that wait for a whole batch.

    Args:
        about: what it is, and what it saw.
        learner: in the state that it was saved in.
        waiting: as the file holds it; empty where nothing waits.
        images: makes samples of images.
    """

    def __init__(
        self, about: About, learner: Learner, waiting: Sequence[Any], images: ImageReader
    ) -> None:
        self._about = about
        self.learner = learner
        self.images = images
        self._waiting = _Waiting(*waiting) if waiting else None
        self._names: list[list[Counts]] = [[dict(c) for c in task] for task in about.names]
        self._given = None if about.given is None else list(about.given)
        self._changes = list(about.changes)
        self._samples, self._batches = about.samples, about.batches
        self._num_classes = about.num_classes
        self._pairs: _Pairs | None = None  # made when asked

    @property
    def about(self) -> About:
        """What the learner is, and what it has seen by now."""
        return dataclasses.replace(
            self._about,
            num_classes=self._num_classes,
            names=tuple(tuple(map(dict, task)) for task in self._names),
            given=None if self._given is None else tuple(self._given),
            samples=self._samples,
            batches=self._batches,
            changes=tuple(self._changes),
        )

    @property
    def is_told(self) -> bool:
        """Whether it must be told the task of what it learns."""
        return self._given is not None

    @property
    def num_tasks(self) -> int:
        """Tasks so far: those that it was told, or found."""
        return len(self._given) if self._given is not None else self.learner.num_tasks

    @property
    def task(self) -> int:
        """The number of the learner's current task, from 1 on; 0 where it has none."""
        return self.learner.task + 1 if self.learner.num_tasks else 0

    @property
    def waiting(self) -> int:
        """Samples that do not fill a batch yet."""
        return 0 if self._waiting is None else len(self._waiting.y)

    @property
    def names(self) -> list[list[str]]:
        """The name of each class of each task; of a learner without tasks, of each class."""
        return [
            [self._name(counts, task, k) for k, counts in enumerate(row)]
            for task, row in enumerate(self._names)
        ]

    def _name(self, counts: Counts, task: int, k: int) -> str:
        if not counts:
            return f"class {k + 1} of task {task + 1}"
        if not self.learner.num_tasks:
            return " | ".join(sorted(counts))
        return min(counts, key=lambda name: (-counts[name], name))

    @property
    def classes(self) -> list[str]:
        """Every name that an answer can have, in the order of tasks and classes."""
        shown = zip(self.names, self._names, strict=True)
        pairs = (pair for names, counts in shown for pair in zip(names, counts, strict=True))
        return list(dict.fromkeys(name for name, samples in pairs if samples))

    def save(self, path: str | Path) -> None:
        """Write the model file, whole or not at all."""
        write_learner(path, self.about, self.learner, tuple(self._waiting or ()))

    # Answers

    def predict(self, x: ArrayLike) -> Answers:
        """Answers for samples as they were learned: embeddings (n, D), or pixels as bytes."""
        samples = self._checked(x)
        parts = [
            self._answer(samples[start : start + AT_ONCE])
            for start in range(0, len(samples), AT_ONCE)
        ]
        return joined(parts)

    def predict_images(self, images: Iterable[Picture]) -> Answers:
        """Answers for image files, by their paths or their bytes; a broken one has an error."""
        return joined(list(self.answer_images(images)))

    def answer_images(self, images: Iterable[Picture]) -> Iterator[Answers]:
        """The same, some hundred at a time, as they are seen."""
        with one_thread():
            for seen in self.images.see(images):
                yield without_broken(self._answer(self._checked(seen.x)), seen.errors)

    @torch.no_grad()
    def _answer(self, samples: NDArray[Any]) -> Answers:
        x = self._prepared(samples)
        pairs = self._pairs = self._pairs or _Pairs(self.names)
        novelty = self._novelty(x)
        if isinstance(self.learner, Posterior):
            best, probability, task = pairs.likeliest(self.learner.posterior(x).double().cpu())
        else:
            found = self.learner.predict(x)
            task = found.predicted_task.astype(np.int64)
            best = pairs.of[np.maximum(task, 0) * pairs.num_classes + found.pair_class]
            probability = np.full(len(x), np.nan)
        if not self.learner.num_tasks:
            task = np.full(len(x), -1)
        names = [pairs.names[i] for i in best]
        return Answers(names, probability, task, novelty, [""] * len(x))

    def _novelty(self, x: Tensor) -> NDArray[np.float64]:
        """A p-value by the learner, or by the detector that it holds; NaN where neither has one."""
        held = [getattr(self.learner, name, None) for name in ("calibrated", "detector")]
        for each in (self.learner, *held):
            if isinstance(each, Surprise):
                found: NDArray[np.float64] = each.novelty(x).double().cpu().numpy()
                return found
        return np.full(len(x), np.nan)

    def _checked(self, x: ArrayLike) -> NDArray[Any]:
        """Samples (n, D) of the right type, all of them finite."""
        samples = np.asarray(x)
        pixels = self._about.input.pixels
        size = int(np.prod(pixels if pixels is not None else self._about.shape))
        if pixels is not None and samples.dtype != np.uint8:
            raise HCLError(
                f"this model was trained on pixels, bytes of shape {list(pixels)}; found "
                f"{samples.dtype}. Give it images."
            )
        if pixels is None and samples.dtype.kind not in "fiu":
            raise HCLError(f"samples are numbers; found {samples.dtype}.")
        samples = (
            samples.reshape(len(samples), math.prod(samples.shape[1:])) if samples.ndim else samples
        )
        if samples.ndim != 2 or samples.shape[1] != size:
            raise HCLError(
                f"this model was trained on samples of {size} numbers; found an array of "
                f"{samples.shape}, expected (n, {size}). Embed them with the backbone "
                f"{self._about.input.backbone}."
            )
        if pixels is None:
            samples = samples.astype(np.float32, copy=False)
            finite = np.isfinite(samples).all(axis=1)
            if not finite.all():
                raise HCLError(f"sample {int(np.argmin(finite))} has values that are not finite.")
        return samples

    def _prepared(self, samples: NDArray[Any]) -> Tensor:
        """As the training loop hands them over: see ``hcl.train.streams.Stream``."""
        x = torch.from_numpy(np.array(samples)).view(-1, *self._about.shape)
        x = x.to(self._device())
        as_they_are = self._about.input.pixels is None or self._about.method.takes_images
        return x if as_they_are else x / 255

    def _device(self) -> torch.device:
        generator = getattr(self.learner, "generator", None)
        return torch.device("cpu") if generator is None else generator.device

    # Learning

    @property
    def grows(self) -> bool:
        """Whether a class that was never seen is one more: where tasks bring new classes."""
        return self._about.only_seen and hasattr(self.learner, "add_classes")

    def is_new(self, name: str) -> bool:
        """Whether no sample of a class of this name was learned, or waits to be."""
        return not any(name in counts for row in self._names for counts in row) and (
            name not in self._to_come()
        )

    def _to_come(self) -> dict[str, int]:
        """The labels of classes of which samples wait, and none was learned."""
        if self._waiting is None:
            return {}
        there = zip(self._waiting.names, self._waiting.y.tolist(), strict=True)
        return {name: label for name, label in there if label >= self._num_classes}

    def check_name(self, name: str, places: Mapping[str, str] | None = None) -> None:
        """An error where samples of a class of this name can't be learned."""
        if not self.grows or name in (places or {}):
            self.label_of((places or {}).get(name, name))

    def _labels_of(self, names: Sequence[str], places: Mapping[str, str]) -> dict[str, int]:
        """The label of each name; of a new class the next, in the order in which they come.

        So labels do not depend on where a stream is cut.
        """
        labels = dict(self._to_come())
        following = max((self._num_classes, *(label + 1 for label in labels.values())))
        for name in dict.fromkeys(names):
            if name in labels:
                continue
            if self.grows and name not in places and self.is_new(name):
                labels[name] = following
                following += 1
            else:
                labels[name] = self.label_of(places.get(name, name))
        return labels

    def label_of(self, name: str) -> int:
        """The label 0…K−1 that a class of this name is learned under."""
        labels = {k for row in self._names for k, counts in enumerate(row) if name in counts}
        if len(labels) == 1:
            return labels.pop()
        known = self.known_names
        if labels:
            raise HCLError(
                f"the class {name!r} stood for different labels in different tasks, "
                f"{sorted(labels)}: say by --as {quote(f'{name}=CLASS')} whose place it takes."
            )
        listed = ", ".join(known[:10]) + (", …" if len(known) > 10 else "")
        raise HCLError(
            f"the class {name!r} is not known to this model{did_you_mean(name, known)}: {listed}. "
            f"All its tasks have the same {self._num_classes} classes: if it is a new task's, say "
            f"whose place it takes: --as {quote(f'{name}=CLASS')}."
        )

    def home_of(self, name: str) -> int | None:
        """The one task, from 1, that has a class of this name; ``None`` for no task, or several."""
        found = [task for task, names in enumerate(self.names, 1) if name in names]
        return found[0] if len(found) == 1 and self.learner.num_tasks else None

    @property
    def known_names(self) -> list[str]:
        """The names of all classes of which samples were learned."""
        return sorted({n for row in self._names for counts in row for n in counts})

    def learn(
        self,
        x: ArrayLike,
        y: Iterable[str],
        task: int | None = None,
        places: Mapping[str, str] | None = None,
    ) -> list[Change]:
        """Learn from the next samples of the stream, in their order, once each.

        Nothing is learned unless all of them can be. Samples that do not fill a batch wait for the
        next call.

        Args:
            x: samples, as ``predict`` takes them.
            y: the names of their classes.
            task: for a learner that is told: the task's number, 1 for its first; one more than
                ``num_tasks`` begins a new one.
            places: for a class of a new name, the known class whose place it takes in its task.
                Where tasks bring new classes (``grows``), one that is not named here is added.

        Returns:
            The changes of task that the learner noticed.
        """
        samples, names = self._checked(x), [str(name) for name in y]
        if len(samples) != len(names):
            raise HCLError(f"{len(samples)} samples, but {len(names)} labels.")
        if not names:
            return []
        self.check_task(task)
        labels = self._labels_of(names, places or {})
        number = self._number(task)
        new = _Waiting(
            torch.from_numpy(np.array(samples)),
            torch.tensor([labels[name] for name in names]),
            names,
            number,
        )
        before = len(self._changes)
        with one_thread(), full_precision():
            self._take(new)
        self._pairs = None
        return self._changes[before:]

    def check_task(self, task: int | None) -> None:
        """An error where it can't go on learning, or not as this task."""
        if looks_back(self._about.method):
            raise NoArchive(self._about).refusal()
        self._number(task)

    def _number(self, task: int | None) -> int | None:
        """The number under which a learner is given its task; one that it never had is new."""
        if self._given is None:
            if task is not None:
                raise HCLError(
                    f"{self._about.name} finds its tasks itself: it must not be told a task."
                )
            return None
        if task is None:
            raise HCLError(
                f"{self._about.name} must be told its tasks: name one by its number, 1 to "
                f"{self.num_tasks} for what it knows, {self.num_tasks + 1} for a new one "
                "(--task); or take a method with detection."
            )
        if not 1 <= task <= self.num_tasks + 1:
            raise HCLError(
                f"task {task}: {self._about.name} knows the tasks 1 to {self.num_tasks}; "
                f"{self.num_tasks + 1} begins a new one."
            )
        return self._given[task - 1] if task <= self.num_tasks else max(self._given) + 1

    def _take(self, new: _Waiting) -> None:
        """Learn all whole batches; a batch holds samples of one task where tasks are told."""
        if self._waiting is not None and self._waiting.number != new.number:
            self._observe(self._waiting)
            self._waiting = None
        if self._waiting is not None:
            old = self._waiting
            new = _Waiting(
                torch.cat((old.x, new.x)),
                torch.cat((old.y, new.y)),
                old.names + new.names,
                new.number,
            )
        size = self._about.training.batch_size
        whole = len(new.y) // size * size
        for start in range(0, whole, size):
            part = slice(start, start + size)
            self._observe(_Waiting(new.x[part], new.y[part], new.names[part], new.number))
        rest = slice(whole, None)
        left = _Waiting(new.x[rest].clone(), new.y[rest].clone(), new.names[rest], new.number)
        self._waiting = left if len(left.y) else None

    def _observe(self, part: _Waiting) -> None:
        self._add_classes(int(part.y.max()) + 1 - self._num_classes)
        x, y = self._prepared(part.x.numpy()), part.y.to(self._device())
        if self._given is None:
            seen = self.learner.observe(Batch(x, y))
        else:
            assert part.number is not None
            if part.number not in self._given:
                self._given.append(part.number)
            seen = self.learner.observe(TaskBatch(x, y, part.number))
        if seen.evidence is not None and seen.evidence.verdict != SAME:
            self._changes.append(noticed(self._batches, seen.evidence.verdict, self.learner.task))
        self._batches += 1
        self._samples += len(part.names)
        while len(self._names) < self.learner.num_tasks:
            self._names.append([{} for _ in range(self._num_classes)])
        row = self._names[self.learner.task if self.learner.num_tasks else 0]
        for name, label in zip(part.names, part.y.tolist(), strict=True):
            row[label][name] = row[label].get(name, 0) + 1

    def _add_classes(self, count: int) -> None:
        """``count`` more, from the batch on that brings them."""
        if count > 0:
            self.learner.add_classes(count)  # type: ignore[attr-defined]
            self._num_classes += count
            for row in self._names:
                row += [{} for _ in range(count)]


class _Pairs:
    """Which pair of class and task has which name."""

    def __init__(self, names: list[list[str]]) -> None:
        self.num_classes = len(names[0])
        self.names = list(dict.fromkeys(name for task in names for name in task))
        number = {name: i for i, name in enumerate(self.names)}
        self.of = np.array([number[name] for task in names for name in task])  # (T K,)

    def likeliest(
        self, log_posterior: Tensor
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
        """From log p(y, t | x), (n, T, K): the best name, its probability, and its task."""
        pairs = log_posterior.exp().flatten(1)
        of = torch.from_numpy(self.of)
        together = pairs.new_zeros(len(pairs), len(self.names)).index_add_(1, of, pairs)
        probability, best = together.max(1)
        others = of[None, :] != best[:, None]
        pair = log_posterior.flatten(1).masked_fill(others, -torch.inf).argmax(1)
        task = pair // self.num_classes
        return best.numpy(), probability.clamp(max=1).numpy(), task.numpy()


def joined(parts: Sequence[Answers]) -> Answers:
    """Answers one after the other."""
    return Answers(
        [name for part in parts for name in part.name],
        np.concatenate([part.probability for part in parts] or [np.empty(0)]),
        np.concatenate([part.task for part in parts] or [np.empty(0, np.int64)]),
        np.concatenate([part.novelty for part in parts] or [np.empty(0)]),
        [error for part in parts for error in part.error],
    )


def without_broken(answers: Answers, errors: list[str]) -> Answers:
    """The answers, and errors in place of those for images that could not be read."""
    broken = np.array([bool(error) for error in errors], bool)
    return Answers(
        ["" if error else name for name, error in zip(answers.name, errors, strict=True)],
        np.where(broken, np.nan, answers.probability),
        np.where(broken, -1, answers.task),
        np.where(broken, np.nan, answers.novelty),
        errors,
    )
