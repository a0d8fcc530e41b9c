"""Small models for the service, and a service that listens, in this process or in its own."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from hcl.files import canonical_json
from hcl.learn.settings import TrainingSettings
from hcl.model.settings import FlowSettings
from hcl.records.embeddings import Embeddings
from hcl.records.tasks import Benchmark, Part, Segment, Source, Task
from hcl.train.jobs import train_into
from hcl.train.loop import Job
from tests.support.blobs import benchmark, blobs_in_64_dimensions
from tests.support.every_learner import BATCH, DETECTING, TOLD
from tests.support.imports import ROOT
from tests.support.projects import environment
from tests.support.tiny_backbone import NAME, save_weights

TOKEN = "a-token-for-the-tests"
WITHOUT = "starlette or uvicorn is not installed: `make test-serve` installs them and runs this"
NAMES = ("ant", "<b>bee</b>", "cat", "dog", "eel", "fox")


def save_model(path: Path, job: Job) -> Path:
    """Train a job and leave its model file at ``path``."""
    train_into(replace(job, training=replace(job.training, save_model=True)), path.parent / "run")
    os.replace(path.parent / "run" / "model.safetensors", path)
    return path


def on_blobs(path: Path, name: str = "hcl-plus-ta", names: Sequence[str] = NAMES) -> Path:
    """A model of embeddings of 64 numbers, three tasks of two classes."""
    embeddings, tasks = benchmark(_made())
    attributes = {**embeddings["blobs"].attributes, "classes": json.dumps(list(names))}
    found = {"blobs": replace(embeddings["blobs"], attributes=attributes)}
    method = {**TOLD, **DETECTING}[name]
    flow, training = FlowSettings(couplings=2, hidden_layers=1, hidden=8), TrainingSettings(BATCH)
    return save_model(path, Job(tasks, found, name, method, flow, training, seed=0))


@cache
def _made() -> Any:
    return blobs_in_64_dimensions(3, 20 * BATCH, 20)


def blobs(task: int, count: int = BATCH) -> tuple[np.ndarray, list[str]]:
    """Samples of a task of ``on_blobs``, with the names of their classes."""
    embeddings, tasks = benchmark(_made())
    part = tasks.tasks[task].train
    return embeddings["blobs"].x[part.rows[:count]], [NAMES[2 * task + y] for y in part.y[:count]]


def picture(label: int, seed: int) -> bytes:
    """A PNG file: stripes or squares, fine or coarse, with noise."""
    random = np.random.default_rng([label, seed])
    grid = np.indices((48, 48)) // (3 if label % 2 else 12)
    lines = (grid[0] % 2) if label < 2 else (grid.sum(0) % 2)
    image = 200 * lines[..., None] + random.integers(0, 55, (48, 48, 3))
    buffer = BytesIO()
    Image.fromarray(image.astype(np.uint8)).save(buffer, "png")
    return buffer.getvalue()


PICTURED = ("fine stripes", "coarse stripes", "fine squares", "<img src=x onerror=alert(1)>")
SHOWN = (1, 0, 3, 2)  # the label in ``picture`` of each of them


def on_pictures(folder: Path) -> tuple[Path, Path]:
    """A model of pictures seen by a tiny backbone, tasks of two classes; and its weights."""
    import hcl
    from hcl.extract.backbones import load_backbone

    weights = save_weights(folder / "tiny.pth")
    per_class = 128  # 32 batches of a task
    files = [picture(SHOWN[label], seed) for label in range(4) for seed in range(per_class)]
    backbone = load_backbone(NAME, str(weights))
    attributes = {
        "content_sha256": "pictures",
        "classes": json.dumps(PICTURED),
        "backbone": NAME,
        "weights": backbone.weights.source,
        "weights_sha256": backbone.weights.sha256,
        "transform": canonical_json(backbone.transform.describe()),
    }
    y = np.repeat(np.arange(4), per_class)
    x = hcl.embed(files, NAME, weights=weights, device="cpu")
    found = Embeddings(x, y, np.zeros(len(y), np.uint8), attributes)
    mixed = np.random.default_rng(0).permutation(2 * per_class)
    tasks = []
    for i in range(2):
        rows = 2 * per_class * i + mixed
        part = Part(rows, y[rows] - 2 * i)
        tasks.append(Task("pictures", (2 * i, 2 * i + 1), part, Part(rows[:0], rows[:0]), part))
    stream = tuple(Segment(i, 1) for i in range(2))
    pictured = Benchmark("pictures", tuple(tasks), stream, (Source("pictures", "pictures"),))
    method, training = DETECTING["hcl-plus-ta"], TrainingSettings(8)
    made = Job(pictured, {"pictures": found}, "hcl-plus-ta", method, FlowSettings(), training, 0)
    return save_model(folder / "pictures.safetensors", made), weights


class Reply(NamedTuple):
    """What the service said."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Asks a service on this machine."""

    def __init__(self, port: int) -> None:
        self.port = port

    def send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return Reply(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Reply:
        return self.send("GET", path)

    def post(self, path: str, value: Any, token: str | None = TOKEN) -> Reply:
        """A JSON value."""
        headers = {"Content-Type": "application/json"} | _bearer(token)
        return self.send("POST", path, json.dumps(value).encode(), headers)

    def form(
        self, path: str, fields: Sequence[tuple[str, Any]], token: str | None = TOKEN
    ) -> Reply:
        """A form; a value of bytes is a file."""
        parts = []
        for i, (name, value) in enumerate(fields):
            is_file = isinstance(value, bytes)
            file = f'; filename="{i}.png"\r\nContent-Type: image/png' if is_file else ""
            head = f'--limit\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
            parts.append(head.encode() + (value if is_file else value.encode()) + b"\r\n")
        headers = {"Content-Type": "multipart/form-data; boundary=limit"} | _bearer(token)
        return self.send("POST", path, b"".join([*parts, b"--limit--\r\n"]), headers)


def _bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


@contextmanager
def listening(service: Any, **bounds: Any) -> Iterator[Client]:
    """The service on a free port of this machine, in a thread."""
    import uvicorn

    from hcl.serve.app import Bounds, make_app

    app = make_app(service, Bounds(**{"token": TOKEN, **bounds}))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 60
    while not server.started:
        assert time.monotonic() < until
        time.sleep(0.01)
    try:
        yield Client(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(60)


@contextmanager
def process(model: Path, *options: str) -> Iterator[tuple[Client, subprocess.Popen[str]]]:
    """``hcl serve`` on a free port, as a process of its own."""
    door = "from stages.cli import main; main()"
    command = [sys.executable, "-c", door, "serve", "--model", str(model), "--port", "0"]
    started = subprocess.Popen(
        [*command, *options],
        env={**environment(), "HCL_TOKEN": TOKEN, "PYTHONUNBUFFERED": "1"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert started.stdout is not None
    said = []
    try:
        for line in started.stdout:
            said.append(line)
            if found := re.fullmatch(r"http://127\.0\.0\.1:(\d+)\n", line):
                break
        else:
            raise AssertionError("".join(said))
        client = Client(int(found[1]))
        wait_for(client)
        yield client, started
    finally:
        started.kill()
        started.wait(60)
        started.stdout.close()


def wait_for(client: Client) -> None:
    """Until it answers."""
    until = time.monotonic() + 60
    while True:
        try:
            assert client.get("/health").status == 200
            return
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.05)
