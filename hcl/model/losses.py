"""The losses of Section 4.3, all to be minimised, all means over a batch."""

from __future__ import annotations

from torch import Tensor

from hcl.model.flows import Flow
from hcl.model.hybrid import HybridModel


def likelihood_loss(model: HybridModel, x: Tensor, y: Tensor, t: Tensor | int) -> Tensor:
    """−L_ll: the mean of −log p̂_X(x | y, t)."""
    return -model.statistics(x, y, t).log_px.mean()


def replay_loss(model: HybridModel, x: Tensor, y: Tensor, t: Tensor | int) -> Tensor:
    """−L_GR (Eq. 3): the mean of −log p̂_X(x_GR | y, t) of samples that a snapshot drew.

    Paper: L_GR is the log-likelihood, to be maximised. Here: its negative, because every loss in
    the code is minimised.
    """
    return likelihood_loss(model, x, y, t)


def functional_loss(flow: Flow, x: Tensor, z: Tensor) -> Tensor:
    """L_FR: the mean of ‖f_θ(x_FR) − f_θ^(k)(x_FR)‖².

    Args:
        flow: the current flow f_θ.
        x: samples that the snapshot drew.
        z: the latents that it drew them from, which are f_θ^(k)(x): the snapshot's forward pass is
            not needed.
    """
    return latent_distance(flow(x)[0], z)


def latent_distance(z: Tensor, snapshot_z: Tensor) -> Tensor:
    """The mean of ‖z − z^(k)‖²: L_FR of latents that are at hand already."""
    return (z - snapshot_z).square().sum(-1).mean()
