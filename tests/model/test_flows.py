from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, Transform, TransformedDistribution, constraints

from hcl.model.flows import FlowSettings, build_flow
from hcl.model.realnvp import RealNVP, Scaling, networks
from tests.support.flow_checks import check_gradients, check_inverse, check_log_det, perturb

# size, couplings, hidden, hidden_layers: odd and even, narrow and wide, one coupling and many
SIZES = [
    (2, 1, 8, 1),
    (2, 8, 16, 3),
    (3, 5, 7, 2),
    (5, 2, 1, 1),
    (8, 3, 12, 4),
    (33, 4, 20, 3),
]


def make_flow(size: int, couplings: int, hidden: int, hidden_layers: int) -> RealNVP:
    settings = FlowSettings(couplings=couplings, hidden=hidden, hidden_layers=hidden_layers)
    generator = torch.Generator().manual_seed(size)
    flow = perturb(build_flow(settings, (size,), generator).double(), 0.3)
    shift = torch.randn(size, generator=generator)
    flow.set_scaling(shift, 0.5 + torch.rand(size, generator=generator))
    return flow


def make_data(size: int, rows: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return 2 * torch.randn(rows, size, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("sizes", SIZES)
def test_the_inverse_recovers_the_input(sizes: tuple[int, int, int, int]) -> None:
    check_inverse(make_flow(*sizes), make_data(sizes[0]), tolerance=1e-8)


@pytest.mark.parametrize("sizes", SIZES)
def test_the_log_determinant_is_that_of_the_jacobian(sizes: tuple[int, int, int, int]) -> None:
    check_log_det(make_flow(*sizes), make_data(sizes[0]), tolerance=1e-8)


@pytest.mark.parametrize("sizes", SIZES)
def test_every_parameter_has_its_gradient(sizes: tuple[int, int, int, int]) -> None:
    check_gradients(make_flow(*sizes), make_data(sizes[0]))


@pytest.mark.parametrize("sizes", SIZES)
def test_each_layer_has_a_gradient(sizes: tuple[int, int, int, int]) -> None:
    flow = make_flow(*sizes)
    x = make_data(sizes[0], rows=50)
    z, log_det = flow(x)
    (z.square().sum() - log_det.sum()).backward()
    for index, network in enumerate(networks(flow.weights.grad, flow.sizes)):
        for weight, bias in network:
            assert weight.abs().max() > 0, index
            assert bias.abs().max() > 0, index


def test_gradients_by_hand_pass_torch_s_check() -> None:
    flow = make_flow(5, 3, 6, 2)
    x = make_data(5).requires_grad_()
    weights = flow.weights.detach().clone().requires_grad_()

    def function(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        return torch.func.functional_call(flow, {"weights": weights}, (x,))

    assert torch.autograd.gradcheck(function, (x, weights))


def test_without_gradients_the_values_are_the_same() -> None:
    flow, x = make_flow(8, 4, 12, 3), make_data(8)
    z, log_det = flow(x)
    with torch.no_grad():
        assert torch.equal(flow(x)[0], z)
        assert torch.equal(flow(x)[1], log_det)


@pytest.mark.parametrize("sizes", [(2, 2, 8, 1), (2, 5, 16, 2), (2, 8, 6, 3)])
def test_a_density_in_the_plane_integrates_to_one(sizes: tuple[int, int, int, int]) -> None:
    flow = make_flow(*sizes)
    # Where the mass is: bounds that hold samples of it, with a wide margin.
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        x = flow.inverse(torch.randn(20_000, 2, generator=generator, dtype=torch.float64))[0]
        low, high = x.amin(0), x.amax(0)
        low, high = low - 0.5 * (high - low), high + 0.5 * (high - low)
        axes = [torch.linspace(low[i], high[i], 801, dtype=torch.float64) for i in range(2)]
        total = 0.0
        for first in axes[0].split(80):
            z, log_det = flow(torch.cartesian_prod(first, axes[1]))
            total += (log_det - 0.5 * z.square().sum(1) - math.log(2 * math.pi)).exp().sum().item()
    cell = (axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0])
    assert total * cell.item() == pytest.approx(1, abs=2e-3)


class Coupling(Transform):
    """One coupling, z ↦ x, written after its equation and on torch's own terms."""

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, flow: RealNVP, index: int) -> None:
        super().__init__()
        self.layers = networks(flow.weights.detach(), flow.sizes)[index]
        self.bound = flow.bound
        self.cut = flow.sizes[0][0]
        self.index = index

    def terms(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """s and m on all features; both are zero on the half that stays."""
        first = self.index % 2 == 0
        h = v[..., : self.cut] if first else v[..., self.cut :]
        for weight, bias in self.layers[:-1]:
            h = torch.relu(h @ weight + bias)
        weight, bias = self.layers[-1]
        r, m = (h @ weight + bias).chunk(2, dim=-1)
        s = r / (1 + r.abs() / self.bound)
        zeros = torch.zeros_like(v[..., : self.cut] if first else v[..., self.cut :])
        parts = [(zeros, s), (zeros, m)] if first else [(s, zeros), (m, zeros)]
        return torch.cat(parts[0], -1), torch.cat(parts[1], -1)

    def _call(self, z: Tensor) -> Tensor:
        s, m = self.terms(z)
        return (z - m) / s.exp()

    def _inverse(self, x: Tensor) -> Tensor:
        s, m = self.terms(x)
        return x * s.exp() + m

    def log_abs_det_jacobian(self, z: Tensor, x: Tensor) -> Tensor:
        return -self.terms(x)[0].sum(-1)


@pytest.mark.parametrize("sizes", SIZES)
def test_log_likelihoods_agree_with_torch_distributions(sizes: tuple[int, int, int, int]) -> None:
    flow, x = make_flow(*sizes), make_data(sizes[0])
    mean = torch.linspace(-1, 1, sizes[0], dtype=torch.float64)
    base = MultivariateNormal(mean, torch.eye(sizes[0], dtype=torch.float64))
    transforms: list[Transform] = [Coupling(flow, i) for i in reversed(range(sizes[1]))]
    affine = torch.distributions.AffineTransform(flow.scaling.shift, flow.scaling.scale, 1)
    density = TransformedDistribution(base, [*transforms, affine])
    with torch.no_grad():
        z, log_det = flow(x)
        torch.testing.assert_close(base.log_prob(z) + log_det, density.log_prob(x))


def test_it_starts_as_the_identity_behind_its_scaling() -> None:
    flow = build_flow(FlowSettings(hidden=8), (6,), torch.Generator().manual_seed(0))
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    z, log_det = flow(x)
    assert torch.equal(z, x)
    assert torch.equal(log_det, torch.zeros(4))


def test_with_a_spread_it_starts_as_a_random_map() -> None:
    settings = FlowSettings(hidden=8, hidden_layers=1, spread=4.0)
    flow = build_flow(settings, (6,), torch.Generator().manual_seed(0)).double()
    last = [network[-1][0].abs().max() for network in networks(flow.weights, flow.sizes)]
    limit = 4 / 8**0.5
    assert all(0.8 * limit < weight <= limit for weight in last)
    x = make_data(6)
    check_inverse(flow, x, 1e-7)
    check_log_det(flow, x, 1e-7)


def test_the_paper_s_size_has_its_number_of_weights() -> None:
    flow = build_flow(FlowSettings(), (1280,), torch.Generator())
    networks_of_the_paper = 8 * (641 * 512 + 2 * 513 * 512 + 513 * 1280)
    assert sum(p.numel() for p in flow.parameters()) == networks_of_the_paper


def test_weights_come_from_the_generator_alone() -> None:
    def weights(seed: int) -> Tensor:
        return build_flow(FlowSettings(hidden=8), (6,), torch.Generator().manual_seed(seed)).weights

    state = torch.random.get_rng_state()
    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_coupling_stretches_within_its_bound() -> None:
    settings = FlowSettings(couplings=1, hidden=8, hidden_layers=1, bound=0.5)
    flow = build_flow(settings, (6,), torch.Generator().manual_seed(0)).double()
    perturb(flow, 1000.0)
    x = make_data(6)
    _, log_det = flow(x)
    assert log_det.abs().max() < 3 * 0.5
    assert log_det.abs().max() > 0.4  # and it is the bound that holds it
    z, _ = flow(1e6 * x)
    assert z.isfinite().all()


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        ({}, (1,), "two features"),
        ({}, (3, 8, 8), "takes \\(D,\\)"),
        ({"couplings": 0}, (4,), "couplings: is 0; expected"),
        ({"hidden": 0}, (4,), "hidden: is 0; expected"),
        ({"hidden_layers": 0}, (4,), "hidden_layers: is 0; expected"),
        ({"bound": 0.0}, (4,), "bound: is 0; expected"),
        ({"spread": -1.0}, (4,), "spread: is -1; expected"),
        ({"pixels": "logit"}, (4,), "pixels: a flow on vectors has none"),
        ({"spread": 1.0, "kind": "glow"}, (4,), "spread: a flow on images starts with 0"),
    ],
)
def test_sizes_that_make_no_flow_are_named(settings, shape, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_flow(FlowSettings(**settings), shape, torch.Generator())


def test_the_scaling_is_set_from_data() -> None:
    flow = build_flow(FlowSettings(hidden=8), (4,), torch.Generator()).double()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 4, generator=generator, dtype=torch.float64)
    x = 100 + x * torch.tensor(
        [1.0, 10.0, 0.0, 3.0], dtype=torch.float64
    )  # one feature is constant
    flow.initialise(x)
    z, _ = flow(x)
    torch.testing.assert_close(z.mean(0), torch.zeros(4, dtype=torch.float64), atol=1e-9, rtol=0)
    assert z.square().mean().item() == pytest.approx(1)
    assert flow.scaling.scale.unique().numel() == 1
    flow.initialise(torch.ones(3, 4))  # nothing varies
    assert flow.scaling.scale.tolist() == [1.0] * 4


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_a_scaling_that_has_no_inverse_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        Scaling(3).set(0.0, scale)


