"""Whether batches are sent: calculated from what rows take, and corrected by what batches take."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from plangym_like.batches import Inputs
from plangym_like.execution.batch_costs import BatchCosts
from plangym_like.execution.costs import MESSAGE_SECONDS, CostModel

ROW = 1e-4


def run(
    costs: CostModel,
    batches: int,
    seconds: Callable[[int, bool, bool], float],
    *,
    count: int = 256,
) -> tuple[list[bool], float]:
    """Return for each batch whether it was sent, and what all took.

    ``seconds(index, sent, changed)`` is what a batch takes; `changed`: the one before went the
    other way.
    """
    ways, spent, last = [], 0.0, False
    for index in range(batches):
        sent = costs.worth_sending(count, 1, workers=1)
        taken = seconds(index, sent, sent is not last)
        if sent:
            # Its rows here take as long as those of a batch that is not sent.
            costs.note_portion(count // 2, 1, seconds=seconds(index, False, False) / 2)
            costs.note_sent(count, 1, seconds=taken, workers=1)
        else:
            costs.note_here(count, 1, seconds=taken)
        ways.append(sent)
        last, spent = sent, spent + taken
    return ways, spent


def test_whether_a_batch_is_sent_is_calculated_for_every_size_at_once() -> None:
    costs = CostModel()
    costs.note_portion(3, 1, seconds=3 * ROW)
    sent = [costs.worth_sending(count, 1, workers=1) for count in (2, 6, 8, 64, 1500)]
    assert sent == [False, False, True, True, True]
    assert costs.worth_sending(6, 1, workers=7)
    assert costs.seconds_per_row(1) == pytest.approx(ROW)
    assert costs.seconds_per_row(100) == 0.0, "rows of many steps are another matter"


def test_what_takes_less_than_a_message_is_never_sent() -> None:
    costs = CostModel()
    costs.note_here(256, 1, seconds=MESSAGE_SECONDS / 2)
    assert costs.cheap(256, 1) and not costs.cheap(1024, 1)
    assert not any(costs.worth_sending(256, 1, workers=64) for _ in range(5000))


def test_rows_that_are_cheaper_in_bulk_count_as_in_bulk() -> None:
    costs = CostModel()
    costs.note_here(256, 1, seconds=6e-5)
    for _ in range(100):
        costs.note_here(1, 1, seconds=4e-5)
    assert not costs.worth_sending(256, 1, workers=1)


@pytest.mark.parametrize(
    ("here", "sent"),
    [((0.90, 0.03), (0.80, 0.25)), ((0.90, 0.03), (0.70, 0.10)), ((0.90, 0.03), (1.30, 0.10))],
    ids=["quick at times", "quicker", "slower"],
)
def test_a_batch_costs_little_more_than_the_better_way(
    here: tuple[float, float], sent: tuple[float, float]
) -> None:
    chance = random.Random(1)

    def seconds(index: int, is_sent: bool, changed: bool) -> float:
        least, spread = sent if is_sent else here
        return 1e-3 * least * (1.0 + chance.expovariate(1.0 / spread))

    _, spent = run(CostModel(), 3000, seconds, count=8)
    best = min(least * (1.0 + spread) for least, spread in (here, sent))
    assert spent < 1e-3 * best * 3000 / 0.97


def test_a_way_that_costs_more_after_a_pause_is_judged_by_what_it_costs_without() -> None:
    def seconds(index: int, sent: bool, changed: bool) -> float:
        loud = 3.0 if 100 < index < 200 else 1.0
        return loud * (0.0055 + 0.002 * changed) if sent else 0.007

    ways, _ = run(CostModel(), 3000, seconds)
    assert sum(ways) > 2500


def test_a_way_that_was_slow_for_a_while_is_found_again() -> None:
    def seconds(index: int, sent: bool, changed: bool) -> float:
        return (0.08 if 300 < index < 500 else 0.012) if sent else 0.02

    ways, _ = run(CostModel(), 2000, seconds)
    assert sum(ways[100:300]) > 190
    assert sum(ways[350:500]) < 20
    assert sum(ways[1000:]) > 950


def test_to_compare_ways_that_cost_the_same_costs_little() -> None:
    def seconds(index: int, sent: bool, changed: bool) -> float:
        return 0.0006 + 0.0016 * (sent and changed)

    _, spent = run(CostModel(), 3000, seconds, count=4)
    assert spent < 3000 * 0.0006 / 0.97


def test_what_it_cost_beside_busy_programs_is_not_made_up_for_long() -> None:
    def seconds(index: int, sent: bool, changed: bool) -> float:
        slow, quick = (0.1, 0.014) if index < 60 else (0.004, 0.007)
        return slow if sent else quick

    ways, _ = run(CostModel(), 1500, seconds)
    assert sum(ways[500:]) > 970


def test_rows_that_only_seem_slow_beside_others_are_found_to_be_quick_alone() -> None:
    """As where one process alone would use all cores."""
    costs, ways = CostModel(), []
    for _ in range(4000):
        ways.append(costs.worth_sending(256, 1, workers=1))
        if ways[-1]:
            costs.note_portion(128, 1, seconds=0.02)
            costs.note_sent(256, 1, seconds=0.0205, workers=1)
        else:
            costs.note_here(256, 1, seconds=0.018)
    assert sum(ways[200:]) < 0.03 * 3800


def test_rows_that_become_slower_change_nothing() -> None:
    def seconds(index: int, sent: bool, changed: bool) -> float:
        return (1 + index // 500) * (0.014 if sent else 0.025)

    ways, _ = run(CostModel(), 3000, seconds)
    assert sum(ways) > 2900


def test_small_batches_that_stay_here_do_not_keep_large_ones_from_being_tried_here() -> None:
    costs, here = CostModel(), 0
    costs.note_portion(100, 1, seconds=100 * ROW)
    for index in range(400):
        count = 256 if index % 2 else 8
        sent = costs.worth_sending(count, 1, workers=1)
        here += count == 256 and not sent
        if sent:
            # More than is calculated, and than 8 rows take here.
            costs.note_sent(count, 1, seconds=1.3 * (3e-4 + count * ROW / 2), workers=1)
        else:
            costs.note_here(count, 1, seconds=count * ROW)
    assert 1 <= here <= 8


@pytest.mark.parametrize(
    ("sizes", "least"),
    [
        ([256] * 40, 1.75),
        (list(range(100, 400, 8)), 1.7),
        (list(range(64, 8, -1)), 1.45),
        ([max(n, round(1.05**n)) for n in range(1, 151)], 1.6),
    ],
    ids=["one size", "100 to 400", "8 to 64", "growing"],
)
def test_a_new_environment_sends_batches_of_any_size_at_once(
    sizes: list[int], least: float
) -> None:
    """With the costs of MsPacman: see `benchmarks/cold_sizes.py`."""
    row, message, copied = 136e-6, 3e-4, 3e-6
    costs, serial, parallel = CostModel(), 0.0, 0.0
    for size in sizes:
        here = size * row
        sent = message + size * (row / 2 + copied)
        if size >= 2 and costs.worth_sending(size, 1, workers=1):
            if not costs.seconds_per_row(1):
                sent += row / 2
            costs.note_portion(-(-size // 2), 1, seconds=-(-size // 2) * row)
            costs.note_sent(size, 1, seconds=sent, workers=1)
            parallel += sent
        else:
            costs.note_here(size, 1, seconds=here)
            parallel += here
        serial += here
    assert serial / parallel > least


def test_batches_whose_mean_dt_varies_are_compared_by_their_steps() -> None:
    """With the costs of HalfCheetah, 16 rows with dt from 1 to 8."""
    chance, costs, step = random.Random(0), CostModel(), 29e-6
    ways = []
    for _ in range(1000):
        steps = [chance.randint(1, 8) for _ in range(16)]
        mean, total = sum(steps) / 16, sum(steps)
        ways.append(costs.worth_sending(16, mean, workers=1))
        if ways[-1]:
            for portion in (steps[8:12], steps[12:]):
                costs.note_portion(sum(portion), mean, seconds=sum(portion) * step)
            seconds = MESSAGE_SECONDS + 1.25 * total * step / 2
            costs.note_sent(16, mean, seconds=seconds, workers=1)
        else:
            costs.note_here(16, mean, seconds=total * step)
    assert sum(ways) > 950


def test_portions_of_rows_that_are_sorted_by_dt_take_equally_long() -> None:
    dt = np.array([1] * 900 + [100] * 100)
    inputs = Inputs(1000, 0, np.zeros(1000), np.zeros((1, 40), np.uint8), dt, None)
    costs = CostModel()
    costs.note_portion(1, 10.9, seconds=1e-5)
    batch = BatchCosts(costs, inputs)
    mean = batch.portion(450, 1000)
    for start, stop, last in ((0, 1000, False), (0, 1000, True), (900, 1000, False)):
        rows = batch.portion(start, stop, last=last)
        chosen = dt[stop - rows : stop] if last else dt[start : start + rows]
        assert 0 < chosen.sum() * 1e-5 < 13e-3
        assert rows < mean if last or start else rows > mean


def _ways(seconds: Callable[[int, bool, bool], float], *, asked: bool) -> list[bool]:
    costs = CostModel()

    def taken(index: int, sent: bool, changed: bool) -> float:
        if asked:
            costs.worth_sending(256, 1, workers=1, tries=False)
        return seconds(index, sent, changed)

    return run(costs, 300, taken)[0]


def test_batches_that_are_not_measured_use_up_no_trial() -> None:
    def seconds(index: int, sent: bool, changed: bool) -> float:
        return 256 * ROW * (1.2 if sent else 1.0)

    ways = _ways(seconds, asked=False)
    assert ways == _ways(seconds, asked=True)
    assert any(ways[100:]) and not all(ways)
