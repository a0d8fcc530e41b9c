"""A sweep on one machine: the bytes of single runs, whatever happens on the way."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hcl.sweep.events import Ended, Event, Failure, Moved, Started, carry_out
from hcl.sweep.local import Processes
from hcl.sweep.planning import Order, Paces
from hcl.sweep.running import Display, in_words, summary, sweep
from hcl.train.store import Entry
from tests.support.held import hold
from tests.support.imports import ROOT
from tests.support.projects import environment
from tests.support.sweeps import (
    contents,
    diverging,
    is_alive,
    orders_in,
    wait_for,
    with_steps,
    write_grid,
)

LONG = 20  # epochs, with 120 checkpoints
HELD = 10  # checkpoints after which a run that is to be killed waits for that


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_grid(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained_alone(orders: Sequence[Order], kept: Path) -> dict[str, bytes]:
    for order in orders:
        assert carry_out(order, kept / order.fingerprint) is None
    return contents(kept)


def test_a_sweep_leaves_the_bytes_of_runs_trained_alone(folder: Path) -> None:
    orders = orders_in(folder)
    outcome = sweep(orders, Processes(jobs=2), Path("store"))
    assert (outcome.found, outcome.trained, outcome.failures) == (0, 6, [])
    assert contents(Path("store")) == trained_alone(orders, Path("alone"))
    assert {Path(name).name for name in contents(Path("store"))} == {"run.h5", "model.safetensors"}
    again = sweep(orders, Processes(jobs=2), Path("store"))
    assert (again.found, again.trained) == (6, 0)
    assert summary(again, Path("store")) == "store: 6 runs (6 there already)"


def test_a_failed_run_does_not_stop_the_others(folder: Path) -> None:
    orders = orders_in(folder, "adam", "slda")
    orders[0] = diverging(orders[0])
    lost = replace(orders[1], fingerprint="0" * 64)  # as from a machine with other versions
    outcome = sweep([orders[0], lost, *orders[2:]], Processes(jobs=2), Path("store"))
    assert outcome.trained == 2
    why = {str(order): failure.why for order, failure in outcome.failures}
    assert sorted(why) == ["blobs adam seed 0", "blobs adam seed 1"]
    assert "Try a learning_rate below 10" in why["blobs adam seed 0"]
    assert "other versions" in why["blobs adam seed 1"]
    assert all(Entry(Path("store") / order.fingerprint).is_finished for order in orders[2:])
    assert "(2 trained, 2 failed)" in summary(outcome, Path("store"))


def test_a_fault_of_the_code_is_one_line_and_its_traceback_a_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = orders_in(folder, "slda")

    def broken(*_: object) -> None:
        raise KeyError("nothing")

    with monkeypatch.context() as patched:
        patched.setattr("hcl.sweep.events.train_into", broken)
        outcome = sweep(orders, Processes(jobs=1), Path("store"))
    assert outcome.trained == 0
    _, failure = outcome.failures[0]
    assert failure.why.startswith("KeyError: 'nothing' (test_sweep.py:")
    story = Path("store").absolute() / orders[0].fingerprint / "error.txt"
    assert str(story) in failure.why
    assert "Traceback" in story.read_text()
    assert sweep(orders, Processes(jobs=1), Path("store")).failures == []
    assert not story.exists()


@pytest.mark.slow
def test_a_killed_process_is_a_failure_and_its_run_goes_on_from_its_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = with_steps(orders_in(folder, "hcl-fr")[0], LONG)
    others = orders_in(folder, "adam")
    engine = _Killing(victim, Path("store"))
    with monkeypatch.context() as patched:
        hold(patched, HELD, Path("store") / victim.fingerprint)
        outcome = sweep([victim, *others], engine, Path("store"))
    assert engine.killed
    assert outcome.trained == 2
    assert [(str(order), failure.why) for order, failure in outcome.failures] == [
        (
            "blobs hcl-fr seed 0",
            "its process was killed (SIGKILL). The machine may have run out of memory: try fewer "
            "--jobs.",
        )
    ]
    entry = Entry(Path("store") / victim.fingerprint)
    assert entry.checkpoint.exists()
    assert not entry.is_finished
    assert sweep([victim], Processes(jobs=1), Path("store")).trained == 1
    alone = trained_alone([victim], Path("alone"))
    assert contents(Path("store") / victim.fingerprint) == {
        Path(name).name: content for name, content in alone.items()
    }


@dataclass
class _Killing:
    """The engine of one machine; the process of one run is killed after its first checkpoint."""

    victim: Order
    kept: Path
    killed: bool = False
    slots: int = 2

    def run(self, orders: Sequence[Order], kept: Path) -> Iterator[Event]:
        number = orders.index(self.victim)
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
        before = set(children.read_text().split())
        for event in Processes(jobs=2).run(orders, kept):
            if event == Started(number):
                (pid,) = set(children.read_text().split()) - before
                wait_for(Entry(kept / self.victim.fingerprint).checkpoint.exists)
                os.kill(int(pid), signal.SIGKILL)
                self.killed = True
            yield event


SCRIPT = """
import sys
from pathlib import Path
from pytest import MonkeyPatch
from hcl.sweep.local import Processes
from hcl.sweep.running import sweep
from tests.support.held import hold
from tests.support.sweeps import orders_in, with_steps

