"""The trials behind ``curl.md``: what the paper leaves open of CURL, on held-out samples.

    python docs/notebook/curl.py --tasks data/tasks/split-cifar100-single-pass.h5 \\
        --embeddings data/embeddings

Draws of the snapshot are the decoder's mean, or (``noise``) come from p(x | z), whose deviation is
1 on scaled inputs; they are weighed as samples of the batch, or (``terms``) all together as much as
it. Prints average accuracy and forgetting on the validation parts.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import torch
from torch import Tensor

from hcl.evaluate.scoring import score
from hcl.learn.curl.learner import CurlLearner, build
from hcl.learn.curl.settings import CurlMethod
from hcl.learn.curl.vae import SupervisedCURL
from hcl.learn.settings import TrainingSettings
from hcl.model.settings import FlowSettings
from hcl.records.embeddings import read
from hcl.records.tasks import read_benchmark
from hcl.train.loop import Job, start_of, train_seed
from hcl.train.machine import one_thread
from hcl.train.streams import Stream
from hcl.tune.search import on_validation
from hcl.tune.settings import TuneSettings


class Noisy(SupervisedCURL):
    """Draws come from p(x | z), not from its mean."""

    @torch.no_grad()
    def sample(self, y: Tensor, generator: torch.Generator) -> Tensor:
        x = super().sample(y, generator)
        return x + self.scale * torch.randn(x.shape, generator=generator, device=x.device)


def build_noisy(job: Job, stream: Stream) -> CurlLearner:
    assert isinstance(job.method, CurlMethod)
    learner = build(job.method, start_of(job, stream))
    learner.model.__class__ = Noisy  # the same weights
    return learner


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--embeddings", type=Path, required=True)
    parser.add_argument("--rate", type=float, default=1e-3)
    options = parser.parse_args()
    benchmark = on_validation(read_benchmark(options.tasks), TuneSettings())
    names = {task.dataset for task in benchmark.tasks}
    embeddings = {name: read(options.embeddings / f"{name}.h5") for name in names}
    print("| draws | weighing | average | forgetting |\n| --- | --- | --- | --- |")
    for draws, weighing in itertools.product(("mean", "noise"), ("samples", "terms")):
        method = CurlMethod(weighing=weighing)
        training = TrainingSettings(learning_rate=options.rate, weight_decay=1e-3)
        job = Job(benchmark, embeddings, "curl", method, FlowSettings(), training, seed=0)
        with one_thread():
            run, _ = train_seed(job, build=build_noisy) if draws == "noise" else train_seed(job)
        scores = score(run, benchmark)
        print(
            f"| {draws} | {weighing} | {100 * scores.average_accuracy:.2f} | "
            f"{100 * scores.forgetting:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
