"""Where it is easy to return something else than Gymnasium's SyncVectorEnv."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from test_make_vec import same

import plangym_like
from plangym_like import make_vec


class Walk(gymnasium.Env):
    """A random walk that hands out its own buffer and info."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(4)

    def __init__(self) -> None:
        self.place = np.zeros(2)
        self.info: dict[str, Any] = {"place": self.place, "nested": {"place": self.place}}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if options:
            raise ArithmeticError("refused options")
        self.place[:] = self.np_random.normal(), 0
        self.info["steps"] = 0
        return self.place, self.info

    def step(self, action: Any) -> Any:
        if action == 3:
            raise ArithmeticError("refused the action")
        self.place += self.np_random.normal(), 1
        self.info["steps"] += 1
        return self.place, float(action), bool(self.place[1] > 2), False, self.info


def walk_with_states() -> Any:
    return plangym_like.make(Walk)


BOTH = pytest.mark.parametrize("source", [Walk, walk_with_states])


@BOTH
def test_final_infos_are_those_of_before_the_reset(source: Any) -> None:
    theirs = SyncVectorEnv([Walk] * 2, autoreset_mode="SameStep")
    ours = make_vec(source, 2, autoreset_mode="SameStep")
    theirs.reset(seed=1), ours.reset(seed=1)
    for _ in range(3):
        one, other = theirs.step([0, 1]), ours.step([0, 1])
    assert one[4]["final_info"]["steps"].tolist() == [3, 3]
    assert same(one[4]["final_info"], other[4]["final_info"])
    assert same(one[4]["nested"], other[4]["nested"])
