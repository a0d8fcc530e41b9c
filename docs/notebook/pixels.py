"""The runs behind ``pixels.md``: one task on pixels, scored on held-out training samples.

python docs/notebook/pixels.py pair data/embeddings/mnist-28.h5 --rate 3e-3 --mean-scale 3
python docs/notebook/pixels.py ten data/embeddings/svhn-32.h5 --kind realnvp-image

``pair`` learns to tell 2 from 3 with 500 training samples of each, ``ten`` all ten classes with 250
of each. Both print accuracy on other training samples, and bits per dimension of the last batch.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hcl.learn.adam import Adam
from hcl.model.hybrid import build_model
from hcl.model.images import dequantise, midpoints
from hcl.model.settings import FlowSettings
from hcl.records.embeddings import TRAIN, Embeddings, read


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trial", choices=TRIALS)
    parser.add_argument("file", type=Path, help="file of pixels that `hcl extract` wrote")
    parser.add_argument("--kind", choices=("glow", "realnvp-image"), default="glow")
    parser.add_argument("--hidden", type=int, help="channels; 32 for glow, else 16")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--mean-scale", type=float, default=3.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    trial, found = TRIALS[options.trial], read(options.file)
    glow = options.kind == "glow"
    flow = FlowSettings(
        kind=options.kind,
        scales=2 if glow else 3,
        couplings=8,
        hidden_layers=1 if glow else 2,
        hidden=options.hidden or (32 if glow else 16),
    )
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
        loss = -model.statistics(shown, y[chosen], 0).log_px.mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step in trial.looks:
            right = (model.classify(midpoints(other_x)) == other_y).float().mean()
            bits = loss.item() / x[0].numel() / math.log(2)
            print(f"{step} steps: {100 * right:.1f} % right, {bits:.2f} bits a dimension")


if __name__ == "__main__":
    main()
