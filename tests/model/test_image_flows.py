from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hcl.model.flows import FlowSettings, build_flow
from hcl.model.hybrid import HybridModel, build_model, explain_nonfinite
from hcl.model.images import (
    ActNorm,
    ChannelMix,
    Coupling,
    Couplings,
    Highway,
    HighwayNetwork,
    ImageFlow,
    MaskedCoupling,
    PixelLogit,
    PixelScaling,
    ResidualNetwork,
    Squeeze,
    Step,
    Steps,
    checkerboard,
    convolution,
    dequantise,
    realnvp_image,
)
from hcl.model.losses import likelihood_loss
from hcl.model.model_file import hybrid_model, read_model
from tests.support.flow_checks import (
    check_gradients,
    check_inverse,
    check_log_det,
    jacobian,
    perturb,
)
from tests.support.model_files import save_flow

# kind, shape, scales, couplings, hidden layers, channels, and dense couplings
FLOWS = [
    ("realnvp-image", (1, 3, 3), 1, 2, 1, 4),
    ("realnvp-image", (1, 4, 4), 2, 4, 1, 5),
    ("realnvp-image", (3, 4, 2), 2, 5, 2, 3),
    ("realnvp-image", (1, 8, 4), 3, 8, 1, 4),
    ("glow", (1, 2, 2), 1, 2, 1, 5),
    ("glow", (1, 4, 4), 2, 4, 2, 4),
    ("glow", (3, 4, 4), 1, 2, 3, 3),
    ("glow", (2, 4, 8), 2, 2, 1, 6),
    ("glow", (1, 4, 4), 2, 2, 1, 4, 3),
    ("realnvp-image", (1, 4, 4), 2, 4, 1, 5, 2),
]


def make_flow(kind: Any, shape: tuple[int, ...], *sizes: int) -> ImageFlow:
    scales, couplings, layers, channels, *dense = sizes
    settings = FlowSettings(
        kind=kind,
        scales=scales,
        couplings=couplings,
        hidden_layers=layers,
        hidden=channels,
        dense=sum(dense),
        dense_hidden=6,
    )
    return build_flow(settings, shape, torch.Generator().manual_seed(0)).double()  # type: ignore


