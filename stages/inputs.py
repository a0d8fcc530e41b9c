"""What a method learns from: the inputs that ``hcl train`` and ``hcl tune`` share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from hcl.errors import HCLError
from hcl.settings import build, did_you_mean, load_yaml, section
from stages import options
from stages.reading import read_tasks

if TYPE_CHECKING:
    from hcl.learn.learners import MethodSettings
    from hcl.model.flows import FlowSettings
    from hcl.records.embeddings import Embeddings
    from hcl.records.tasks import Benchmark
    from hcl.train.loop import TrainingSettings


def input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that name the inputs."""
    for option in (
        click.option(
            "--embeddings",
            type=options.PATH,
            required=True,
            help="Folder with the embedding files.",
        ),
        click.option(
            "--tasks", type=options.PATH, required=True, help="Tasks file of the benchmark."
        ),
        click.option("--method", required=True, help="Name of the method, a key of `methods`."),
        click.option(
            "--benchmark", required=True, help="Name of the benchmark, a key of `benchmarks`."
        ),
        options.params,
    ):
        command = option(command)
    return command


class Inputs(NamedTuple):
    """The first arguments of ``hcl.train.loop.train`` and ``hcl.tune.tune``, in their order."""

    benchmark: Benchmark
    embeddings: dict[str, Embeddings]
    name: str
    method: MethodSettings
    flow: FlowSettings
    training: TrainingSettings


def read_inputs(params: Path, benchmark: str, method: str, tasks: Path, embeddings: Path) -> Inputs:
    """Read the settings of a method and a benchmark, its tasks and their embeddings."""
    from hcl.learn.learners import MethodSettings
    from hcl.model.flows import FlowSettings
    from hcl.records.embeddings import read
    from hcl.records.tasks import first_difference
    from hcl.split import StreamSettings, make_benchmark
    from hcl.train.loop import TrainingSettings

    values = load_yaml(params)
    key = f"benchmarks.{benchmark}"
    flow = build(FlowSettings, section(values, f"{key}.flow", params), params, f"{key}.flow")
    training = build(
        TrainingSettings, section(values, f"{key}.training", params), params, f"{key}.training"
    )
    of_method = section(values, f"methods.{method}", params)
    settings = build(MethodSettings, of_method, params, f"methods.{method}")
    for name in sorted(settings.benchmarks.keys() - values["benchmarks"].keys()):
        hint = did_you_mean(name, list(values["benchmarks"]))
        if hint:  # else the benchmark was taken out, and its changes may stay for when it is back
            click.echo(
                f"Note: {params}: methods.{method}.benchmarks.{name}: there is no benchmark of "
                f"that name{hint}; it is not used.",
                err=True,
            )
    watched = settings.for_benchmark(benchmark)
    if watched.kind == "flow" and watched.tasks == "detected":
        try:
            watched.detection.check_batch(training.batch_size)
        except ValueError as error:
            raise HCLError(f"{params}: methods.{method}: detection.{error}") from None
    if embeddings.is_file():
        raise HCLError(f"{embeddings}: is a file; --embeddings names the folder that it is in.")
    stream = read_tasks(tasks, benchmark)
    sources = {s.dataset: read(embeddings / f"{s.dataset}.h5") for s in stream.sources}
    if "stream" in values["benchmarks"][benchmark]:  # in a file of the pipeline's; else believed
        key = f"{key}.stream"
        asked = build(StreamSettings, section(values, key, params), params, key)
        again = f"Make it again with `hcl split`, or `dvc repro split@{benchmark}`."
        if set(asked.datasets) != sources.keys():
            raise HCLError(
                f"{tasks}: is made of {', '.join(sources)}, but {key} in {params} names "
                f"{', '.join(asked.datasets)}. {again}"
            )
        made = make_benchmark(benchmark, asked, sources, f"{params}: {key}")
        difference = first_difference(stream, made)
        if difference is not None:
            raise HCLError(
                f"{tasks}: is not what {key} in {params} asks for: {difference}. {again}"
            )
    return Inputs(stream, sources, method, settings, flow, training)
