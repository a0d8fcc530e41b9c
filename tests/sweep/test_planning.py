"""The plan of a sweep: what comes first, and how long it will take."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path

import pytest

from hcl.errors import HCLError
from hcl.sweep.planning import Paces, cost, longest_first, time_left
from tests.support.sweeps import orders_in, with_steps, write_grid


def test_a_run_costs_more_with_more_steps_and_with_replay(tmp_path: Path) -> None:
    write_grid(tmp_path)
    adam, functional, closed = orders_in(tmp_path, seeds=(0,))
    assert cost(closed.job) < cost(adam.job) < cost(functional.job)
    assert cost(with_steps(adam, epochs=6).job) == pytest.approx(3 * cost(adam.job))
    wide = dataclasses.replace(adam.job.flow, hidden=4096)
    assert cost(dataclasses.replace(adam.job, flow=wide)) > 2 * cost(adam.job)


def test_the_longest_comes_first_and_what_was_measured_counts_more(tmp_path: Path) -> None:
    write_grid(tmp_path)
    orders = orders_in(tmp_path, seeds=(0,))
    first = [order.job.name for order, _ in longest_first(orders, Paces())]
    assert first == ["hcl-fr", "adam", "slda"]
    file = tmp_path / "paces.json"
    paces = Paces(file)
    for order in orders:
        seconds = {"hcl-fr": 1.0, "adam": 2.0, "slda": 3.0}[order.job.name]
        paces.note(order.key, cost(order.job), seconds)
    paces.keep()
    again = [order.job.name for order, _ in longest_first(orders, Paces(file))]
    assert again == ["slda", "adam", "hcl-fr"]
    known = Paces(file)
    adam = next(order for order in orders if order.job.name == "adam")
    assert known.seconds(adam.key, cost(adam.job)) == pytest.approx(2.0)
    assert known.seconds("never/seen", 1.0) is not None


@pytest.mark.parametrize("content", ["", "[]", "{", json.dumps({"a": "b", "c": -1.0})])
def test_a_damaged_file_of_paces_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "paces.json").write_text(content)
    assert Paces(tmp_path / "paces.json").seconds("a", 1.0) is None


@pytest.mark.parametrize(
    ("running", "waiting", "slots", "expected"),
    [
        ([], [], 2, 0.0),
        ([3.0], [], 2, 3.0),
        ([3.0, 1.0], [4.0, 1.0], 2, 5.0),  # 4 after the 1; 1 after the 3
        ([], [5.0, 4.0, 3.0], 1, 12.0),
        ([], [5.0, 4.0, 3.0], 3, 5.0),
    ],
)
def test_time_left_is_when_the_last_worker_is_done(
    running: list[float], waiting: list[float], slots: int, expected: float
) -> None:
    assert time_left(running, waiting, slots) == expected


def test_an_order_travels_without_its_embeddings_and_reads_them_where_it_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_grid(tmp_path)
    monkeypatch.chdir(tmp_path)
    order = orders_in(Path(), "adam")[0]
    there = pickle.loads(pickle.dumps(order.sealed()))
    assert there.job.embeddings == {}
    monkeypatch.chdir("/")
    x = order.job.embeddings["blobs"].x
    assert (there.opened().embeddings["blobs"].x == x).all()
    assert len(pickle.dumps(order.sealed())) < x.nbytes / 2


def test_a_worker_with_other_versions_refuses_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_grid(tmp_path)
    order = orders_in(tmp_path, "adam")[0]
    monkeypatch.setattr("hcl.train.loop.versions", lambda: {"torch": "1.0"})
    with pytest.raises(HCLError, match="has other versions than the machine that started"):
        order.opened()
