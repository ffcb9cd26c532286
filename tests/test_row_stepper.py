"""`RowStepper`, used without an executor."""

import pytest

import plangym_like
from plangym_like.errors import ClosedError


def test_a_batch_of_no_rows_raises_the_error_of_a_closed_environment() -> None:
    env = plangym_like.make("CartPole-v1")
    stepper = env.row_stepper
    inputs = env.layout.check([], env.reset(seed=0).state, 1, None)
    rows = env.layout.allocate(inputs)
    assert stepper.run_rows(rows, 0, 0, masked=True) == {}
    env.close()
    with pytest.raises(ClosedError):
        stepper.run_rows(rows, 0, 0, masked=True)
