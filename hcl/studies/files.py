"""The paper's two analyses: what they found, as arrays, files and figures.

The two other modules of this room compute them with torch; what is here reads and draws them
without.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from numpy.typing import NDArray

from hcl.errors import HCLError
from hcl.files import replacing, write_json
from hcl.report.figures import BLUE, INK, MUTED, ORANGE, RULE, VERMILLION, Draw, grid, save

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


# Files --------------------------------------------------------------------------------------------


def write_moons(folder: str | Path, found: MoonsStudy) -> None:
    """Write numbers (JSON), arrays (npz) and the figure, all or none."""
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
        save(grid(moons_panels(found), columns=4, width=2.6, height=2.3), partial / "moons")


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
        raise HCLError(f"{path}: no such study; make it with `dvc repro moons`.") from None
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise HCLError(f"{path}: damaged ({error}); make it with `dvc repro -f moons`.") from None


def write_toy_losses(folder: str | Path, found: ToyLosses) -> None:
    """Write numbers (JSON), the curves (CSV) and the figure, all or none."""
    with replacing(folder) as partial:
        partial.mkdir()
        curves = np.stack((found.theta, found.replay, found.functional), 1)
        path = partial / "toy-losses.csv"
        np.savetxt(path, curves, "%.10g", delimiter=",", header="theta,gr,fr", comments="")
        write_json(partial / "toy-losses.json", found.numbers())
        save(grid([toy_panel(found)], columns=1, width=4.6, height=2.8), partial / "toy-losses")


def read_toy_losses(folder: str | Path) -> ToyLosses:
    """Read what ``write_toy_losses`` wrote."""
    folder = Path(folder)
    path = folder / "toy-losses.csv"
    try:
        theta, replay, functional = np.loadtxt(path, delimiter=",", skiprows=1, unpack=True)
        gamma = json.loads((folder / "toy-losses.json").read_text(encoding="utf-8"))["gamma"]
    except FileNotFoundError as error:
        raise HCLError(
            f"{error.filename or path}: no such study; make it with `dvc repro toy-losses`."
        ) from None
    except (ValueError, KeyError) as error:
        raise HCLError(
            f"{path}: damaged ({error}); make it with `dvc repro -f toy-losses`."
        ) from None
    return ToyLosses(gamma, theta, replay, functional)


# Figures ------------------------------------------------------------------------------------------


def moons_panels(found: MoonsStudy) -> list[Draw]:
    """The panels (b) to (e) of Figure 2: data, both densities, the replay points' latents."""

    def data(ax: Axes) -> None:
        _scatter(ax, found.first, s=4, color=MUTED, linewidth=0, alpha=0.6, rasterized=True)
        _scatter(ax, found.second, s=4, color=ORANGE, linewidth=0, alpha=0.6, rasterized=True)
        _replay_points(ax, found)
        _plane(ax, "Data and replay points")

    def density(method: str) -> Draw:
        def draw(ax: Axes) -> None:
            fading = LinearSegmentedColormap.from_list("fading", [(*_rgb(BLUE), a) for a in (0, 1)])
            # One scale for both, set by the smooth one: GR's spikes would leave nothing to see.
            top = float(np.quantile(found.density["fr"], 0.995))
            ax.imshow(
                found.density[method],
                extent=VIEW,
                origin="lower",
                cmap=fading,
                norm=PowerNorm(0.5, vmin=0, vmax=top, clip=True),
                interpolation="none",
            )
            _replay_points(ax, found)
            _plane(ax, f"Density after {METHODS[method]}")

        return draw

    return [data, density("gr"), density("fr"), lambda ax: _latent_panel(ax, found)]


def _rgb(colour: str) -> tuple[float, float, float]:
    value = int(colour.removeprefix("#"), 16)
    return (value >> 16) / 255, (value >> 8 & 255) / 255, (value & 255) / 255


def _scatter(ax: Axes, points: Array, **how: Any) -> None:
    ax.scatter(points[:, 0], points[:, 1], **how)


def _replay_points(ax: Axes, found: MoonsStudy) -> None:
    _scatter(ax, found.replay, s=26, marker="s", color=VERMILLION, edgecolor=INK, linewidth=0.7)


def _plane(ax: Axes, title: str) -> None:
    left, right, bottom, top = VIEW
    ax.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[], aspect="equal")
    _frame(ax, title)


def _frame(ax: Axes, title: str) -> None:
    for spine in ax.spines.values():
        spine.set_visible(True)
        spine.set_color(RULE)
    ax.set_title(title)


def _latent_panel(ax: Axes, found: MoonsStudy) -> None:
    angle = np.linspace(0, 2 * np.pi, 90)
    for radius in (1, 2):
        x, y = found.mean[:, None] + radius * np.stack((np.cos(angle), np.sin(angle)))
        ax.plot(x, y, color=RULE, linewidth=1)
    before = found.latent["snapshot"]
    for a, b in zip(before, found.latent["gr"], strict=True):
        ax.plot(*np.stack((a, b), 1), color=MUTED, linewidth=0.7, linestyle=(0, (1, 1.5)))
    for name, label, marker, colour, size in (
        ("snapshot", "before", "s", MUTED, 60),
        ("gr", "HCL-GR", "^", ORANGE, 42),
        ("fr", "HCL-FR", "*", BLUE, 52),
    ):
        _scatter(
            ax,
            found.latent[name],
            s=size,
            marker=marker,
            color=colour,
            edgecolor=INK,
            linewidth=0.5,
            label=label,
            zorder=3,
        )
    # As wide as the other panels, with the rings to the right: the key stands beside them.
    left, right, bottom, top = VIEW
    reach = max(np.abs(z - found.mean).max() for z in found.latent.values())
    height = 2 * max(2.2, 1.1 * float(reach))
    width = height * (right - left) / (top - bottom)
    x, y = (float(value) for value in found.mean)
    ax.set(xlim=(x + height / 2 - width, x + height / 2), ylim=(y - height / 2, y + height / 2))
    ax.set(xticks=[], yticks=[], aspect="equal")
    ax.legend(loc="upper left", handletextpad=0.1, borderaxespad=0.2)
    _frame(ax, "Replay points, latent")


def toy_panel(found: ToyLosses) -> Draw:
    """Figure S1: both losses against θ."""

    def draw(ax: Axes) -> None:
        ax.plot(found.theta, found.replay, color=ORANGE, linestyle=(0, (4, 2)), label="GR loss")
        ax.plot(found.theta, found.functional, color=BLUE, label="FR loss")
        ax.axvline(found.gamma, color=MUTED, linewidth=1, linestyle=(0, (1, 1.5)))
        ax.annotate(
            f"γ = {found.gamma:g}",
            (found.gamma, 0.97),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
            va="top",
            color=MUTED,
        )
        ax.set_xlim(0, float(found.theta[-1]))
        ax.set_ylim(-0.15, 4.6)
        ax.set_xlabel("θ")
        ax.set_ylabel("loss")
        ax.set_title("f(x) = θx")
        ax.grid(axis="y")
        ax.legend(loc="upper left", bbox_to_anchor=(0.42, 1))

    return draw
