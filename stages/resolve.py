"""What streams and runs are made of: the parameter file, laid over itself as it says, and checked.

A benchmark or a method may start from another (``like``). What a method is on a benchmark, is laid
in this order: the methods that it is like, itself, then what was tuned on the benchmark for each
of these (``benchmarks.<benchmark>.tuned.<method>``). All is merged before it is checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hcl.errors import HCLError
from hcl.files import replacing, write_json
from hcl.learn.kinds import AnyMethod
from hcl.learn.settings import TrainingSettings, used_settings
from hcl.model.settings import FlowSettings
from hcl.settings import Layered, build, did_you_mean, section
from hcl.split import StreamSettings, as_json
from stages.parameters import Parameters

SETTINGS_FILES = ("runs", "streams")  # what ``write_settings`` writes
OF_A_BENCHMARK = ("like", "stream", "flow", "training", "tuned")


class RunSettings(NamedTuple):
    """What a method is on a benchmark."""

    method: AnyMethod
    flow: FlowSettings
    training: TrainingSettings


class Resolved(Parameters):
    """A parameter file whose streams and runs can be asked for."""

    def check(self) -> None:
        """An error for what no stage, or only a later one, would notice: the whole file.

        What the grid leaves out today is checked as well: it may be asked for by its name.
        """
        super().check()
        if "seeds" in self.values:
            self.seeds()
        for name in self.declared("methods"):
            self._method(name)[0].build(AnyMethod, self.path)  # type: ignore[arg-type]
        for name in self.declared("benchmarks"):
            self._check_benchmark(name)
        if isinstance(self.values.get("grid"), Mapping):
            grid = self.grid()
            for benchmark in grid.benchmarks:
                self.stream(benchmark)
                for method in grid.methods:
                    self.run(benchmark, method)

    def _check_benchmark(self, name: str) -> None:
        there = self.values["benchmarks"][name]
        for key in map(str, there) if isinstance(there, Mapping) else ():
            if key not in OF_A_BENCHMARK:
                raise HCLError(
                    f"{self.path}: benchmarks.{name}.{key} is not a known key"
                    f"{did_you_mean(key, list(OF_A_BENCHMARK))}. Allowed: "
                    f"{', '.join(OF_A_BENCHMARK)}."
                )
        tuned = there.get("tuned") if isinstance(there, Mapping) else None
        methods = self.declared("methods")
        for method in map(str, tuned) if isinstance(tuned, Mapping) and methods else ():
            if method not in methods:
                raise HCLError(
                    f"{self.path}: benchmarks.{name}.tuned.{method}: there is no method of that "
                    f"name{did_you_mean(method, methods)}. In methods: {', '.join(methods)}."
                )
            self.run(name, method)
        if "stream" in self.benchmark(name):
            self.stream(name)
        self.training(name)
        self._flow(name)

    def stream(self, benchmark: str) -> StreamSettings:
        """What a learner is shown."""
        layers = self._benchmark(benchmark)
        key = f"benchmarks.{benchmark}.stream"
        if "stream" not in layers.values:
            raise HCLError(f"{self.path}: {key} is missing; expected a section with tasks.")
        settings: StreamSettings = build(
            StreamSettings, layers.values["stream"], self.path, "stream", layers.origins
        )
        datasets = self.declared("datasets")
        for dataset in settings.datasets if datasets else ():
            if dataset not in datasets:
                raise HCLError(
                    f"{self.path}: {key}.tasks names the data set {dataset!r}, which is not among "
                    f"the datasets of the file{did_you_mean(dataset, datasets)}: "
                    f"{', '.join(datasets)}."
                )
        return settings

    def training(self, benchmark: str) -> TrainingSettings:
        """How a benchmark is trained."""
        layers = self._benchmark(benchmark)
        values = layers.values.get("training", {})
        return build(TrainingSettings, values, self.path, "training", layers.origins)

    def _flow(self, benchmark: str) -> FlowSettings:
        layers = self._benchmark(benchmark)
        return build(FlowSettings, layers.values.get("flow", {}), self.path, "flow", layers.origins)

    def run(self, benchmark: str, method: str) -> RunSettings:
        """What a method is on a benchmark."""
        declared = self._benchmark(benchmark)
        values, origins = declared.values, declared.origins
        flow, training = self._flow(benchmark), self.training(benchmark)
        layers, chain = self._method(method)
        tuned = values.get("tuned", {})
        for name in chain if isinstance(tuned, Mapping) else ():
            if name in tuned:
                key = f"tuned.{name}"
                layers.lay(tuned[name], key, self.path, origins=origins)
        settings: AnyMethod = layers.build(AnyMethod, self.path)  # type: ignore[arg-type]
        try:
            settings.check(training)
        except ValueError as error:
            key, _, reason = str(error).partition(":")
            raise HCLError(f"{self.path}: {layers.origins.get(key, key)}:{reason}") from None
        return RunSettings(settings, flow, training)

    def benchmark(self, name: str) -> dict[str, Any]:
        """A benchmark's sections, with those that it is like, not checked."""
        return self._benchmark(name).values

    def _benchmark(self, name: str) -> Layered:
        layers = Layered()
        for each in self._chain("benchmarks", name):
            key = f"benchmarks.{each}"
            layers.lay(self.values["benchmarks"][each], key, self.path, leave_out=("like",))
        return layers

    def _method(self, name: str) -> tuple[Layered, list[str]]:
        layers, chain = Layered(), self._chain("methods", name)
        for each in chain:
            key = f"methods.{each}"
            layers.lay(self.values["methods"][each], key, self.path, leave_out=("like",))
        return layers, chain

    def _chain(self, kind: str, name: str) -> list[str]:
        """What ``name`` is like, from the first on, and itself at the end."""
        chain = [name]
        while True:
            there = section(self.values, f"{kind}.{chain[0]}", self.path)
            like = there.get("like") if isinstance(there, Mapping) else None
            if like is None:
                return chain
            known = self.declared(kind)
            if like not in known or like in chain:
                wrong = "is like itself" if like in chain else "is not there"
                hint = did_you_mean(str(like), known) if like not in chain else ""
                raise HCLError(
                    f"{self.path}: {kind}.{chain[0]}.like: {like!r} {wrong}{hint}. In {kind}: "
                    f"{', '.join(known)}."
                )
            chain.insert(0, like)


