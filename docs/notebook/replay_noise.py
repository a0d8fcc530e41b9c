"""The noise of L_FR's gradient behind ``fixed-replay.md``, at a checkpoint of ``hcl-fr-fixed``.

python docs/notebook/replay_noise.py --benchmark split-cifar100-single-pass \
    --tasks data/tasks/split-cifar100-single-pass.h5 --embeddings data/embeddings \
    --checkpoint .hcl/runs/<fingerprint>/checkpoint.pt

A run leaves its checkpoint when it is stopped; stop it in its last task. For each way to draw: the
mean squared distance of gradients from the mean of many draws, over the squared norm of that mean.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from hcl.learn.flow.learner import FlowLearner
from hcl.learn.flow.memory import Rehearsal, dealt
from hcl.model.losses import functional_loss
from hcl.train.loop import Job, build_learner
from hcl.train.machine import one_thread
from hcl.train.streams import Stream
from stages.inputs import read_inputs, read_run_asked

FIXED, BATCH, REPEATS = 64, 32, 12


class Noise:
    """Gradients of L_FR for the tasks other than the current one."""

    def __init__(self, learner: FlowLearner) -> None:
        assert isinstance(learner.memory, Rehearsal)
        assert learner.memory.snapshot is not None
        self.model, self.snapshot = learner.model, learner.memory.snapshot
        self.tasks, self.classes = learner.memory.others, learner.model.latent.num_classes
        self.generator = torch.Generator().manual_seed(0)

    def gradient(self, y: Tensor, t: Tensor, mirrored: bool = False) -> Tensor:
        """Of L_FR at draws of these pairs; with each latent's mirror image about its mean, or not.

        The tasks are taken for the first ones, as they are in the last task of a stream.
        """
        with torch.no_grad():
            means = self.snapshot.latent.means[t, y]
            noise = torch.randn(means.shape, generator=self.generator)
            z = torch.cat((means + noise, means - noise)) if mirrored else means + noise
            x, _ = self.snapshot.flow.inverse(z)
        loss = functional_loss(self.model.flow(x)[0], z)
        found = torch.autograd.grad(loss, list(self.model.flow.parameters()), allow_unused=True)
        return torch.cat([part.flatten() for part in found if part is not None])

    def of_tasks(self, draws: int) -> tuple[Tensor, Tensor]:
        """y by chance, tasks in turn."""
        first = torch.randint(self.tasks, (1,), generator=self.generator)
        y = torch.randint(self.classes, (draws,), generator=self.generator)
        return y, (first + torch.arange(draws)) % self.tasks

    def of_pairs(self, draws: int) -> tuple[Tensor, Tensor]:
        """Pairs in turn."""
        first = torch.randint(self.tasks * self.classes, (1,), generator=self.generator)
        rows, y = dealt(draws, self.tasks, self.classes, first)
        return y, rows // -(-draws // self.tasks)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--benchmark", required=True)
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--embeddings", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    options = parser.parse_args()
    asked = read_run_asked(Path("params.yaml"), options.benchmark, "hcl-fr-fixed", None)
    inputs = read_inputs(asked, options.tasks, options.embeddings)
    job = Job(*inputs, seed=0)
    stream = Stream(
        inputs.benchmark, inputs.embeddings, batch_size=BATCH, seed=0, device=torch.device("cpu")
    )
    learner = build_learner(job, stream)
    assert isinstance(learner, FlowLearner)
    kept = torch.load(options.checkpoint, weights_only=True)
    learner.restore(kept["learner"])
    noise = Noise(learner)
    ways: dict[str, Callable[[], Tensor]] = {
        f"{noise.tasks * BATCH}, the paper's": lambda: noise.gradient(
            *noise.of_tasks(noise.tasks * BATCH)
        ),
        f"{FIXED}, dealt to tasks": lambda: noise.gradient(*noise.of_tasks(FIXED)),
        f"{FIXED}, dealt to pairs": lambda: noise.gradient(*noise.of_pairs(FIXED)),
        f"{FIXED}, mirrored": lambda: noise.gradient(*noise.of_pairs(FIXED // 2), mirrored=True),
    }
    with one_thread():
        many = [noise.gradient(*noise.of_pairs(270)) for _ in range(6)]
        mean = torch.stack(many).mean(0)
        for name, gradient in ways.items():
            away = [(gradient() - mean).square().sum() for _ in range(REPEATS)]
            print(f"| {name} | {torch.stack(away).mean() / mean.square().sum():.2f} |", flush=True)


if __name__ == "__main__":
    main()
