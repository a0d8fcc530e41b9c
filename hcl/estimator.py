"""HCL and HCL+ as scikit-learn classifiers: they learn from a stream without task labels.

>>> import numpy as np
>>> from hcl import HCLClassifier  # or HCLPlusClassifier
>>> random = np.random.default_rng(0)
>>> centres = random.normal(scale=5, size=(2, 2, 16))  # two tasks of two classes
>>> classifier = HCLClassifier(random_state=0)
>>> for task in (0, 1):  # the classifier is never told
...     for _ in range(150):
...         y = random.integers(0, 2, 32)  # batches may have any size
...         X = centres[task, y] + random.normal(size=(32, 16))
...         classifier = classifier.partial_fit(X, y, classes=[0, 1])
>>> classifier.task_changes_
[TaskChange(batch=152, verdict='new', task=1)]
"""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from itertools import pairwise
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import (
    Any,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from hcl.detect.detector import Detector
from hcl.detect.settings import CalibratedSettings
from hcl.errors import HCLError
from hcl.learn.contract import Batch, Observation
from hcl.learn.fitting import FITTING_SAMPLES, scaling_of
from hcl.learn.flow.detection import DetectionSettings, Statistic
from hcl.learn.flow.learner import FlowLearner
from hcl.learn.flow.memory import build_memory
from hcl.learn.flow.settings import (
    BufferSettings,
    Draws,
    FlowMethod,
    FunctionalSettings,
    GenerativeSettings,
    MemorySettings,
    NoMemory,
)
from hcl.learn.plus.learner import IDENTITY, PlusLearner, tukey
from hcl.learn.plus.settings import GaussianRule, GaussiansRule, PlusMethod, RidgeRule
from hcl.learn.settings import Device, Scaling, TrainingSettings
from hcl.model.hybrid import HybridModel, build_model
from hcl.model.model_file import UNFIT, read_model, write_model
from hcl.model.realnvp import RealNVP
from hcl.model.settings import FlowSettings
from hcl.records.runs import RECURRING, SAME
from hcl.settings import describe
from hcl.train.loop import versions
from hcl.train.machine import one_thread, pick_device
from hcl.train.streams import batch_bounds

T = TypeVar("T")
HELD_BACK = 5  # one sample in so many is shown once by ``fit``, after the others
FRESH_BATCHES = 10  # at least, of those, for the detector to go by; smaller ones where they are few


def fresh_bounds(samples: int, batch_size: int) -> NDArray[np.int64]:
    """Where the batches of what ``fit`` held back begin and end: none has fewer than two."""
    batches = min(max(round(samples / batch_size), FRESH_BATCHES), samples // 2)
    return np.arange(batches + 1) * samples // max(batches, 1)


class TaskChange(NamedTuple):
    """A change that the classifier noticed: at which batch, of what kind, to which task."""

    batch: int
    verdict: Literal["new", "recurring"]
    task: int


class _StreamClassifier(ClassifierMixin, BaseEstimator, ABC):
    """What both classifiers share: the stream, the changes noticed in it, and pickles."""

    batch_size: int
    scaling: Scaling
    device: Device
    random_state: int | np.random.RandomState | None
    classes_: NDArray
    _in_order: NDArray  # the labels as the learner numbers them
    _learner: Any  # a FlowLearner or a PlusLearner
    _scorer: list[HybridModel]  # the model in double precision, made when asked

    @abstractmethod
    def _passes(self) -> int:
        """Passes of ``fit`` over its data."""

    @abstractmethod
    def _build(self, generator: torch.Generator) -> Any:
        """A learner that knows nothing."""

    @abstractmethod
    def _detector(self) -> Detector | None:
        """The calibrated detector, if that is what finds changes."""

    def novelty(self, X: ArrayLike) -> NDArray[np.float64]:
        """A p-value for each sample, (n,): how seldom one like those learned lies so far out.

        It is 1 for all until something is known to go by. It needs the calibrated detector.
        """
        check_is_fitted(self, "classes_")
        detector = self._detector()
        if detector is None:
            raise ValueError("novelty: needs detection='calibrated'; found 'typical'.")
        return self._answer(X, lambda _, x: detector.novelty(x.float()))

    def _prepared(self, x: Tensor) -> Tensor:
        """Samples as the scaling finds them."""
        return x

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Forget everything, and learn one data set as one task.

        The detector is shown each sample once, and scores it before it is learned, so that what it
        knows is true of what comes next. With ``detection="typical"`` a fifth is held back for it
        and shown at the end: samples that were learned before look likelier than any that come
        next, and a detector that knows no others takes the first fresh batch for another task.
        """
        X, y = self._validate(X, y, first=True, min_samples=2)
        random = self._start(np.unique(y))
        self._fit_scaling(X)
        labels = self._numbers(y)
        order = random.permutation(len(X))
        held_back = self._detector() is None and self._passes() > 1
        fresh = len(X) // HELD_BACK if held_back else 0
        often, once = order[fresh:], order[:fresh]
        with one_thread():
            self._introduce(X, labels, often)
            for _ in range(self._passes()):
                again = often[random.permutation(len(often))]
                self._show(X, labels, again, batch_bounds(len(again), self.batch_size))
            if held_back:
                self._learner.detector.forget(self.task_)
                self._show(X, labels, once, fresh_bounds(fresh, self.batch_size))
        return self

    def _introduce(self, X: NDArray[np.float32], labels: NDArray, order: NDArray) -> None:
        """Show the calibrated detector what is known to be one task."""
        if self._detector() is not None:
            for start, stop in pairwise(batch_bounds(len(order), self.batch_size)):
                chosen = order[start:stop]
                self._learner.introduce(self._batch(X[chosen], labels[chosen]))

    def _show(
        self,
        X: NDArray[np.float32],
        labels: NDArray,
        order: NDArray,
        bounds: NDArray[np.int64],
        watch: bool = False,
    ) -> None:
        for start, stop in pairwise(bounds):
            chosen = order[start:stop]
            self._observe(X[chosen], labels[chosen], watch)

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Learn from the next samples of a stream, in their order, once each.

        Fewer than a batch wait for the next call: neither a scaling nor a verdict on a change of
        task can rest on one sample. An answer that is asked for before anything was learned is
        given by what there is, and leaves no trace.

        Args:
            X: samples.
            y: their labels.
            classes: all labels of the stream, at the first call, and no others are taken; left out,
                a label that was never seen is one more class from then on.
        """
        first = not hasattr(self, "classes_")
        X, y = self._validate(X, y, first=first)
        if first:
            self._start(np.unique(y if classes is None else np.asarray(classes)))
            self._may_grow = classes is None
        elif classes is not None and not np.array_equal(self.classes_, np.unique(classes)):
            raise ValueError(
                f"`classes={classes!r}` is not the same as on last call to partial_fit, was: "
                f"{self.classes_!r}"
            )
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown) and not self._may_grow:
            raise ValueError(
                f"y holds labels that are not among the classes of the first call: {unknown}. "
                f"Known: {self.classes_}. Name all of them in `classes` then, or leave `classes` "
                "out: labels are then added as they come."
            )
        if len(unknown):
            self._add_classes(unknown)
        self._waiting.append((X, self._numbers(y)))
        if sum(len(waiting) for waiting, _ in self._waiting) >= self.batch_size:
            self._learn_waiting()
        return self

    def _numbers(self, y: NDArray) -> NDArray[np.int64]:
        """Labels as the learner numbers them: in the order in which they came."""
        return self._columns[np.searchsorted(self.classes_, y)]

    @property
    def _columns(self) -> NDArray[np.int64]:
        """The learner's number of each of ``classes_``."""
        return np.argsort(self._in_order, kind="stable")

    def _add_classes(self, labels: NDArray) -> None:
        """Labels that were never seen: one more class each, in every task."""
        self._in_order = np.concatenate((self._in_order, labels))
        self.classes_ = np.sort(self._in_order)
        self._learner.add_classes(len(labels))
        self._scorer.clear()

    def _learn_waiting(self) -> None:
        """Learn what ``partial_fit`` gathered, as if it had come in one call."""
        X, labels = (np.concatenate(parts) for parts in zip(*self._waiting, strict=True))
        self._waiting.clear()
        if not self.n_batches_:
            self._fit_scaling(X)
        order = np.arange(len(X))
        with one_thread():
            self._show(X, labels, order, batch_bounds(len(X), self.batch_size), watch=True)

    @property
    def n_tasks_(self) -> int:
        """Tasks so far."""
        return self._learner.num_tasks

    @property
    def task_(self) -> int:
        """The current task."""
        return self._learner.task

    @property
    def can_judge_(self) -> bool:
        """Whether the next batch can be judged; a change before that is not noticed."""
        detector = self._detector()
        if detector is not None:
            return detector.can_judge
        watching = self._learner.detector
        return bool(watching.windows[self.task_].held >= watching.settings.minimum)

    def _validate(
        self, X: ArrayLike, y: ArrayLike, first: bool, min_samples: int = 1
    ) -> tuple[NDArray[np.float32], NDArray]:
        _check_present(y)
        samples, labels = validate_data(
            self,
            X,
            y,
            reset=first,
            dtype=np.float32,
            ensure_min_samples=min_samples,
            ensure_min_features=2 if first else 1,  # a coupling changes a half given the other
        )
        check_classification_targets(labels)
        return samples, labels

    def _start(self, classes: NDArray) -> np.random.RandomState:
        """A learner that knows nothing."""
        self._check_parameters()
        random = check_random_state(self.random_state)
        self.classes_ = classes
        self._in_order = classes
        self._may_grow = True
        self.task_changes_: list[TaskChange] = []
        self.n_batches_ = 0
        self._learner = self._build(_generator(random, pick_device(self.device)))
        self._waiting: list[tuple[NDArray[np.float32], NDArray]] = []
        self._scorer = []
        return random

    def _fit_scaling(self, X: NDArray[np.float32]) -> Tensor:
        """Set the inputs' scaling by the first of X, which are given back as they are learned."""
        flow = self._learner.model.flow
        assert isinstance(flow, RealNVP)
        samples = np.array(X[:FITTING_SAMPLES])  # a frame's are read-only, of which torch warns
        first = self._prepared(torch.from_numpy(samples))
        flow.set_scaling(*scaling_of(first, self.scaling))
        return first

    def _has_learned(self) -> bool:
        """Whether anything was learned; an error where nothing was even shown."""
        check_is_fitted(self, "classes_")
        return bool(self.n_batches_)

    def _by_what_waits(self, answer: Callable[[], T]) -> T:
        """An answer before the first batch, by a copy that learns what waits.

        To ask changes nothing: a scaling that one sample gave would stay for good.
        """
        kept = self.__dict__
        self.__dict__ = copy.deepcopy(self).__dict__
        try:
            self._learn_waiting()
            return answer()
        finally:
            self.__dict__ = kept

    def _check_parameters(self) -> None:
        """Refuse a parameter that is not of its type; the settings refuse values out of range."""
        for name, hint in get_type_hints(type(self).__init__).items():
            value = getattr(self, name, None)
            if name not in ("random_state", "return") and not _fits(value, hint):
                raise ValueError(f"{name}: is {value!r}; expected {describe(hint)}.")
        TrainingSettings(batch_size=self.batch_size)

    def _observe(self, X: NDArray[np.float32], labels: NDArray[np.int64], watch: bool) -> None:
        seen: Observation = self._learner.observe(self._batch(X, labels), watch=watch)
        evidence = seen.evidence
        if evidence is not None and evidence.verdict != SAME:
            kind: Literal["new", "recurring"] = (
                "recurring" if evidence.verdict == RECURRING else "new"
            )
            self.task_changes_.append(TaskChange(self.n_batches_, kind, self.task_))
        self.n_batches_ += 1
        self._scorer.clear()

    def _batch(self, X: NDArray[np.float32], labels: NDArray[np.int64]) -> Batch:
        device = self._learner.generator.device
        return Batch(torch.from_numpy(X).to(device), torch.from_numpy(labels).to(device))

    def _answer(self, X: ArrayLike, question: Any) -> NDArray:
        """Ask the model in double precision: an answer then depends on no other sample."""
        if not self._has_learned():
            return self._by_what_waits(lambda: self._answer(X, question))
        samples: NDArray[np.float32] = validate_data(self, X, reset=False, dtype=np.float32)
        if not self._scorer:
            self._scorer.append(self._learner.model.snapshot().double())
        device = self._learner.generator.device
        parts = []
        with torch.no_grad():
            for start in range(0, len(samples), 1024):
                x = torch.tensor(samples[start : start + 1024], dtype=torch.float64, device=device)
                parts.append(question(self._scorer[0], x))
        return torch.cat(parts).cpu().numpy()

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if "_learner" in state:
            state = {**state, "_learner": self._learner.state(), "_scorer": []}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        learned = state.pop("_learner", None)
        usual = inspect.signature(type(self)).parameters.values()
        defaults = {parameter.name: parameter.default for parameter in usual}
        super().__setstate__({**defaults, **state})  # an older file lacks some
        if learned is not None:
            self._learner = self._build(torch.Generator(pick_device(self.device)))
            self._learner.restore(learned)

    def save(self, path: str | Path) -> None:
        """Write all that the classifier knows to one model file, without pickle.

        Equal classifiers give equal bytes. ``load`` goes on as if never stopped.
        """
        state = self.__getstate__()
        if isinstance(self.random_state, np.random.RandomState):
            state["random_state"] = self.random_state.get_state()
        state = dict(sorted(state.items()))
        write_model(path, {"kind": type(self).__name__, "versions": versions()}, state)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The classifier of a file that ``save`` wrote, checked."""
        about, state = read_model(path)
        if about.get("kind") != cls.__name__:
            raise HCLError(
                f"{path}: holds a {about.get('kind')}, not a {cls.__name__}; hcl.load(path) reads "
                "either."
            )
        classifier = cls()
        try:
            if isinstance(state["random_state"], tuple):
                random = np.random.RandomState()
                random.set_state(state["random_state"])
                state["random_state"] = random
            if "task_changes_" in state:
                state["task_changes_"] = [TaskChange(*change) for change in state["task_changes_"]]
            classifier.__setstate__(state)
        except UNFIT as error:
            reason = " ".join(str(error).split())[:200]
            raise HCLError(f"{path}: its state doesn't fit {cls.__name__} ({reason}).") from error
        return classifier


class HCLClassifier(_StreamClassifier):
    """Task-agnostic continual learning with one normalizing flow.

    ``partial_fit`` learns from a stream whose distribution changes: changes are noticed, and old
    tasks are kept by samples of the model itself; no data are stored. ``fit`` learns one data set
    as one task, and ``partial_fit`` goes on from there.

    Inputs are scaled by what is learned first: the data of ``fit``, or the first batch or call of
    ``partial_fit`` that is at least as large (up to 4,096 samples); make it more than a few.

    Args:
        memory: what stands for old tasks: ``functional`` (HCL-FR), ``generative`` (HCL-GR),
            ``buffer`` (1,000 stored samples a task) or ``none``.
        alpha: α, the weight of L_FR.
        draws: latents of replay: ``prior``, the paper's, or ``measured``; see
            ``hcl.learn.flow.settings``.
        couplings: of the flow.
        hidden_layers: of each coupling's network.
        hidden: width of those layers.
        spread: of their first weights: 0 starts the flow as the identity, above it as a random
            map; see ``hcl.model.settings.FlowSettings``.
        bound: largest absolute log-scale of one coupling; with 0.5 less is forgotten on CIFAR.
        epochs: passes of ``fit`` over its data; ``partial_fit`` makes one.
        batch_size: samples a step; also replay samples for each old task.
        learning_rate: of Adam.
        learning_rate_decay: d in η/√(1 + d n), n steps into a task; 0 keeps the rate as it is.
        weight_decay: of Adam, as an L2 term.
        clip: a gradient longer than so many times their running mean is shortened to that, so that
            a few samples far out do no harm; ``None`` leaves gradients alone, as the paper does.
        scaling: ``global``, ``standard`` or ``none``; see ``hcl.learn.settings.TrainingSettings``.
        mean_scale: standard deviation of each entry of a latent mean. ``auto``: 1, or as much more
            as it takes for means to lie 8 apart on average, which random means in few dimensions
            do not.
        detection: how changes are found: ``calibrated``, from ranks (``hcl.detect``), or by the
            paper's ``typical`` sets, whose settings are the last five below.
        false_alarm_every: N of ``calibrated``: batches between two false alarms, on average.
        statistics: watched for changes: of ``log_px``, ``log_pz``, ``log_det``.
        window: l, batches that the typical set is taken over; well below the batches of a task, or
            its changes are missed.
        threshold: λ, its half width in standard deviations.
        minimum: batches before a new task is watched.
        trim: samples of a batch left out of the statistics at either end, against single outliers.
        device: ``cpu``, ``cuda``, or ``auto``.
        random_state: seed of weights, means, replay and order.

    Attributes:
        classes_: the labels.
        n_features_in_: features of a sample.
        n_tasks_: tasks so far.
        task_: the current one.
        n_batches_: batches seen so far.
        can_judge_: whether enough is known to notice a change at the next batch.
        task_changes_: every change noticed, a list of ``TaskChange(batch, verdict, task)``.
    """

    def __init__(
        self,
        *,
        memory: Literal["functional", "generative", "buffer", "none"] = "functional",
        alpha: float = 10.0,
        draws: Draws = "prior",
        couplings: int = 8,
        hidden_layers: int = 2,
        hidden: int = 128,
        spread: float = 0.0,
        bound: float = 0.5,
        epochs: int = 20,
        batch_size: int = 32,
        learning_rate: float = 1e-3,
        learning_rate_decay: float = 0.0,
        weight_decay: float = 1e-4,
        clip: float | None = 2.0,
        scaling: Scaling = "global",
        mean_scale: float | Literal["auto"] = "auto",
        detection: Literal["calibrated", "typical"] = "calibrated",
        false_alarm_every: int = 10_000,
        statistics: Iterable[Statistic] = ("log_px",),
        window: int = 100,
        threshold: float = 5.0,
        minimum: int = 10,
        trim: int = 0,
        device: Device = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.memory = memory
        self.alpha = alpha
        self.draws = draws
        self.couplings = couplings
        self.hidden_layers = hidden_layers
        self.hidden = hidden
        self.spread = spread
        self.bound = bound
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.learning_rate_decay = learning_rate_decay
        self.weight_decay = weight_decay
        self.clip = clip
        self.scaling = scaling
        self.mean_scale = mean_scale
        self.detection = detection
        self.false_alarm_every = false_alarm_every
        self.statistics = statistics
        self.window = window
        self.threshold = threshold
        self.minimum = minimum
        self.trim = trim
        self.device = device
        self.random_state = random_state

    def predict(self, X: ArrayLike) -> NDArray:
        """argmax_y Σ_t p(x | y, t), (n,)."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(1)]

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """p(y | x), (n, K), marginalised over tasks."""
        return self._answer(X, HybridModel.class_probabilities)[:, self._columns]

    def predict_task(self, X: ArrayLike) -> NDArray[np.int64]:
        """The task of the likeliest (class, task) pair, (n,), in the classifier's numbering."""
        return self._answer(X, lambda model, x: model.classify_pair(x)[1])

    def score_samples(self, X: ArrayLike) -> NDArray[np.float64]:
        """log p(x), (n,): every pair of a class and a task that came equally likely."""

        def log_density(model: HybridModel, x: Tensor) -> Tensor:
            log_pxs = model.log_likelihoods(x).flatten(1)
            return log_pxs.logsumexp(1) - (log_pxs > -torch.inf).sum(1).log()

        return self._answer(X, log_density)

    def sample(
        self,
        n_samples: int = 1,
        *,
        y: Any = None,
        task: int | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> tuple[NDArray[np.float32], NDArray]:
        """Draw samples from what was learned.

        Args:
            n_samples: how many.
            y: their label; by default each label is as likely.
            task: their task; by default each task is as likely.
            random_state: seed of the draw.

        Returns:
            Samples (n, D) and their labels (n,).
        """
        if not self._has_learned():
            options: dict[str, Any] = {"y": y, "task": task, "random_state": random_state}
            return self._by_what_waits(lambda: self.sample(n_samples, **options))
        _check_draw(self, n_samples, y, task)
        random = check_random_state(random_state)
        generator = _generator(random, self._learner.generator.device)
        labels = random.randint(len(self.classes_), size=n_samples)
        if y is not None:
            labels[:] = np.flatnonzero(self.classes_ == y)[0]
        tasks = random.randint(self.n_tasks_, size=n_samples)
        if task is not None:
            tasks[:] = task
        numbers = self._columns[labels]
        device = self._learner.generator.device
        drawn, _ = self._learner.model.sample(
            torch.from_numpy(numbers).to(device), torch.from_numpy(tasks).to(device), generator
        )
        return drawn.cpu().numpy(), self.classes_[labels]

    def _passes(self) -> int:
        return self.epochs

    def _build(self, generator: torch.Generator) -> FlowLearner:
        size = self.n_features_in_
        scale = max(1.0, 8.0 / (2 * size) ** 0.5) if self.mean_scale == "auto" else self.mean_scale
        flow = FlowSettings(
            couplings=self.couplings,
            hidden_layers=self.hidden_layers,
            hidden=self.hidden,
            spread=self.spread,
            bound=self.bound,
        )
        detection = self._detection()
        TrainingSettings(
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            mean_scale=float(scale),
        )
        if self.epochs < 1:
            raise ValueError(f"epochs: is {self.epochs}; expected 1 or more.")
        method = FlowMethod(
            memory=self._memory(),
            learning_rate_decay=self.learning_rate_decay,
            clip=self.clip,
            detection=detection,
        )
        classes = len(self.classes_)
        model = build_model(flow, (size,), classes, generator, float(scale), only_seen=True)
        model.to(generator.device)
        return FlowLearner(
            model,
            build_memory(method.memory, model, self.batch_size, generator),
            detection=detection,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            generator=generator,
            learning_rate_decay=self.learning_rate_decay,
            clip=self.clip,
        )

    def _detection(self) -> DetectionSettings | CalibratedSettings:
        typical = DetectionSettings(
            statistics=tuple(self.statistics),
            window=self.window,
            threshold=self.threshold,
            minimum=self.minimum,
            trim=self.trim,
        )
        typical.check_batch(self.batch_size)
        if self.detection == "typical":
            return typical
        for name, usual in vars(DetectionSettings()).items():
            if getattr(typical, name) != usual:
                raise ValueError(
                    f"{name}: is {getattr(typical, name)!r}, which only detection='typical' reads; "
                    "found 'calibrated'."
                )
        return CalibratedSettings(false_alarm_every=self.false_alarm_every)

    def _detector(self) -> Detector | None:
        found: Detector | None = self._learner.calibrated
        return found

    def _memory(self) -> MemorySettings:
        if self.draws != "prior" and self.memory not in ("functional", "generative"):
            raise ValueError(
                f"draws: {self.draws} needs memory functional or generative; found {self.memory}."
            )
        memories: dict[str, MemorySettings] = {
            "functional": FunctionalSettings(alpha=self.alpha, draws=self.draws),
            "generative": GenerativeSettings(draws=self.draws),
            "buffer": BufferSettings(),
            "none": NoMemory(),
        }
        return memories[self.memory]


class HCLPlusClassifier(_StreamClassifier):
    """HCL+: task-agnostic continual learning by streamed moments; see ``hcl.learn.plus``.

    ``partial_fit`` learns from a stream whose distribution changes, each sample once: changes are
    found (``hcl.detect``), and nothing is learned from a batch under suspicion before its verdict.
    ``fit`` learns one data set as one task, and ``partial_fit`` goes on from there.

    Inputs are scaled by what is learned first: the data of ``fit``, or the first batch or call of
    ``partial_fit`` that is at least as large (up to 4,096 samples); make it more than a few.
    What is kept grows with (features + projections)², 110 MB for 1,280 and 4,000, and with the
    number of (class, task) pairs, at most 2 · rank · features numbers each, not with samples; so
    does a pickle.

    Args:
        power: of Tukey's transform sign(x)·|x|^p, which suits pooled activations; 1 leaves it out.
        projections: features of the lift; 0 leaves it out.
        lift: ``random`` features, of use whatever comes first; or a Gaussian's ``kernel`` at
            landmarks drawn by the moments of what the inputs are scaled by, some hundred samples or
            more. With it a ``ridge`` of 1e-3 did better on embeddings.
        rule: ``gaussians``, Bayes' rule with a Gaussian of its own covariance for each (class,
            task) pair and a ridge regression beside it, weighed by what the stream says; or
            ``ridge`` alone, which has no probabilities; or ``gaussian``, with one covariance.
        rank: directions that ``gaussians`` keeps of a pair's covariance.
        shrinkage: of the covariance in ``gaussian``.
        ridge: the penalty of the regression, relative to the mean square of a feature.
        batch_size: samples that are judged together.
        scaling: ``global``, ``standard`` or ``none``; see ``hcl.learn.settings.TrainingSettings``.
        false_alarm_every: N, batches between two false alarms, on average.
        device: ``cpu``, ``cuda``, or ``auto``.
        random_state: seed of the random features and of the order in ``fit``.

    Attributes:
        classes_: the labels.
        n_features_in_: features of a sample.
        n_tasks_: tasks so far.
        task_: the current one.
        n_batches_: batches seen so far.
        can_judge_: whether enough is known to notice a change at the next batch.
        task_changes_: every change noticed, a list of ``TaskChange(batch, verdict, task)``; the
            batch is the one at which the detector was sure, mostly the new task's third.
    """

    def __init__(
        self,
        *,
        power: float = 0.5,
        projections: int = 1000,
        lift: Literal["random", "kernel"] = "random",
        rule: Literal["gaussians", "ridge", "gaussian"] = "gaussians",
        rank: int = 64,
        shrinkage: float = 1e-2,
        ridge: float = 1e-2,
        batch_size: int = 32,
        scaling: Scaling = "global",
        false_alarm_every: int = 10_000,
        device: Device = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.power = power
        self.projections = projections
        self.lift = lift
        self.rule = rule
        self.rank = rank
        self.shrinkage = shrinkage
        self.ridge = ridge
        self.batch_size = batch_size
        self.scaling = scaling
        self.false_alarm_every = false_alarm_every
        self.device = device
        self.random_state = random_state

    def predict(self, X: ArrayLike) -> NDArray:
        """The class with the highest score, over all tasks, (n,)."""
        best = self._class_scores(X).argmax(1)
        return self.classes_[best]

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Scores of the classes, (n, K), or with two classes the second's less the first's, (n,).

        A class that no sample has shown yet has −∞.
        """
        scores = self._class_scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_task(self, X: ArrayLike) -> NDArray[np.int64]:
        """The task of the best (class, task) pair, (n,), in the classifier's numbering."""
        return self._answer(X, lambda model, x: self._scores(model, x).amax(2).argmax(1))

    @available_if(lambda self: self.rule != "ridge")
    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """p(y | x), (n, K), summed over tasks; ``gaussians`` calibrates it on the stream."""
        found = self._answer(
            X, lambda model, x: self._learner.class_scores(self._scores(model, x)).softmax(1)
        )
        return found[:, self._columns]

    def score_samples(self, X: ArrayLike) -> NDArray[np.float64]:
        """log p of Tukey's transform of x, (n,): every pair that was seen is as likely.

        Of the measured Gaussians, whatever the rule; with ``ridge`` and ``gaussian`` they share one
        covariance. A sample far below the others is like nothing that was learned.
        """
        return self._answer(X, lambda model, x: self._learner.log_density(x, model.flow))

    def sample(
        self,
        n_samples: int = 1,
        *,
        y: Any = None,
        task: int | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> tuple[NDArray[np.float32], NDArray]:
        """Draw samples from the measured Gaussians.

        Args:
            n_samples: how many.
            y: their label; by default each (class, task) pair that was seen is as likely.
            task: their task; by default any.
            random_state: seed of the draw.

        Returns:
            Samples (n, D) and their labels (n,).
        """
        _check_draw(self, n_samples, y, task)
        classes = len(self.classes_)
        pairs = (self._learner.moments.counts > 0).nonzero()[:, 0].cpu().numpy()
        if y is not None:
            pairs = pairs[self._in_order[pairs % classes] == y]
        if task is not None:
            pairs = pairs[pairs // classes == task]
        if not len(pairs):
            asked = f"y {y!r}" if task is None else f"y {y!r} in task {task}"
            raise ValueError(f"{asked}: no sample has been seen, so none can be drawn.")
        random = check_random_state(random_state)
        device = self._learner.generator.device
        chosen = pairs[random.randint(len(pairs), size=n_samples)]
        with one_thread():
            drawn = self._learner.sample(
                torch.from_numpy(chosen).to(device), _generator(random, device)
            )
        return drawn.cpu().numpy(), self._in_order[chosen % classes]

    def _class_scores(self, X: ArrayLike) -> NDArray[np.float64]:
        found = self._answer(X, lambda model, x: self._learner.class_scores(self._scores(model, x)))
        return found[:, self._columns]

    def _scores(self, model: HybridModel, x: Tensor) -> Tensor:
        return self._learner.scores(x, model.flow)

    def _passes(self) -> int:
        return 1  # more would add up the same sums again

    def _detector(self) -> Detector | None:
        found: Detector | None = self._learner.detector
        return found

    def _prepared(self, x: Tensor) -> Tensor:
        return tukey(x, self.power)

    def _fit_scaling(self, X: NDArray[np.float32]) -> Tensor:
        first = super()._fit_scaling(X)
        self._learner.fit_lift(first.to(self._learner.generator.device))
        return first

    def _build(self, generator: torch.Generator) -> PlusLearner:
        rules: dict[str, GaussiansRule | RidgeRule | GaussianRule] = {
            "gaussians": GaussiansRule(rank=self.rank, penalty=self.ridge),
            "ridge": RidgeRule(penalty=self.ridge),
            "gaussian": GaussianRule(shrinkage=self.shrinkage),
        }
        settings = PlusMethod(
            power=self.power,
            projections=self.projections,
            lift=self.lift,
            rule=rules[self.rule],
            detection=CalibratedSettings(false_alarm_every=self.false_alarm_every),
        )
        model = build_model(IDENTITY, (self.n_features_in_,), len(self.classes_), generator)
        return PlusLearner(
            model.to(generator.device),
            settings,
            learning_rate=0.0,
            weight_decay=0.0,
            generator=generator,
        )


def _check_draw(classifier: _StreamClassifier, n_samples: int, y: Any, task: int | None) -> None:
    """What is to be drawn is something that was learned."""
    check_is_fitted(classifier, "classes_")
    if not isinstance(n_samples, Integral) or n_samples < 1:
        raise ValueError(f"n_samples: is {n_samples!r}; expected 1 or more.")
    if y is not None and y not in classifier.classes_:
        raise ValueError(f"y: is {y!r}; expected one of {classifier.classes_}.")
    if task is not None and not 0 <= task < classifier.n_tasks_:
        raise ValueError(f"task: is {task!r}; expected from 0 to {classifier.n_tasks_ - 1}.")


def _check_present(y: ArrayLike) -> None:
    """An error for a label that is missing: None, NaN, or what pandas has for them."""
    labels = np.asarray(y)
    if labels.dtype != object or labels.ndim != 1:
        return  # of numbers, and of what is no list of labels, scikit-learn says what is wrong
    for i, label in enumerate(labels):
        try:
            missing = label is None or bool(label != label)  # NaN is not itself
        except TypeError:  # pandas' NA is neither equal nor not
            missing = True
        if missing:
            raise ValueError(f"y: the label of sample {i} is missing. Leave such samples out.")


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Iterable:
        is_list = isinstance(value, Iterable) and not isinstance(value, str)
        return is_list and all(_fits(item, inner[0]) for item in value)
    return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)


def _generator(random: np.random.RandomState, device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(int(random.randint(np.iinfo(np.int32).max)))
