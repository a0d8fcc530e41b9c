"""``hcl moons``: the two-moons study."""

from __future__ import annotations

from pathlib import Path

import click

from hcl.settings import build, load_yaml, section
from stages import options


@click.command(
    cls=options.Command, short_help="Compare the paper's two losses on two moons (Figure 2)."
)
@options.params
@click.option("--out", type=options.PATH, required=True, help="Folder to write.")
def command(params: Path, out: Path) -> None:
    """Compare generative replay and functional regularisation on two moons.

    The paper's Figure 2: learn the first moon, then the second, with four points of the first as
    the only replay. Writes the figure, the arrays behind it and the numbers, and prints how far
    the points moved in latent space and what the first moon's log-likelihood lost.
    """
    from hcl.files import check_folder_to_write
    from hcl.records.studies import METHODS, MOONS_FILES, write_moons
    from hcl.studies.settings import MoonsSettings

    check_folder_to_write(out, "--out", MOONS_FILES)
    settings = build(MoonsSettings, section(load_yaml(params), "moons", params), params, "moons")
    from hcl.report.study_figures import draw_moons
    from hcl.studies.moons import study  # takes seconds: nothing is left to refuse

    found = study(settings)
    write_moons(out, found, draw_moons)
    before = found.first_log_likelihood["snapshot"]
    click.echo(f"first moon's log-likelihood before: {before:.2f} nats")
    for method, label in METHODS.items():
        click.echo(
            f"{label}: after {found.first_log_likelihood[method]:.2f} "
            f"(drop {found.drop(method):.2f}), "
            f"replay points moved by at most {found.distance[method]:.3f}"
        )
