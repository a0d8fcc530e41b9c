"""The losses of the library on f(x) = θx against the closed forms of the paper's last section."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hcl.studies.settings import ToySettings
from hcl.studies.toy_losses import Scale, toy_losses


@pytest.mark.parametrize("gamma", [0.5, 1.0, 1.7])
def test_losses_are_the_closed_forms(gamma: float) -> None:
    found = toy_losses(ToySettings(gamma=gamma, steps=60))
    np.testing.assert_allclose(found.functional, (found.theta / gamma - 1) ** 2, atol=1e-12)
    expected = 0.5 * (found.theta / gamma) ** 2 - np.log(found.theta)
    np.testing.assert_allclose(found.replay, expected, atol=1e-12)


def test_both_are_least_at_the_snapshot_and_only_replay_has_a_pole() -> None:
    found = toy_losses(ToySettings(gamma=1.5, highest=3.0, steps=3000))
    assert found.theta[found.functional.argmin()] == pytest.approx(1.5)
    assert found.theta[found.replay.argmin()] == pytest.approx(1.5)
    assert found.functional[0] < 1
    assert found.replay[0] > 6  # −log 0.001 = 6.9


def test_the_toy_flow_keeps_the_contract_of_flows() -> None:
    flow = Scale(2.5)
    x = torch.tensor([[0.3], [-1.2]], dtype=torch.float64)
    z, log_det = flow(x)
    back, back_log_det = flow.inverse(z)
    torch.testing.assert_close(back, x)
    torch.testing.assert_close(log_det + back_log_det, torch.zeros(2, dtype=torch.float64))
    assert dict(flow.trace(x)).keys() == {"theta", "z"}
    torch.testing.assert_close(dict(flow.trace(x))["z"], z)
    jacobian = torch.autograd.functional.jacobian(lambda v: flow(v)[0], x[:1])
    torch.testing.assert_close(log_det[0], jacobian.squeeze().abs().log())
