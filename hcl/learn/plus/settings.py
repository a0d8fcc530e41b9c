"""Settings of HCL+."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from hcl.detect.settings import CalibratedSettings
from hcl.learn.settings import (
    BatchSize,
    Decay,
    Fraction,
    Penalty,
    Rate,
    TrainingSettings,
    Weight,
)
from hcl.settings import Range, check_limits

Temperature = Annotated[float, Range(0, 1_000_000, above=True)]


@dataclass(frozen=True)
class RidgeRule:
    """Ridge regression of the pairs' indicators on φ(z).

    Attributes:
        kind: ``ridge``.
        penalty: ρ, relative to the mean of G's diagonal.
    """

    kind: Literal["ridge"] = "ridge"
    penalty: Penalty = 1e-2

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True)
class GaussianRule:
    """Bayes' rule with N(φ; m_c, Σ).

    Attributes:
        kind: ``gaussian``.
        shrinkage: ε of Σ, relative to the mean variance.
    """

    kind: Literal["gaussian"] = "gaussian"
    shrinkage: Fraction = 1e-2

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True)
class GaussiansRule:
    """Bayes' rule with N(z; m_c, Σ_c), a covariance for each pair, and a regression beside it.

    What is left out is chosen by the stream: ``hcl.learn.plus.choosing``.

    Attributes:
        kind: ``gaussians``.
        rank: r, directions that are kept of a pair's covariance, at most 2 r D numbers; D or more
            keeps it whole, 0 gives all pairs one covariance.
        penalty: ρ of the regression on φ(z), relative to the mean of G's diagonal.
        shrinkage: ε of the covariance within all pairs, relative to the mean variance.
        blend: a, how much of what a pair's covariance has more than that one is taken; 0 gives all
            pairs one covariance.
        temperature: T, by which log-likelihoods are divided.
        regression: w, the weight of the regression; 0 leaves it out.
    """

    kind: Literal["gaussians"] = "gaussians"
    rank: Annotated[int, Range(0, 1_000_000)] = 64
    penalty: Penalty = 1e-2
    shrinkage: Fraction | None = None
    blend: Weight | None = None
    temperature: Temperature | None = None
    regression: Weight | None = None

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True)
class LearnsFirst:
    """The flow learns in the first task, by −L_ll under N(f(x); m_y, Σ).

    Attributes:
        kind: ``first``.
        shrinkage: ε of Σ in that loss.
        learning_rate: instead of the benchmark's.
        weight_decay: instead of the benchmark's.
    """

    kind: Literal["first"] = "first"
    shrinkage: Fraction = 1e-2
    learning_rate: Rate | None = None
    weight_decay: Decay | None = None

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True)
class LearnsAll:
    """The flow learns in all tasks, held by L_FR on samples that a snapshot draws.

    Attributes:
        kind: ``all``.
        alpha: α, the weight of L_FR.
        replay: samples of the snapshot in each step, for all old tasks together.
        shrinkage: ε of Σ, in the loss and in the draws.
        learning_rate: instead of the benchmark's.
        weight_decay: instead of the benchmark's.
    """

    kind: Literal["all"] = "all"
    alpha: Weight = 50.0
    replay: BatchSize = 32
    shrinkage: Fraction = 1e-2
    learning_rate: Rate | None = None
    weight_decay: Decay | None = None

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True)
class PlusMethod:
    """HCL+, beyond the paper.

    Attributes:
        kind: ``plus``.
        power: p of Tukey's transform sign(x)·|x|^p of the embeddings, before anything else; pooled
            activations are skewed, a root makes them more alike to a Gaussian. 1 leaves it out.
        projections: M, features of the lift; 0 leaves it out.
        lift: ``random`` features, of use from the first sample on; or those of a Gaussian's
            ``kernel``, at landmarks drawn from the moments of the first task's first samples, of
            which it wants some hundred.
        rule: how sums become scores.
        flow: whether the flow learns; without it, it stays the identity.
        unlabelled: weight of a sample without a label, which is shared out between the classes of
            its task by their responsibilities; 0 leaves such samples out.
        belongs: to a task: a whole ``batch``, or each ``sample`` by itself, which is inferred; for
            streams whose batches are mixed.
        detection: how changes of task are found; with it the learner is never told its tasks.
    """

    kind: Literal["plus"] = "plus"
    power: Fraction = 0.5
    projections: Annotated[int, Range(0, 1_000_000)] = 4000
    lift: Literal["random", "kernel"] = "random"
    rule: GaussiansRule | RidgeRule | GaussianRule = field(default_factory=GaussiansRule)
    flow: LearnsFirst | LearnsAll | None = None
    unlabelled: Weight = 0.0
    belongs: Literal["batch", "sample"] = "batch"
    detection: CalibratedSettings | None = None

    learner: ClassVar[str] = "hcl.learn.plus.learner"
    takes_images: ClassVar[bool] = False
    closed_form: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_limits(self)

    @property
    def learning_rate(self) -> float | None:
        """Of the flow, where it learns, instead of the benchmark's."""
        return None if self.flow is None else self.flow.learning_rate

    @property
    def reads_flow(self) -> bool:
        """Whether the size of the benchmark's flow matters."""
        return self.flow is not None

    @property
    def sees_once(self) -> bool:
        """Whether each sample is shown once, however many epochs the stream has.

        Sums over a second pass would be the same sums again. A learner that has to notice changes
        of task is shown the stream as it is.
        """
        return self.flow is None and self.detection is None

    def check(self, training: TrainingSettings) -> None:
        """Nothing in how a benchmark is trained is at odds with it."""

    def advice(self, batches: int) -> str | None:
        """A task has to be long enough to be judged."""
        return None if self.detection is None else self.detection.advice(batches)
