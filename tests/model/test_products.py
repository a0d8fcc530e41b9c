"""Products by oneDNN: the same values as torch's own, and only where they are quick."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hcl.model import products
from hcl.model.products import add_product, product, product_into
from hcl.model.realnvp import RealNVP

SIDE = 400  # 160,000 numbers: large


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what oneDNN is given."""
    found: list[tuple[int, ...]] = []
    by_onednn = products._by_onednn

    def watched(a: torch.Tensor, b: torch.Tensor, bias: Any = None) -> torch.Tensor:
        found.append(tuple(b.shape))
        return by_onednn(a, b, bias)

    monkeypatch.setattr(products, "_by_onednn", watched)
    return found


def close(found: torch.Tensor, a: torch.Tensor, b: torch.Tensor, addend: Any = 0.0) -> None:
    torch.testing.assert_close(found.double(), a.double() @ b.double() + addend, rtol=0, atol=1e-3)


@pytest.mark.parametrize("side", [8, SIDE])
@pytest.mark.parametrize("turned", [False, True])
def test_product_is_the_product(side: int, turned: bool, taken: list[tuple[int, ...]]) -> None:
    a, b = drawn(5, side), drawn(side, side, seed=1)
    b = b.T if turned else b
    close(product(a, b), a, b)
    row, whole = drawn(side, seed=2), drawn(5, side, seed=3)
    column = drawn(5, 1, seed=4)
    for addend in (row, whole, column):
        kept = addend.clone()
        close(product(a, b, addend), a, b, addend.double())
        assert torch.equal(addend, kept)
    assert len(taken) == (4 if side == SIDE and products.HAS_ONEDNN else 0)


@pytest.mark.parametrize("side", [8, SIDE])
def test_product_into_and_add_product_write_in_place(side: int) -> None:
    a, b, total = drawn(side, 6), drawn(6, side, seed=1), drawn(side, side, seed=2)
    before = total.double()
    product_into(out := torch.empty(side, side), a, b)
    close(out, a, b)
    add_product(total, a, b)
    close(total, a, b, before)


def test_add_product_sums_half_precision_in_whole() -> None:
    a, b, total = drawn(4, 8), drawn(8, 4, seed=1), torch.ones(4, 4)
    add_product(total, a.bfloat16(), b.bfloat16())
    assert total.dtype == torch.float32
    torch.testing.assert_close(total, 1 + a @ b, rtol=0.05, atol=0.1)


def test_no_samples_are_no_error() -> None:
    none, weight = torch.empty(0, SIDE), drawn(SIDE, SIDE)
    assert product(none, weight, drawn(SIDE)).shape == (0, SIDE)
    product_into(out := torch.ones(SIDE, SIDE), none.T, none)
    assert not out.any()


def test_a_gradient_is_taken_where_one_is_asked_for() -> None:
    a, b = drawn(3, SIDE), drawn(SIDE, SIDE, seed=1).requires_grad_()
    product(a, b).sum().backward()
    assert b.grad is not None
    torch.testing.assert_close(b.grad, a.sum(0)[:, None].expand_as(b))


def test_a_matrix_with_gaps_stays_with_torch(taken: list[tuple[int, ...]]) -> None:
    """oneDNN would multiply it number by number, a thousand times slower."""
    a, wide = drawn(3, SIDE), drawn(SIDE, 2 * SIDE, seed=1)
    close(product(a, wide[:, :SIDE]), a, wide[:, :SIDE])
    assert taken == []


def test_a_wide_flow_has_the_gradient_that_it_has_in_double_precision(
    taken: list[tuple[int, ...]],
) -> None:
    """The paper's width: by hand in float32 and by oneDNN, against autograd in float64."""
    flow = RealNVP(
        600,
        couplings=2,
        hidden=512,
        hidden_layers=2,
        bound=0.5,
        generator=torch.Generator().manual_seed(0),
        spread=2.0,
    )
    x, noise = drawn(7, 600), drawn(7, 600, seed=1)
    grads = {}
    for precision in (torch.float64, torch.float32):
        flow.to(precision)
        flow.weights.grad = None
        z, log_det = flow(x.to(precision))
        ((z * noise).sum() + log_det.sum()).backward()
        assert flow.weights.grad is not None
        grads[precision] = flow.weights.grad.double().clone()
    assert bool(taken) == products.HAS_ONEDNN
    torch.testing.assert_close(grads[torch.float32], grads[torch.float64], rtol=1e-3, atol=1e-3)
