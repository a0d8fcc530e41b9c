"""Supervised CURL: its bound against the log-likelihood, labels, samples, scaling."""

from __future__ import annotations

import functools
import math
import re

import pytest
import torch

from hcl.errors import HCLError
from hcl.learn.curl.settings import CurlMethod
from hcl.learn.curl.vae import SupervisedCURL
from hcl.settings import build

SMALL = CurlMethod(encoder=(32,), decoder=(32,), latents=2)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def blobs(count: int = 256) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.arange(count) % 2
    x = torch.randn(count, 4, generator=generator(1)) * 0.3 + (4.0 * y - 2.0)[:, None]
    return x, y


@functools.cache
def weights(steps: int) -> dict[str, torch.Tensor]:
    model = SupervisedCURL(SMALL, 4, 2, generator())
    x, y = blobs()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    noise = generator(2)
    for _ in range(steps):
        optimiser.zero_grad()
        model.loss(x, y, noise).mean().backward()
        optimiser.step()
    return model.state_dict()


def trained(steps: int = 150) -> SupervisedCURL:
    model = SupervisedCURL(SMALL, 4, 2, generator())
    model.load_state_dict(weights(steps))
    return model


def test_loss_bounds_the_log_likelihood():
    """On average it is no less than −log p(x | y) − log q(y | x), by importance sampling."""
    model = trained().double()
    x, y = (part[:8] for part in blobs())
    x = x.double()
    with torch.no_grad():
        bound = torch.stack([model.loss(x, y, generator(i)) for i in range(100)]).mean(0)
        z = model.prior_mean[y] + model.prior_log_std[y].exp() * torch.randn(
            5_000, 8, 2, generator=generator(), dtype=torch.float64
        )
        output = model.output_head(model.decoder(z))
        log_pxz = -0.5 * (output - x).square().sum(-1)
        log_px = log_pxz.logsumexp(0) - math.log(5_000)
        log_qy = model.label_head(model.encoder(x)).log_softmax(1)[torch.arange(8), y]
    assert (bound > -log_px - log_qy - 0.1).all()
    assert (bound < -log_px - log_qy + 2.0).all()  # and not far above it, once trained


def test_it_learns_labels_and_draws_what_it_saw():
    model = trained()
    x, y = blobs()
    assert (model.classify(x) == y).float().mean() > 0.98
    for label in (0, 1):
        drawn = model.sample(torch.full((500,), label), generator(3))
        assert drawn.mean(0) == pytest.approx(x[y == label].mean(0), abs=0.3)


def test_scaling_is_undone_in_samples():
    model = trained()
    y = torch.zeros(64, dtype=torch.int64)
    plain = model.sample(y, generator(4))
    model.set_scaling(torch.tensor(5.0), torch.tensor(3.0))
    assert torch.allclose(model.sample(y, generator(4)), plain * 3 + 5, atol=1e-5)
    x, _ = blobs()
    known = trained()
    model.load_state_dict({**known.state_dict(), "shift": model.shift, "scale": model.scale})
    assert torch.equal(model.classify(x * 3 + 5), known.classify(x))


def test_bernoulli_decoder_draws_probabilities():
    settings = CurlMethod(encoder=(32,), decoder=(32,), latents=2, likelihood="bernoulli")
    model = SupervisedCURL(settings, 4, 2, generator())
    drawn = model.sample(torch.zeros(100, dtype=torch.int64), generator())
    assert (drawn > 0).all()
    assert (drawn < 1).all()
    x = (torch.rand(16, 4, generator=generator()) > 0.5).float()
    assert torch.isfinite(model.loss(x, torch.zeros(16, dtype=torch.int64), generator())).all()


def test_snapshot_stays_as_it_was():
    model = trained(steps=5)
    snapshot = model.snapshot()
    before = snapshot.sample(torch.zeros(4, dtype=torch.int64), generator())
    with torch.no_grad():
        model.prior_mean += 10.0
    after = snapshot.sample(torch.zeros(4, dtype=torch.int64), generator())
    assert torch.equal(before, after)
    assert not any(parameter.requires_grad for parameter in snapshot.parameters())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"encoder": []}, "m.encoder: has 0 widths; list from 1 to 100."),
        ({"decoder": [0]}, "m.decoder: is (0,); expected a list, each item a whole number from 1"),
        ({"latents": 0}, "m.latents: is 0; expected a whole number from 1 to 65,536."),
    ],
)
def test_impossible_sizes_are_named(values, message):
    with pytest.raises(HCLError, match=re.escape(f"params.yaml: {message}")):
        build(CurlMethod, values, "params.yaml", "m")
