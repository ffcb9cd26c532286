"""A pickle separates arrays that share memory: then the trial chooses replay."""

from typing import Any

import numpy as np
import pytest
from hostile_envs import Walk

import plangym_like


class View(Walk):
    """Reads a board through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.board = np.zeros((3, 3))
        self.row = self.board[1]

    def begin(self) -> None:
        self.board[:] = 0

    def extra(self, action: int) -> float:
        self.board[1, action] += 1
        return float(self.row.sum())


class Unread(View):
    """Reads it only after the trial."""

    begins = 30

    def step(self, action: Any) -> Any:
        self.board[1, action] += 1
        return super().step(action)


@pytest.mark.parametrize("kind", [View, Unread])
def test_an_environment_that_looks_at_its_board_through_a_view_is_replayed(kind: Any) -> None:
    plain = kind()
    plain.reset(seed=0)
    with plangym_like.make(kind) as env:
        assert (env.snapshot, env.exactness) == ("replay", "exact"), env.snapshot_note
        state = env.reset(seed=0).state
        for step in range(40):
            state, _, reward, *_ = env.step(step % 3, state)
            assert reward == plain.step(step % 3)[1]
