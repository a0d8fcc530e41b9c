"""A headless Chromium driven over a pipe: what it loads, logs and lays out."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *(
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    ),
)
PATIENCE = 90  # seconds, for a loaded machine


def find_browser() -> str:
    """The first browser that is installed; without any, the test is skipped and says so."""
    for name in BROWSERS:
        if shutil.which(name):
            return name
    pytest.skip(f"no browser is installed: none of {', '.join(BROWSERS)}")


class Page:
    """One tab; ``events`` collects all that the browser reported of it."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._buffer = b""
        self._count = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        return self._wait(lambda m: m.get("id") == self._count).get("result", {})

    def _wait(self, wanted: Any) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while True:
            while b"\0" in self._buffer:
                line, self._buffer = self._buffer.split(b"\0", 1)
                message: dict[str, Any] = json.loads(line)
                if "method" in message:
                    self.events.append(message)
                if wanted(message):
                    assert "error" not in message, message
                    return message
            ready, _, _ = select.select([self._answers], [], [], max(0, end - time.monotonic()))
            assert ready, f"the browser did not answer in {PATIENCE} s"
            self._buffer += os.read(self._answers, 1 << 16)

    def open(self, path: Path | str, width: int, height: int, scheme: str = "light") -> None:
        """Load a file or an address in a window of a size, for a reader of a colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.events.clear()
        self.call("Page.navigate", url=path if isinstance(path, str) else path.resolve().as_uri())
        if not self.named("Page.loadEventFired"):
            self._wait(lambda m: m.get("method") == "Page.loadEventFired")

    def named(self, method: str) -> list[dict[str, Any]]:
        """What the events of one kind carried."""
        return [event["params"] for event in self.events if event["method"] == method]

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")


@contextmanager
def browsing(name: str, profile: Path) -> Iterator[Page]:
    """Start the browser with an empty profile; it ends with the block."""
    ours_out, theirs_in = os.pipe()[::-1]
    theirs_out, ours_in = os.pipe()[::-1]

    def connect() -> None:
        # The protocol wants commands on descriptor 3 and answers on 4; step aside first.
        reading, writing = os.dup(theirs_in), os.dup(theirs_out)
        os.dup2(reading, 3, inheritable=True)
        os.dup2(writing, 4, inheritable=True)

    process = subprocess.Popen(
        [name, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=connect,
        close_fds=False,
    )
    try:
        yield Page(ours_out, ours_in)
    finally:
        process.terminate()
        process.wait(PATIENCE)
        for descriptor in (ours_out, theirs_in, theirs_out, ours_in):
            os.close(descriptor)
