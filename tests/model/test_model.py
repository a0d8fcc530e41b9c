from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hcl.errors import HCLError
from hcl.model.flows import FlowSettings
from hcl.model.hybrid import (
    HybridModel,
    NonFiniteError,
    build_model,
    check_finite,
    explain_nonfinite,
)
from hcl.model.latent import LatentMixture
from hcl.model.realnvp import networks
from tests.support.flow_checks import perturb


def make_model(
    tasks: int = 2, num_classes: int = 3, size: int = 5, scale: float = 0.3
) -> HybridModel:
    generator = torch.Generator().manual_seed(0)
    settings = FlowSettings(couplings=4, hidden=10, hidden_layers=2)
    model = build_model(settings, (size,), num_classes, generator).double()
    for _ in range(tasks):
        model.add_task(generator)
    perturb(model, scale)
    return model


def make_batch(size: int = 5, rows: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, size, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (rows,), generator=generator)
    t = torch.randint(2, (rows,), generator=generator)
    return x, y, t


def test_the_statistics_are_the_change_of_variables() -> None:
    model, (x, y, t) = make_model(), make_batch()
    statistics = model.statistics(x, y, t)
    z, log_det = model.flow(x)
    gaussian = torch.distributions.MultivariateNormal(
        model.latent.means[t, y], torch.eye(5, dtype=torch.float64)
    )
    torch.testing.assert_close(statistics.log_pz, gaussian.log_prob(z))
    torch.testing.assert_close(statistics.log_det, log_det)
    torch.testing.assert_close(statistics.log_px, gaussian.log_prob(z) + log_det)
    # S3 = S1 − S2
    torch.testing.assert_close(statistics.log_px - statistics.log_pz, statistics.log_det)


def test_a_task_is_one_number_or_one_a_sample() -> None:
    model, (x, y, _) = make_model(), make_batch()
    for one, many in zip(
        model.statistics(x, y, 1),
        model.statistics(x, y, torch.ones(8, dtype=torch.long)),
        strict=True,
    ):
        assert torch.equal(one, many)


def test_log_likelihoods_hold_every_pair() -> None:
    model, (x, y, t) = make_model(), make_batch()
    everything = model.log_likelihoods(x)
    assert everything.shape == (8, 2, 3)
    torch.testing.assert_close(everything[torch.arange(8), t, y], model.statistics(x, y, t).log_px)


def test_each_class_of_each_task_is_a_density() -> None:
    """p̂_X(x | y, t) integrates to 1 over the plane, for every y and t."""
    model = make_model(size=2, scale=0.15)
    y, t = torch.arange(20_000) % 3, torch.arange(20_000) % 2
    x, _ = model.sample(y, t, torch.Generator().manual_seed(0))
    low, high = x.amin(0) - 2, x.amax(0) + 2
    axes = [torch.linspace(low[i], high[i], 801, dtype=torch.float64) for i in range(2)]
    with torch.no_grad():
        total = sum(
            model.log_likelihoods(torch.cartesian_prod(part, axes[1])).exp().sum(0)
            for part in axes[0].split(80)
        )
    integral = total * (axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0])
    torch.testing.assert_close(integral, torch.ones_like(integral), atol=2e-3, rtol=0)


