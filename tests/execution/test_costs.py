"""Which way batches go: by what they cost on the whole, not by what they cost at best."""

from __future__ import annotations

import random

import pytest

from plangym_like.execution.costs import Costs


@pytest.mark.parametrize(
    ("here", "sent"),
    [((0.90, 0.03), (0.80, 0.25)), ((0.90, 0.03), (0.70, 0.10)), ((0.90, 0.03), (1.30, 0.10))],
    ids=["quick at times", "quicker", "slower"],
)
def test_a_batch_costs_little_more_than_the_better_way(
    here: tuple[float, float], sent: tuple[float, float]
) -> None:
    chance = random.Random(1)
    costs = Costs()
    spent, count = 0.0, 3000
    for _ in range(count):
        way = costs.send(8, 1)
        least, spread = sent if way else here
        seconds = 1e-3 * least * (1.0 + chance.expovariate(1.0 / spread))
        costs.note(8, 1, seconds=seconds, sent=way)
        spent += seconds
    best = min(least * (1.0 + spread) for least, spread in (here, sent))
    assert spent < 1e-3 * best * count / 0.97


def test_a_way_that_costs_more_after_a_pause_is_judged_by_what_it_costs_without() -> None:
    costs = Costs()
    last, tried = False, 0
    for index in range(3000):
        way = costs.send(256, 1)
        asleep = 0.0 if last else 0.002
        loud = 3.0 if 100 < index < 200 else 1.0
        costs.note(256, 1, seconds=loud * (0.0055 + asleep) if way else 0.007, sent=way)
        last = way
        tried += way
    assert tried > 2500


def test_a_way_that_was_slow_for_a_while_is_found_again() -> None:
    costs = Costs()
    ways = []
    for index in range(2000):
        ways.append(costs.send(256, 1))
        sent = 0.08 if 300 < index < 500 else 0.012
        costs.note(256, 1, seconds=sent if ways[-1] else 0.02, sent=ways[-1])
    assert sum(ways[100:300]) > 190
    assert sum(ways[350:500]) < 20
    assert sum(ways[1000:]) > 950


def test_to_compare_ways_that_cost_the_same_costs_little() -> None:
    costs = Costs()
    last, spent = False, 0.0
    for _ in range(3000):
        way = costs.send(4, 1)
        seconds = 0.0006 + (0.0016 if way and not last else 0.0)
        costs.note(4, 1, seconds=seconds, sent=way)
        last = way
        spent += seconds
    assert spent < 3000 * 0.0006 / 0.97


def test_what_it_cost_beside_busy_programs_is_not_made_up_for_long() -> None:
    costs = Costs()
    ways = []
    for index in range(1500):
        ways.append(costs.send(256, 1))
        sent, here = (0.1, 0.014) if index < 60 else (0.004, 0.007)
        costs.note(256, 1, seconds=sent if ways[-1] else here, sent=ways[-1])
    assert sum(ways[500:]) > 970
