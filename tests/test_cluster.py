"""Reaching a cluster: each mistake is one line, and Ray is imported only when it is asked for."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from hcl.cluster import connect
from hcl.errors import HCLError


class FakeRay(SimpleNamespace):
    """Ray as far as ``connect`` knows it."""

    def __init__(self, up: bool = False) -> None:
        super().__init__(up=up, asked=[])

    def is_initialized(self) -> bool:
        return bool(self.up)

    def init(self, **options: Any) -> None:
        self.asked.append(options)
        self.up = True

    def shutdown(self) -> None:
        self.up = False


def test_without_ray_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(HCLError, match=r"^A cluster needs Ray: pip install 'hcl\[ray\]'\.$"):
        with connect("auto"):
            pass


@pytest.mark.parametrize("address", ["nonsense", "host:", "host:port"])
def test_what_is_not_an_address_is_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    with pytest.raises(HCLError, match=f"'{address}' is not the address of a Ray cluster"):
        with connect(address):
            pass


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_an_address_that_nobody_listens_at_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(HCLError, match=f"No Ray cluster answers at {address}"):
        with connect(address):
            pass
    assert ray.asked == []


def test_auto_takes_the_address_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with connect("auto") as handle:
            assert handle is ray
            assert ray.up
    assert [options["address"] for options in ray.asked] == [address]


def test_a_connection_made_here_ends_here_and_another_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for before in (False, True):
        ray = FakeRay(up=before)
        monkeypatch.setitem(sys.modules, "ray", ray)
        with pytest.raises(ZeroDivisionError), connect("auto"):
            raise ZeroDivisionError
        assert ray.up is before
        assert len(ray.asked) == (not before)
