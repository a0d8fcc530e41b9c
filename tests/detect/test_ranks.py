"""Ranks alone: the likelihood ratio of an order, and the run length that follows from it."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from hcl.detect import ranks
from hcl.detect.ranks import Reference, evidence, log_ratio
from hcl.detect.sequential import (
    ENOUGH,
    LENGTH,
    MATURE,
    WAITING,
    YOUNG,
    Scores,
    Sequential,
    limit_of,
)


@pytest.mark.parametrize("weight", [0.5, 4.0, 256.0])
@pytest.mark.parametrize(("reference", "batches"), [(3, 1), (4, 2), (2, 3)])
def test_the_ratio_is_that_of_plackett_and_luce(reference, batches, weight):
    """By going through all orders: their probabilities, and that these add up to 1."""
    total = 0.0
    count = reference + batches
    for places in itertools.combinations(range(count), batches):  # of the batches, from below
        weights = [weight if place in places else 1.0 for place in range(count)]
        left, probability = sum(weights), 1.0
        for drawn in reversed(weights):  # from the largest down
            probability *= drawn / left
            left -= drawn
        below = [place - earlier for earlier, place in enumerate(places)]
        found = math.exp(log_ratio(below, reference, weight))
        assert found == pytest.approx(math.factorial(count) * probability)
        total += probability * math.factorial(reference) * math.factorial(batches)
    assert total == pytest.approx(1.0)


def test_batches_beyond_the_reference_are_worth_what_ranks_can_give_at_most():
    most = math.comb(20 + 3, 3)
    assert 0.99 < math.exp(log_ratio([20, 20, 20], 20, 1e6)) / most < 1
    assert most / 4 < evidence([20, 20, 20], 20) < most
    assert evidence([10, 10, 10], 20) < 0.2


def test_only_the_last_values_are_referred_to_and_equal_ones_count_half():
    reference = Reference(3)
    for value in (9.0, 1.0, 2.0, 2.0):
        reference.add(value)
    assert list(reference.values) == [1.0, 2.0, 2.0]
    assert [reference.below(v) for v in (0.0, 1.0, 2.0, 3.0)] == [0.0, 0.5, 2.0, 3.0]
    assert (reference.quantile(0.0), reference.quantile(1.0)) == (1.0, 2.0)


def alarms(batches: int, limit: float, change=lambda sequential: None, seed: int = 0) -> int:
    draw, sequential, found = random.Random(seed), Sequential(limit), 0
    for _ in range(batches):
        sequential.update(Scores(draw.gauss(0, 1), draw.gauss(0, 1), draw.gauss(0, 1)))
        change(sequential)
        if sequential.alarm:
            found += 1
            sequential.reset(0)
    return found


def test_the_run_length_is_what_the_limit_promises():
    every, batches = 200, 12_000
    assert 0.5 < alarms(batches, limit_of(every)) / (batches / every) < 1.6


def test_the_same_count_shows_a_limit_that_is_wrong(monkeypatch):
    """Without the factorials the ratio is no likelihood ratio: alarms come too often."""
    monkeypatch.setattr(ranks, "WEIGHTS", (4.0,))
    right = ranks.log_ratio
    monkeypatch.setattr(ranks, "log_ratio", lambda b, r, w: right(b, r, w) + len(b))
    assert alarms(3000, limit_of(200)) > 3 * 3000 / 200


def grown(batches: int = 100, limit: float = 4000.0) -> tuple[Sequential, random.Random]:
    draw, sequential = random.Random(1), Sequential(limit)
    for _ in range(batches):
        sequential.accept(Scores(draw.gauss(0, 1), draw.gauss(0, 1), draw.gauss(0, 1)))
    return sequential, draw


def test_a_change_is_found_from_where_it_began():
    sequential, draw = grown()
    sequential.update(Scores(3.5, 0.0, 0.0))  # by chance under suspicion
    assert len(sequential.waiting) == 1
    earlier = delay = 0
    while not sequential.alarm:
        earlier = sequential.update(Scores(draw.gauss(20, 1), draw.gauss(0, 1), draw.gauss(0, 1)))
        delay += 1
    assert delay <= 3
    assert earlier == 1  # the one by chance is the task's own
    assert len(sequential.waiting) == delay


@pytest.mark.parametrize("spread", [-20.0, 20.0])
def test_a_spread_is_strange_on_either_side(spread):
    sequential, draw = grown()
    for _ in range(5):
        sequential.update(Scores(draw.gauss(0, 1), draw.gauss(0, 1), draw.gauss(spread, 1)))
        if sequential.alarm:
            break
    assert sequential.alarm
    assert sequential.suspicion.of == "spread"


def test_a_low_shift_is_no_change():
    sequential, draw = grown()
    for _ in range(100):
        sequential.update(Scores(draw.gauss(-20, 1), draw.gauss(-20, 1), draw.gauss(0, 1)))
        assert not sequential.alarm


def test_no_suspicion_lasts_longer_than_it_may():
    sequential, _ = grown(limit=math.inf)
    most = 0
    for _ in range(100):
        sequential.update(Scores(50.0, 0.0, 0.0))
        most = max(most, len(sequential.waiting))
    assert most == WAITING - 1
    assert 50.0 in sequential.shift.own.values  # learned in the end


def test_nothing_is_judged_before_there_is_enough_to_go_by():
    sequential, _ = grown(ENOUGH - 1)
    assert not sequential.can_judge
    sequential.update(Scores(1e9, 0.0, 0.0))
    assert sequential.suspicion.evidence == 0.0
    sequential, _ = grown(YOUNG)
    sequential.reset(0)
    assert not sequential.can_judge  # the next task is too young
    for _ in range(MATURE):
        sequential.accept(Scores(0.0, 0.0, 0.0))
    assert sequential.can_judge


def test_a_young_task_is_judged_by_the_first_batches_of_earlier_ones():
    sequential = Sequential(4000.0)
    for index in range(2 * LENGTH):
        sequential.accept(Scores(float(index), -float(index), 0.0))
    assert list(sequential.shift.carried.values) == [float(index) for index in range(YOUNG)]
    assert len(sequential.shift.own) == LENGTH


def test_a_score_that_can_not_be_taken_says_nothing():
    sequential, _ = grown()
    for _ in range(10):
        sequential.update(Scores(math.nan, math.nan, math.nan))
    assert not sequential.waiting
    assert sequential.suspicion.evidence <= 1.0