def step(flow: RealNVP, x: Tensor) -> Tensor:
    z, log_det = flow(x)
    return (0.5 * z.square().sum(1) - log_det).mean()


def train(flow: RealNVP, x: Tensor, steps: int) -> list[float]:
    optimiser = torch.optim.Adam(flow.parameters(), 1e-3, fused=True)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = step(flow, x)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def test_the_round_trip_in_float32_stays_exact_after_training() -> None:
    generator = torch.Generator().manual_seed(0)
    flow = build_flow(FlowSettings(hidden=64), (1280,), generator)
    # Features of unequal spread, most of them near zero and positive, as embeddings are.
    spread = torch.rand(1280, generator=generator)
    x = spread * torch.randn(256, 1280, generator=generator).relu()
    flow.initialise(x)
    losses = train(flow, x, 30)
    assert losses[-1] < losses[0] - 100
    with torch.no_grad():
        new = spread * torch.randn(64, 1280, generator=generator).relu()
        back, _ = flow.inverse(flow(new)[0])
        assert (back - new).abs().max() < 1e-3
        z = torch.randn(64, 1280, generator=generator)
        again, _ = flow(flow.inverse(z)[0])
        assert (again - z).abs().max() < 1e-3


def test_two_gradients_add_up_in_any_order() -> None:
    flow = make_flow(6, 4, 10, 2)
    first, second = make_data(6), make_data(6) + 1

    def gradient(x: Tensor) -> Tensor:
        return torch.autograd.grad(step(flow, x), flow.weights)[0].clone()

    expected = gradient(first) + gradient(second)
    step(flow, first).backward()
    step(flow, second).backward()  # while the first is still held
    torch.testing.assert_close(flow.weights.grad, expected)
    flow.weights.grad = None
    (step(flow, first) + step(flow, second)).backward()  # two passes in one graph
    torch.testing.assert_close(flow.weights.grad, expected)


