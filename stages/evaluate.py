"""``hcl evaluate``: score the runs of one method on one benchmark."""

from __future__ import annotations

from pathlib import Path

import click

from stages import options
from stages.options import CHECKED
from stages.reading import read_names, read_tasks, run_options


@click.command(cls=options.Command)
@run_options
@click.option("--tasks", type=options.PATH, required=True, help="Tasks file of the benchmark.")
@click.option("--runs", type=options.PATH, required=True, help="Folder with the runs, one a seed.")
@click.option(
    "--embeddings",
    type=options.PATH,
    help="Folder with the embedding files: adds their provenance and a view of the latent space.",
)
@click.option("--scores", type=options.PATH, required=True, help="Folder to write (CSV, JSON).")
def command(
    params: Path,
    benchmark: str | None,
    method: str | None,
    settings: Path | None,
    tasks: Path,
    runs: Path,
    embeddings: Path | None,
    scores: Path,
) -> None:
    """Score the runs of one method on one benchmark.

    Writes the paper's metrics, mean and standard deviation over the seeds, every accuracy, every
    seed, the detector's trace and what was run as tidy files.
    """
    from hcl.evaluate import scoring
    from hcl.files import check_folder_to_write
    from hcl.records.embeddings import read
    from hcl.records.scores import SCORE_FILES, write_scores

    check_folder_to_write(scores, "--scores", SCORE_FILES)
    asked = read_names(params, benchmark, method, settings)
    stream = read_tasks(tasks, asked.benchmark)
    found = scoring.read_runs(runs, stream, asked.method, asked.seeds)
    sources = {}
    if embeddings is not None:
        sources = {s.dataset: read(embeddings / f"{s.dataset}.h5", CHECKED) for s in stream.sources}
    scored = [scoring.score(run, stream) for run in found]
    attributes = {dataset: source.attributes for dataset, source in sources.items()}
    described = scoring.about(found, stream, attributes)
    view = None
    model = runs / f"seed-{asked.seeds[0]}.safetensors"
    if sources and model.exists():
        from hcl.evaluate.projection import latent_view

        view = latent_view(model, stream, sources, [int(j) for j in found[0].added_in])
    summary = scoring.summarise(scored)
    samples = scoring.samples(found[0], stream, sources)
    write_scores(scores, found, scored, summary, described, view, samples)
    click.echo(f"{scores}: {scoring.in_words(summary)}")
