"""backbones: what can be named as ``extract.backbone``."""

from __future__ import annotations

import click

from stages import options


@click.command(cls=options.Command, short_help="List pretrained backbones.")
@click.argument("pattern", required=False)
def command(pattern: str | None) -> None:
    """List the pretrained backbones whose name fits PATTERN, such as "resnet*".

    Shows the size of the embedding, the size of the input, and where the weights lie on this
    machine; those without an entry are downloaded from timm's hub when they are first used.
    Without PATTERN: EfficientNet in the usual sizes. A wide pattern takes its time: about 0.2 s for
    each architecture.
    """
    from hcl.errors import HCLError
    from hcl.progress import bar

    with bar(desc="load timm", bar_format="{desc} …", leave=False):  # which takes seconds
        from hcl.extract.backbones import SHORTLIST, list_backbones

    found = list(list_backbones((pattern,) if pattern else SHORTLIST))
    if not found:
        raise HCLError(f"no pretrained timm model fits {pattern!r}. Try a wildcard: '*resnet*'.")
    row = "{:48} {:>9} {:>9}  {}"
    click.echo(row.format("backbone", "embedding", "input", "offline"))
    for listed in found:
        size = f"{listed.height}×{listed.width}"
        click.echo(row.format(listed.name, listed.size, size, listed.offline).rstrip())
