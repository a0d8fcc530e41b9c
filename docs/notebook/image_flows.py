"""The runs behind ``glow.md`` and ``fold.md``: bits per dimension of an image flow, step by step.

python docs/notebook/image_flows.py glow data/MNIST/raw [--images before.py]
python docs/notebook/image_flows.py fold data/svhn [--full]

``glow`` trains the paper's Glow on digits 0 and 1, batch 8, and ``fold`` a small RealNVP on SVHN,
batch 32, both at rate 1e-3 with one thread. ``--images`` is an older ``hcl/model/images.py``.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import torch
from torch import Tensor

import hcl.model.images
from hcl.model.images import dequantise
from hcl.model.latent import LatentMixture


def load(path: Path | None) -> Any:
    """An older version of ``hcl.model.images``, or today's."""
    if path is None:
        return hcl.model.images
    spec = importlib.util.spec_from_file_location("before", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def bits(nats: Tensor, size: int) -> float:
    return nats.item() / size / math.log(2)


def glow(folder: Path, images: Any) -> None:
    digits = np.fromfile(folder / "train-images-idx3-ubyte", np.uint8, offset=16)
    labels = np.fromfile(folder / "train-labels-idx1-ubyte", np.uint8, offset=8)
    x_all = torch.from_numpy(digits.reshape(-1, 1, 28, 28)[labels < 2])
    y_all = torch.from_numpy(labels[labels < 2]).long()
    generator = torch.Generator().manual_seed(0)
    sizes = {"scales": 2, "couplings": 28, "channels": 200, "layers": 3, "bound": 3.0}
    flow = images.glow((1, 28, 28), **sizes, generator=generator)
    latent = LatentMixture(2, flow.size)
    latent.add_task(generator)
    flow.initialise(dequantise(x_all[:256], generator))
    optimiser = torch.optim.Adam(flow.parameters(), 1e-3, weight_decay=5e-5, fused=True)
    for step in range(49):
        rows = torch.randint(len(x_all), (8,), generator=generator)
        z, log_det = flow(dequantise(x_all[rows], generator))
        loss = -(latent.log_prob(z, y_all[rows], 0) + log_det).mean()
        if step % 8 == 0:
            print(f"step {step}: {bits(loss.detach(), 784):.2f} bits", flush=True)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def fold(folder: Path, images: Any, folded: bool) -> None:
    train, test = (
        torch.from_numpy(
            np.ascontiguousarray(
                scipy.io.loadmat(folder / f"{part}_32x32.mat")["X"].transpose(3, 2, 0, 1)[:rows]
            )
        )
        for part, rows in (("train", 10_000), ("test", 256))
    )
    generator = torch.Generator().manual_seed(0)
    sizes = {"scales": 3, "couplings": 16, "channels": 16, "blocks": 2, "bound": 3.0}
    flow = images.realnvp_image((3, 32, 32), **sizes, generator=generator, folded=folded)
    optimiser = torch.optim.Adam(flow.parameters(), 1e-3, fused=True)
    unseen = dequantise(test, torch.Generator().manual_seed(9))

    def nats(x: Tensor) -> Tensor:
        z, log_det = flow(x)
        return (0.5 * z.square().sum(1) + 1536 * math.log(2 * math.pi) - log_det).mean()

    seconds = 0.0
    for step in range(401):
        if step % 50 == 0:
            with torch.no_grad():
                print(
                    f"step {step}, {seconds:.0f} s: {bits(nats(unseen), 3072):.2f} bits", flush=True
                )
        start = time.process_time()
        rows = torch.randint(len(train), (32,), generator=generator)
        optimiser.zero_grad()
        nats(dequantise(train[rows], generator)).backward()
        optimiser.step()
        seconds += time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", choices=["glow", "fold"])
    parser.add_argument("folder", type=Path, help="of the data")
    parser.add_argument("--images", type=Path, help="an older version of hcl/model/images.py")
    parser.add_argument("--full", action="store_true", help="the original's checkerboard")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    if arguments.question == "glow":
        glow(arguments.folder, load(arguments.images))
    else:
        fold(arguments.folder, load(arguments.images), not arguments.full)


if __name__ == "__main__":
    main()
