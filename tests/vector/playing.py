"""Play lanes with seeded actions, and keep all that they return."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium.vector.utils import batch_space

from plangym_like import make_vec
from plangym_like.vector.lanes import Lanes, StepArrays


@contextmanager
def closing_all(make_one: Callable[..., Any] = make_vec) -> Iterator[Callable[..., Any]]:
    """Yield a function like `make_one`; the environments that it makes are closed afterwards."""
    made: list[Any] = []

    def make(*args: Any, **kwargs: Any) -> Any:
        made.append(make_one(*args, **kwargs))
        return made[-1]

    yield make
    for envs in made:
        envs.close()


class Player:
    """Steps lanes in one of the modes of autoreset.

    Parameters
    ----------
    lanes : Lanes
    mode : {"step", "step_next", "step_same"}
        With ``"step"``, lanes are reset by `Lanes.reset`.
    seed : int
        For the actions.

    Attributes
    ----------
    obs, rewards, terminated, truncated
        The results of the last step.
    """

    def __init__(self, lanes: Lanes, mode: str = "step_next", seed: int = 0) -> None:
        count = lanes.num_lanes
        self.lanes, self._mode = lanes, mode
        self.rewards = np.zeros(count)
        self.terminated, self.truncated = np.zeros((2, count), bool)
        self._space = batch_space(lanes.action_space, count)
        self._space.seed(seed)
        self.obs: Any = None

    def start(self, seeds: Sequence[int | None]) -> Any:
        """Start the lanes, and return what that gave."""
        self.obs = self.lanes.start(seeds)
        return copy.deepcopy((self.obs, self.lanes.infos))

    def step(self) -> Any:
        """Take one step, and return a copy of all that it gave."""
        ended = self.terminated | self.truncated
        finals: Any = None
        out = StepArrays(self.obs, self.rewards, self.terminated, self.truncated)
        arguments = self._space.sample(), out
        if self._mode == "step_next":
            self.lanes.step(*arguments, ended=ended)
        elif self._mode == "step_same":
            finals = {}
            self.lanes.step(*arguments, finals=finals)
        else:
            running = np.flatnonzero(~ended)
            if ended.any():
                self.lanes.reset(self.obs, np.flatnonzero(ended))
                self.terminated[ended] = self.truncated[ended] = False
            self.lanes.step(*arguments, running)
        infos = self.lanes.infos
        return copy.deepcopy(
            (self.obs, self.rewards, self.terminated, self.truncated, finals, infos)
        )

    def play(
        self, seeds: Sequence[int | None], steps: int, before: Callable[[int], Any] = lambda _: None
    ) -> list[Any]:
        """Start the lanes and take `steps` steps; ``before(number)`` is called before each."""
        played = [self.start(seeds)]
        for number in range(steps):
            before(number)
            played.append(self.step())
        return played
