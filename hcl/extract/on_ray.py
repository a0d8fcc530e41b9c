"""Extraction on the machines of a Ray cluster.

An actor with a core or a GPU of its own holds the backbone. It is handed runs of blocks, with their
images or, where the raw file lies on shared storage, without, and hands the embeddings back. The
driver alone writes, and writes what it would have written by itself: a driver that was killed is
resumed with the cluster or without it, and the file has the same bytes.

A run of blocks whose actor is lost, or raises, goes to another actor; one that failed ``ATTEMPTS``
times ends the work. The driver looks at the size of the cluster again and again: cores of a machine
that joins are used, those of one that is gone are no longer waited for.
"""

from __future__ import annotations

import logging
import platform
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hcl.errors import HCLError
from hcl.extract.backbones import Backbone
from hcl.extract.forward import (
    Cut,
    embed_blocks,
    exact_convolutions,
    freed_memory_kept,
    make_embedders,
    one_thread,
    room_for,
    versions,
)
from hcl.extract.partial import Partial
from hcl.extract.settings import ExtractSettings
from hcl.progress import bar
from hcl.records.raw import Raw, decode_image

LOG = logging.getLogger(__name__)

AHEAD = 2  # runs of blocks that an actor has: one at work, one to go on with
IN_FLIGHT = 1 << 30  # bytes of images and embeddings between driver and actors, at most
ATTEMPTS = 4  # at a run of blocks, before it counts as impossible
LOOK_AGAIN = 5.0  # seconds between two looks at the size of the cluster
PATIENCE = 60.0  # seconds without any actor before the driver says that it waits


def device_of(ray: Any, device: str) -> str:
    """The kind of device that the actors use, "cpu" or "cuda"."""
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if device == "auto":
        return "cuda" if gpus else "cpu"
    if device not in ("cpu", "cuda"):
        raise HCLError(
            f"extract.device is {device!r}, which names a device of one machine. On a cluster use "
            "auto, cpu or cuda."
        )
    if device == "cuda" and not gpus:
        raise HCLError(
            "extract.device is 'cuda', but no machine of the cluster offers a GPU. Use auto or cpu."
        )
    return device


def embed_all(
    ray: Any,
    raw: Raw,
    backbone: Backbone,
    settings: ExtractSettings,
    device: str,
    partial: Partial,
    shared: bool,
) -> None:
    """Embed the blocks that are not finished yet, on every core or GPU of the cluster.

    Args:
        ray: the module, connected.
        raw: the images.
        backbone: on this machine; the actors get a copy.
        settings: with ``compile`` and ``forward_batch`` decided.
        device: "cpu" or "cuda".
        partial: where embeddings go.
        shared: whether the actors read the raw file themselves.
    """
    if not len(partial.pending()):
        return
    plan = Plan(
        settings=settings,
        device=device,
        cut=partial.cut,
        raw=(raw.path.resolve(), raw.content_sha256) if shared else None,
    )
    total, done = partial.cut.count, partial.images_done()
    with bar(total=total, initial=done, desc=f"extract {raw.dataset}", unit="image") as progress:
        driver = _Driver(ray, raw, backbone, plan, partial)
        try:
            for images in driver.run():
                progress.update(images)
        finally:
            driver.close()


@dataclass(frozen=True)
class Plan:
    """What every actor is told: the same for all of them.

    Attributes:
        settings: of the extraction.
        device: "cpu" or "cuda".
        cut: the images into blocks.
        raw: path and SHA-256 of the raw file, where the actors read it themselves.
    """

    settings: ExtractSettings
    device: str
    cut: Cut
    raw: tuple[Path, str] | None


@dataclass(frozen=True)
class Sent:
    """Samples that are sent along, from number ``first`` on."""

    kind: Literal["images", "encoded", "embeddings"]
    first: int
    data: NDArray[Any] | list[bytes]

    def read_images(self, start: int, stop: int) -> NDArray[np.uint8] | list[NDArray[np.uint8]]:
        part = self.data[start - self.first : stop - self.first]
        if not isinstance(part, list):
            return np.array(part)  # Ray's own memory can't be written to, which torch wants
        return [self._decode(start + i, data) for i, data in enumerate(part)]

    def _decode(self, number: int, data: bytes) -> NDArray[np.uint8]:
        try:
            return decode_image(data)
        except ValueError as error:
            raise HCLError(f"sample {number} is not a readable image: {error}.") from error


