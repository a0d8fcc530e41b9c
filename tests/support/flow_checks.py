"""What every flow must satisfy, whatever its kind. In float64, on perturbed weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def perturb(flow: Any, scale: float, seed: int = 0) -> Any:
    """Random weights everywhere: a flow that starts as the identity passes any test."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in flow.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(scale * noise)
    return flow


def jacobian(function: Any, x: Tensor) -> Tensor:
    """∂ function(x)_i / ∂ x_j for each sample, (B, D, D), by autograd."""
    rows = torch.autograd.functional.jacobian(lambda v: function(v).flatten(1).sum(0), x)
    return rows.flatten(2).transpose(0, 1)


def check_inverse(flow: Any, x: Tensor, tolerance: float) -> None:
    """inverse(forward(x)) = x, and the other way round; log-determinants cancel."""
    with torch.no_grad():
        z, log_det = flow(x)
        back, log_det_back = flow.inverse(z)
        again, _ = flow(back)
    assert z.shape == (len(x), flow.size)
    assert log_det.shape == log_det_back.shape == (len(x),)
    assert (z - x.flatten(1)).abs().max() > 0.1, "the flow is (nearly) the identity"
    torch.testing.assert_close(back, x, atol=tolerance, rtol=0)
    torch.testing.assert_close(again, z, atol=tolerance, rtol=0)
    torch.testing.assert_close(log_det_back, -log_det, atol=tolerance, rtol=0)


def check_log_det(flow: Any, x: Tensor, tolerance: float) -> None:
    """log_det is slogdet of the Jacobian that autograd finds, in both directions."""
    z, log_det = flow(x)
    expected = torch.linalg.slogdet(jacobian(lambda v: flow(v)[0], x)).logabsdet
    assert expected.abs().max() > 0.01
    torch.testing.assert_close(log_det.detach(), expected, atol=tolerance, rtol=0)
    z = z.detach()
    _, log_det = flow.inverse(z)
    expected = torch.linalg.slogdet(jacobian(lambda v: flow.inverse(v)[0], z)).logabsdet
    torch.testing.assert_close(log_det.detach(), expected, atol=tolerance, rtol=0)


def check_gradients(flow: Any, x: Tensor) -> None:
    """Every parameter has a gradient, and each is the slope that a small step shows.

    The slope is taken along a random direction for each parameter.
    """
    generator = torch.Generator().manual_seed(1)
    parameters = dict(flow.named_parameters())
    weights = torch.randn(len(x), flow.size, generator=generator, dtype=x.dtype)

    def objective() -> Tensor:
        z, log_det = flow(x)
        return (weights * z).sum() + (log_det * weights[:, 0]).sum()

    gradients = torch.autograd.grad(objective(), parameters.values())
    for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
        assert gradient.abs().max() > 0, name
        direction = torch.randn(parameter.shape, generator=generator, dtype=x.dtype)
        step = 1e-6
        with torch.no_grad():
            parameter.add_(step * direction)
            above = objective()
            parameter.sub_(2 * step * direction)
            below = objective()
            parameter.add_(step * direction)
        slope = (above - below) / (2 * step)
        torch.testing.assert_close(
            (gradient * direction).sum(), slope, rtol=1e-5, atol=1e-5, msg=f"gradient of {name}"
        )