def test_a_gradient_that_is_kept_is_not_written_over() -> None:
    flow = make_flow(6, 4, 10, 2)
    (kept,) = torch.autograd.grad(step(flow, make_data(6)), flow.weights)
    copy = kept.clone()
    torch.autograd.grad(step(flow, make_data(6) + 1), flow.weights)
    assert torch.equal(kept, copy)
    view = kept[:3].numpy()
    del kept
    torch.autograd.grad(step(flow, make_data(6) + 1), flow.weights)
    assert view.tolist() == copy[:3].tolist()  # even when a view is all that is left


def test_the_gradient_keeps_its_memory_from_step_to_step() -> None:
    flow, x = make_flow(6, 4, 10, 2), make_data(6)
    places = set()
    for _ in range(4):
        flow.weights.grad = None
        step(flow, x).backward()
        places.add(flow.weights.grad.data_ptr())
    assert len(places) == 1


def test_the_layers_follow_their_weights() -> None:
    """They are taken once; a flow whose weights moved in memory must not see the old ones."""
    flow, x = make_flow(6, 3, 8, 2), make_data(6)
    other = perturb(make_flow(6, 3, 8, 2), 0.5, seed=3)
    with torch.no_grad():
        before = flow(x)[0]
        flow.weights.copy_(other.weights)
        assert torch.equal(flow(x)[0], other(x)[0])
        assert not torch.equal(flow(x)[0], before)
        flow.weights.data = make_flow(6, 3, 8, 2).weights.data
        assert torch.equal(flow(x)[0], before)
        twin = copy.deepcopy(flow)
        twin.weights.zero_()
        assert torch.equal(flow(x)[0], before)
        assert not torch.equal(twin(x)[0], before)
        assert flow.float()(x.float())[0].dtype == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_a_training_step_is_one_graph(precision: torch.dtype | None) -> None:
    """No host sync and no Python in between: what a CUDA graph asks."""
    flow, x = make_flow(6, 4, 10, 2), make_data(6)
    flow.set_precision(precision)
    step(flow, x).backward()
    expected, flow.weights.grad = flow.weights.grad, None
    torch.compiler.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    compiled(flow, x).backward()
    torch.testing.assert_close(flow.weights.grad, expected)
    with torch.no_grad():
        inverse = torch.compile(flow.inverse, fullgraph=True, backend="eager")
        torch.testing.assert_close(inverse(x)[0], flow.inverse(x)[0])


