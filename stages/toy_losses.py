"""``hcl toy-losses``: both losses on the flow f(x) = θx."""

from __future__ import annotations

from pathlib import Path

import click

from hcl.settings import build, load_yaml, section
from stages import options


@click.command(
    cls=options.Command, short_help="Draw the paper's two losses on f(x) = θx (Figure S1)."
)
@options.params
@click.option("--out", type=options.PATH, required=True, help="Folder to write.")
def command(params: Path, out: Path) -> None:
    """Draw the losses of generative replay and functional regularisation on f(x) = θx.

    The paper's Figure S1. Writes the figure, the curves and where each loss is least.
    """
    from hcl.files import check_folder_to_write
    from hcl.records.studies import TOY_FILES, write_toy_losses
    from hcl.studies.settings import ToySettings

    check_folder_to_write(out, "--out", TOY_FILES)
    key = "toy_losses"
    settings = build(ToySettings, section(load_yaml(params), key, params), params, key)
    from hcl.report.study_figures import draw_toy_losses
    from hcl.studies.toy_losses import toy_losses  # takes seconds: nothing is left to refuse

    found = toy_losses(settings)
    write_toy_losses(out, found, draw_toy_losses)
    for name, loss in (("GR", found.replay), ("FR", found.functional)):
        click.echo(
            f"{name} loss: least at θ = {found.theta[loss.argmin()]:.3g} (γ = {found.gamma:g}), "
            f"{loss[0]:.2f} at θ = {found.theta[0]:.3g}"
        )
