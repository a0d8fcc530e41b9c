"""How many requests ``hcl serve`` stands, how long they take, and whether one is ever lost.

    python benchmarks/serve.py --model results/runs/split-digits/hcl-plus-ta/seed-0.safetensors \
        --embeddings data/embeddings/digits.h5 --raw data/raw/digits.h5

Starts the service on this machine with a state of its own, and for a minute lets some clients ask
for embeddings, one for images (with ``--raw``), and one teach, each with one sample a request and
the next one as soon as the answer is there. In the end it compares what the service says that it
learned with what it acknowledged, stops it, and compares with its file. Prints requests a second,
latency, and what was lost.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hcl.records.embeddings import read
from hcl.records.raw import Raw
from hcl.use.trained import load

TOKEN = "a-token-for-the-benchmark"


@contextmanager
def served(model: Path, state: Path) -> Iterator[int]:
    """The port of a running service."""
    door = "from stages.cli import main; main()"
    options = ["serve", "--model", str(model), "--state", str(state), "--port", "0"]
    server = subprocess.Popen(
        [sys.executable, "-c", door, *options],
        env={**os.environ, "HCL_TOKEN": TOKEN, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        for line in server.stdout:
            if found := re.fullmatch(r"http://127\.0\.0\.1:(\d+)\n", line):
                yield int(found[1])
                return
        raise SystemExit("the service did not start")
    finally:
        server.terminate()
        server.wait()


class Client:
    """One connection, and how long its requests took."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self.seconds: list[float] = []
        self.failed: list[str] = []

    def ask(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> Any:
        start = time.perf_counter()
        headers = {"Content-Type": kind, "Authorization": f"Bearer {TOKEN}"}
        try:
            self.connection.request(method, path, body, headers)
            reply = self.connection.getresponse()
            content = reply.read()
        except (OSError, http.client.HTTPException) as error:
            self.failed.append(repr(error))
            self.connection.close()
            return None
        self.seconds.append(time.perf_counter() - start)
        if reply.status != 200:
            self.failed.append(f"{reply.status} {content[:200]!r}")
            return None
        return json.loads(content)


def repeated(client: Client, until: float, request: Callable[[int], object]) -> None:
    number = 0
    while time.perf_counter() < until:
        request(number)
        number += 1


def png(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(buffer, "png")
    return buffer.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--embeddings", type=Path, required=True)
    parser.add_argument("--raw", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=4, help="that ask for embeddings")
    options = parser.parse_args()

    found = read(options.embeddings)
    known = set(load(options.model).classes)
    rows = [i for i in range(len(found.y)) if found.classes[found.y[i]] in known]
    vectors = [json.dumps({"embeddings": [found.x[i].tolist()]}).encode() for i in rows[:200]]
    lessons = [
        json.dumps(
            {"embeddings": [found.x[i].tolist()], "labels": [found.classes[found.y[i]]]}
        ).encode()
        for i in rows
    ]
    pictures = (
        [png(np.asarray(image)) for image in Raw(options.raw).read_images(0, 200)]
        if (options.raw)
        else []
    )

    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state.safetensors"
        with served(options.model, state) as port:
            first = Client(port)
            while first.ask("GET", "/health") is None:
                first.failed.clear()
                time.sleep(0.1)
            if pictures:
                first.ask("POST", "/predict", pictures[0], "image/png")  # loads the backbone
            before = first.ask("GET", "/state")
            until = time.perf_counter() + options.seconds
            askers = [Client(port) for _ in range(options.clients)]
            seer, teacher = Client(port), Client(port)
            acknowledged: list[Any] = []

            def teach(i: int) -> None:
                told = teacher.ask("POST", "/learn", lessons[i % len(lessons)])
                if told is not None:
                    acknowledged.append(told)

            work: list[tuple[Client, Callable[[int], object]]] = [(teacher, teach)]
            for client in askers:
                work.append(
                    (
                        client,
                        lambda i, c=client: c.ask("POST", "/predict", vectors[i % len(vectors)]),
                    )
                )
            if pictures:
                see = lambda i: seer.ask(  # noqa: E731
                    "POST", "/predict", pictures[i % len(pictures)], "image/png"
                )
                work.append((seer, see))
            threads = [threading.Thread(target=repeated, args=(c, until, r)) for c, r in work]
            start = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            took = time.perf_counter() - start
            after = Client(port).ask("GET", "/state")  # the first was idle, and is closed
        saved = load(state)
    heads = ("clients", "requests/s", "p50 ms", "p99 ms", "failed")
    print(f"{'request':12}" + "".join(f"{head:>12}" for head in heads))
    for name, clients in (("embedding", askers), ("image", [seer]), ("lesson", [teacher])):
        seconds = np.array([s for client in clients for s in client.seconds])
        if len(seconds):
            p50, p99 = 1000 * np.quantile(seconds, [0.5, 0.99])
            failed = [said for client in clients for said in client.failed]
            rate = len(seconds) / took
            print(f"{name:12}{len(clients):12}{rate:12.1f}{p50:12.1f}{p99:12.1f}{len(failed):12}")
            for said in failed[:3]:
                print("  ", said)

    def learned(values: Any) -> int:
        return int(values["samples"] + values["waiting"])

    told = learned(after) - learned(before)
    kept = saved.about.samples + saved.waiting - learned(before)
    print(f"lessons acknowledged {len(acknowledged)}, learned {told}, in the file {kept}")
    if not len(acknowledged) == told == kept:
        raise SystemExit("a lesson was lost")


if __name__ == "__main__":
    main()
