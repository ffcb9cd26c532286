"""Whether batches are sent is calculated from the time that rows take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import plangym_like
from plangym_like.execution.process_executor import MESSAGE_SECONDS, CostModel, ProcessExecutor

ROW = 1e-4


def test_whether_a_batch_is_sent_is_calculated_for_every_size_at_once() -> None:
    costs = CostModel()
    costs.note(3, 1, seconds=3 * ROW)
    sent = [costs.worth_sending(count, 1, workers=1) for count in (2, 10, 11, 64, 1500)]
    assert sent == [False, False, True, True, True]
    assert costs.worth_sending(12, 1, workers=15)
    assert costs.seconds_per_row(1) == pytest.approx(ROW)
    assert costs.seconds_per_row(100) == 0.0, "rows of many steps are another matter"


def test_what_takes_less_than_a_message_is_never_sent() -> None:
    costs = CostModel()
    costs.note(256, 1, seconds=MESSAGE_SECONDS / 2)
    assert not any(costs.worth_sending(256, 1, workers=workers) for workers in (1, 64, 1000))


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


def test_batches_that_are_sent_are_measured_here_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CostModel, "worth_sending", lambda *args, **kwargs: True)
    here = []
    run_here = ProcessExecutor._run_here

    def recorded(self: ProcessExecutor, inputs: Any, options: Any) -> Any:
        here.append(inputs.count)
        return run_here(self, inputs, options)

    monkeypatch.setattr(ProcessExecutor, "_run_here", recorded)
    with plangym_like.make("CartPole-v1", n_workers=2, audit="off") as env:
        state = env.reset(seed=0).state
        results = [env.step_batch(np.zeros(64, np.int64), state) for _ in range(6)]
    assert 64 in here
    assert all(np.array_equal(each.states, results[0].states) for each in results)
