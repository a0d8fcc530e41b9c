"""What only a GPU can show, in two minutes: ``make gpu-test``; see docs/gpu.md.

Every learner is trained on the CPU and on the GPU with the same random numbers, and their losses
are compared; a run is stopped and taken up; steps are watched by torch for waits, and memory for
growth; a backbone embeds on both. Without a GPU, one line says so and the exit status is 1.

    python -m benchmarks.gpu_check
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from hcl.extract.extraction import extract
from hcl.extract.settings import ExtractSettings
from hcl.learn.contract import Learner
from hcl.learn.plus.learner import PlusLearner
from hcl.learn.plus.settings import PlusMethod
from hcl.records import embeddings
from hcl.records.runs import Run
from hcl.train.loop import Job, build_learner, train_seed
from hcl.train.streams import Stream
from tests.support.every_learner import DETECTING, IMAGE_FLOWS, TOLD, job
from tests.support.tiny_backbone import NAME, random_images, save_raw, save_weights

# Largest difference of a loss, relative: inputs that are 1e-6 off move it by up to 1.5e-4.
LOSSES = 1e-3
EMBEDDINGS = 5e-2  # relative, in the mean square: a pixel may be rounded to the next level
ANSWERS = 0.98  # the least part of the answers that agree
MEMORY = 2**20  # bytes that 12 steps may leave behind: losses that were not looked at yet
EVERY = (*TOLD, *DETECTING, *IMAGE_FLOWS)
RESUMED = ("hcl-fr", "hcl-gr-ta", "er", "mtl", "curl", "hcl-plus-ta")

Check = tuple[str, Callable[[], str]]


class Failed(Exception):
    """A check that did not hold."""


class Stopped(Exception):
    """A run that was stopped on purpose."""


class SameDraws(TorchFunctionMode):
    """What a generator on the GPU would draw, one of its seed on the CPU draws instead."""

    def __init__(self) -> None:
        super().__init__()
        self.twins: dict[torch.Generator, torch.Generator] = {}

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        generator = kwargs.get("generator")
        if generator is None or generator.device.type == "cpu":
            return function(*args, **kwargs)
        if generator not in self.twins:
            self.twins[generator] = torch.Generator().manual_seed(generator.initial_seed())
        kwargs.update(generator=self.twins[generator], device="cpu")
        return function(*args, **kwargs).to(generator.device)


def on(made: Job, device: str, **changes: Any) -> Job:
    """The job on a device."""
    training = dataclasses.replace(made.training, device=device, **changes)
    return dataclasses.replace(made, training=training)


def around_steps(
    around: Callable[[Learner, Callable[[Any], Any], Any], Any],
) -> Callable[[Job, Stream], Learner]:
    """``build`` of ``train_seed`` for a learner whose every step is ``around``'s to take."""

    def build(made: Job, stream: Stream) -> Learner:
        learner = build_learner(made, stream)
        observe = learner.observe
        learner.observe = lambda batch: around(learner, observe, batch)  # type: ignore[method-assign]
        return learner

    return build


def same_losses(name: str, device: str) -> str:
    """The losses of a run on the GPU, beside those of the CPU."""
    one, learner = train_seed(on(job(name), "cpu"))
    with SameDraws():
        other, other_learner = train_seed(on(job(name), device))
    agree, apart = compared(one, other)
    steps = 0 if one.loss is None else len(one.loss)
    if isinstance(learner, PlusLearner) and isinstance(other_learner, PlusLearner):
        sums, other_sums = learner.moments.sums, other_learner.moments.sums.cpu()
        apart = max(apart, float((sums - other_sums).norm() / sums.norm()))
        if not apart <= LOSSES:
            raise Failed(f"sums are {apart:.1e} apart, more than {LOSSES:.0e}")
        return (
            f"{agree:.1%} of the answers as on the CPU, {steps} losses and sums within {apart:.0e}"
        )
    return f"{agree:.1%} of the answers as on the CPU, {steps} losses within {apart:.0e}"


def resumes(name: str, device: str) -> str:
    """A run that is stopped after 14 batches and taken up, beside one that was not."""
    made = on(job(name), device, checkpoint_every=4)
    seen = []

    def stops(learner: Learner, observe: Callable[[Any], Any], batch: Any) -> Any:
        seen.append(learner.task)
        if len(seen) > 14:
            raise Stopped
        return observe(batch)

    whole, _ = train_seed(made)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint.pt"
        with contextlib.suppress(Stopped):
            train_seed(made, checkpoint, build=around_steps(stops))
        again, _ = train_seed(made, checkpoint)
    agree, apart = compared(whole, again)
    if agree == 1 and apart == 0:
        return "the same answers and losses as never stopped"
    return f"{agree:.1%} of the answers, losses within {apart:.0e}: atomics sum in no fixed order"


def compared(one: Run, other: Run) -> tuple[float, float]:
    """The part of the answers that agree, and how far losses are apart; too far is a failure."""
    agree = float(np.mean(one.predicted_class == other.predicted_class))
    if agree < ANSWERS:
        raise Failed(f"{agree:.1%} of the answers agree, less than {ANSWERS:.0%}")
    if one.loss is None or other.loss is None:
        return agree, 0.0
    if len(one.loss) != len(other.loss):
        raise Failed(f"{len(other.loss)} losses in place of {len(one.loss)}")
    apart = float(np.max(np.abs(one.loss - other.loss) / np.maximum(np.abs(one.loss), 1.0)))
    if not apart <= LOSSES:
        raise Failed(f"losses are up to {apart:.1e} apart, more than {LOSSES:.0e}")
    return agree, apart


