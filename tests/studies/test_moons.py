"""The two-moons study: the paper's claim on a smaller scale, and that it repeats itself."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from hcl.errors import HCLError
from hcl.model.settings import FlowSettings
from hcl.records.studies import MoonsStudy
from hcl.settings import build
from hcl.studies.moons import moon, study
from hcl.studies.settings import MoonsSettings

SMALL = MoonsSettings(
    samples=300,
    steps=150,
    batch_size=64,
    learning_rate=5e-3,
    flow=FlowSettings(couplings=4, hidden_layers=1, hidden=32),
    grid=40,
)


@pytest.fixture(scope="module")
def found() -> MoonsStudy:
    with torch.random.fork_rng():
        return study(SMALL)


def test_functional_regularisation_holds_the_replay_points(found: MoonsStudy) -> None:
    assert found.distance["fr"] < 0.1
    assert found.distance["gr"] > 3 * found.distance["fr"]
    moved = np.linalg.norm(found.latent["gr"] - found.latent["snapshot"], axis=1)
    assert found.distance["gr"] == pytest.approx(moved.max(), rel=1e-5)


def test_the_first_moon_is_kept_by_fr_and_lost_by_gr(found: MoonsStudy) -> None:
    assert found.first_log_likelihood["snapshot"] > -2
    assert found.drop("fr") > 0
    assert found.drop("gr") > 5 * found.drop("fr")


def test_both_learn_the_second_moon(found: MoonsStudy) -> None:
    # Beside a flow that was never trained on it: the snapshot has no second task at all.
    for method in ("gr", "fr"):
        assert found.second_log_likelihood[method] > -8


def test_densities_are_densities(found: MoonsStudy) -> None:
    cell = (2.7 + 1.7) * (1.7 + 1.2) / SMALL.grid**2
    for density in found.density.values():
        assert density.shape == (SMALL.grid, SMALL.grid)
        assert (density >= 0).all()
        assert 0.1 < density.sum() * cell < 1.5  # part of the mass lies outside the view


def test_the_same_settings_give_the_same_study() -> None:
    tiny = MoonsSettings(
        samples=20, steps=3, batch_size=8, flow=FlowSettings(couplings=2, hidden=4), grid=5
    )
    one, two = study(tiny), study(tiny)
    np.testing.assert_array_equal(one.density["fr"], two.density["fr"])
    assert one.numbers() == two.numbers()


def test_both_methods_start_from_the_same_snapshot_and_see_the_same_batches() -> None:
    # With one step and no learning rate nothing can differ.
    still = MoonsSettings(
        samples=20, steps=1, learning_rate=1e-30, flow=FlowSettings(couplings=2, hidden=4), grid=5
    )
    found = study(still)
    np.testing.assert_array_equal(found.density["gr"], found.density["fr"])
    assert found.drop("gr") == found.drop("fr") == 0


def test_moons_are_the_two_half_circles() -> None:
    draw = torch.Generator().manual_seed(0)
    angles = torch.tensor([0.0, torch.pi / 2, torch.pi])
    torch.testing.assert_close(
        moon(0, angles, 0.0, draw), torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    )
    torch.testing.assert_close(
        moon(1, angles, 0.0, draw), torch.tensor([[0.0, 0.5], [1.0, -0.5], [2.0, 0.5]])
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"couplings": 0}, r"moons\.flow\.couplings: is 0; expected a whole number from 1"),
        ({"kind": "glow"}, r"moons\.flow\.kind: the moons are vectors; take realnvp, not glow"),
    ],
)
def test_an_impossible_flow_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(HCLError, match=message):
        build(MoonsSettings, {"flow": changes}, "params.yaml", "moons")


def test_a_loss_that_overflows_is_one_line() -> None:
    wild = MoonsSettings(
        samples=20, steps=3, batch_size=8, alpha=1e9, mean_scale=1e6, learning_rate=10, noise=1_000
    )
    wild = dataclasses.replace(wild, grid=5, flow=FlowSettings(couplings=40, hidden=4, bound=20))
    with pytest.raises(HCLError, match=r"^moons: the loss is (inf|nan) at step \d+\. Lower moons"):
        study(wild)