class Actor:
    """A core or a GPU of the cluster with the backbone on it."""

    def prepare(self, backbone: Backbone, plan: Plan) -> dict[str, Any]:
        """Get ready; what the driver wants to know of this actor."""
        self._open = ExitStack()  # as long as the process lives
        self._open.enter_context(exact_convolutions(plan.settings.amp))
        self._open.enter_context(freed_memory_kept())
        self._device = (
            torch.device(plan.device, 0) if plan.device == "cuda" else torch.device("cpu")
        )
        self._open.enter_context(one_thread(self._device))
        self._plan, self._transform = plan, backbone.transform
        self._raw = None
        if plan.raw is not None:
            path, digest = plan.raw
            self._raw = Raw(path)
            if self._raw.content_sha256 != digest:
                raise HCLError(f"{path}: another file than the driver's.")
        ((_, self._embed),), compiled = make_embedders(
            backbone, [self._device], plan.settings, plan.cut.block, plan.cut.count
        )
        return {"made": {**versions(), "compiled": compiled}, "hardware": _hardware(plan.device)}

    def embed(self, first: int, stop: int, sent: Sent | None) -> NDArray[np.float32]:
        """The embeddings of the images of blocks first…stop−1, (images, D)."""
        images = sent or self._raw
        assert images is not None
        cut, parts = self._plan.cut, []
        with torch.no_grad(), room_for(cut.block):
            for block, values in embed_blocks(
                range(first, stop),
                images,
                self._transform,
                self._device,
                self._embed,
                self._plan.settings,
                cut,
            ):
                parts.append(values[: cut.images_in(block)])
            return torch.cat(parts).cpu().numpy()


