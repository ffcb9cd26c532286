"""Which rows are to blame for deaths, and the errors of rows that fail, without processes."""

from __future__ import annotations

import pickle
import signal

import numpy as np
import pytest

from plangym_like.errors import (
    PoisonInputError,
    RemoteTraceback,
    StepTimeoutError,
    WorkerDiedError,
)
from plangym_like.execution.row_faults import RowFaults, name_rows


@pytest.mark.parametrize(("exitcode", "deaths"), [(-signal.SIGSEGV, 3), (-signal.SIGKILL, 16)])
def test_a_row_is_to_blame_when_new_workers_that_step_nothing_else_die_in_it(
    exitcode: int, deaths: int
) -> None:
    faults = RowFaults(None, masked=False)
    died = WorkerDiedError("a worker died", 1, exitcode)
    for _ in range(20):  # with other rows, so that these may be to blame
        faults.note_death(5, died, alone=False, tried=())
    assert list(faults.suspects) == [5]
    for _ in range(deaths - 1):
        faults.suspects.clear()
        faults.note_death(5, died, alone=True, tried=())
        assert list(faults.suspects) == [5] and faults.lowest is None
    faults.note_death(5, died, alone=True, tried=())
    assert faults.lowest == 5 and isinstance(faults.failure, PoisonInputError)


def test_errors_of_a_part_name_rows_of_the_batch() -> None:
    rows = np.arange(100, 150)
    poisoned = PoisonInputError("row 5 killed 3 fresh workers (exit status -9)", 5, -9)
    poisoned.__cause__ = RemoteTraceback("there")
    assert name_rows(poisoned, rows, 256) == 5
    assert (poisoned.index, poisoned.exitcode) == (105, -9)
    assert str(poisoned) == "row 105 killed 3 fresh workers (exit status -9)"
    assert isinstance(poisoned.__cause__, RemoteTraceback)
    copy = pickle.loads(pickle.dumps(poisoned))
    assert (str(copy), copy.index, copy.exitcode) == (str(poisoned), 105, -9)
    late = StepTimeoutError("row 2 took longer than step_timeout=1", [2])
    assert name_rows(late, np.array([4, 5, 12]), 20) == 2
    assert (late.indices, str(late)) == ((12,), "row 12 took longer than step_timeout=1")
    both = StepTimeoutError("rows 2, 9 took 3 times", [2, 9])
    assert name_rows(both, np.arange(10, 20), 20) == 2
    assert (both.indices, str(both)) == ((12, 19), "rows 12, 19 took 3 times")


def test_a_row_s_own_error_keeps_its_message() -> None:
    own = StepTimeoutError("row 2 took longer", [2])
    own.add_note("(in row 1 of a batch of 4)")  # of an environment that itself steps batches
    own.add_note("(in row 3 of a batch of 8)")
    assert name_rows(own, np.arange(40, 48), 64) == 3
    assert (own.indices, str(own)) == ((2,), "row 2 took longer")
    assert own.__notes__ == ["(in row 1 of a batch of 4)", "(in row 43 of a batch of 64)"]
    assert name_rows(KeyError("row 2"), np.arange(40, 48), 64) == 0
