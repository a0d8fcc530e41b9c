"""Runs: what determines each, and many of them side by side, kept once they are finished."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import joblib

from hcl.files import replacing, sha256_of
from hcl.learn.settings import Method, TrainingSettings
from hcl.model.hybrid import NonFiniteError
from hcl.model.settings import FlowSettings
from hcl.records.embeddings import Embeddings
from hcl.records.runs import write_run
from hcl.records.tasks import Benchmark
from hcl.train import store
from hcl.train.loop import Job, train_seed
from hcl.train.machine import available_cores, one_thread
from hcl.train.saving import about_run, write_learner
from hcl.train.streams import check_sources

RUN_FILES = ("seed-*.h5", "seed-*.safetensors")  # what ``train`` writes


def train(
    benchmark: Benchmark,
    embeddings: Mapping[str, Embeddings],
    name: str,
    method: Method,
    flow: FlowSettings,
    training: TrainingSettings,
    seeds: Sequence[int],
    out: Path,
    kept: Path = store.STORE,
) -> int:
    """Train a method with several seeds side by side, and write ``seed-<s>.h5`` into ``out``.

    Runs that are finished already are taken from the store, stopped ones go on from there.
    Returns how many were taken from the store.

    Args:
        benchmark: what is learned.
        embeddings: of the benchmark's sources.
        name: of the method.
        method: its settings on this benchmark.
        flow: the flow's size.
        training: how it is trained.
        seeds: one run each.
        out: folder for the run files.
        kept: the store.
    """
    check_sources(benchmark, embeddings)
    jobs = [Job(benchmark, embeddings, name, method, flow, training, seed) for seed in seeds]
    entries, found = _run_jobs(jobs, kept)
    deliver({job.seed: entry for job, entry in zip(jobs, entries, strict=True)}, out)
    return found


def deliver(entries: Mapping[int, store.Entry], out: Path) -> None:
    """Put copies of finished runs, by their seeds, into the folder ``out``."""
    with replacing(out) as partial:
        partial.mkdir(parents=True)
        for seed, entry in entries.items():
            entry.deliver(partial, f"seed-{seed}")


def run_jobs(
    jobs: Sequence[Job], kept: Path = store.STORE, may_diverge: bool = False
) -> list[store.Entry]:
    """Train side by side what is not finished in the store, and return the place of each run.

    A loss that is not finite is an error or, where runs ``may_diverge``, leaves this one run
    unfinished and the others alone.
    """
    return _run_jobs(jobs, kept, may_diverge)[0]


def _run_jobs(
    jobs: Sequence[Job], kept: Path, may_diverge: bool = False
) -> tuple[list[store.Entry], int]:
    """The places of the runs, and how many were there before."""
    entries = [store.Entry(kept / job.fingerprint()) for job in jobs]
    waiting = [(j, e) for j, e in zip(jobs, entries, strict=True) if not e.is_finished]
    workers = max(min(len(waiting), available_cores()), 1)
    # Forked processes are there at once and share what is imported; a GPU does not survive a fork.
    backend = "loky" if any(j.device.type == "cuda" for j, _ in waiting) else "multiprocessing"
    work = _train_unless_it_diverges if may_diverge else train_into
    joblib.Parallel(n_jobs=workers, backend=backend)(
        joblib.delayed(work)(job, entry.folder, position % workers)
        for position, (job, entry) in enumerate(waiting)
    )
    return entries, len(jobs) - len(waiting)


def train_into(job: Job, folder: Path, position: int = 0) -> None:
    """Train one run in this process and leave it in the store."""
    entry = store.Entry(folder)
    with one_thread():  # to the end: a fork that computes on several threads may wait forever
        run, learner = train_seed(job, entry.checkpoint, position)
        if job.training.save_model:
            write_learner(entry.model, about_run(job, run, learner), learner)
            run = replace(run, model=sha256_of(entry.model))
    write_run(entry.run, run)
    entry.clean()


def _train_unless_it_diverges(job: Job, folder: Path, position: int = 0) -> None:
    with contextlib.suppress(NonFiniteError):
        train_into(job, folder, position)
