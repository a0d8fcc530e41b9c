"""Matrix products in single precision on a processor, by the faster of the two that torch has.

torch hands them to MKL, which on processors that are not Intel's uses half the width of their
vector units. oneDNN, which torch brings for convolutions, uses the whole width on all of them, and
takes a little longer to begin: small products stay with MKL. Which of the two depends on nothing
but the shapes, so that the same seed gives the same bytes.

``benchmarks/products.py`` shows what it gains.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAST = 2**17  # numbers of a matrix: a layer of 360 × 360
HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def is_fit(a: Tensor, b: Tensor) -> bool:
    """Whether oneDNN can take a b, and does so quickly.

    No gradient is taken through its operator, and a matrix on the right that has gaps in memory is
    multiplied number by number, a thousand times slower.
    """
    return (
        HAS_ONEDNN
        and (b.is_contiguous() or b.T.is_contiguous())
        and not torch.compiler.is_compiling()
        and a.dtype == b.dtype == torch.float32
        and a.is_cpu
        and a.numel() > 0
        and b.is_cpu
        and not (torch.is_grad_enabled() and (a.requires_grad or b.requires_grad))
    )


def product(a: Tensor, b: Tensor, addend: Tensor | None = None) -> Tensor:
    """a b, with ``addend`` added, which ``torch.addmm`` would take.

    An addend of higher precision than a and b gives its own to the sum.
    """
    if addend is not None and addend.dtype != a.dtype:
        return addend + a @ b
    if b.numel() < LEAST or not is_fit(a, b):
        return a @ b if addend is None else torch.addmm(addend, a, b)
    if addend is None or addend.dim() == 1:
        return _by_onednn(a, b, addend)
    return _by_onednn(a, b).add_(addend)


def product_into(out: Tensor, a: Tensor, b: Tensor) -> None:
    """Write a b, of half precision perhaps, to ``out``, which never is."""
    if a.dtype != out.dtype:
        out.copy_(a @ b)
    elif out.numel() < LEAST or not is_fit(a, b):
        torch.mm(a, b, out=out)
    else:
        out.copy_(_by_onednn(a, b))


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a b, of half precision perhaps, to ``total``, which never is."""
    if a.dtype != total.dtype:
        total.add_(a @ b)
    elif b.numel() < LEAST or not is_fit(a, b):
        total.addmm_(a, b)
    else:
        total.add_(_by_onednn(a, b))


def _by_onednn(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(a, b.T, bias, "none", [], "")
