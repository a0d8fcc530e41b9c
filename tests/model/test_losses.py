from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hcl.model.hybrid import HybridModel, build_model
from hcl.model.latent import LatentMixture
from hcl.model.losses import functional_loss, likelihood_loss, mixed_loss, replay_loss
from hcl.model.settings import FlowSettings
from hcl.studies.toy_losses import Scale
from tests.support.flow_checks import perturb


def make_model() -> HybridModel:
    generator = torch.Generator().manual_seed(0)
    settings = FlowSettings(couplings=3, hidden=6, hidden_layers=2)
    model = build_model(settings, (4,), 3, generator).double()
    model.add_task(generator)
    model.add_task(generator)
    return perturb(model, 0.3)


def labels(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    y = torch.randint(3, (rows,), generator=generator)
    t = torch.randint(2, (rows,), generator=generator)
    return y, t


def test_the_likelihood_loss_is_the_mean_negative_log_likelihood() -> None:
    model, (y, t) = make_model(), labels(10)
    x = torch.randn(10, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    everything = model.log_likelihoods(x)
    expected = -sum(everything[i, t[i], y[i]] for i in range(10)) / 10
    torch.testing.assert_close(likelihood_loss(model.statistics(x, y, t).log_px), expected)


def test_replay_is_the_likelihood_of_the_snapshot_s_samples() -> None:
    """Up to a constant it is KL[p̂^(k) ‖ p̂]: least when the model is the snapshot."""
    model, (y, t) = make_model(), labels(4000)
    snapshot = model.snapshot()
    x, _ = snapshot.sample(y, t, torch.Generator().manual_seed(1))
    at_snapshot = replay_loss(model.statistics(x, y, t).log_px).item()
    perturb(model, 0.05, seed=3)
    moved = replay_loss(model.statistics(x, y, t).log_px).item()
    with torch.no_grad():
        kl = (snapshot.statistics(x, y, t).log_px - model.statistics(x, y, t).log_px).mean().item()
    assert moved - at_snapshot == pytest.approx(kl)
    assert kl > 0


def test_samples_weigh_each_task_the_same_and_terms_the_batch_like_all_replay() -> None:
    """Appendix C writes the sum of two means; by samples there is one mean over both."""
    log_px = torch.tensor([-1.0, -3.0], dtype=torch.float64)
    replayed = torch.tensor([-10.0, -20.0, -30.0, -40.0], dtype=torch.float64)  # two old tasks
    assert mixed_loss(log_px, replayed).item() == pytest.approx(104 / 6)
    assert mixed_loss(log_px, replayed, "terms").item() == pytest.approx(2 + 25)


def test_functional_loss_is_zero_right_after_a_snapshot() -> None:
    model, (y, t) = make_model(), labels(50)
    snapshot = model.snapshot()
    x, z = snapshot.sample(y, t, torch.Generator().manual_seed(1))
    assert functional_loss(model.flow(x)[0], z).item() < 1e-20
    perturb(model, 0.1, seed=3)
    loss = functional_loss(model.flow(x)[0], z)
    # ‖f_θ(x) − f_θ^(k)(x)‖², with the snapshot's forward pass that the code saves
    expected = (model.flow(x)[0] - snapshot.flow(x)[0]).norm(dim=1).square().mean()
    torch.testing.assert_close(loss, expected)
    assert loss.item() > 0.01
    loss.backward()
    assert model.flow.weights.grad.abs().max() > 0
    assert snapshot.flow.weights.grad is None


def test_functional_loss_has_the_second_order_expansion_of_the_paper() -> None:
    """L_FR(θ + εΔ) = ε² Δᵀ (1/J) Σ_j ∇f ∇fᵀ Δ + O(ε³), the appendix's Taylor analysis."""
    model, (y, t) = make_model(), labels(7)
    flow = model.flow
    x, z = model.snapshot().sample(y, t, torch.Generator().manual_seed(1))
    rows = [
        torch.autograd.grad(flow(x)[0][j, d], flow.weights)[0].clone()
        for j in range(7)
        for d in range(4)
    ]
    gradient = torch.stack(rows)  # (J D, M): ∇f of every sample and output
    delta = torch.randn(
        flow.weights.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64
    )
    delta /= delta.norm()
    curvature = delta @ (gradient.T @ gradient / 7) @ delta
    start = flow.weights.detach().clone()
    errors = []
    for epsilon in (1e-3, 1e-4, 1e-5):
        with torch.no_grad():
            flow.weights.copy_(start + epsilon * delta)
            quotient = functional_loss(flow(x)[0], z) / epsilon**2
        errors.append(abs(quotient / curvature - 1).item())
    assert errors[0] < 0.05
    assert errors[1] < 0.2 * errors[0]  # the remainder shrinks with ε
    assert errors[2] < 0.2 * errors[1]


@pytest.mark.parametrize("gamma", [1.0, 0.5, 2.0])
@pytest.mark.parametrize("theta", [0.3, 1.0, 2.5])
def test_the_toy_flow_gives_the_losses_of_the_paper(theta: float, gamma: float) -> None:
    """L_FR = Σ ‖θ/γ z − z‖² and L_GR = ½ ‖θ/γ z‖² − log |θ|, the paper's last section."""
    latent = LatentMixture(1, 1)
    latent.means = torch.zeros(1, 1, 1, dtype=torch.float64)  # a Gaussian of variance 1 at 0
    snapshot = HybridModel(Scale(gamma), latent).snapshot()
    model = HybridModel(Scale(theta), latent)
    y = torch.zeros(1000, dtype=torch.long)
    x, z = snapshot.sample(y, 0, torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        functional_loss(model.flow(x)[0], z), (theta / gamma * z - z).square().sum() / 1000
    )
    constant = 0.5 * torch.log(torch.tensor(2 * torch.pi, dtype=torch.float64))
    expected = 0.5 * (theta / gamma * z).square().mean() - torch.tensor(theta).double().log()
    torch.testing.assert_close(
        replay_loss(model.statistics(x, y, 0).log_px), expected + constant, atol=1e-6, rtol=1e-6
    )
    # In expectation over z ~ N(0, 1), L_FR = (θ − γ)² / γ²
    assert functional_loss(model.flow(x)[0], z).item() == pytest.approx(
        (theta - gamma) ** 2 / gamma**2, rel=0.1
    )


def test_functional_loss_holds_places_and_replay_only_the_density() -> None:
    """FR asks for the same place, GR for the same density: a rotation costs only the first."""
    rotation = Rotation()
    latent = LatentMixture(1, 2)
    latent.means = torch.zeros(1, 1, 2, dtype=torch.float64)
    model = HybridModel(rotation, latent)
    y = torch.zeros(500, dtype=torch.long)
    x, z = model.snapshot().sample(y, 0, torch.Generator().manual_seed(0))
    before = replay_loss(model.statistics(x, y, 0).log_px)
    with torch.no_grad():
        rotation.angle.fill_(1.0)
    torch.testing.assert_close(replay_loss(model.statistics(x, y, 0).log_px), before)
    assert functional_loss(model.flow(x)[0], z).item() > 1


class Rotation(nn.Module):
    shape: tuple[int, ...] = (2,)
    size = 2

    def __init__(self) -> None:
        super().__init__()
        self.angle = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def matrix(self) -> Tensor:
        cos, sin = self.angle.cos(), self.angle.sin()
        return torch.stack((torch.stack((cos, sin)), torch.stack((-sin, cos))))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x @ self.matrix(), x.new_zeros(len(x))

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return z @ self.matrix().T, z.new_zeros(len(z))