hold(MonkeyPatch(), {held})
orders = [with_steps(order, {long}) for order in orders_in(Path(), "adam")]
sweep(orders, Processes(jobs=2), Path("store"), paces=None)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_sweep_that_is_stopped_takes_its_processes_along_and_goes_on(
    folder: Path, number: signal.Signals
) -> None:
    orders = [with_steps(order, LONG) for order in orders_in(folder, "adam")]
    checkpoints = [Entry(Path("store") / order.fingerprint).checkpoint for order in orders]
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(long=LONG, held=HELD)], env=environment(ROOT)
    )
    wait_for(lambda: all(path.exists() for path in checkpoints))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    process.send_signal(number)
    process.wait()
    wait_for(lambda: not any(is_alive(int(pid)) for pid in children))
    assert all(path.exists() for path in checkpoints)
    assert not any(Entry(path.parent).is_finished for path in checkpoints)
    assert sweep(orders, Processes(jobs=2), Path("store")).trained == 2
    assert contents(Path("store")) == trained_alone(orders, Path("alone"))


def test_what_train_wrote_is_taken_into_the_store(folder: Path) -> None:
    orders = orders_in(folder, "adam")
    sweep(orders, Processes(jobs=2), Path("store"))
    before = contents(Path("store"))
    made = Path("runs/blobs/adam")
    made.mkdir(parents=True)
    for order in orders:
        Entry(Path("store") / order.fingerprint).deliver(made, f"seed-{order.job.seed}")
    assert sweep(orders, Processes(), Path("other"), runs=Path("runs")).found == 2
    assert contents(Path("other")) == before
    # Another run of the same name is trained.
    longer = [with_steps(order, 3) for order in orders]
    assert sweep(longer, Processes(), Path("other"), runs=Path("runs")).trained == 2


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_display_counts_and_learns_the_time_left() -> None:
    shown = _Terminal()
    display = Display([("a", 10.0), ("a", 10.0), ("b", 5.0)], Paces(), slots=2, file=shown)
    display.note(Started(0), now=100.0)
    display.note(Started(1), now=100.0)
    assert display.line(100.0) == ("0 of 3 runs done, 2 running, 1 waiting, time left unknown")
    display.note(Moved(0, 0.0), now=101.0)
    display.note(Moved(0, 0.25), now=111.0)  # 40 s in all, so that b takes 20
    display.note(Moved(1, 0.5), now=111.0)  # it was there at its checkpoint
    display.note(Moved(1, 0.75), now=121.0)
    assert display.left(121.0) == pytest.approx(30.0)
    display.note(Ended(1, Failure("why")), now=131.0)
    assert display.line(131.0).startswith("1 of 3 runs done, 1 failed, 1 running, 1 waiting, about")
    assert "\r\x1b[K0 of 3 runs done" in shown.getvalue()
    display.close()
    assert shown.getvalue().endswith("\r\x1b[K")


def test_the_display_is_quiet_where_nobody_looks() -> None:
    shown = io.StringIO()
    display = Display([("a", 1.0)], Paces(), slots=1, file=shown)
    display.note(Started(0))
    display.close()
    assert shown.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.4, "59 s"), (61, "1 min 1 s"), (600, "10 min"), (3660, "1 h 1 min")],
)
def test_times_are_told_as_one_reads_them(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