def described(parameters: Resolved, benchmark: str, method: str | None) -> dict[str, Any]:
    """A benchmark's stream or, with a method, what a run depends on: no more than it reads."""
    if method is None:
        return {"benchmark": benchmark, "stream": as_json(parameters.stream(benchmark))}
    in_batches = parameters.stream(benchmark).counts_batches
    used = used_settings(*parameters.run(benchmark, method), in_batches)
    used = {"method_settings": used.pop("method"), **used}
    values: dict[str, Any] = json.loads(json.dumps(used))  # tuples as lists
    return {"benchmark": benchmark, "method": method, **values}


def write_settings(parameters: Resolved, out: Path) -> int:
    """Write a file for each stream and each run of the grid; the number of runs."""
    grid, seeds = parameters.grid(), parameters.seeds()
    for name in ("benchmarks", "methods"):
        if not getattr(grid, name):
            raise HCLError(f"{parameters.path}: grid.{name} is empty; name at least one.")
    with replacing(out) as folder:
        for benchmark in grid.benchmarks:
            stream = described(parameters, benchmark, None)
            write_json(folder / "streams" / f"{benchmark}.json", stream)
            for method in grid.methods:
                run = described(parameters, benchmark, method) | {"seeds": list(seeds)}
                write_json(folder / "runs" / benchmark / f"{method}.json", run)
    return len(grid.benchmarks) * len(grid.methods)
