"""Settings of the closed forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from hcl.learn.settings import Penalty, Projections, TrainingSettings
from hcl.settings import Range, check_limits


@dataclass(frozen=True)
class NearestMeanMethod:
    """Nearest class mean.

    Attributes:
        kind: ``ncm``.
    """

    kind: Literal["ncm"] = "ncm"

    learner: ClassVar[str] = "hcl.learn.closed_form.learner"
    takes_images: ClassVar[bool] = False
    closed_form: ClassVar[bool] = True
    reads_flow: ClassVar[bool] = False
    detection: ClassVar[None] = None
    sees_once: ClassVar[bool] = True

    def check(self, training: TrainingSettings) -> None:
        """Nothing in how a benchmark is trained is at odds with it."""

    def advice(self, batches: int) -> str | None:
        """Batches may be as few as they are."""
        return None


@dataclass(frozen=True)
class StreamingLDAMethod:
    """Streaming linear discriminant analysis.

    Attributes:
        kind: ``slda``.
        shrinkage: ε of the covariance, relative to the mean variance.
    """

    kind: Literal["slda"] = "slda"
    shrinkage: Annotated[float, Range(0, 1)] = 1e-2

    learner: ClassVar[str] = "hcl.learn.closed_form.learner"
    takes_images: ClassVar[bool] = False
    closed_form: ClassVar[bool] = True
    reads_flow: ClassVar[bool] = False
    detection: ClassVar[None] = None
    sees_once: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_limits(self)

    def check(self, training: TrainingSettings) -> None:
        """Nothing in how a benchmark is trained is at odds with it."""

    def advice(self, batches: int) -> str | None:
        """Batches may be as few as they are."""
        return None


@dataclass(frozen=True)
class RanPACMethod:
    """Ridge regression on random features.

    Attributes:
        kind: ``ranpac``.
        projections: random features.
        ridge: ρ, relative to the mean of G's diagonal.
    """

    kind: Literal["ranpac"] = "ranpac"
    projections: Projections = 2000
    ridge: Penalty = 1e-2

    learner: ClassVar[str] = "hcl.learn.closed_form.learner"
    takes_images: ClassVar[bool] = False
    closed_form: ClassVar[bool] = True
    reads_flow: ClassVar[bool] = False
    detection: ClassVar[None] = None
    sees_once: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_limits(self)

    def check(self, training: TrainingSettings) -> None:
        """Nothing in how a benchmark is trained is at odds with it."""

    def advice(self, batches: int) -> str | None:
        """Batches may be as few as they are."""
        return None
