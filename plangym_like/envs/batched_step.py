"""`BatchedStep`: steps blocks of rows with the environment's own ``step_states``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.arrays import Rows, given_states
from plangym_like.batch.spaces import fitted
from plangym_like.envs.block_stepper import BlockStepper, Outcomes
from plangym_like.errors import EnvApiError, RewardError, SnapshotError
from plangym_like.states.rows import HEADER_NBYTES


@dataclass(slots=True)
class ObservedStates:
    """The states ``(N, *shape)`` of N rows, and their last observations."""

    states: NDArray[Any]
    obs: NDArray[Any]

    def __len__(self) -> int:
        return len(self.states)

    def take(self, rows: NDArray[np.intp]) -> ObservedStates:
        """Return a copy of the states and observations of `rows`."""
        return ObservedStates(self.states[rows], self.obs[rows])

    def put(self, rows: NDArray[np.intp], part: ObservedStates) -> None:
        """Replace the states and observations of `rows` with `part`, a stepped result of `take`."""
        self.states[rows], self.obs[rows] = part.states, part.obs


class BatchedStep(BlockStepper[ObservedStates]):
    """Steps blocks of rows by calling ``step_states(states, actions)``.

    Parameters
    ----------
    step_states : callable
        Takes states ``(N, *shape)`` and N actions; returns the next states, observations, rewards,
        terminateds and truncateds.
    example : array ``(*shape)``
        Any state; only its shape and dtype are used.
    space : gymnasium.Space
        The observation space; an observation must be one array.
    frameskip : int
        The number of steps for which an action is held.
    """

    def __init__(
        self,
        step_states: Callable[..., Any],
        example: NDArray[Any],
        space: gymnasium.Space[Any],
        frameskip: int,
    ) -> None:
        super().__init__(frameskip)
        self._step_states = step_states
        self._shape, self._dtype = example.shape, example.dtype
        self._place = slice(HEADER_NBYTES, HEADER_NBYTES + example.nbytes)
        self._space = space

    def takes(self, rows: Rows) -> bool:
        return not rows.columns and rows.inputs.seeds is None

    def load(self, rows: Rows, block: slice) -> ObservedStates:
        count, given = block.stop - block.start, given_states(rows.inputs, block)
        states = np.empty((count, *self._shape), self._dtype)
        states.reshape(count, -1).view(np.uint8)[:] = given[:, self._place]
        return ObservedStates(
            states, np.empty((count, *(self._space.shape or ())), self._space.dtype)
        )

    def frame(self, states: ObservedStates, actions: NDArray[Any], out: Outcomes) -> None:
        count = len(states)
        following, seen, paid, terminated, truncated = self._step_states(
            states.states.copy(), actions.copy()
        )
        shape, dtype = (count, *(self._space.shape or ())), np.dtype(self._space.dtype)
        states.obs[...] = fitted(self._space, seen, shape, dtype)
        states.states[...] = self._checked_states(following, count)
        if np.shape(paid) != (count,):
            raise RewardError(
                f"step_states returned rewards of shape {np.shape(paid)} for {count} rows"
            )
        out.rewards[...] = paid
        out.terminated[...] = _checked_flags("terminateds", terminated, count)
        out.truncated[...] = _checked_flags("truncateds", truncated, count)

    def observe(self, states: ObservedStates, out: NDArray[Any]) -> None:
        out[...] = states.obs

    def store(self, states: ObservedStates, rows: Rows, block: slice) -> None:
        # The random generator and the wrappers' state do not change.
        assert rows.next_states is not None
        fresh = rows.next_states[block]
        fresh[:] = given_states(rows.inputs, block)
        fresh[:, self._place] = states.states.reshape(len(states), -1).view(np.uint8)

    def _checked_states(self, following: Any, count: int) -> Any:
        """Return `following`, the next states of `count` rows.

        Raise `SnapshotError` if their shape or dtype is not that of ``save_state``.
        """
        states, shape = np.asarray(following), (count, *self._shape)
        if states.shape != shape or states.dtype != self._dtype:
            raise SnapshotError(
                f"step_states returned next states {states.dtype}{states.shape} for {count} rows, "
                f"but save_state returns {self._dtype}{self._shape}"
            )
        return states


def _checked_flags(name: str, flags: Any, count: int) -> Any:
    """Return `flags`; raise `EnvApiError` unless there is one for each of `count` rows."""
    if np.shape(flags) != (count,):
        raise EnvApiError(
            f"step_states returned {name} of shape {np.shape(flags)} for {count} rows"
        )
    return flags
