"""Which rows are to blame for deaths, and the errors of rows that fail, without processes."""

from __future__ import annotations

import pickle

from plangym_like.errors import (
    PoisonInputError,
    RemoteTraceback,
    StepTimeoutError,
    WorkerDiedError,
)
from plangym_like.execution.row_faults import RowFaults, rename_row


def test_a_row_is_to_blame_when_new_workers_that_step_nothing_else_die_in_it() -> None:
    faults = RowFaults(masked=False)
    died = WorkerDiedError("a worker died", 1, -9)
    for _ in range(20):  # with other rows, so that these may be to blame
        faults.note_death(5, died, alone=False)
    for _ in range(4):
        assert faults.suspects == {5} and faults.is_left(5)
        faults.note_death(5, died, alone=True)
    faults.note_death(5, died, alone=True)
    assert faults.lowest == 5 and isinstance(faults.failure, PoisonInputError)
    assert not faults.suspects and not faults.is_left(5)


def test_errors_of_a_part_name_rows_of_the_batch() -> None:
    poisoned = PoisonInputError("row 5 killed 5 workers (exit status -9)", 5, -9)
    poisoned.__cause__ = RemoteTraceback("there")
    rename_row(poisoned, 5, 105, 256)
    assert (poisoned.index, poisoned.exitcode) == (105, -9)
    assert str(poisoned) == "row 105 killed 5 workers (exit status -9)"
    copy = pickle.loads(pickle.dumps(poisoned))
    assert (str(copy), copy.index, copy.exitcode) == (str(poisoned), 105, -9)
    late = StepTimeoutError("row 2 took longer than step_timeout=1", [2])
    rename_row(late, 2, 12, 20)
    assert (late.indices, str(late)) == ((12,), "row 12 took longer than step_timeout=1")


def test_a_row_s_own_error_keeps_its_message() -> None:
    own = StepTimeoutError("row 2 took longer", [2])
    own.add_note("(in row 1 of a batch of 4)")  # of an environment that itself steps batches
    own.add_note("(in row 3 of a batch of 8)")
    rename_row(own, 3, 43, 64)
    assert (own.indices, str(own)) == ((2,), "row 2 took longer")
    assert own.__notes__ == ["(in row 1 of a batch of 4)", "(in row 43 of a batch of 64)"]