def test_classes_follow_bayes_rule_summed_over_tasks() -> None:
    model, (x, _, _) = make_model(), make_batch(rows=200)
    p = model.log_likelihoods(x).exp()  # small model: no underflow
    posterior = p.sum(1) / p.sum((1, 2))[:, None]
    torch.testing.assert_close(model.class_probabilities(x), posterior)
    assert torch.equal(model.classify(x), posterior.argmax(1))
    y, t = model.classify_pair(x)
    best = p.flatten(1).argmax(1)
    assert torch.equal(t, best // 3)
    assert torch.equal(y, best % 3)
    assert t.unique().tolist() == [0, 1]


def test_the_sum_over_tasks_matters() -> None:
    """Two tasks that half agree on a class outweigh a third that is a little surer of another."""
    model = make_model(tasks=3, num_classes=2, size=2)
    model.latent.means[:] = 50.0
    z, _ = model.flow(torch.zeros(1, 2, dtype=torch.float64))
    direction = torch.tensor([1.0, 0.0], dtype=torch.float64)
    model.latent.means[0, 0] = z[0].detach() + 1.0 * direction
    model.latent.means[1, 0] = z[0].detach() - 1.0 * direction
    model.latent.means[2, 1] = z[0].detach() + 0.9 * direction
    x = torch.zeros(1, 2, dtype=torch.float64)
    assert model.classify(x).tolist() == [0]
    y, t = model.classify_pair(x)
    assert (y.item(), t.item()) == (1, 2)


def test_no_underflow_far_from_every_mean() -> None:
    generator = torch.Generator().manual_seed(0)
    model = build_model(FlowSettings(hidden=8), (1280,), 2, generator)
    for _ in range(5):
        model.add_task(generator)
    x = 40 * torch.randn(16, 1280, generator=generator)  # log p̂ ≈ −10⁶: exp is 0 in any float
    assert model.log_likelihoods(x).max() < -5e5
    probabilities = model.class_probabilities(x)
    assert probabilities.isfinite().all()
    torch.testing.assert_close(probabilities.sum(1), torch.ones(16))
    exact = build_model(FlowSettings(hidden=8), (1280,), 2, torch.Generator()).double()
    exact.latent.means = model.latent.means.double()
    assert torch.equal(model.classify(x), exact.classify(x.double()))


def test_samples_come_with_their_latents_and_have_their_density() -> None:
    model = make_model()
    generator = torch.Generator().manual_seed(3)
    y, t = torch.arange(3).repeat(2000), torch.arange(6000) % 2
    x, z = model.sample(y, t, generator)
    assert not x.requires_grad
    torch.testing.assert_close(model.flow(x)[0], z)
    expected = model.latent.means[t, y].unflatten(0, (1000, 6)).mean(0)
    torch.testing.assert_close(z.unflatten(0, (1000, 6)).mean(0), expected, atol=0.15, rtol=0)
    # E log p̂_X over its own samples is the entropy's negative: D/2 (1 + log 2π), and log |∂f/∂x|
    log_px, _, log_det = model.statistics(x, y, t)
    entropy = 2.5 * (1 + math.log(2 * math.pi))
    assert (log_det - log_px).mean().item() == pytest.approx(entropy, abs=0.1)
    again, _ = model.sample(y, t, torch.Generator().manual_seed(3))
    assert torch.equal(again, x)


def test_a_snapshot_stays_while_the_model_moves() -> None:
    model, (x, _, _) = make_model(), make_batch()
    snapshot = model.snapshot()
    before = snapshot.log_likelihoods(x)
    assert torch.equal(before, model.log_likelihoods(x))
    assert not any(p.requires_grad for p in snapshot.parameters())
    assert not snapshot.training
    perturb(model, 0.5, seed=1)
    model.flow.set_scaling(1.0, 2.0)
    model.add_task(torch.Generator().manual_seed(9))
    assert torch.equal(snapshot.log_likelihoods(x), before)
    assert snapshot.latent.num_tasks == 2
    assert all(p.requires_grad for p in model.parameters())


def test_a_snapshot_is_renewed_in_place() -> None:
    model, (x, _, _) = make_model(), make_batch()
    snapshot = model.snapshot()
    places = [p.data_ptr() for p in snapshot.parameters()]
    perturb(model, 0.5, seed=1)
    model.flow.set_scaling(1.0, 2.0)
    model.add_task(torch.Generator().manual_seed(9))
    snapshot.copy_from(model)
    assert torch.equal(snapshot.log_likelihoods(x), model.log_likelihoods(x))
    assert [p.data_ptr() for p in snapshot.parameters()] == places
    assert not any(p.requires_grad for p in snapshot.parameters())
    model.latent.means[0] = 0.0
    assert not torch.equal(snapshot.log_likelihoods(x), model.log_likelihoods(x))


def test_tasks_are_added_while_training_runs() -> None:
    model, (x, y, _) = make_model(tasks=0), make_batch()
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for task in range(3):
        assert model.add_task(generator) == task
        losses = []
        for _ in range(20):
            optimiser.zero_grad()
            loss = -model.statistics(x, y, task).log_px.mean()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]
    assert model.log_likelihoods(x).shape == (8, 3, 3)


def layer(model: HybridModel, coupling: int, depth: int) -> tuple[Tensor, Tensor]:
    return networks(model.flow.weights.data, model.flow.sizes)[coupling][depth]


def test_a_nan_weight_is_named_by_its_layer() -> None:
    model, (x, y, t) = make_model(), make_batch()
    layer(model, 2, 1)[0][0, 0] = math.nan
    loss = model.statistics(x, y, t).log_px.mean()
    with pytest.raises(
        NonFiniteError,
        match=r"the loss is nan: NaN or overflow in flow\.couplings\.2\.layers\.1\.weight",
    ):
        check_finite(loss, model, x)
    assert issubclass(NonFiniteError, HCLError)


def test_an_overflow_is_named_by_its_layer() -> None:
    model, (x, _, _) = make_model().float(), make_batch()
    layer(model, 1, 2)[1][-1] = 3e38
    layer(model, 3, 0)[0][:] = 1e3
    model.float()
    assert explain_nonfinite(model, x.float()) == "NaN or overflow in flow.couplings.3.layers.0"


def test_an_input_that_is_not_finite_is_said_to_be_so() -> None:
    model, (x, _, _) = make_model(), make_batch()
    x[0, 0] = math.inf
    assert "input" in explain_nonfinite(model, x)


def test_a_finite_loss_passes() -> None:
    model, (x, y, t) = make_model(), make_batch()
    check_finite(model.statistics(x, y, t).log_px.mean(), model, x)
    assert "every layer" in explain_nonfinite(model, x)


def test_the_latent_has_the_size_of_the_flow() -> None:
    model = build_model(FlowSettings(hidden=4), (9,), 3, torch.Generator(), mean_scale=4.0)
    assert isinstance(model.latent, LatentMixture)
    assert model.latent.means.shape == (0, 3, 9)
    assert model.latent.mean_scale == 4.0
