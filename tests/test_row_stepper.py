"""`RowStepper`, used without an executor."""

import numpy as np
import pytest

import plangym_like
from plangym_like.batch.layout import Layout
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


def test_an_info_has_the_shape_of_its_column_in_a_batch_of_one_row() -> None:
    with plangym_like.make("CartPole-v1") as env:
        given = env.layout
        state, obs, _ = env.reset(seed=0)
        columns = {"speed": ((), np.dtype(np.float32)), "place": ((2,), np.dtype(int))}
        layout = Layout(
            given.observation_space, given.action_space, given.format, columns, plain_infos=False
        )
        inputs = layout.check([0], state, 1, None)

        def infos_of(**info: object) -> plangym_like.BatchInfo:
            return layout.result_of_one(inputs, state, (obs, 1.0, False, False, info, 1)).infos

        one = infos_of(speed=0.5, place=[3, 4])
        for name, (shape, dtype) in columns.items():
            assert (one[name].shape, one[name].dtype) == ((1, *shape), dtype)
        assert one["speed"].tolist() == [0.5]
        assert one["place"].tolist() == [[3, 4]]
        with pytest.raises(ValueError, match="shape"):
            infos_of(speed=0.5, place=[3, 4, 5])["place"]
