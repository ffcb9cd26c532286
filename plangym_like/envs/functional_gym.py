"""Turn functional JAX environments into Gymnasium environments that step blocks of rows.

The state consists of the leaves of the environment's own state, followed by the random key. A block
is stepped by one ``vmap``, always over 64 rows; if there are fewer, the last row is repeated. So
only one program is compiled, and a row's result does not depend on other rows.
"""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import jax
import numpy as np
from numpy.typing import NDArray

from plangym_like.envs.functions import Functions

BLOCK = 64


class Program:
    """The compiled form of `functions`, made once per process.

    Attributes
    ----------
    begin : callable
        Takes a seed; returns ``(state, key)`` and the observation.
    step : callable
        Takes leaves, each ``(BLOCK, ...)``, and actions; returns the next leaves, observations,
        rewards, terminateds and truncateds.
    names : list of str
        The names of the leaves.
    forms : list of (shape, dtype)
        The shapes and dtypes of the leaves.
    """

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self.begin = jax.jit(self._begin)
        self.step = jax.jit(jax.vmap(self._step))
        paths, self._tree = jax.tree_util.tree_flatten_with_path(self.begin(np.uint32(0))[0])
        leaves = [np.asarray(leaf) for _, leaf in paths]
        self.names = [_name(path) for path, _ in paths]
        self.forms = [(leaf.shape, leaf.dtype) for leaf in leaves]

    def _begin(self, seed: Any) -> tuple[Any, Any]:
        use, key = jax.random.split(jax.random.PRNGKey(seed))
        state, obs = self._functions.begin(use)
        return (state, key), obs

    def _step(self, leaves: Any, action: Any) -> Any:
        state, key = jax.tree_util.tree_unflatten(self._tree, leaves)
        use, key = jax.random.split(key)
        following, *seen = self._functions.advance(state, action, use)
        # In some environments, a step changes the dtype of a leaf; it is converted back here.
        kept = jax.tree_util.tree_leaves((following, key))
        kept = [leaf.astype(dtype) for leaf, (_, dtype) in zip(kept, self.forms, strict=True)]
        return kept, *seen


program_of = functools.lru_cache(maxsize=16)(Program)


class FunctionalGym(gymnasium.Env[Any, Any]):
    """A Gymnasium environment, made from `functions`, with a state that can be read and set.

    Parameters
    ----------
    functions : Functions
        The functions that begin an episode and advance it.
    """

    metadata = {"render_modes": []}  # noqa: RUF012, gymnasium's own form

    def __init__(self, functions: Functions) -> None:
        self.action_space = functions.action_space
        self.observation_space = functions.observation_space
        self._program = program_of(functions)
        self.names, self.forms = self._program.names, self._program.forms
        self._row = self._begin(0)[0]

    # The state

    def save_state(self) -> NDArray[np.uint8]:
        """Return the state and the random key, as bytes."""
        return self._row.copy()

    def load_state(self, saved: NDArray[np.uint8]) -> None:
        """Set the state to `saved`, a result of `save_state`."""
        self._row = saved

    def set_key(self, seed: int) -> None:
        """Replace the random key, which determines all later randomness, with one from `seed`."""
        self._row = self._row.copy()
        key = np.asarray(jax.random.PRNGKey(seed % 2**32))
        self._row[-key.nbytes :] = key.view(np.uint8)

    def leaves(self, rows: NDArray[np.uint8]) -> list[NDArray[Any]]:
        """Return the leaves of the states in `rows` ``(N, nbytes)``, each ``(N, ...)``."""
        found, start = [], 0
        for shape, dtype in self.forms:
            stop = start + int(np.prod(shape)) * dtype.itemsize
            raw = np.ascontiguousarray(rows[:, start:stop])
            found.append(raw.view(dtype).reshape(len(rows), *shape))
            start = stop
        return found

    def _pack(self, leaves: list[Any], count: int) -> NDArray[np.uint8]:
        parts = [
            np.ascontiguousarray(leaf).reshape(count, -1).view(np.uint8)
            for leaf in leaves
            if np.size(leaf)
        ]
        return np.concatenate(parts, axis=1)

    # Steps

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        chosen = self.np_random.integers(2**32) if seed is None else seed % 2**32
        self._row, obs = self._begin(int(chosen))
        return self._observed(obs), {}

    def _begin(self, seed: int) -> tuple[NDArray[np.uint8], Any]:
        parts, obs = self._program.begin(np.uint32(seed))
        leaves = [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(parts)]
        return self._pack(leaves, 1)[0], obs

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        rows, obs, rewards, terminateds, truncateds = self.step_states(
            self._row[None], np.asarray(action)[None]
        )
        self._row = rows[0]
        return obs[0], float(rewards[0]), bool(terminateds[0]), bool(truncateds[0]), {}

    def step_states(self, states: NDArray[np.uint8], actions: Any) -> tuple[NDArray[Any], ...]:
        """Step each of `states` ``(N, nbytes)`` with its action.

        Return the next states, observations, rewards, terminateds and truncateds.
        """
        results = []
        for start in range(0, len(states), BLOCK):
            part = np.minimum(np.arange(start, start + BLOCK), len(states) - 1)
            leaves, *seen = self._program.step(self.leaves(states[part]), np.asarray(actions)[part])
            rows = self._pack([np.asarray(leaf) for leaf in leaves], BLOCK)
            count = min(BLOCK, len(states) - start)
            results.append([np.asarray(array)[:count] for array in (rows, *seen)])
        rows, obs, rewards, terminateds, truncateds = (
            np.concatenate(arrays) for arrays in zip(*results, strict=True)
        )
        ended = terminateds.astype(bool), truncateds.astype(bool)
        return rows, self._observed(obs), rewards.astype(np.float64), *ended

    def _observed(self, obs: Any) -> NDArray[Any]:
        return np.asarray(obs).astype(self.observation_space.dtype)


def _name(path: tuple[Any, ...]) -> str:
    """Return the name of a leaf: its path, or ``key`` for the random key."""
    if path[0].idx == 1:
        return "key"
    return jax.tree_util.keystr(path[1:]).lstrip(".") or "state"
