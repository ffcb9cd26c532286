"""`StatesKernel`: steps many rows at once with the environment's own ``step_states``.

If the environment also has ``turns_of_states``, the kernel plays random legal moves to the end of
many games at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.arrays import Rows
from plangym_like.batch.spaces import fitted
from plangym_like.envs.game_positions import LCG_FACTOR
from plangym_like.envs.kernel import ArrayKernel, Outcomes, States
from plangym_like.errors import EnvApiError, RewardError
from plangym_like.states.rows import HEADER_NBYTES, Row


@dataclass(slots=True)
class ObservedStates(States):
    """The states ``(N, *shape)`` of N rows, and their last observations ``(N, *obs_shape)``."""

    states: NDArray[Any]
    obs: NDArray[Any]

    def _at(self, rows: NDArray[np.intp]) -> Any:
        return rows


class StatesKernel(ArrayKernel[ObservedStates]):
    """Steps blocks of rows by calling ``step_states(states, actions)`` of the environment.

    ``step_states`` takes states ``(N, *shape)`` and N actions; it returns the next states,
    observations, rewards, terminateds and truncateds. The random generator does not change. The
    optional ``turns_of_states`` takes states, and returns masks ``(N, A)`` of the legal actions and
    the players to move ``(N,)``.

    Parameters
    ----------
    sim : SaveLoadSimulator
        The simulator of the environment, whose observations are one array each.
    """

    def __init__(self, sim: Any) -> None:
        super().__init__(sim)
        example: NDArray[Any] = sim.codec.example
        self._step_states: Callable[..., Any] = sim.base.step_states
        self._turns_of_states: Callable[..., Any] | None = getattr(
            sim.base, "turns_of_states", None
        )
        self._name = type(sim.base).__name__
        self._shape, self._dtype = example.shape, example.dtype
        self._place = slice(HEADER_NBYTES, HEADER_NBYTES + example.nbytes)
        self._space: Any = sim.observation_space
        self._num_actions = int(getattr(sim.action_space, "n", 0))

    def takes(self, rows: Rows) -> bool:
        return "rgb" not in rows.columns and rows.inputs.seeds is None

    def use_for_frames(self) -> bool:
        return False  # the user's ``step`` may return any types

    def load(self, given: Row, count: int) -> ObservedStates:
        states = np.empty((count, *self._shape), self._dtype)
        states.reshape(count, -1).view(np.uint8)[:] = given[:, self._place]
        return ObservedStates(states, np.empty((count, *self._space.shape), self._space.dtype))

    def frame(self, states: ObservedStates, actions: NDArray[Any], out: Outcomes) -> None:
        count = len(states.states)
        next_states, obs, rewards, terminated, truncated = self._step_states(
            states.states.copy(), actions.copy()
        )
        shape, dtype = (count, *self._space.shape), np.dtype(self._space.dtype)
        states.obs[...] = fitted(self._space, obs, shape, dtype)
        states.states[...] = self._checked_states(next_states, count)
        if np.shape(rewards) != (count,):
            raise RewardError(
                f"step_states returned rewards of shape {np.shape(rewards)} for {count} rows"
            )
        out.rewards[...] = rewards
        out.terminated[...] = _checked_flags("terminateds", terminated, count)
        out.truncated[...] = _checked_flags("truncateds", truncated, count)

    def observe(self, states: ObservedStates, out: NDArray[Any]) -> None:
        out[...] = states.obs

    def store(self, states: ObservedStates, fresh: Row) -> None:
        fresh[:, self._place] = states.states.reshape(len(fresh), -1).view(np.uint8)

    def infos(self, states: ObservedStates) -> Mapping[str, NDArray[Any]]:
        if self._turns_of_states is None:
            return {}
        legal, to_play = self._turns(states.states)
        return {"action_mask": legal, "to_play": to_play}

    def play_out(self, rows: Rows, first: int, last: int) -> None:
        """Play each of the rows ``first:last`` to the end, or through its T actions.

        Actions that are not legal are replaced by random legal ones, drawn with the row's actions
        as the seed. The reward of the player to move is lost by the other one.

        Raises
        ------
        EnvApiError
            A state has no legal action, although the game has not ended.
        """
        block, count, horizon = slice(first, last), last - first, rows.inputs.horizon
        given = self._given(rows, block)
        plans = np.ascontiguousarray(rows.inputs.actions[block], np.int64)
        draws = np.array([zlib.crc32(plan) for plan in plans], np.uint64)
        # These have an axis of times first, because all games take a step together.
        taken, rewards = plans.T.copy(), np.zeros((horizon, count))
        movers, ended = np.zeros((horizon, count), np.int64), np.zeros((2, count), bool)
        lengths, on = np.full(count, horizon), np.arange(count)
        whole = states = self.load(given, count)
        for time in range(horizon):
            legal, to_play = self._turns(states.states)
            chosen = self._made_legal(taken[time, on], legal, draws, on)
            out = Outcomes.empty(len(on))
            self.frame(states, chosen, out)
            taken[time, on], rewards[time, on], movers[time, on] = chosen, out.rewards, to_play
            if rows.observations is not None:  # those of a game that ends stay
                rows.observations[first + on, time:] = states.obs[:, None]
            over = out.terminated | out.truncated
            if over.any():
                done, left = over.nonzero()[0], (~over).nonzero()[0]
                ended[:, on[done]] = out.terminated[done], out.truncated[done]
                lengths[on[done]] = time + 1
                whole.put(on[done], states.take(done))
                on, states = on[left], states.take(left)
                if not len(on):
                    break
        whole.put(on, states)
        self._write(rows, block, taken.T, rewards.T, movers.T, lengths, ended)
        self._store(whole, given, None, rows, block)

    def _made_legal(
        self, actions: NDArray[Any], legal: NDArray[np.bool_], draws: NDArray[Any], on: NDArray[Any]
    ) -> NDArray[Any]:
        """Replace `actions` ``(n,)`` that are not legal, in place, and return them.

        `draws` holds the last random number of each game, and `on` are the games that go on.
        """
        wrong = (~legal[np.arange(len(actions)), actions]).nonzero()[0]
        if len(wrong):
            numbers = draws[on[wrong]] * np.uint64(LCG_FACTOR) + np.uint64(1)
            draws[on[wrong]], masks = numbers, legal[wrong]
            counts = masks.sum(axis=1, dtype=np.uint64)
            if not counts.all():
                raise EnvApiError(
                    f"{self._name}.turns_of_states returned no legal action for a state that has "
                    "not ended"
                )
            places = ((numbers >> np.uint64(32)) * counts) >> np.uint64(32)
            actions[wrong] = (masks.cumsum(axis=1) > places[:, None]).argmax(axis=1)
        return actions

    @staticmethod
    def _write(
        rows: Rows,
        block: slice,
        taken: NDArray[Any],
        rewards: NDArray[Any],
        movers: NDArray[Any],
        lengths: NDArray[Any],
        ended: NDArray[np.bool_],
    ) -> None:
        """Write the results of games that were played out, with two players."""
        after = np.arange(rows.inputs.horizon) >= lengths[:, None] - 1
        rows.rewards[block], rows.columns["actions"][block] = rewards, taken
        for player in (0, 1):
            gains = np.where(movers == player, rewards, -rewards)
            rows.columns["rewards"][block, :, player] = gains
        rows.n_step[block] = lengths
        rows.terminateds[block], rows.truncateds[block] = after & ended[:, :, None]

    def _turns(self, states: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[Any]]:
        """Return the legal actions ``(N, A)`` of states, and the players to move ``(N,)``."""
        assert self._turns_of_states is not None
        legal, to_play = map(np.asarray, self._turns_of_states(states.copy()))
        shape = (len(states), self._num_actions)
        if legal.shape != shape or to_play.shape != shape[:1]:
            raise EnvApiError(
                f"turns_of_states must return masks {shape} and players {shape[:1]}, got shapes "
                f"{legal.shape} and {to_play.shape}"
            )
        return legal.astype(bool, copy=False), to_play

    def _checked_states(self, next_states: Any, count: int) -> NDArray[Any]:
        """Return `next_states`, those of `count` rows, as an array.

        Raise `EnvApiError` if their shape or dtype is not that of states.
        """
        states, shape = np.asarray(next_states), (count, *self._shape)
        if states.shape != shape or states.dtype != self._dtype:
            raise EnvApiError(
                f"step_states returned next states {states.dtype}{states.shape} for {count} rows, "
                f"but each state is {self._dtype}{self._shape}"
            )
        return states


def _checked_flags(name: str, flags: Any, count: int) -> Any:
    """Return `flags`; raise `EnvApiError` unless there is one for each of `count` rows."""
    if np.shape(flags) != (count,):
        raise EnvApiError(
            f"step_states returned {name} of shape {np.shape(flags)} for {count} rows"
        )
    return flags
