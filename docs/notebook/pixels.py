"""The runs behind ``pixels.md``, ``logit.md`` and ``dense.md``: scored on held-out samples.

python docs/notebook/pixels.py pair data/embeddings/mnist-28.h5 --rate 3e-3 --mean-scale 3
python docs/notebook/pixels.py ten data/embeddings/svhn-32.h5 --kind realnvp-image
python docs/notebook/pixels.py stream data/embeddings/mnist-28.h5 --memory functional --bound 0.5

``pair`` learns to tell 2 from 3 with 500 training samples of each, ``ten`` all ten classes with 250
of each. Both print accuracy on other training samples; and of the last batch bits per dimension,
and how far latents lie from their means: |z − μ|² / D would be 1 of a perfect flow.
``stream`` learns 0 and 1, then 2 and 3, and so on, and prints the final accuracy on the tasks'
validation parts.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hcl.evaluate.scoring import score
from hcl.learn.adam import Adam
from hcl.learn.flow.settings import AllData, FlowMethod, FunctionalSettings, GenerativeSettings
from hcl.learn.settings import TrainingSettings
from hcl.model.hybrid import build_model
from hcl.model.images import dequantise, midpoints
from hcl.model.settings import FlowSettings
from hcl.records.embeddings import TRAIN, Embeddings, read
from hcl.split import StreamSettings, TaskSettings, make_benchmark
from hcl.train.loop import Job, train_seed
from hcl.train.machine import one_thread
from hcl.tune.search import on_validation
from hcl.tune.settings import TuneSettings

MEMORIES = ("all", "functional", "generative")


@dataclass(frozen=True)
class Trial:
    """Which samples are learned, which held out, and when the flow is scored."""

    classes: tuple[int, ...]
    learned: slice
    held_out: slice
    fitting: int
    looks: tuple[int, ...]  # steps


TRIALS = {
    "pair": Trial((2, 3), slice(0, 500), slice(1000, 1250), 1000, (50, 125, 250)),
    "ten": Trial(tuple(range(10)), slice(0, 250), slice(250, 290), 512, (150, 300, 450, 600)),
}


def samples(found: Embeddings, trial: Trial, part: slice) -> tuple[Tensor, Tensor]:
    """Some training samples of each class, and their labels from 0."""
    of_class = [np.flatnonzero((found.y == k) & (found.split == TRAIN)) for k in trial.classes]
    rows = np.concatenate([r[part] for r in of_class])
    x = torch.from_numpy(np.array(found.x[rows])).view(-1, *(found.pixels or ()))
    return x, torch.from_numpy(found.y[rows] - trial.classes[0])


def learn_stream(options: argparse.Namespace, flow: FlowSettings) -> None:
    """Some tasks one after the other, told, scored on their validation parts."""
    found = {"mnist": read(options.file)}
    settings = StreamSettings(
        tuple(TaskSettings("mnist", (2 * i, 2 * i + 1)) for i in range(options.tasks)),
        epochs=options.epochs,
        samples_per_class=options.samples,
    )
    benchmark = on_validation(make_benchmark("trial", settings, found, "trial"), TuneSettings())
    memory = {
        "all": AllData(),
        "functional": FunctionalSettings(alpha=options.alpha, draws=options.draws),
        "generative": GenerativeSettings(draws=options.draws),
    }[options.memory]
    training = TrainingSettings(
        learning_rate=options.rate, weight_decay=5e-5, mean_scale=options.mean_scale
    )
    method = FlowMethod(memory=memory, learning_rate_decay=options.decay, clip=options.clip)
    job = Job(benchmark, found, "trial", method, flow, training, seed=0)
    with one_thread():
        run, _ = train_seed(job)
    scores = score(run, benchmark)
    right = " ".join(f"{100 * accuracy:.1f}" for accuracy in scores.accuracy[:, -1])
    assert run.loss is not None
    later = run.loss[len(run.loss) // options.tasks :]
    bits = later.max() / math.prod(found["mnist"].pixels or ()) / math.log(2)
    print(
        f"{right} % right, overall {100 * scores.overall_accuracy:.1f}; after the first task at "
        f"most {bits:.1f} bits a dimension"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trial", choices=(*TRIALS, "stream"))
    parser.add_argument("file", type=Path, help="file of pixels that `hcl extract` wrote")
    parser.add_argument("--kind", choices=("glow", "realnvp-image"), default="glow")
    parser.add_argument("--hidden", type=int, help="channels; 32 for glow, else 16")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--decay", type=float, default=0.0, help="learning_rate_decay of a stream")
    parser.add_argument("--mean-scale", type=float, default=3.0)
    parser.add_argument("--bound", type=float, default=3.0)
    parser.add_argument("--memory", choices=MEMORIES, default="functional")
    parser.add_argument("--pixels", choices=("affine", "logit"), default="affine")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--dense", type=int, default=0, help="couplings of all values at once")
    parser.add_argument("--clip", type=float, help="of the method")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=500, help="of each class of a stream")
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--alpha", type=float, default=1.0)
    parser.add_argument("--draws", choices=("prior", "measured"), default="prior")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    glow = options.kind == "glow"
    flow = FlowSettings(
        kind=options.kind,
        scales=2 if glow else 3,
        couplings=8,
        hidden_layers=1 if glow else 2,
        hidden=options.hidden or (32 if glow else 16),
        bound=options.bound,
        pixels=options.pixels,
        precision=options.precision,
        dense=options.dense,
    )
    if options.trial == "stream":
        learn_stream(options, flow)
    else:
        learn_task(options, flow)


def learn_task(options: argparse.Namespace, flow: FlowSettings) -> None:
    """One task, scored on training samples that are not learned."""
    trial, found = TRIALS[options.trial], read(options.file)
    x, y = samples(found, trial, trial.learned)
    other_x, other_y = samples(found, trial, trial.held_out)
    generator = torch.Generator().manual_seed(0)
    model = build_model(flow, tuple(x.shape[1:]), len(trial.classes), generator, options.mean_scale)
    model.flow.initialise(dequantise(x[: trial.fitting], generator))
    model.add_task(generator)
    optimiser = Adam(model.parameters(), options.rate, weight_decay=5e-5)
    for step in range(1, trial.looks[-1] + 1):
        chosen = torch.randint(len(x), (32,), generator=generator)
        shown = dequantise(x[chosen], generator)
        log_px, log_pz, _ = model.statistics(shown, y[chosen], 0)
        loss = -log_px.mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step in trial.looks:
            right = (model.classify(midpoints(other_x)) == other_y).float().mean()
            bits = loss.item() / x[0].numel() / math.log(2)
            square = -2 * log_pz.mean().item() / x[0].numel() - math.log(2 * math.pi)
            print(
                f"{step} steps: {100 * right:.1f} % right, {bits:.2f} bits a dimension, mean of "
                f"|z − μ|² / D {square:.2f}"
            )


if __name__ == "__main__":
    main()