def in_both_precisions(size: int = 9) -> tuple[RealNVP, RealNVP]:
    """A flow of single precision, and the same with networks of half precision in training."""
    settings = FlowSettings(couplings=4, hidden=64, hidden_layers=2, bound=0.5, spread=2.0)
    flow = build_flow(settings, (size,), torch.Generator().manual_seed(0))
    assert isinstance(flow, RealNVP)
    half = copy.deepcopy(flow)
    half.set_precision(torch.bfloat16)
    return flow, half


def test_half_precision_leaves_log_determinants_whole() -> None:
    flow, half = in_both_precisions()
    x = make_data(9, 64).float()
    for value, other in zip(flow(x), half(x), strict=True):
        assert other.dtype == torch.float32
        torch.testing.assert_close(other, value, rtol=0.05, atol=0.05)
        assert not torch.equal(other, value)


def test_half_precision_is_for_training_alone() -> None:
    """Answers and draws are taken without a gradient: a draw lies where its latent was."""
    flow, half = in_both_precisions()
    x = make_data(9, 64).float()
    with torch.no_grad():
        for value, again in zip(flow(x), half(x), strict=True):
            assert torch.equal(value, again)
        torch.testing.assert_close(half.inverse(half(x)[0])[0], x, rtol=0, atol=1e-4)


def test_gradients_in_half_precision_point_where_those_in_single_do() -> None:
    flows = in_both_precisions()
    for _ in range(2):  # the copy of the weights follows them
        found = []
        for flow in flows:
            flow.weights.grad = None
            x = make_data(9, 64).float().requires_grad_()
            step(flow, x).backward()
            found.append((flow.weights.grad, x.grad))
        for single, half in zip(*found, strict=True):
            assert single.dtype == half.dtype == torch.float32
            assert (half - single).norm() < 0.1 * single.norm()
        with torch.no_grad():
            for flow in flows:
                flow.weights.mul_(1.2)


def test_weights_that_change_before_the_gradient_are_an_error_in_half_precision() -> None:
    _, flow = in_both_precisions()
    z, _ = flow(make_data(9).float())
    with torch.no_grad():
        flow.weights.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_the_setting_gives_half_precision() -> None:
    settings = FlowSettings(hidden=8, spread=1.0, precision="bfloat16")
    flow = build_flow(settings, (4,), torch.Generator().manual_seed(0))
    x = make_data(4).float()
    trained = flow(x)[0]
    with torch.no_grad():
        assert not torch.equal(flow(x)[0], trained)


def test_a_second_derivative_is_refused_rather_than_wrong() -> None:
    flow, x = make_flow(6, 4, 10, 2), make_data(6)
    (gradient,) = torch.autograd.grad(step(flow, x), flow.weights, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_the_trace_ends_at_the_latent() -> None:
    flow, x = make_flow(7, 3, 10, 2), make_data(7)
    values = dict(flow.trace(x))
    halves = values["couplings.1"], values["couplings.2"]
    torch.testing.assert_close(torch.cat(halves, 1), flow(x)[0])
    assert [n for n in values if n.startswith("couplings.1")] == [
        "couplings.1.layers.0.weight",
        "couplings.1.layers.0.bias",
        "couplings.1.layers.0",
        "couplings.1.layers.1.weight",
        "couplings.1.layers.1.bias",
        "couplings.1.layers.1",
        "couplings.1.layers.2.weight",
        "couplings.1.layers.2.bias",
        "couplings.1.layers.2",
        "couplings.1",
    ]