def waits(name: str, device: str) -> str:
    """Waits of a step within a task, as torch counts them; what is allowed is in docs/gpu.md."""
    made = on(job(name), device)
    allowed = 0 if made.method.detection is None else 1
    plus = made.method if isinstance(made.method, PlusMethod) else None
    renews = plus is not None and (plus.flow is not None or plus.detection is not None)
    found: list[int] = []

    def watched(learner: Learner, observe: Callable[[Any], Any], batch: Any) -> Any:
        before = learner.task
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                seen = observe(batch)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        if learner.task == before:
            found.append(sum("synchroniz" in str(w.message) for w in caught))
        return seen

    train_seed(made, build=around_steps(watched))
    # Σ⁻¹ is renewed seldom, and its factorisation checked: then the usual step is asked for.
    most = sorted(found)[len(found) // 2] if renews else max(found)
    if most > allowed:
        raise Failed(f"a step waits {most} times for the GPU, not {allowed}")
    usual = "the usual one" if renews else "each"
    return f"{most} in {usual} of {len(found)} steps within a task"


def strict(name: str, device: str) -> str:
    """The same by torch's own verdict: it raises at the first wait."""

    def guarded(learner: Learner, observe: Callable[[Any], Any], batch: Any) -> Any:
        if learner.task < 0 or learner.given[learner.task] != batch.task:  # type: ignore[attr-defined]
            return observe(batch)
        torch.cuda.set_sync_debug_mode("error")
        try:
            return observe(batch)
        except RuntimeError as error:
            raise Failed(f"a step waits for the GPU: {str(error).splitlines()[0]}") from error
        finally:
            torch.cuda.set_sync_debug_mode("default")

    train_seed(on(job(name), device), build=around_steps(guarded))
    return "torch finds no wait within a task"


def memory(name: str, device: str) -> str:
    """What is allocated after the first steps of the last tasks, and after their last."""
    held: dict[int, list[int]] = {}

    def measured(learner: Learner, observe: Callable[[Any], Any], batch: Any) -> Any:
        seen = observe(batch)
        held.setdefault(learner.task, []).append(torch.cuda.memory_allocated())
        return seen

    train_seed(on(job(name, epochs=5), device), build=around_steps(measured))
    grown = max(steps[-1] - steps[1] for task, steps in held.items() if task > 0)
    if grown > MEMORY:
        raise Failed(f"{grown / 2**20:.1f} MB more after the last step of a task than at its first")
    return f"{max(map(max, held.values())) / 2**20:.0f} MB, and no more at the end of a task"


def same_embeddings(device: str) -> str:
    """A small backbone with random weights, on the CPU and on every GPU, and on one of them."""
    with tempfile.TemporaryDirectory() as folder:
        raw = save_raw(Path(folder) / "raw.h5", random_images(300))
        weights = str(save_weights(Path(folder) / "tiny.pth"))
        rows, bytes_of = {}, {}
        for place in ("cpu", device, f"{device}:0" if device == "cuda" else device):
            out = Path(folder) / f"{place.replace(':', '-')}.h5"
            extract(raw, out, ExtractSettings(NAME, weights, device=place, compile=False))
            rows[place], bytes_of[place] = np.array(embeddings.read(out).x), out.read_bytes()
    one, other = rows["cpu"], rows[device]
    apart = float(np.linalg.norm(one - other) / np.linalg.norm(one - one.mean(0)))
    if not apart <= EMBEDDINGS:
        raise Failed(f"embeddings are {apart:.1e} from the CPU's, more than {EMBEDDINGS:.0e}")
    if device == "cuda" and bytes_of["cuda"] != bytes_of["cuda:0"]:
        raise Failed("embeddings of all GPUs and of the first one differ")
    count = torch.cuda.device_count()
    return f"within {apart:.0e} of the CPU's, the same bytes on 1 and on {count} GPU"


def checks(device: str) -> Iterator[Check]:
    """All of them, by name."""
    for name in EVERY:
        yield f"losses of {name}", lambda name=name: same_losses(name, device)
    for name in RESUMED:
        yield f"resume {name}", lambda name=name: resumes(name, device)
    for name in EVERY:
        yield f"waits of {name}", lambda name=name: waits(name, device)
    for name in ("adam", "er", "hcl-gr", "hcl-fr", "glow"):
        yield f"no wait of {name}", lambda name=name: strict(name, device)
    for name in ("hcl-fr", "er", "hcl-plus"):
        yield f"memory of {name}", lambda name=name: memory(name, device)
    yield "embeddings", lambda: same_embeddings(device)


def run(wanted: Iterator[Check]) -> int:
    """Print a line for each check; how many failed."""
    failed = total = 0
    for name, check in wanted:
        total += 1
        try:
            print(f"ok    {name:<26} {check()}", flush=True)
        except Exception as error:  # whatever it is, the other checks are of interest
            failed += 1
            print(f"FAIL  {name:<26} {f'{error}'.splitlines()[0]}", flush=True)
    print(f"{total - failed} of {total} checks passed.")
    return failed


def main() -> int:
    """Run all checks on the GPU."""
    if not torch.cuda.is_available():
        print("gpu-test: torch finds no GPU here, so nothing was checked.")
        return 1
    start = time.perf_counter()
    count = torch.cuda.device_count()
    print(f"{count} GPU, the first {torch.cuda.get_device_name()}; torch {torch.__version__}")
    failed = run(checks("cuda"))
    print(f"{time.perf_counter() - start:.0f} s")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
