"""``hcl settings``: what each method is on each benchmark, after all merging."""

from __future__ import annotations

from pathlib import Path

import click

from stages import options


@click.command(cls=options.Command, short_help="Show or write what each run is made of.")
@options.params
@click.option("--benchmark", help="Show this benchmark's stream or, with --method, one run.")
@click.option("--method", help="Show what this method is on the benchmark.")
@click.option("--out", type=options.PATH, help="Folder to write, a file for each run of the grid.")
@click.option(
    "--raw",
    type=options.PATH,
    help="Folder with the raw files: an error where your own embedding file changed since.",
)
def command(
    params: Path, benchmark: str | None, method: str | None, out: Path | None, raw: Path | None
) -> None:
    """Merge and check the parameters: what each method is on each benchmark.

    Alone it checks the whole file. With --benchmark and --method, shows what one run is made of.
    With --out, writes a file for each run and each stream of the grid, which the stages after it
    read: a change for one benchmark changes no file of another, and runs no stage of it again.
    """
    import yaml

    from hcl.files import check_folder_to_write
    from stages.checking import check_all, check_own_embeddings
    from stages.resolve import SETTINGS_FILES, Resolved, described, write_settings

    parameters = Resolved(params)
    if out is not None:
        if benchmark is not None or method is not None:
            raise click.UsageError("--out writes the whole grid; leave --benchmark and --method.")
        check_folder_to_write(out, "--out", SETTINGS_FILES)
        check_all(parameters)
        click.echo(f"{out}: {write_settings(parameters, out)} runs")
    elif benchmark is not None:
        shown = described(parameters, benchmark, method)
        if method is not None:
            stream = described(parameters, benchmark, None)["stream"]
            shown |= {"seeds": list(parameters.seeds()), "stream": stream}
        click.echo(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True).rstrip())
    elif method is not None:
        raise click.UsageError("Name the --benchmark, too: a method differs between them.")
    else:
        check_all(parameters)
        if raw is not None:
            check_own_embeddings(parameters, raw)
        click.echo(f"{params}: no mistake found")
