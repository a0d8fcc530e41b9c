"""``hcl serve`` as a process: what it prints, and what a kill at any moment leaves."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hcl.use.trained import load
from tests.support import served
from tests.support.imports import ROOT
from tests.support.projects import environment
from tests.support.served import Client, process

pytestmark = [pytest.mark.serve, pytest.mark.slow]
pytest.importorskip("starlette", reason=served.WITHOUT)
pytest.importorskip("uvicorn", reason=served.WITHOUT)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return served.on_blobs(tmp_path_factory.mktemp("blobs") / "blobs.safetensors")


def teach_until_it_dies(client: Client, acknowledged: list[int]) -> None:
    x, names = served.blobs(0)
    while True:
        i = len(acknowledged) % len(x)
        try:
            value = {"embeddings": x[i : i + 1].tolist(), "labels": names[i : i + 1]}
            reply = client.post("/learn", value)
        except (OSError, http.client.HTTPException):
            return
        assert reply.status == 200, reply.body
        acknowledged.append(reply.json["samples"] + reply.json["waiting"])


def test_a_kill_loses_at_most_the_last_request(model: Path, tmp_path: Path) -> None:
    state = tmp_path / "state.safetensors"
    first = model.read_bytes()
    base = load(model).about.samples
    learned = 0  # at least, as far as was acknowledged
    for seconds in (0.3, 0.75, 1.1):
        acknowledged: list[int] = []
        with process(model, "--state", str(state)) as (client, server):
            told = client.get("/state").json
            there = told["samples"] + told["waiting"] - base
            assert learned <= there <= learned + 1
            teacher = threading.Thread(target=teach_until_it_dies, args=(client, acknowledged))
            teacher.start()
            while not acknowledged and teacher.is_alive():
                time.sleep(0.01)
            time.sleep(seconds)
            server.kill()
            teacher.join(60)
        learned = acknowledged[-1] - base
        assert learned == there + len(acknowledged)
        found = load(state)  # whole
        assert learned <= found.about.samples + found.waiting - base <= learned + 1
    with process(model, "--state", str(state)) as (client, _):
        told = client.get("/state").json
        # The drawing may lack the lesson of each kill, not one that was acknowledged.
        assert told["labelled"]["samples"] >= learned - 2
    assert model.read_bytes() == first


def run(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    door = "from stages.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", door, "serve", *options],
        env={**environment(), **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_mistakes_are_one_line(model: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.safetensors").write_bytes(model.read_bytes()[:1000])
    with process(model, "--state", str(tmp_path / "s.safetensors")) as (client, _):
        taken = run("--model", str(model), "--port", str(client.port))
    for done, said in (
        (taken, f"127.0.0.1:{client.port}: is taken; name another with --port"),
        (run("--model", "none.safetensors"), "none.safetensors: no such"),
        (run("--model", str(tmp_path / "broken.safetensors"), "--port", "0"), "broken.safetensors"),
        (run("--model", str(model), "--state", str(tmp_path)), "is a folder"),
        (run("--model", str(model), "--port", "0", HCL_TOKEN="short"), "HCL_TOKEN: expected"),
        (run("--model", str(model), "--host", "no.such.host.invalid"), "can't be used"),
    ):
        assert done.returncode == 1, done
        assert said in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert "Traceback" not in done.stderr


def test_a_token_is_made_up_and_printed_once(model: Path, tmp_path: Path) -> None:
    door = "from stages.cli import main; main()"
    state = tmp_path / "s.safetensors"
    options = ["serve", "--model", str(model), "--state", str(state), "--port", "0"]
    without = {key: value for key, value in environment().items() if key != "HCL_TOKEN"}
    server = subprocess.Popen(
        [sys.executable, "-c", door, *options],
        env={**without, "PYTHONUNBUFFERED": "1"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        lines = [server.stdout.readline() for _ in range(3)]
    finally:
        os.kill(server.pid, 2)
        server.wait(60)
    token = re.fullmatch(r"Token for learning, made up and not shown again: (\S{32})\n", lines[0])
    assert token is not None
    assert lines[1] == f"{model}: goes on from here; saved to {state}\n"
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+\n", lines[2])
    assert token[1] not in server.stdout.read()
    server.stdout.close()
