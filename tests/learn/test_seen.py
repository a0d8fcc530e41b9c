"""Which samples have come before: exactly, of a bounded number, and at a cost that stays."""

from __future__ import annotations

import pytest
import torch

from hcl.learn.plus import seen
from hcl.learn.plus.seen import Seen, fingerprint

CPU = torch.device("cpu")


def test_fingerprints_tell_samples_apart() -> None:
    z = torch.randn(1000, 6, generator=torch.Generator().manual_seed(0))
    marks = fingerprint(z)
    assert len(marks.unique()) == 1000
    assert torch.equal(fingerprint(z[5:9]), marks[5:9])
    changed = z.clone()
    changed[0, 3] = changed[0, 3].nextafter(torch.tensor(9.0))
    assert fingerprint(changed)[0] != marks[0]


@pytest.fixture
def small(monkeypatch) -> Seen:
    """One that keeps three runs of eight."""
    monkeypatch.setattr(seen, "RUN", 8)
    monkeypatch.setattr(seen, "RUNS", 3)
    return Seen(CPU)


def test_what_came_is_known_and_nothing_else(small: Seen) -> None:
    marks = torch.randint(-(2**62), 2**62, (60,), generator=torch.Generator().manual_seed(0))
    for part in marks[:30].split(7):
        small.add(part)
    assert small.has(marks).tolist() == [True] * 30 + [False] * 30


def test_what_is_kept_is_bounded_and_the_last_is_among_it(small: Seen) -> None:
    for first in range(0, 1000, 5):
        small.add(torch.arange(first, first + 5))
        kept = small.state()
        assert len(kept) < 8 * 4
        assert bool(small.has(torch.arange(max(0, first - 18), first + 5)).all())
    assert not bool(small.has(torch.arange(0, 960)).any())


def test_it_goes_on_from_its_state(small: Seen) -> None:
    small.add(torch.arange(45).flip(0))
    other = Seen(CPU)
    other.add(torch.arange(50, 60))  # what it knew before is over
    other.restore(small.state())
    assert torch.equal(other.state(), small.state())
    assert other.has(torch.arange(60)).tolist() == small.has(torch.arange(60)).tolist()


def test_asking_costs_no_more_than_its_bound(monkeypatch) -> None:
    """All that is sorted for a block is what came last: no block pays for the whole stream."""
    held = Seen(CPU)
    held.add(torch.arange(20 * seen.RUN))
    sorted_by_torch = []
    isin = torch.isin
    monkeypatch.setattr(torch, "isin", lambda a, b: sorted_by_torch.append(len(b)) or isin(a, b))
    assert bool(held.has(torch.tensor([3, 17 * seen.RUN])).all())
    assert max(sorted_by_torch) < seen.RUN
