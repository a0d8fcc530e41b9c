"""The losses of Section 4.3, all to be minimised, all means over samples.

They take what a pass through the flow gives, so that batch and replay can pass it together.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor


def likelihood_loss(log_px: Tensor) -> Tensor:
    """−L_ll: the mean of −log p̂_X(x | y, t)."""
    return -log_px.mean()


def replay_loss(log_px: Tensor) -> Tensor:
    """−L_GR (Eq. 3): the mean of −log p̂_X(x_GR | y, t) of samples that a snapshot drew.

    Paper: L_GR is the log-likelihood, to be maximised. Here: its negative, because every loss in
    the code is minimised.
    """
    return -log_px.mean()


def mixed_loss(
    log_px: Tensor,
    replayed_log_px: Tensor,
    weighing: Literal["samples", "terms"] = "samples",
    each: float = 1.0,
) -> Tensor:
    """Training on the mix of real and replayed samples.

    Paper: "the number of replay samples equal to the batch size for each of the previously observed
    tasks"; silent on how they are weighed. Here: by ``samples``, one mean over batch and replay, so
    that each task weighs the same, because with ``terms``, −L_ll − L_GR as appendix C writes it
    (1/J Σ), all old tasks together weigh as much as the batch, and that forgets more.

    Args:
        log_px: of the batch.
        replayed_log_px: of replay.
        weighing: how the two are mixed.
        each: for how many samples of the batch one replayed sample counts, where fewer are drawn
            than the paper draws. The mean of ``terms`` does not depend on it.
    """
    if weighing == "terms":
        return likelihood_loss(log_px) + replay_loss(replayed_log_px)
    if each != 1:
        weight = len(log_px) + each * len(replayed_log_px)
        return -(log_px.sum() + each * replayed_log_px.sum()) / weight
    return likelihood_loss(torch.cat((log_px, replayed_log_px)))


def functional_loss(z: Tensor, snapshot_z: Tensor) -> Tensor:
    """L_FR: the mean of ‖f_θ(x_FR) − f_θ^(k)(x_FR)‖².

    Args:
        z: latents of samples that the snapshot drew, by the current flow f_θ.
        snapshot_z: the latents that it drew them from, which are f_θ^(k)(x): the snapshot's forward
            pass is not needed.
    """
    return (z - snapshot_z).square().sum(-1).mean()
