"""The paper's two analyses: what they found, as arrays and files (Figures 2 and S1).

``hcl.studies`` computes them with torch; what is here writes and reads them without.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcl.errors import HCLError
from hcl.files import replacing, write_json

Array = NDArray[np.floating]

VIEW = (-1.7, 2.7, -1.2, 1.7)  # left, right, bottom, top of the plane in which moons are drawn
METHODS = {"gr": "HCL-GR", "fr": "HCL-FR"}
MOONS_FILES = ("arrays.npz", "moons.*")
TOY_FILES = ("toy-losses.*",)


@dataclass(frozen=True)
class MoonsStudy:
    """Two moons. Arrays of points are (n, 2), densities (grid, grid) with y upwards."""

    first: Array
    second: Array
    replay: Array
    density: dict[str, Array]  # by "gr" and "fr": the mean of both tasks' densities
    latent: dict[str, Array]  # of the replay points, by "snapshot", "gr" and "fr"
    mean: Array  # (2,), of the first task's Gaussian
    distance: dict[str, float]  # largest ‖f(x) − f^(1)(x)‖ over the replay points
    first_log_likelihood: dict[str, float]  # mean over the first moon's test points
    second_log_likelihood: dict[str, float]

    def drop(self, method: str) -> float:
        """Nats that the first moon lost while the second was learned."""
        return self.first_log_likelihood["snapshot"] - self.first_log_likelihood[method]

    def numbers(self) -> dict[str, Any]:
        """What a metrics file says."""
        return {
            "first_moon_log_likelihood_before": round(self.first_log_likelihood["snapshot"], 4),
            **{
                method: {
                    "largest_move_of_a_replay_point": round(self.distance[method], 4),
                    "first_moon_log_likelihood_after": round(self.first_log_likelihood[method], 4),
                    "first_moon_log_likelihood_drop": round(self.drop(method), 4),
                    "second_moon_log_likelihood": round(self.second_log_likelihood[method], 4),
                }
                for method in METHODS
            },
        }


@dataclass(frozen=True)
class ToyLosses:
    """Both losses at each θ; L_GR without its constant ½ log 2π."""

    gamma: float
    theta: NDArray[np.float64]
    replay: NDArray[np.float64]  # L_GR
    functional: NDArray[np.float64]  # L_FR

    def numbers(self) -> dict[str, Any]:
        """What a metrics file says."""
        losses = {"gr": self.replay, "fr": self.functional}
        return {
            "gamma": self.gamma,
            **{
                name: {
                    "least_at_theta": round(float(self.theta[values.argmin()]), 4),
                    "at_smallest_theta": round(float(values[0]), 4),
                }
                for name, values in losses.items()
            },
        }


def write_moons(
    folder: str | Path, found: MoonsStudy, draw: Callable[[MoonsStudy, Path], None]
) -> None:
    """Write numbers (JSON), arrays (npz) and what ``draw`` draws, all or none.

    Args:
        folder: to write.
        found: the study.
        draw: puts its figure under a path without suffix.
    """
    arrays: dict[str, Any] = {
        "first": found.first,
        "second": found.second,
        "replay": found.replay,
        "mean": found.mean,
        **{f"density_{name}": value for name, value in found.density.items()},
        **{f"latent_{name}": value for name, value in found.latent.items()},
    }
    scalars = {
        name: getattr(found, name)
        for name in ("distance", "first_log_likelihood", "second_log_likelihood")
    }
    with replacing(folder) as partial:
        partial.mkdir()
        np.savez(partial / "arrays.npz", **arrays, scalars=np.array(json.dumps(scalars)))
        write_json(partial / "moons.json", found.numbers())
        draw(found, partial / "moons")


def read_moons(folder: str | Path) -> MoonsStudy:
    """Read what ``write_moons`` wrote."""
    path = Path(folder) / "arrays.npz"
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        scalars = json.loads(str(arrays["scalars"]))
        return MoonsStudy(
            first=arrays["first"],
            second=arrays["second"],
            replay=arrays["replay"],
            mean=arrays["mean"],
            density={name: arrays[f"density_{name}"] for name in METHODS},
            latent={name: arrays[f"latent_{name}"] for name in ("snapshot", *METHODS)},
            **scalars,
        )
    except FileNotFoundError:
        raise HCLError(f"{path}: no such study; `hcl moons` makes it.") from None
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise HCLError(f"{path}: damaged ({error}); make it again with `hcl moons`.") from None


def write_toy_losses(
    folder: str | Path, found: ToyLosses, draw: Callable[[ToyLosses, Path], None]
) -> None:
    """Write numbers (JSON), the curves (CSV) and what ``draw`` draws, all or none."""
    with replacing(folder) as partial:
        partial.mkdir()
        curves = np.stack((found.theta, found.replay, found.functional), 1)
        path = partial / "toy-losses.csv"
        np.savetxt(path, curves, "%.10g", delimiter=",", header="theta,gr,fr", comments="")
        write_json(partial / "toy-losses.json", found.numbers())
        draw(found, partial / "toy-losses")


def read_toy_losses(folder: str | Path) -> ToyLosses:
    """Read what ``write_toy_losses`` wrote."""
    folder = Path(folder)
    path = folder / "toy-losses.csv"
    try:
        theta, replay, functional = np.loadtxt(path, delimiter=",", skiprows=1, unpack=True)
        gamma = json.loads((folder / "toy-losses.json").read_text(encoding="utf-8"))["gamma"]
    except FileNotFoundError as error:
        raise HCLError(
            f"{error.filename or path}: no such study; `hcl toy-losses` makes it."
        ) from None
    except (ValueError, KeyError) as error:
        raise HCLError(f"{path}: damaged ({error}); make it again with `hcl toy-losses`.") from None
    return ToyLosses(gamma, theta, replay, functional)
