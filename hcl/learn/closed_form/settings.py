"""Settings of the closed forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from hcl.learn.settings import TrainingSettings, check_count, check_positive


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
    shrinkage: float = 1e-2

    learner: ClassVar[str] = "hcl.learn.closed_form.learner"
    takes_images: ClassVar[bool] = False
    closed_form: ClassVar[bool] = True
    reads_flow: ClassVar[bool] = False
    detection: ClassVar[None] = None
    sees_once: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.shrinkage <= 1:
            raise ValueError(f"shrinkage: is {self.shrinkage:g}; expected from 0 to 1.")

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
    projections: int = 2000
    ridge: float = 1e-2

    learner: ClassVar[str] = "hcl.learn.closed_form.learner"
    takes_images: ClassVar[bool] = False
    closed_form: ClassVar[bool] = True
    reads_flow: ClassVar[bool] = False
    detection: ClassVar[None] = None
    sees_once: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("projections", self.projections)
        check_positive("ridge", self.ridge)

    def check(self, training: TrainingSettings) -> None:
        """Nothing in how a benchmark is trained is at odds with it."""

    def advice(self, batches: int) -> str | None:
        """Batches may be as few as they are."""
        return None
