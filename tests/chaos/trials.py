"""The trials. Each yields a line on what was done, and what did not hold."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np

from hcl.records import embeddings
from tests.chaos.project import (
    COMMANDS,
    MODEL,
    SHOWN,
    WEIGHTS,
    Command,
    Forked,
    Process,
    content,
    kill_group,
    leftovers,
    make_project,
    one_line,
    start,
)

Trouble = str
Outcome = tuple[str, list[Trouble]]
# kB that are free on a small file system, besides a command's inputs
ROOM = (0, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class Reference:
    """A project in which every command came to its end, with how long each took and left."""

    folder: Path
    seconds: dict[str, float]
    outputs: dict[str, dict[str, str]]


def whole_project(folder: Path, names: Sequence[str] = tuple(COMMANDS)) -> Reference:
    """Run every command once, undisturbed."""
    folder.mkdir(parents=True)
    make_project(folder)
    seconds, outputs = {}, {}
    for name in names:
        began = time.monotonic()
        process = Forked(folder, COMMANDS[name])
        printed = process.communicate()[0]
        if process.returncode:
            raise RuntimeError(f"{name} fails undisturbed: {printed}")
        seconds[name] = time.monotonic() - began
        outputs[name] = content(folder, COMMANDS[name])
    assert all(outputs.values())
    return Reference(folder, seconds, outputs)


def prepared(reference: Reference, name: str, project: Path) -> None:
    """A project with all that a command needs, and nothing of what it makes."""
    project.mkdir(parents=True)
    for entry in reference.folder.iterdir():
        if entry.name in ("pictures", "params.yaml", SHOWN, WEIGHTS, "data"):
            copy = shutil.copytree if entry.is_dir() else shutil.copy2
            copy(entry, project / entry.name)
    for needed in COMMANDS[name].inputs:
        source = reference.folder / needed
        (project / needed).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, project / needed)
    for output in COMMANDS[name].outputs:
        path = project / output
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def kill_randomly(
    reference: Reference, kills: int, seed: int, names: Sequence[str] | None = None
) -> Iterator[Outcome]:
    """SIGKILL each command at random moments, one time after the other; then let it end."""
    names = [name for name in names or COMMANDS if name in reference.outputs]
    for index, name in enumerate(names):
        share = kills // len(names) + (index < kills % len(names))
        chance = random.Random(f"{seed} {name}")
        project = reference.folder.with_name(f"killed-{index}")
        prepared(reference, name, project)
        killed, length = 0, reference.seconds[name]
        for _ in range(3 * share):
            if killed == share:
                break
            began = time.monotonic()
            process = Forked(project, COMMANDS[name])
            try:
                process.wait(chance.uniform(0.0, 1.0) * length)
                process.communicate()
                # It was done before: what is finished can't be killed, so it begins anew.
                length = min(length, time.monotonic() - began)
                shutil.rmtree(project)
                prepared(reference, name, project)
            except subprocess.TimeoutExpired:
                kill_group(process, signal.SIGKILL)
                process.communicate()
                killed += 1
        yield f"{name}: {killed} of {share} killed", _same_in_the_end(reference, name, project)
        shutil.rmtree(project)


def _same_in_the_end(
    reference: Reference,
    name: str,
    project: Path,
    begin: Callable[[Path, Command], Process] = start,
) -> list[Trouble]:
    process = begin(project, COMMANDS[name])
    printed = process.communicate()[0]
    troubles = []
    if process.returncode:
        troubles.append(f"does not go on: {printed[-500:]}")
    elif content(project, COMMANDS[name]) != reference.outputs[name]:
        troubles.append("other bytes")
    troubles += [f"left over: {path}" for path in leftovers(project)]
    return troubles


@contextmanager
def small_disk(place: Path, kilobytes: int) -> Iterator[bool]:
    """A file system of this size at ``place``; ``False`` where this user can't mount one."""
    place.mkdir(parents=True, exist_ok=True)
    options = f"size={kilobytes}k"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill_disk(
    reference: Reference, names: Sequence[str] | None = None, rooms: Sequence[int] = ROOM
) -> Iterator[Outcome]:
    """Each command on file systems that are full sooner or later, until one has room for it.

    Each time it is run again where there is room, on what the full disk left.
    """
    for name in names or reference.outputs:
        command, ends, troubles = COMMANDS[name], [], []
        for room in rooms:
            place = reference.folder.with_name("small")
            source = reference.folder.with_name("small-source")
            prepared(reference, name, source)
            needed = sum(4 + p.stat().st_size // 1024 for p in source.rglob("*"))
            with small_disk(place, needed + 64 + room) as mounted:
                if not mounted:
                    yield f"{name}: no small disk can be mounted here", []
                    return
                for entry in source.iterdir():
                    copy = shutil.copytree if entry.is_dir() else shutil.copy2
                    copy(entry, place / entry.name)
                _fill_up(place, room)
                process = Forked(place, command)
                printed = process.communicate()[0]
                ends.append(process.returncode)
                whole = content(place, command)
                if process.returncode and not (
                    one_line(printed) and "no space left" in printed.lower()
                ):
                    troubles.append(f"{room} kB, status {process.returncode}: {printed[-400:]}")
                if process.returncode and whole:
                    troubles.append(f"{room} kB: half an output: {sorted(whole)}")
                if not process.returncode and whole != reference.outputs[name]:
                    troubles.append(f"{room} kB: other bytes")
                (place / "filler").unlink(missing_ok=True)
                mount = ["mount", "-o", "remount,size=512m", str(place)]
                subprocess.run(mount, check=True, capture_output=True)
                found = _same_in_the_end(reference, name, place, Forked)
                troubles += [f"{room} kB, then: {trouble}" for trouble in found]
            shutil.rmtree(source)
            if ends[-1] == 0:
                break
        yield f"{name} on a full disk: {len(ends) - ends.count(0)} times, {room} kB", troubles


def _fill_up(place: Path, room: int) -> None:
    """Leave so many kilobytes."""
    found = os.statvfs(place)
    size = max(found.f_bavail * found.f_frsize - room * 1024, 0)
    with open(place / "filler", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, size) if size else None


def run_two(reference: Reference, names: Sequence[str] | None = None) -> Iterator[Outcome]:
    """Two processes, one output, started a moment apart."""
    for index, name in enumerate(names or reference.outputs):
        project = reference.folder.with_name(f"two-{index}")
        prepared(reference, name, project)
        chance = random.Random(name)
        processes = [Forked(project, COMMANDS[name])]
        time.sleep(chance.uniform(0, 0.3))
        processes.append(Forked(project, COMMANDS[name]))
        troubles = []
        for process in processes:
            printed = process.communicate()[0]
            if process.returncode and not one_line(printed):
                troubles.append(f"status {process.returncode}: {printed[-500:]}")
        troubles += _same_in_the_end(reference, name, project, Forked)
        yield f"{name} twice at once", troubles
        shutil.rmtree(project)


def kill_serving(reference: Reference, kills: int, seed: int) -> Iterator[Outcome]:
    """SIGKILL `hcl serve` while it is taught: at most the last lesson is lost, and none twice.

    A lesson is one sample, and which one depends on how many it has learned: so it ends with the
    bytes of one that was taught as much and never killed.
    """
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn")):
        yield "serve: starlette or uvicorn is not installed", []
        return
    from tests.support.served import process

    folder = reference.folder.with_name("served")
    folder.mkdir()
    chance = random.Random(f"{seed} serve")
    model = folder / "model.safetensors"
    shutil.copy2(reference.folder / MODEL, model)
    lessons = _lessons(reference.folder)
    troubles: list[Trouble] = []
    base = learned = 0  # what the model had seen before, and what was acknowledged since
    for number in range(kills + 1):
        with process(model, "--state", str(folder / "killed.safetensors")) as (client, server):
            there = client.get("/state").json
            first = there["samples"] + there["waiting"]
            base = base if number else first
            if not learned <= first - base <= learned + 1:
                troubles.append(f"{learned} lessons were acknowledged, {first - base} are there")
            learned = first - base
            killer = threading.Timer(chance.uniform(0.0, 1.5), server.kill)
            with suppress(OSError, HTTPException):
                while number < kills or learned == first - base:  # at the end, one more
                    reply = client.post("/learn", lessons[learned % len(lessons)])
                    if reply.status != 200:
                        troubles.append(f"status {reply.status}: {reply.body[:300]!r}")
                        break
                    learned += 1
                    if number < kills and learned == first - base + 1:
                        killer.start()  # not before: a busy machine would learn nothing at all
            killer.cancel()
    with process(model, "--state", str(folder / "whole.safetensors")) as (client, _):
        for number in range(learned):
            client.post("/learn", lessons[number % len(lessons)])
    whole, killed = ((folder / f"{n}.safetensors").read_bytes() for n in ("whole", "killed"))
    if whole != killed:
        troubles.append("other bytes")
    troubles += [f"left over: {path}" for path in leftovers(folder)]
    shutil.rmtree(folder)
    yield f"serve: killed {kills} times, {learned} lessons", troubles


def _lessons(project: Path) -> list[dict[str, Any]]:
    """Embeddings of the project's pictures, one by one, with the names of their classes."""
    found = embeddings.read(project / "data/embeddings/pictures.h5")
    names = json.loads(found.attributes["classes"])
    order = np.random.default_rng(0).permutation(len(found.y))
    return [{"embeddings": [found.x[i].tolist()], "labels": [names[found.y[i]]]} for i in order]


def kill_dvc(folder: Path, kills: int, seed: int) -> Iterator[Outcome]:
    """SIGKILL and SIGINT of `hcl dvc repro` on a project of its own; then it comes to its end."""
    from tests.support.projects import make_project as make_dvc_project

    folder.mkdir(parents=True)
    project = make_dvc_project(folder)
    chance = random.Random(seed)
    repro = Command(("dvc", "repro"), ("report",))
    again = Command((*repro.arguments, "--force"), repro.outputs)  # there is always work to stop
    stopped = 0
    for number in range(kills):
        process = start(project, again)
        try:
            process.wait(chance.uniform(2, 25))
        except subprocess.TimeoutExpired:
            kill_group(process, signal.SIGKILL if number % 2 else signal.SIGINT)
            stopped += 1
        process.communicate()
    process = start(project, repro)
    printed = process.communicate()[0]
    troubles = [] if process.returncode == 0 else [f"does not go on: {printed[-600:]}"]
    troubles += [f"left over: {path}" for path in leftovers(project) if ".dvc/" not in path]
    yield f"dvc repro: {stopped} of {kills} stopped", troubles
