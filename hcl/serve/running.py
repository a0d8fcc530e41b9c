"""From a model file to a listening service."""

from __future__ import annotations

import errno
import os
import re
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

from hcl.errors import HCLError

TOKEN = "HCL_TOKEN"
SHORTEST_TOKEN = 16
AT_ONCE = 64  # connections; more are told to come again (503)


def serve(
    model: Path,
    state: Path,
    *,
    host: str | None,
    port: int,
    weights: str,
    device: str,
    largest: int,
    say: Callable[[str], object],
) -> None:
    """Serve until it is stopped.

    Args:
        model: the file to begin with.
        state: the file that is saved.
        host: to listen on; ``None``: loopback.
        port: 0 takes one that is free.
        weights: of the backbone.
        device: where images are embedded.
        largest: bytes of a request.
        say: is told what the user must know.
    """
    try:
        import uvicorn

        from hcl.serve.app import LOOPBACK, Bounds, make_app
    except ImportError as error:
        raise HCLError(
            f"serving needs starlette, uvicorn and python-multipart: pip install '.[serve]' "
            f"({error})."
        ) from None
    from hcl.serve.service import Service

    token, made = _token()
    with _listening(host or "127.0.0.1", port) as listener:
        service = Service(model, state, weights, device)
        address = listener.getsockname()
        here = host is None or host in LOOPBACK
        bounds = Bounds(token, largest, LOOPBACK if here else None)
        config = uvicorn.Config(
            make_app(service, bounds),
            log_level="warning",
            limit_concurrency=AT_ONCE,
            timeout_graceful_shutdown=30,
            server_header=False,
        )
        if made:
            say(f"Token for learning, made up and not shown again: {token}")
        if not here:
            say("Others can reach this service: they may ask; only the token lets them teach.")
        say(f"{state if service.resumed else model}: goes on from here; saved to {state}")
        shown = f"[{address[0]}]" if ":" in address[0] else address[0]
        say(f"http://{shown}:{address[1]}")
        uvicorn.Server(config).run(sockets=[listener])


def _token() -> tuple[str, bool]:
    """The token, and whether it was made up here."""
    given = os.environ.get(TOKEN)
    if given is None:
        return secrets.token_urlsafe(24), True
    if len(given) < SHORTEST_TOKEN or not re.fullmatch(r"[!-~]+", given):
        raise HCLError(
            f"{TOKEN}: expected at least {SHORTEST_TOKEN} letters, digits and signs without "
            "spaces. Unset it to have one made up."
        )
    return given, False


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        why = "is taken; name another with --port" if taken else f"can't be used ({error})"
        raise HCLError(f"{host}:{port}: {why}.") from None
