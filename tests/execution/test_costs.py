"""Whether batches are sent is calculated from the time that rows take."""

from __future__ import annotations

import pytest

from plangym_like.execution.process_executor import CostModel

ROW = 1e-4


def test_whether_a_batch_is_sent_is_calculated_for_every_size_at_once() -> None:
    costs = CostModel()
    costs.note(3, 1, seconds=3 * ROW)
    sent = [costs.worth_sending(count, 1, workers=1) for count in (2, 10, 11, 64, 1500)]
    assert sent == [False, False, True, True, True]
    assert costs.worth_sending(12, 1, workers=15)
    assert costs.seconds_per_row(1) == pytest.approx(ROW)
    assert costs.seconds_per_row(100) == 0.0, "rows of many steps are another matter"


def test_rows_that_become_slower_are_sent_before_long() -> None:
    costs = CostModel()
    costs.note(64, 1, seconds=64e-7)
    batches = 0
    while not costs.worth_sending(64, 1, workers=1):
        costs.note(64, 1, seconds=64 * ROW)
        batches += 1
    assert batches < 250


def test_batches_whose_mean_dt_varies_are_compared_by_their_steps() -> None:
    """With the costs of HalfCheetah, 16 rows with dt from 1 to 8."""
    costs = CostModel()
    for steps in (4.0, 4.5, 6.9):
        costs.note(16 * steps, steps, seconds=16 * steps * 29e-6)
    assert costs.worth_sending(16, 4.2, workers=1)
    assert not costs.worth_sending(4, 4.2, workers=1)


def test_cheap_batches_that_were_sent_are_measured_here_now_and_then() -> None:
    costs = CostModel()
    costs.note(1, 1, seconds=ROW)  # they seem expensive
    sent = 0
    for _ in range(3):
        while costs.worth_sending(50, 1, workers=2):
            costs.note_sent(50, 1, seconds=2e-3)
            sent += 1
    assert sent == 4 + 12 + 48
    costs.note_sent(50, 1, seconds=6e-3)  # longer than expected here
    assert not costs.worth_sending(50, 1, workers=2)
    assert costs.worth_sending(50, 1, workers=2)
    for _ in range(100):
        costs.note_sent(500, 1, seconds=60e-3)  # this is not cheap
        assert costs.worth_sending(500, 1, workers=2)
