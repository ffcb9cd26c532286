"""Chunks of rows by a user's own ``step_states``: held actions, ended rows, whole rollouts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from plangym_like import random_state
from plangym_like.batches import Rows
from plangym_like.errors import RewardError, SnapshotError
from plangym_like.ownership import owned
from plangym_like.spaces import fitted

_STEPS = 12
_NAMES = ("next state", "observation", "reward", "terminated", "truncated")


class OwnChunks:
    """Steps rows with ``step_states(states, actions)``.

    Parameters
    ----------
    step_states : callable
        ``(N, *shape)`` states and N actions -> next states, observations, rewards, terminateds,
        truncateds.
    space : gymnasium.Space
        Of the observations, one array each.
    frameskip : int
        How many steps one action lasts.
    """

    def __init__(
        self, step_states: Callable[..., Any], space: gymnasium.Space[Any], frameskip: int
    ) -> None:
        self._step_states = step_states
        self._space = space
        self._frameskip = frameskip

    def step_rows(self, rows: Rows, start: int, stop: int, states: NDArray[Any]) -> NDArray[Any]:
        """Step rows `start` to `stop` from `states`; return the next ones."""
        whole = slice(start, stop)
        states = states.copy()
        assert rows.observations is not None
        results = (rows.rewards, rows.terminateds, rows.truncateds)
        rewards, terminateds, truncateds = (array[whole] for array in results)
        self._hold(
            states,
            rows.inputs.actions[whole],
            self._frames(rows, whole),
            rows.observations[whole],
            (rewards, terminateds, truncateds, rows.n_step[whole]),
        )
        return states

    def rollout_rows(self, rows: Rows, start: int, stop: int, states: NDArray[Any]) -> NDArray[Any]:
        """Run rows `start` to `stop` through all their actions; return the final states."""
        whole = slice(start, stop)
        count, horizon = stop - start, rows.inputs.horizon
        states = states.copy()
        frames = self._frames(rows, whole)
        shape, dtype = self._space.shape or (), self._space.dtype
        obs = np.empty((count, *shape), dtype)
        terminateds, truncateds = np.zeros(count, bool), np.zeros(count, bool)
        n_step = np.zeros(count, np.int64)
        rows.n_step[whole] = 0
        for time in range(horizon):
            going = ~(terminateds | truncateds)
            rewards = np.zeros(count)
            outcome = (rewards, terminateds, truncateds, n_step)
            n_step[:] = 0
            actions = rows.inputs.actions[whole, time]
            self._hold(states, actions, np.where(going, frames, 0), obs, outcome)
            rows.n_step[whole] += n_step
            rows.rewards[whole, time] = rewards
            rows.terminateds[whole, time] = terminateds
            rows.truncateds[whole, time] = truncateds
            if rows.observations is not None:
                rows.observations[whole, time] = obs
        return states

    def _frames(self, rows: Rows, whole: slice) -> NDArray[np.int64]:
        dt = rows.inputs.dt
        count = whole.stop - whole.start
        held = np.full(count, dt, np.int64) if isinstance(dt, int) else dt[whole]
        return held * self._frameskip

    def _hold(
        self,
        states: NDArray[Any],
        actions: Any,
        frames: NDArray[np.int64],
        obs: NDArray[Any],
        outcome: tuple[NDArray[Any], ...],
    ) -> None:
        """Hold each row's action for its frames, or until its episode ends; all in place."""
        rewards, terminateds, truncateds, n_step = outcome
        held = frames > 0
        rewards[held] = 0.0
        n_step[held] = 0
        going = np.flatnonzero(held)
        while len(going):
            following, seen, paid, ended, cut = self._step_states(states[going], actions[going])
            states[going] = following
            obs[going] = self._fitted(seen, len(going))
            if np.shape(paid) != going.shape:
                raise RewardError(
                    f"step_states returned rewards of shape {np.shape(paid)} for {len(going)} rows"
                )
            rewards[going] += paid
            terminateds[going] = ended
            truncateds[going] = cut
            n_step[going] += 1
            on = ~(terminateds[going] | truncateds[going]) & (n_step[going] < frames[going])
            going = going[on]

    def _fitted(self, seen: Any, count: int) -> Any:
        """Return observations of `count` rows; `ObservationError` if they do not fit."""
        shape, dtype = self._space.shape or (), self._space.dtype
        if isinstance(seen, np.ndarray) and seen.dtype == dtype and seen.shape == (count, *shape):
            return seen
        return fitted(self._space, seen, (count, *shape), np.dtype(dtype))


def agree(env: gymnasium.Env[Any, Any], base: Any, kind: str | None = None) -> None:
    """Check that ``step_states`` does what ``step`` does, on random steps; leave `env` as it was.

    `kind` is the type character of the actions; by default they are as the space gives them.

    Raises
    ------
    SnapshotError
        It does not, or the environment draws random numbers or gives infos, which it cannot.
    """
    saved, own = copy.deepcopy(base.save_state()), vars(base).get("_np_random")
    memory = random_state.save_generator(own)
    space = copy.deepcopy(env.action_space)
    space.seed(0)
    states, actions, outcomes = [], [], []
    try:
        env.reset(seed=0)
        before = random_state.save_generator(base._np_random)
        for _ in range(_STEPS):
            states.append(np.array(base.save_state()))
            action = space.sample()
            actions.append(action if kind is None else np.asarray(action).astype(kind))
            obs, reward, terminated, truncated, info = env.step(owned(actions[-1]))
            outcome = np.array(base.save_state()), np.array(obs), reward, terminated, truncated
            outcomes.append(outcome)
            if info:
                raise SnapshotError("step gives infos, which step_states cannot; leave one of both")
            if terminated or truncated:
                break
        if random_state.save_generator(base._np_random) != before:
            raise SnapshotError("step draws random numbers, so leave step_states out")
        results = base.step_states(np.stack(states), np.stack(actions))
        for name, column, expected in zip(
            _NAMES, results, zip(*outcomes, strict=True), strict=True
        ):
            wanted = np.stack([np.asarray(value) for value in expected])
            got = np.asarray(column).astype(wanted.dtype)
            differs = [
                one.tobytes() != other.tobytes() for one, other in zip(got, wanted, strict=True)
            ]
            if any(differs):
                row = differs.index(True)
                raise SnapshotError(
                    f"{type(base).__name__}.step_states does not do what step does: the {name} of "
                    f"row {row} is {got[row]!r} instead of {wanted[row]!r}"
                )
    finally:
        base._np_random = random_state.load_generator(memory, own)
        base.load_state(saved)