def _hardware(device: str) -> str:
    """On what the rounding may depend."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


@dataclass
class _Run:
    """Consecutive blocks that are worked through together."""

    first: int
    stop: int
    failures: int = 0


@dataclass
class _Hired:
    """An actor as the driver sees it."""

    number: int
    handle: Any
    since: float
    ready: bool = False
    runs: int = 0


class _Driver:
    """Hands out runs of blocks and writes what comes back."""

    def __init__(
        self, ray: Any, raw: Raw, backbone: Backbone, plan: Plan, partial: Partial
    ) -> None:
        self.ray, self.raw, self.plan, self.partial = ray, raw, plan, partial
        gpus = 1 if plan.device == "cuda" else 0
        self.resource = "GPU" if gpus else "CPU"
        self.hire = ray.remote(Actor).options(num_cpus=1, num_gpus=gpus, max_restarts=0).remote
        self.backbone = ray.put(backbone)
        self.expected = {**versions(), "compiled": plan.settings.compile}
        pending = partial.pending()
        at_once = max(1, -(-plan.settings.batch_size // plan.cut.block))
        self.fresh = _runs(pending, at_once)
        self.left = len(pending)  # blocks
        self.at_once = at_once
        self.again: deque[_Run] = deque()
        self.actors: dict[int, _Hired] = {}
        self.preparing: dict[Any, _Hired] = {}
        self.working: dict[Any, tuple[_Hired, _Run, int]] = {}
        self.bytes = 0  # on the way
        self.bytes_an_image = 4 * partial.size
        if plan.raw is None:
            self.bytes_an_image += -(-raw.data.nbytes // len(raw))
        self.hired = 0
        self.refused: list[str] = []
        self.lost_early = 0
        self.hardware: set[str] = set()
        self.looked = -LOOK_AGAIN
        self.last_ready = time.monotonic()
        self.told = False

    def close(self) -> None:
        for actor in list(self.actors.values()):
            self._dismiss(actor)

    def run(self) -> Iterator[int]:
        """Work until nothing is left; yields numbers of images as they are written."""
        while self.left:
            self._hire_for_what_is_left()
            self._hand_out()
            waiting = [*self.preparing, *self.working]
            done, _ = self.ray.wait(waiting, num_returns=1, timeout=LOOK_AGAIN)
            if done:  # with all that came meanwhile: they share the wait for the disk
                done, _ = self.ray.wait(waiting, num_returns=len(waiting), timeout=0)
            outputs: dict[int, NDArray[np.float32]] = {}
            for job in done:
                if job in self.preparing:
                    self._welcome(self.preparing.pop(job), job)
                elif job in self.working:  # not given up with its actor a moment ago
                    outputs |= self._receive(job)
            self.partial.write(outputs)
            self.left -= len(outputs)
            if outputs:
                yield sum(self.partial.cut.images_in(block) for block in outputs)

    # The actors

    def _hire_for_what_is_left(self) -> None:
        """As many actors as the cluster has cores (or GPUs), while there is work for them."""
        now = time.monotonic()
        if any(actor.ready for actor in self.actors.values()):
            self.last_ready, self.told = now, False
        elif now - self.last_ready > PATIENCE and not self.told:
            LOG.warning("waiting: the cluster has had no free %s for a minute", self.resource)
            self.told = True
        if now - self.looked < LOOK_AGAIN:
            return
        self.looked = now
        there = int(self.ray.cluster_resources().get(self.resource, 0)) - len(self.refused)
        if self.refused and there < 1 and not self.actors:
            raise HCLError(f"no actor of the cluster can do the work: {self.refused[0]}")
        wanted = min(max(1, there), -(-self.left // self.at_once))
        while len(self.actors) < wanted:
            self.hired += 1
            actor = _Hired(self.hired, self.hire(), now)
            self.actors[actor.number] = actor
            self.preparing[actor.handle.prepare.remote(self.backbone, self.plan)] = actor

    def _welcome(self, actor: _Hired, job: Any) -> None:
        """Whether an actor that is prepared would give the bytes that the driver would."""
        try:
            found = self.ray.get(job)
        except self.ray.exceptions.RayTaskError as error:
            self._refuse(actor, _reason(error))
            return
        except self.ray.exceptions.RayError as error:
            self._dismiss(actor)
            self.lost_early += 1
            if self.lost_early >= ATTEMPTS and not self.hardware:
                raise HCLError(f"no actor of the cluster starts: {_reason(error)}") from error
            return
        different = [
            f"{key} is {found['made'][key]} there, {value} here"
            for key, value in self.expected.items()
            if found["made"][key] != value
        ]
        if different:
            self._refuse(actor, "; ".join(different))
            return
        actor.ready = True
        self.hardware.add(found["hardware"])
        if len(self.hardware) == 2:
            LOG.warning("machines that may round differently: %s", ", ".join(sorted(self.hardware)))

    def _refuse(self, actor: _Hired, why: str) -> None:
        LOG.warning("an actor is not used: %s", why)
        self.refused.append(why)
        self._dismiss(actor)

    def _dismiss(self, actor: _Hired) -> None:
        """Let an actor go; what it was working on is done by others."""
        if self.actors.pop(actor.number, None) is None:
            return
        for job in [job for job, (other, _, _) in self.working.items() if other is actor]:
            _, run, size = self.working.pop(job)
            self.bytes -= size
            self.again.append(run)
        self.preparing = {job: other for job, other in self.preparing.items() if other is not actor}
        self.ray.kill(actor.handle)
        self.looked = -LOOK_AGAIN  # another one may take its place at once

    # The work

    def _hand_out(self) -> None:
        ready = [actor for actor in self.actors.values() if actor.ready]
        for load in range(AHEAD):
            for actor in ready:
                if actor.runs > load:
                    continue
                run = self.again.popleft() if self.again else next(self.fresh, None)
                if run is None or not self._send(actor, run):
                    return

    def _send(self, actor: _Hired, run: _Run) -> bool:
        """Send a run to an actor, if there is room for it on the way."""
        start = run.first * self.plan.cut.block
        stop = min(run.stop * self.plan.cut.block, self.plan.cut.count)
        size = (stop - start) * self.bytes_an_image
        if self.working and self.bytes + size > IN_FLIGHT:
            self.again.appendleft(run)
            return False
        sent = None
        if self.plan.raw is None:
            sent = Sent(self.raw.kind, start, self.raw.read_samples(start, stop))
        job = actor.handle.embed.remote(run.first, run.stop, sent)
        self.working[job] = (actor, run, size)
        self.bytes += size
        actor.runs += 1
        return True

    def _receive(self, job: Any) -> dict[int, NDArray[np.float32]]:
        actor, run, size = self.working.pop(job)
        self.bytes -= size
        actor.runs -= 1
        try:
            values = self.ray.get(job)
        except self.ray.exceptions.RayError as error:
            run.failures += 1
            if run.failures == ATTEMPTS:
                first, stop = run.first * self.plan.cut.block, run.stop * self.plan.cut.block
                last = min(stop, self.plan.cut.count) - 1
                raise HCLError(
                    f"images {first}…{last} failed on {ATTEMPTS} actors, "
                    f"at last with: {_reason(error)}"
                ) from error
            self.again.append(run)
            self._dismiss(actor)
            return {}
        block = self.plan.cut.block
        return {
            run.first + i: values[i * block : (i + 1) * block] for i in range(run.stop - run.first)
        }


def _runs(pending: NDArray[np.int64], at_once: int) -> Iterator[_Run]:
    """Blocks that are not finished, in runs without a gap of ``at_once`` blocks at most."""
    start = 0
    for end in range(1, len(pending) + 1):
        full = end - start == at_once
        if full or end == len(pending) or pending[end] != pending[end - 1] + 1:
            yield _Run(int(pending[start]), int(pending[end - 1]) + 1)
            start = end


def _reason(error: BaseException) -> str:
    """What went wrong over there, in one line; Ray's own text is a traceback."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    text = lines[0] if lines else type(cause).__name__
    return text if isinstance(cause, HCLError) else f"{type(cause).__name__}: {text}"[:300]
