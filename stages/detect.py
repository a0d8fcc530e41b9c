"""``hcl detect``: the calibrated detector alone over a stream, before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stages import options
from stages.reading import input_options

if TYPE_CHECKING:
    from hcl.records.tasks import Benchmark
    from hcl.watch import Watch


@click.command(cls=options.Command, short_help="Show a stream to the detector alone.")
@options.params
@click.option("--benchmark", required=True, help="Name of the benchmark, a key of `benchmarks`.")
@input_options
@click.option(
    "--false-alarm-every",
    type=int,
    default=10_000,
    show_default=True,
    help="Batches between two false alarms, on average.",
)
@click.option("--batch-size", type=int, help="Samples in a batch, instead of the benchmark's.")
@click.option("--out", type=options.PATH, help="File to write, a row a batch (CSV).")
def command(
    params: Path,
    benchmark: str,
    tasks: Path,
    embeddings: Path,
    false_alarm_every: int,
    batch_size: int | None,
    out: Path | None,
) -> None:
    """Show a benchmark's stream to the detector alone, and print what it says.

    Trains nothing: the detector judges by the samples. For each of the parameters' seeds it prints
    every alarm, how many batches late it came, what was missed, and the run length between false
    alarms. A task-agnostic method with `detection: {kind: calibrated}` will notice the same.
    """
    from hcl.errors import HCLError
    from hcl.files import check_file_to_write
    from stages.resolve import Resolved

    if out is not None:
        check_file_to_write(out, "--out")
    parameters = Resolved(params)
    parameters.check()
    size = parameters.training(benchmark).batch_size if batch_size is None else batch_size
    if not 2 <= size <= 65_536:
        raise HCLError(f"--batch-size: is {size}; expected from 2 to 65536 samples.")

    from hcl.detect.settings import CalibratedSettings
    from hcl.train.streams import shortest_segment
    from hcl.watch import watch_benchmark, write_watches
    from stages.inputs import read_shown

    try:
        settings = CalibratedSettings(false_alarm_every=false_alarm_every)
    except ValueError as error:
        raise HCLError(f"--{str(error).replace('_', '-', 2)}") from error
    stream, sources = read_shown(parameters, benchmark, tasks, embeddings)
    advice = settings.advice(shortest_segment(stream, size))
    if advice is not None:
        click.echo(f"Note: {advice}", err=True)
    watches = {}
    for seed in parameters.seeds():
        watches[seed] = watch_benchmark(stream, sources, settings, size, seed)
        click.echo("\n".join(_lines(watches[seed], stream, seed)))
    click.echo(_summary(list(watches.values()), false_alarm_every))
    if out is not None:
        write_watches(out, watches)
        click.echo(f"{out}: {sum(len(w.batches) for w in watches.values())} batches")


def _lines(watch: Watch, benchmark: Benchmark, seed: int) -> list[str]:
    """One seed in words: a line for each alarm, and for what was missed."""
    from hcl.watch import VERDICTS

    delays = watch.delays()
    due = {watch.first_of(j) + d: j for j, d in delays.items() if d is not None}
    title = f"{benchmark.name}, seed {seed}: {len(watch.batches)} batches"
    lines = [title]
    for batch in watch.alarms:
        said = watch.batches[batch]
        kind = "a new task" if VERDICTS[said.verdict] == "new" else "has come back"
        line = f"  batch {batch}: task {said.task + 1}, {kind}"
        if batch in due:
            true = benchmark.stream[due[batch]].task + 1
            line += f"; true task {true}, {_late(batch - watch.first_of(due[batch]))}"
        else:
            line += "; FALSE, nothing had changed"
        lines.append(line)
    for segment, delay in delays.items():
        if delay is None:
            length, judged = watch.length_of(segment), watch.judged_in(segment)
            why = f"; only {judged} of its {length} batches could be judged" * (judged < length)
            lines.append(
                f"  batch {watch.first_of(segment)}: MISSED, true task "
                f"{benchmark.stream[segment].task + 1}{why}"
            )
    if watch.judged < len(watch.batches) // 2:
        lines.append(
            f"  Note: {watch.judged} of {len(watch.batches)} batches could be judged: the stream "
            "is too short for the detector."
        )
    return lines


def _late(delay: int) -> str:
    return "at its first batch" if delay == 0 else f"{delay} batch{'es' * (delay > 1)} late"


def _summary(watches: list[Watch], nominal: int) -> str:
    """All seeds in one line."""
    scored = [watch.changes() for watch in watches]
    true, found = sum(c.true for c in scored), sum(c.found for c in scored)
    false, judged = sum(c.false for c in scored), sum(w.judged for w in watches)
    delays = [d for w in watches for d in w.delays().values() if d is not None]
    parts = [f"changes: {found} of {true} found"]
    if delays:
        parts[0] += f", {sum(delays) / len(delays):.1f} batches late, at most {max(delays)}"
    back = sum(c.recurring for c in scored)
    if back:
        parts.append(f"came back: {sum(c.recurring_named for c in scored)} of {back} named rightly")
    wrong = sum(c.misnamed for c in scored)
    if wrong:
        parts.append(f"given a wrong name: {wrong}")
    run = f"one in {judged // false}" if false else "none"
    parts.append(
        f"false alarms: {false} in {judged} batches judged ({run}; stated: one in {nominal})"
    )
    parts.append(f"waiting: at most {max(w.most_waiting for w in watches)} batches")
    return "\n".join(parts)
