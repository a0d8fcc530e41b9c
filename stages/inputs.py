"""What a method learns from: the inputs that ``hcl train`` and ``hcl tune`` share."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hcl.errors import HCLError
from hcl.learn.kinds import AnyMethod
from hcl.learn.settings import TrainingSettings
from hcl.model.settings import FlowSettings
from hcl.records.embeddings import Embeddings, read
from hcl.records.tasks import Benchmark
from hcl.settings import build
from hcl.split import first_difference
from stages.options import CHECKED
from stages.reading import check_not_named, named, names_in, read_settings, read_tasks
from stages.resolve import Resolved, RunSettings


class RunAsked(NamedTuple):
    """Which runs are asked for, and what they are made of."""

    benchmark: str
    method: str
    seeds: tuple[int, ...]
    settings: RunSettings
    parameters: Resolved | None  # where they come from, if not from a file of settings


def read_run_asked(
    params: Path, benchmark: str | None, method: str | None, settings: Path | None
) -> RunAsked:
    """Which runs are asked for, from a file of settings or from the parameter file."""
    if settings is not None:
        check_not_named(benchmark, method)
        values = read_settings(settings)
        run = RunSettings(
            build(AnyMethod, values.get("method_settings"), settings, "method_settings"),  # type: ignore[arg-type]
            build(FlowSettings, values.get("flow", {}), settings, "flow"),
            build(TrainingSettings, values.get("training", {}), settings, "training"),
        )
        return RunAsked(*names_in(values, settings), run, None)
    benchmark, method = named(benchmark, method)
    parameters = Resolved(params)
    parameters.check()
    run = parameters.run(benchmark, method)
    return RunAsked(benchmark, method, parameters.seeds(), run, parameters)


class Inputs(NamedTuple):
    """The first arguments of ``hcl.train.jobs.train`` and ``hcl.tune.search.tune``, in order."""

    benchmark: Benchmark
    embeddings: dict[str, Embeddings]
    name: str
    method: AnyMethod
    flow: FlowSettings
    training: TrainingSettings


def read_inputs(asked: RunAsked, tasks: Path, embeddings: Path) -> Inputs:
    """Read the tasks of the runs that are asked for, and their embeddings."""
    stream, sources = read_shown(asked.parameters, asked.benchmark, tasks, embeddings)
    return Inputs(stream, sources, asked.method, *asked.settings)


class Shown(NamedTuple):
    """A benchmark's stream, and where its samples are."""

    benchmark: Benchmark
    embeddings: dict[str, Embeddings]


def read_shown(parameters: Resolved | None, benchmark: str, tasks: Path, embeddings: Path) -> Shown:
    """Read the tasks of a benchmark, which must be what the parameters ask for, and embeddings."""
    if embeddings.is_file():
        raise HCLError(f"{embeddings}: is a file; --embeddings names the folder that it is in.")
    stream = read_tasks(tasks, benchmark)
    if parameters is not None and "stream" in parameters.benchmark(benchmark):
        difference = first_difference(stream, parameters.stream(benchmark))
        if difference is not None:
            raise HCLError(
                f"{tasks}: is not what benchmarks.{benchmark}.stream in {parameters.path} asks "
                f"for: {difference}. Make it again with `hcl split`, or `dvc repro "
                f"split@{benchmark}`."
            )
    sources = {s.dataset: read(embeddings / f"{s.dataset}.h5", CHECKED) for s in stream.sources}
    return Shown(stream, sources)
