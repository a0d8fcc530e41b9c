"""The figures of the paper's two analyses: two moons (Figure 2), f(x) = θx (Figure S1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm

from hcl.records.studies import METHODS, VIEW, Array, MoonsStudy, ToyLosses
from hcl.report.figures import BLUE, INK, MUTED, ORANGE, RULE, VERMILLION, Draw, grid, save


def draw_moons(found: MoonsStudy, path: Path) -> None:
    """Figure 2 under ``path``, which has no suffix."""
    save(grid(moons_panels(found), columns=4, width=2.6, height=2.3), path)


def draw_toy_losses(found: ToyLosses, path: Path) -> None:
    """Figure S1 under ``path``, which has no suffix."""
    save(grid([toy_panel(found)], columns=1, width=4.6, height=2.8), path)


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
