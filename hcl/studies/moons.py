"""The two-moons study: generative replay against functional regularisation (the paper's Figure 2).

A model learns the first moon, then the second, with the same four points of the first moon as its
only replay: once with L_GR and once with L_FR, from the same snapshot and the same batches. L_FR
holds the points where they were in latent space, and with them the first moon's density; L_GR asks
only that they stay likely.

Paper: silent on the sizes, the learning rate, α and the four points. Here: ``MoonsSettings``; the
points lie at even steps along the first moon, so that each speaks for a part of it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hcl.errors import HCLError
from hcl.model.hybrid import HybridModel, build_model
from hcl.model.losses import functional_loss, likelihood_loss, replay_loss
from hcl.records.studies import VIEW, Array, MoonsStudy
from hcl.studies.settings import MoonsSettings

REPLAY_POINTS = 4


def moon(which: int, angles: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """Points about the upper (0) or lower (1) half circle, at ``angles`` from 0 to π."""
    if which == 0:
        arc = torch.stack((angles.cos(), angles.sin()), 1)
    else:
        arc = torch.stack((1 - angles.cos(), 0.5 - angles.sin()), 1)
    return arc + noise * torch.randn(arc.shape, generator=generator)


def study(settings: MoonsSettings) -> MoonsStudy:
    """Run it. The same settings on the same machine give the same numbers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors this small gain nothing from more; and one order of sums
    try:
        return _study(settings)
    finally:
        torch.set_num_threads(threads)


def _study(settings: MoonsSettings) -> MoonsStudy:
    draw = torch.Generator().manual_seed(settings.seed)

    def points(which: int) -> Tensor:
        angles = torch.pi * torch.rand(settings.samples, generator=draw)
        return moon(which, angles, settings.noise, draw)

    first, second, first_test, second_test = points(0), points(1), points(0), points(1)
    angles = torch.pi * (torch.arange(REPLAY_POINTS) + 0.5) / REPLAY_POINTS
    replay = moon(0, angles, 0.0, draw)

    model = build_model(settings.flow, (2,), 1, draw, settings.mean_scale)
    model.flow.initialise(first)
    model.add_task(draw)
    _train(model, first, 0, settings, lambda _: torch.zeros(()))
    snapshot = model.snapshot()
    with torch.no_grad():
        kept = snapshot.flow(replay)[0]
    model.add_task(draw)

    label = torch.zeros(REPLAY_POINTS, dtype=torch.long)
    extra: dict[str, Callable[[HybridModel], Tensor]] = {
        "gr": lambda m: replay_loss(m.statistics(replay, label, 0).log_px),
        "fr": lambda m: settings.alpha * functional_loss(m.flow(replay)[0], kept),
    }
    trained = {}
    for name, loss in extra.items():
        trained[name] = _thawed(model)
        _train(trained[name], second, 1, settings, loss)

    with torch.no_grad():
        latent = {"snapshot": kept, **{n: m.flow(replay)[0] for n, m in trained.items()}}
        models = {"snapshot": snapshot, **trained}
        return MoonsStudy(
            first=first.numpy(),
            second=second.numpy(),
            replay=replay.numpy(),
            density={n: _density(m, settings.grid) for n, m in trained.items()},
            latent={n: z.numpy() for n, z in latent.items()},
            mean=model.latent.means[0, 0].numpy(),
            distance={n: float((latent[n] - kept).norm(dim=1).max()) for n in trained},
            first_log_likelihood={n: _likelihood(m, first_test, 0) for n, m in models.items()},
            second_log_likelihood={n: _likelihood(m, second_test, 1) for n, m in trained.items()},
        )


def _thawed(model: HybridModel) -> HybridModel:
    """A copy that can be trained on."""
    return model.snapshot().requires_grad_(True).train()


def _train(
    model: HybridModel,
    x: Tensor,
    task: int,
    settings: MoonsSettings,
    extra: Callable[[HybridModel], Tensor],
) -> None:
    """Minimise −L_ll of ``x`` plus ``extra``; the batches depend on the seed and task alone."""
    draw = torch.Generator().manual_seed(settings.seed + 1 + task)
    optimiser = torch.optim.Adam(model.flow.parameters(), settings.learning_rate, fused=True)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.steps)
    label = torch.zeros(settings.batch_size, dtype=torch.long)
    for step in range(settings.steps):
        batch = x[torch.randint(len(x), (settings.batch_size,), generator=draw)]
        loss = likelihood_loss(model.statistics(batch, label, task).log_px) + extra(model)
        if not loss.isfinite():
            raise HCLError(
                f"moons: the loss is {float(loss)} at step {step + 1}. Lower moons.learning_rate, "
                "moons.alpha, moons.noise or moons.mean_scale."
            )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        decay.step()


def _likelihood(model: HybridModel, x: Tensor, task: int) -> float:
    label = torch.zeros(len(x), dtype=torch.long)
    return float(model.statistics(x, label, task).log_px.mean())


def _density(model: HybridModel, grid: int) -> Array:
    """½ p(x | t = 1) + ½ p(x | t = 2) over the view."""
    left, right, bottom, top = VIEW
    ys, xs = torch.meshgrid(
        torch.linspace(bottom, top, grid), torch.linspace(left, right, grid), indexing="ij"
    )
    places = torch.stack((xs.flatten(), ys.flatten()), 1)
    density: Array = model.log_likelihoods(places).exp().mean((1, 2)).reshape(grid, grid).numpy()
    return density
