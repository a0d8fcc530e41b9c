"""``hcl serve``: a model over HTTP."""

from __future__ import annotations

from pathlib import Path

import click

from stages import options


@click.command(cls=options.Command, short_help="Answer and learn over HTTP.")
@click.option("--model", type=options.PATH, required=True, help="Model file to begin with.")
@click.option(
    "--state",
    type=options.PATH,
    help="File that is saved after each lesson, and gone on from where it is there. "
    "Without it: beside the model, NAME.served.safetensors.",
)
@click.option("--host", help="Address to listen on. Without it: this machine alone.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@options.weights
@options.device
@click.option(
    "--largest",
    type=click.IntRange(1, 4096),
    default=32,
    show_default=True,
    help="MiB that a request may have.",
)
def command(
    model: Path,
    state: Path | None,
    host: str | None,
    port: int,
    weights: str,
    device: str,
    largest: int,
) -> None:
    """Answer for images and embeddings over HTTP, and learn from labels.

    The page at / shows the stream. POST /learn needs a token: that of the environment variable
    HCL_TOKEN, or one that is made up and printed. The model to begin with stays as it is.
    """
    from hcl.files import check_file_to_write
    from hcl.serve.running import serve

    state = state or model.with_name(f"{model.stem}.served.safetensors")
    options.check_there(model, "model file")
    check_file_to_write(state, "--state")
    serve(
        model,
        state,
        host=host,
        port=port,
        weights=weights,
        device=device,
        largest=largest << 20,
        say=click.echo,
    )