def images(shape: tuple[int, ...], rows: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return 256 * torch.rand(rows, *shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("case", FLOWS, ids=str)
def test_the_inverse_recovers_the_image(case: Any) -> None:
    check_inverse(perturb(make_flow(*case), 0.1), images(case[1]), tolerance=1e-8)


@pytest.mark.parametrize("case", FLOWS, ids=str)
def test_the_log_determinant_is_that_of_the_jacobian(case: Any) -> None:
    check_log_det(perturb(make_flow(*case), 0.1), images(case[1], rows=2), tolerance=1e-7)


@pytest.mark.parametrize("case", FLOWS, ids=str)
def test_every_parameter_has_its_gradient(case: Any) -> None:
    check_gradients(perturb(make_flow(*case), 0.1), images(case[1]))


GENERATOR = torch.Generator().manual_seed(0)
CHANNELS = {"channels": 3, "generator": GENERATOR}
LAYERS = {
    "pixels": (PixelScaling(), (2, 3, 3)),
    "logit": (PixelLogit(), (2, 3, 3)),
    "squeeze": (Squeeze(), (2, 4, 2)),
    "actnorm": (ActNorm(3), (3, 2, 3)),
    "mix": (ChannelMix(4, GENERATOR), (4, 2, 3)),
    "masked": (
        MaskedCoupling(ResidualNetwork(2, 4, blocks=1, **CHANNELS), checkerboard(3, 3, False), 3.0),
        (2, 3, 3),
    ),
    "checkerboard": (
        Couplings(
            [Coupling(ResidualNetwork(2, 4, blocks=2, **CHANNELS), 3.0) for _ in range(3)],
            "checkerboard",
        ),
        (1, 4, 2),
    ),
    "channels": (
        Couplings(
            [Coupling(ResidualNetwork(2, 4, blocks=1, **CHANNELS), 3.0) for _ in range(2)],
            "channels",
        ),
        (4, 2, 2),
    ),
    "step": (Step(4, HighwayNetwork(2, 4, layers=2, **CHANNELS), 3.0, GENERATOR), (4, 2, 2)),
    "steps": (
        Steps(
            [Step(4, HighwayNetwork(2, 4, layers=1, **CHANNELS), 3.0, GENERATOR) for _ in range(2)]
        ),
        (4, 2, 3),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_each_layer_alone_is_exact(name: str) -> None:
    layer: Any = perturb(LAYERS[name][0].double(), 0.2)
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(3, *LAYERS[name][1], generator=generator, dtype=torch.float64)
    z, log_det = layer(x)
    back, log_det_back = layer.inverse(z)
    torch.testing.assert_close(back, x)
    torch.testing.assert_close(log_det_back, -log_det)
    matrix = jacobian(lambda v: layer(v)[0], x)
    expected = torch.linalg.slogdet(matrix).logabsdet
    torch.testing.assert_close(log_det.detach(), expected)


def test_the_logit_takes_back_what_is_drawn_beyond_black_and_white() -> None:
    """In float32, to a hundredth of the Gaussians' spread; a plain logit ends at 0 and 256."""
    drawn = torch.linspace(-10, 10, 2001).view(-1, 1, 1, 1)
    x, log_det = PixelLogit().inverse(drawn)
    assert x.min() < 0
    assert x.max() > 256
    z, log_det_back = PixelLogit()(x)
    torch.testing.assert_close(z, drawn, atol=1e-2, rtol=0)
    torch.testing.assert_close(log_det_back, -log_det, atol=1e-2, rtol=0)


@pytest.mark.parametrize("byte", [0, 255])
def test_the_logit_widens_the_noise_of_black_and_white(byte: int) -> None:
    noise = byte + torch.linspace(0, 1, 100).view(-1, 1, 1, 1)
    plain, widened = (layer(noise)[0].std() for layer in (PixelScaling(), PixelLogit()))
    assert widened > 20 * plain


@pytest.mark.parametrize("plain", [False, True])
def test_a_coupling_leaves_its_half_as_it_is(plain: bool) -> None:
    """And the next one changes it, given the other."""
    x = torch.randn(3, 4, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    board = checkerboard(4, 4, False).bool().expand(4, 4, 4)
    channels = torch.arange(4)[:, None, None].expand(4, 4, 4) < 2
    for halves, inputs, first in (("checkerboard", 8, board), ("channels", 2, channels)):
        network = ResidualNetwork(inputs, 2 * inputs, blocks=1, **CHANNELS)
        one = Couplings([Coupling(network, 3.0)], halves)  # type: ignore[arg-type]
        z, _ = perturb(one.double(), 0.2)(x, plain)
        assert torch.equal(z == x, first.expand_as(x))
        network = ResidualNetwork(inputs, 2 * inputs, blocks=1, **CHANNELS)
        two = Couplings([*one.couplings, Coupling(network, 3.0)], halves)  # type: ignore
        again, _ = perturb(two.double(), 0.2)(x, plain)
        assert not (again == x).any()


def test_a_mask_covers_what_stays() -> None:
    x = torch.randn(3, 2, 3, 2, generator=torch.Generator().manual_seed(0)).double()
    layer = MaskedCoupling(
        ResidualNetwork(2, 4, blocks=1, **CHANNELS), checkerboard(3, 2, True), 3.0
    )
    z, _ = perturb(layer.double(), 0.2)(x)
    assert torch.equal((z == x)[0, 0].double(), layer.mask[0])


@pytest.mark.parametrize("cached", [2**18, 20])
@pytest.mark.parametrize("case", FLOWS, ids=str)
def test_networks_by_hand_are_those_of_the_modules(
    case: Any, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients, also where a layer is worked off in parts."""
    monkeypatch.setattr("hcl.model.images.CACHED", cached)
    flow, x = perturb(make_flow(*case), 0.1), images(case[1]).requires_grad_()
    weights = torch.randn(len(x), flow.size, generator=torch.Generator().manual_seed(1)).double()

    def answers(plain: bool) -> list[Tensor]:
        z, log_det = flow(x, plain)
        total = (weights * z).sum() + (weights[:, 0] * log_det).sum()
        return [z, log_det, *torch.autograd.grad(total, [x, *flow.parameters()])]

    for ours, expected in zip(answers(False), answers(True), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        z, log_det = flow(x)
        back, _ = flow.inverse(z)
    torch.testing.assert_close(log_det, flow(x, True)[1], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(back, flow.inverse(z)[0], rtol=1e-9, atol=1e-9)


def test_a_folded_checkerboard_is_a_checkerboard() -> None:
    """Both builders' first scale changes the odd pixels first, given the even ones alone."""
    for folded in (True, False):
        generator = torch.Generator().manual_seed(0)
        flow = realnvp_image(
            (1, 4, 4),
            scales=1,
            couplings=1,
            channels=4,
            blocks=1,
            bound=3.0,
            generator=generator,
            folded=folded,
        ).double()
        x = images((1, 4, 4), rows=1)
        even = checkerboard(4, 4, False).flatten().bool()
        perturb(flow, 0.2)
        matrix = jacobian(lambda v: flow(v)[0], x)[0]  # noqa: B023
        assert torch.equal(matrix[even], torch.eye(16).double()[even] / 64)
        assert (matrix[~even][:, ~even].fill_diagonal_(0) == 0).all()
        assert (matrix[~even][:, even] != 0).any(1).all()


@pytest.mark.parametrize("case", [FLOWS[1], FLOWS[5]], ids=str)
def test_networks_in_half_precision_leave_log_determinants_whole(case: Any) -> None:
    flow, x = perturb(make_flow(*case), 0.05).float(), images(case[1]).float()
    seen: list[torch.dtype] = []
    terms: list[torch.dtype] = []
    for module in flow.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda m, inputs, output: seen.append(output.dtype))
        if isinstance(module, Coupling):
            module.register_forward_hook(lambda m, inputs, output: terms.append(output[1].dtype))
    exact = flow(x)
    assert not seen  # by hand
    flow.set_precision(torch.bfloat16)
    for plain in (False, True):
        z, log_det = flow(x, plain)
        assert z.dtype == log_det.dtype == torch.float32
        torch.testing.assert_close(log_det, exact[1], rtol=0.01, atol=0)
        assert not torch.equal(log_det, exact[1])
    assert set(seen) == {torch.bfloat16}
    assert set(terms) == {torch.float32}


def test_half_precision_reaches_a_checkerboard_that_is_not_folded() -> None:
    flow = realnvp_image(
        (1, 4, 4),
        scales=2,
        couplings=4,
        channels=4,
        blocks=1,
        bound=3.0,
        generator=torch.Generator().manual_seed(0),
        folded=False,
    )
    perturb(flow, 0.05)
    seen: list[torch.dtype] = []
    for module in flow.modules():
        if isinstance(module, MaskedCoupling):
            module.network.register_forward_hook(lambda m, given, out: seen.append(out.dtype))
    flow.set_precision(torch.bfloat16)
    z, log_det = flow(images((1, 4, 4)).float())
    assert z.dtype == log_det.dtype == torch.float32
    assert set(seen) == {torch.bfloat16}


@pytest.mark.parametrize("case", [FLOWS[1], FLOWS[5]], ids=str)
def test_half_precision_is_for_training_alone(case: Any) -> None:
    """Answers and draws are taken without a gradient: a draw lies where its latent was."""
    flow, x = perturb(make_flow(*case), 0.05).float(), images(case[1]).float()
    with torch.no_grad():
        exact = flow(x)
        flow.set_precision(torch.bfloat16)
        for value, again in zip(exact, flow(x), strict=True):
            assert torch.equal(value, again)
        torch.testing.assert_close(flow.inverse(exact[0])[0], x, rtol=0, atol=0.05)


@pytest.mark.parametrize("case", [FLOWS[1], FLOWS[5]], ids=str)
def test_gradients_by_hand_in_half_precision_point_where_those_in_single_do(case: Any) -> None:
    flow, x = perturb(make_flow(*case), 0.05).float(), images(case[1], rows=64).float()
    found = []
    for precision in (None, torch.bfloat16):
        flow.set_precision(precision)
        flow.zero_grad()
        z, log_det = flow(x)
        (z.square().sum(1) / 2 - log_det).mean().backward()
        grads = [parameter.grad for parameter in flow.parameters()]
        assert {grad.dtype for grad in grads if grad is not None} == {torch.float32}
        found.append([grad.flatten() for grad in grads if grad is not None])
    for single, half in zip(*found, strict=True):
        assert (half - single).norm() < 0.1 * single.norm()


class NoHostSync(TorchDispatchMode):
    """Fails on what would make a GPU wait for the host."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = str(function)
        assert "_local_scalar_dense" not in name
        assert "nonzero" not in name
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("case", [FLOWS[3], FLOWS[5]], ids=str)
def test_the_host_reads_nothing_back_inside_a_step(case: Any) -> None:
    flow, x = perturb(make_flow(*case), 0.05), images(case[1])
    with NoHostSync():
        z, log_det = flow(x, plain=True)
        (z.square().sum() - log_det.sum()).backward()
        flow.inverse(z.detach())


def test_a_density_on_tiny_images_integrates_to_one() -> None:
    """Two pixels, so that the integral over all images can be taken."""
    flow = perturb(make_flow("realnvp-image", (1, 1, 2), 1, 4, 1, 4), 0.2)
    with torch.no_grad():
        noise = torch.randn(20_000, 2, generator=torch.Generator().manual_seed(0)).double()
        x = flow.inverse(noise)[0].flatten(1)
        low, high = x.amin(0), x.amax(0)
        low, high = low - 0.5 * (high - low), high + 0.5 * (high - low)
        axes = [torch.linspace(low[i], high[i], 301, dtype=torch.float64) for i in range(2)]
        total = 0.0
        for part in axes[0].split(100):
            z, log_det = flow(torch.cartesian_prod(part, axes[1]).view(-1, 1, 1, 2))
            total += (log_det - 0.5 * z.square().sum(1) - math.log(2 * math.pi)).exp().sum().item()
    cell = (axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0])
    assert total * cell.item() == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize(
    "case", [("realnvp-image", (1, 2, 2), 1, 4, 1, 4), ("glow", (1, 2, 2), 1, 3, 2, 4)], ids=str
)
def test_a_density_on_four_pixels_integrates_to_one(case: Any) -> None:
    """By importance sampling: the mean of p/q under a Gaussian q that is wider than p."""
    flow = perturb(make_flow(*case), 0.15)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        noise = torch.randn(20_000, 4, generator=generator, dtype=torch.float64)
        x = flow.inverse(noise)[0].flatten(1)
        q = torch.distributions.MultivariateNormal(x.mean(0), 2 * x.T.cov())
        noise = torch.randn(40_000, 4, generator=generator, dtype=torch.float64)
        points = q.mean + noise @ torch.linalg.cholesky(q.covariance_matrix).T
        z, log_det = flow(points.view(-1, 1, 2, 2))
        log_p = log_det - 0.5 * z.square().sum(1) - 2 * math.log(2 * math.pi)
        weights = (log_p - q.log_prob(points)).exp()
    error = weights.std().item() / math.sqrt(len(weights))
    assert error < 0.01
    assert weights.mean().item() == pytest.approx(1, abs=4 * error)


@pytest.mark.parametrize("case", FLOWS, ids=str)
def test_log_likelihoods_agree_with_torch_distributions(case: Any) -> None:
    flow, x = perturb(make_flow(*case), 0.1), images(case[1], rows=2)
    eye = torch.eye(flow.size, dtype=torch.float64)
    base = torch.distributions.MultivariateNormal(eye[0], eye)
    density = torch.distributions.TransformedDistribution(base, [FromLatent(flow)])
    with torch.no_grad():
        z, log_det = flow(x)
    torch.testing.assert_close(base.log_prob(z) + log_det, density.log_prob(x))


class FromLatent(torch.distributions.Transform):
    """z ↦ x, with the log-determinant from autograd and not from the flow."""

    domain = torch.distributions.constraints.real_vector
    codomain = torch.distributions.constraints.independent(torch.distributions.constraints.real, 3)
    bijective = True

    def __init__(self, flow: ImageFlow) -> None:
        super().__init__()
        self.flow = flow

    def _call(self, z: Tensor) -> Tensor:
        return self.flow.inverse(z)[0]

    def _inverse(self, x: Tensor) -> Tensor:
        return self.flow(x)[0].detach()

    def log_abs_det_jacobian(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.linalg.slogdet(jacobian(lambda v: self.flow.inverse(v)[0], z)).logabsdet

    def forward_shape(self, shape: torch.Size) -> torch.Size:
        return torch.Size((*shape[:-1], *self.flow.shape))

    def inverse_shape(self, shape: torch.Size) -> torch.Size:
        return torch.Size((*shape[:-3], self.flow.size))


def test_activation_norms_are_set_from_data() -> None:
    """Each one's output has mean 0 and variance 1 by channel, deep in the flow too."""
    flow = make_flow("glow", (2, 8, 8), 2, 6, 1, 8)
    x = images((2, 8, 8), rows=50) * torch.tensor([0.2, 1.0]).view(2, 1, 1)
    seen: list[Tensor] = []
    for module in flow.modules():
        if isinstance(module, ActNorm):
            module.register_forward_hook(lambda m, inputs, output: seen.append(output[0]))
    flow.initialise(x)
    seen.clear()
    flow(x, plain=True)
    assert len(seen) == 6
    for output in seen:
        zero = torch.zeros(output.shape[1], dtype=torch.float64)
        torch.testing.assert_close(output.mean((0, 2, 3)), zero, atol=1e-9, rtol=0)
        torch.testing.assert_close(output.std((0, 2, 3), unbiased=False), zero + 1)


def test_a_constant_channel_does_not_break_the_activation_norm() -> None:
    norm = ActNorm(2)
    norm.initialise(torch.ones(5, 2, 3, 3))
    z, log_det = norm(torch.ones(5, 2, 3, 3))
    assert torch.equal(z, torch.zeros(5, 2, 3, 3))
    assert torch.equal(log_det, torch.zeros(5))


def test_the_channel_mix_starts_as_a_rotation() -> None:
    mix = ChannelMix(6, torch.Generator().manual_seed(0)).double()
    lower, upper = mix._factors()
    weight = mix.permutation @ lower @ upper
    eye = torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(weight @ weight.T, eye, atol=1e-5, rtol=0)
    assert (weight - eye).abs().max() > 0.1


def test_the_highway_carries_its_input_at_first() -> None:
    layer = Highway(4, torch.Generator().manual_seed(0))
    x = torch.ones(1, 4, 2, 2)
    assert (layer(x) - x).abs().max() < 0.3
    with torch.no_grad():
        layer.both.bias[4:].fill_(50.0)  # an open gate lets the value through
        torch.testing.assert_close(layer(x), torch.relu(layer.both(x)[:, :4]))


def test_value_and_gate_of_a_highway_are_drawn_one_after_the_other() -> None:
    """As two convolutions, so that a seed stands for the same first weights."""
    layer = Highway(4, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    value, gate = (convolution(4, 4, 1, generator) for _ in range(2))
    assert torch.equal(layer.both.weight, torch.cat((value.weight, gate.weight)))
    bias = cast("Tensor", layer.both.bias)
    assert torch.equal(bias[:4], cast("Tensor", value.bias))


def test_every_part_of_an_image_reaches_the_latent_once() -> None:
    """Behind the identity couplings of RealNVP the latent is a permutation of the pixels."""
    flow = make_flow("realnvp-image", (3, 8, 8), 3, 8, 1, 4)
    x = images((3, 8, 8), rows=2)
    z, log_det = flow(x)
    assert flow.size == 192
    torch.testing.assert_close(z.sort(1).values, flow.pixels(x)[0].flatten(1).sort(1).values)
    torch.testing.assert_close(log_det, torch.full((2,), -192 * math.log(64)).double())


@pytest.mark.parametrize(
    ("settings", "shape", "couplings", "network"),
    [
        (
            FlowSettings("realnvp-image", couplings=16, hidden_layers=8, hidden=64, scales=3),
            (3, 32, 32),
            [(6, 12)] * 3 + [(6, 12)] * 3 + [(12, 24)] * 3 + [(12, 24)] * 3 + [(24, 48)] * 4,
            nn.GroupNorm,
        ),
        (
            FlowSettings("glow", couplings=28, hidden_layers=3, hidden=200, scales=2),
            (1, 28, 28),
            [(2, 4)] * 14 + [(4, 8)] * 14,
            Highway,
        ),
    ],
)
def test_the_paper_s_sizes(
    settings: FlowSettings, shape: tuple[int, ...], couplings: list[Any], network: type
) -> None:
    generator = torch.Generator().manual_seed(0)
    flow = build_flow(settings, shape, generator)
    assert isinstance(flow, ImageFlow)
    found = [m for m in flow.modules() if isinstance(m, Coupling)]
    layers = [[m for m in coupling.modules() if isinstance(m, nn.Conv2d)] for coupling in found]
    assert [(own[0].in_channels, own[-1].out_channels) for own in layers] == couplings
    for coupling in found:
        count = sum(isinstance(m, network) for m in coupling.modules())
        assert count == (17 if network is nn.GroupNorm else 3)
    x = dequantise(torch.randint(256, (2, *shape), generator=generator), generator)
    flow.initialise(x)
    perturb(flow, 0.003)
    with torch.no_grad():
        z, log_det = flow(x)
        back, log_det_back = flow.inverse(z)
    assert (back - x).abs().max() < 0.02  # float32, on a range of 256
    torch.testing.assert_close(log_det_back, -log_det, rtol=1e-4, atol=0.1)


def squares(rows: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Bytes: a grey square somewhere on black, as far from a Gaussian as digits are."""
    images = torch.zeros(rows, *shape, dtype=torch.uint8)
    side = shape[1] // 3
    for image in images:
        top, left, grey = (
            torch.randint(high, (), generator=generator) for high in (side, side, 90)
        )
        image[:, side + top - 3 : 2 * side + top - 3, left + 3 : left + 3 + side] = 160 + grey
    return images


def test_the_first_step_of_the_paper_s_glow_goes_downhill() -> None:
    """At rate 1e-3. Its width must not turn a step of Adam into a leap."""
    generator = torch.Generator().manual_seed(0)
    settings = FlowSettings("glow", couplings=28, hidden_layers=3, hidden=200, scales=2)
    model = build_model(settings, (1, 28, 28), 2, generator)
    model.add_task(generator)
    x = dequantise(squares(4, (1, 28, 28), generator), generator)
    y = torch.arange(4) % 2
    model.flow.initialise(x)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    losses = []
    for _ in range(3):
        optimiser.zero_grad()
        loss = likelihood_loss(model.statistics(x, y, 0).log_px)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[0] > losses[1] > losses[2]


def test_bytes_become_reals_within_their_cell() -> None:
    generator = torch.Generator().manual_seed(0)
    bytes_ = torch.randint(256, (100, 3, 20, 20), generator=generator, dtype=torch.uint8)
    x = dequantise(bytes_, generator)
    assert x.dtype == torch.float32
    assert torch.equal(x.floor().to(torch.uint8), bytes_)
    assert x.max() < 256
    noise = x - bytes_
    assert noise.mean().item() == pytest.approx(0.5, abs=0.005)
    assert noise.var().item() == pytest.approx(1 / 12, rel=0.02)
    assert torch.equal(
        dequantise(bytes_, torch.Generator().manual_seed(1)),
        dequantise(bytes_, torch.Generator().manual_seed(1)),
    )


@pytest.mark.parametrize("highest", [0.0, 1 - 2**-24])
def test_no_noise_reaches_the_next_byte(highest: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.full(shape[0], highest))
    bytes_ = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(dequantise(bytes_, torch.Generator()).floor().to(torch.uint8), bytes_)


def train(settings: FlowSettings, draw: Any, shape: tuple[int, ...], steps: int) -> HybridModel:
    """A model of one class, trained on bytes that ``draw`` makes, dequantised anew each time."""
    generator = torch.Generator().manual_seed(0)
    model = build_model(settings, shape, 1, generator)
    model.add_task(generator)
    model.flow.initialise(dequantise(draw(512, generator), generator))
    optimiser = torch.optim.Adam(model.parameters(), 3e-3, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        x = dequantise(draw(64, generator), generator)
        optimiser.zero_grad()
        label = torch.zeros(64, dtype=torch.long)
        likelihood_loss(model.statistics(x, label, 0).log_px).backward()
        optimiser.step()
        schedule.step()
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        FlowSettings("realnvp-image", couplings=6, hidden_layers=1, hidden=16, scales=2),
        FlowSettings("glow", couplings=6, hidden_layers=1, hidden=16, scales=2),
    ],
    ids=lambda settings: settings.kind,
)
def test_bits_per_dimension_come_close_to_a_known_entropy(settings: FlowSettings) -> None:
    """Pixels that share a brightness: bytes of a Gaussian whose entropy has a closed form.

    Rounding to bytes and uniform noise add 1/6 to the variance of each pixel, 25.
    """
    shape, sizes = (1, 4, 4), (4, 4)
    covariance = 400 * torch.ones(16, 16) + (25 + 1 / 6) * torch.eye(16)
    entropy = 0.5 * (16 * math.log(2 * math.pi * math.e) + torch.logdet(covariance).item())

    def draw(rows: int, generator: torch.Generator) -> Tensor:
        shared = 20 * torch.randn(rows, 1, 1, 1, generator=generator)
        noise = 5 * torch.randn(rows, 1, *sizes, generator=generator)
        return (128 + shared + noise).round().clamp(0, 255).to(torch.uint8)

    model = train(settings, draw, shape, steps=300)
    generator = torch.Generator().manual_seed(1)
    x = dequantise(draw(4096, generator), generator)
    with torch.no_grad():
        nats = -model.statistics(x, torch.zeros(4096, dtype=torch.long), 0).log_px
    error = nats.std().item() / 64
    bits = nats.mean().item() / 16 / math.log(2)
    expected = entropy / 16 / math.log(2)
    apart = 0.5 * math.log2(2 * math.pi * math.e * 425)  # of pixels that know nothing of each other
    assert apart - expected > 1
    assert bits > expected - 4 * error / 16 / math.log(2)
    assert bits < expected + 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        FlowSettings("realnvp-image", couplings=8, hidden_layers=1, hidden=16, scales=3),
        FlowSettings("glow", couplings=8, hidden_layers=2, hidden=16, scales=2),
    ],
    ids=lambda settings: settings.kind,
)
def test_a_trained_flow_takes_its_samples_there_and_back(settings: FlowSettings) -> None:
    """In float32, within half a byte."""
    shape = (1, 16, 16)
    model = train(settings, lambda rows, generator: squares(rows, shape, generator), shape, 150)
    generator = torch.Generator().manual_seed(1)
    snapshot = model.snapshot()
    x, z = snapshot.sample(torch.zeros(64, dtype=torch.long), 0, generator)
    with torch.no_grad():
        again, log_det = snapshot.flow(x)
        back, _ = snapshot.flow.inverse(again)
        start = 64 * 256 * math.log(64)
    assert (log_det + start / 64).mean() > 256  # far from the identity by now
    assert (back - x).abs().max() < 0.5
    torch.testing.assert_close(again, z, atol=1e-2, rtol=0)


@pytest.mark.parametrize("case", [FLOWS[1], FLOWS[5]], ids=str)
def test_a_snapshot_has_weights_of_its_own_and_can_be_renewed(case: Any) -> None:
    settings = FlowSettings(case[0], case[3], case[4], case[5], scales=case[2])
    model = build_model(settings, case[1], 2, torch.Generator().manual_seed(0))
    snapshot, x = model.snapshot(), images(case[1]).float()
    with torch.no_grad():
        before = model.flow(x)[0]
        perturb(model.flow, 0.1)
        after = model.flow(x)[0]
        assert torch.equal(snapshot.flow(x)[0], before)
        assert not torch.equal(after, before)
        snapshot.copy_from(model)
        assert torch.equal(snapshot.flow(x)[0], after)


def test_one_seed_gives_one_flow() -> None:
    settings = FlowSettings("glow", couplings=4, hidden_layers=1, hidden=8, scales=2)
    shape = (1, 8, 8)
    first, second = (
        train(settings, lambda rows, generator: squares(rows, shape, generator), shape, 3)
        for _ in range(2)
    )
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        ({"kind": "glow", "scales": 2, "couplings": 4}, (1, 6, 8), "divisible by 4"),
        ({"kind": "glow", "scales": 2, "couplings": 5}, (1, 8, 8), "multiple of 2"),
        ({"kind": "glow"}, (64,), "C, H, W"),
        ({"kind": "realnvp-image", "scales": 3, "couplings": 3}, (1, 8, 8), "too few"),
        ({"kind": "realnvp-image", "scales": 3}, (1, 6, 6), "divisible by 4"),
        ({"kind": "realnvp-image", "scales": 3}, (1, 4, 4), "no checkerboard"),
        ({"kind": "realnvp", "scales": 2}, (8,), "scales"),
        ({"kind": "realnvp", "dense": 2}, (8,), "dense: a flow on vectors is dense already"),
    ],
)
def test_sizes_that_make_no_flow_are_named(settings: Any, shape: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_flow(FlowSettings(**settings), shape, torch.Generator())


def test_dense_couplings_put_a_place_where_its_mean_is() -> None:
    """Images that are noise, and a mean for each place: convolutions do the same everywhere."""
    apart = {}
    for dense in (0, 2):
        settings = FlowSettings("glow", 2, 1, 8, dense=dense, dense_hidden=16)
        generator = torch.Generator().manual_seed(0)
        model = build_model(settings, (1, 8, 8), 1, generator)
        model.add_task(generator)
        optimiser = torch.optim.Adam(model.parameters(), 1e-2, fused=True)
        for _ in range(100):
            x = dequantise(torch.randint(256, (32, 1, 8, 8), generator=generator), generator)
            log_px, _, _ = model.statistics(x, torch.zeros(32, dtype=torch.long), 0)
            optimiser.zero_grad()
            likelihood_loss(log_px).backward()
            optimiser.step()
        z, _ = model.flow(dequantise(torch.full((512, 1, 8, 8), 128), generator))
        apart[dense] = (z.mean(0) - model.latent.means[0, 0]).square().mean().item()
    assert apart[2] < apart[0] / 2


@pytest.mark.parametrize("case", [FLOWS[1], FLOWS[5], FLOWS[8]], ids=str)
def test_a_model_on_images_trains_replays_and_is_saved(case: Any, tmp_path: Any) -> None:
    kind, shape, scales, couplings, layers, channels, *dense = case
    generator = torch.Generator().manual_seed(0)
    settings = FlowSettings(kind, couplings, layers, channels, scales=scales, dense=sum(dense))
    model = build_model(settings, shape, 2, generator)
    model.add_task(generator)
    y = torch.arange(64) % 2
    bytes_ = (
        60 + 100 * y[:, None, None, None] + torch.randint(40, (64, *shape), generator=generator)
    ).to(torch.uint8)
    model.flow.initialise(dequantise(bytes_, generator))
    optimiser = torch.optim.Adam(model.parameters(), 5e-3, fused=True)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        loss = -model.statistics(dequantise(bytes_, generator), y, 0).log_px.mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 5
    assert (model.classify(dequantise(bytes_, generator)) == y).float().mean() > 0.95
    snapshot = model.snapshot()
    x, z = snapshot.sample(y, 0, generator)
    assert x.shape == (64, *shape)
    torch.testing.assert_close(model.flow(x)[0], z, atol=1e-3, rtol=0)
    save_flow(tmp_path / "model", model)
    loaded = hybrid_model(read_model(tmp_path / "model"), "model")
    assert torch.equal(loaded.log_likelihoods(x), model.log_likelihoods(x))


@pytest.mark.parametrize("case", [FLOWS[2], FLOWS[5]], ids=str)
def test_a_nan_weight_is_named_by_its_layer(case: Any) -> None:
    settings = FlowSettings(case[0], case[3], case[4], case[5], scales=case[2])
    model = build_model(settings, case[1], 2, torch.Generator().manual_seed(0))
    name, module = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Conv2d)][3]
    with torch.no_grad():
        module.weight[0] = math.nan
    x = images(case[1]).float()
    assert explain_nonfinite(model, x) == f"NaN or overflow in {name}.weight"
    assert all(not m._forward_hooks for m in model.modules())
