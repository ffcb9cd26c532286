"""`StartStates`: the states that episodes begin in, with their observations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import InputError
from plangym_like.vector.batching import checked_observations
from plangym_like.vector.lanes import Lanes, Which
from plangym_like.vector.tree import take, tree_map, write_rows


@dataclass(frozen=True)
class StartStates:
    """States that episodes begin in, and the observations of these states.

    An observation cannot be computed from a state alone (a stack of frames needs earlier frames),
    so both are kept together, as returned by `PlanEnv.step_batch` and `PlanEnv.reset`.

    Attributes
    ----------
    rows : array uint8 ``(n, state_nbytes)``
    obs : tree of array ``(n, ...)``
    """

    rows: NDArray[np.uint8]
    obs: Any

    @classmethod
    def of(cls, given: Any, name: str = "states") -> Self | None:
        """Check and copy the user's argument ``name=(rows, obs)``; ``None`` stays ``None``.

        Raises
        ------
        InputError
            `given` is not a pair of state rows and observations, with one observation for each row.
        """
        if given is None:
            return None
        if not isinstance(given, tuple) or len(given) != 2:
            raise InputError(
                f"{name} must be a pair (rows, obs) of state rows and the observations that came "
                f"with them, got {type(given).__name__}"
            )
        rows, obs = _copied(given[0]), tree_map(_copied, given[1])
        if rows.dtype != np.uint8 or rows.ndim != 2:
            raise InputError(
                "state rows must be uint8 of shape (n, state_nbytes), got "
                f"{rows.dtype} of shape {rows.shape}"
            )

        def check(array: NDArray[Any]) -> None:
            if array.shape[:1] != rows.shape[:1]:
                raise InputError(
                    f"{len(rows)} state rows came with observations of shape {array.shape}"
                )

        tree_map(check, obs)
        return cls(rows, obs)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Self:
        return type(self)(self.rows[index], take(self.obs, index))

    def check(self, num_lanes: int) -> None:
        """Raise an `InputError` unless there is one state for each of `num_lanes` lanes."""
        if len(self) != num_lanes:
            raise InputError(f"{len(self)} states were given for {num_lanes} environments")

    def place(self, lanes: Lanes, obs: Any, which: Which = None, seeds: Any = None) -> None:
        """Put `lanes`, or those of them in `which`, into these states, one for each.

        Parameters
        ----------
        lanes : Lanes
        obs : tree of array ``(B, ...)``
            The observations of all lanes; those of the states are written into it.
        which : sequence of int, optional
        seeds : int array, optional
            See `Lanes.set_states`.

        Raises
        ------
        InputError
            An observation does not fit the lanes' observation space.
        SnapshotError, StateError
            As in `Lanes.set_states`.
        """
        lanes.set_states(self.rows, which, seeds)
        observations = checked_observations(self.obs, lanes.observation_space, len(self))
        write_rows(obs, ... if which is None else which, observations)


class RandomStarts:
    """Puts environments that were reset into states drawn at random, each with a new generator.

    Parameters
    ----------
    given : (states, observations)
        States ``(n, state_nbytes)``, and the observations that came with them.
    lanes : Lanes
        The environments.

    Raises
    ------
    InputError
        `given` is no such pair, is empty, or an observation does not fit.
    StateError
        A state is damaged, or belongs to another environment.
    SnapshotError
        The environments are plain Gymnasium environments, which have no state rows.
    """

    def __init__(self, given: Any, lanes: Lanes) -> None:
        states = StartStates.of(given, "start_states")
        if states is None or not len(states):
            raise InputError("start_states must have at least one state")
        for row_format in set(lanes.formats):
            row_format.check(states.rows)
        checked_observations(states.obs, lanes.observation_space, len(states))
        self._states, self._generator = states, np.random.default_rng()

    def reseed(self, seeds: Sequence[int | None]) -> None:
        """Draw from a new generator if the environments were given seeds."""
        if any(seed is not None for seed in seeds):
            entropy = [0 if seed is None else seed + 1 for seed in seeds]
            self._generator = np.random.default_rng(entropy)

    def place(self, lanes: Lanes, obs: Any, which: Any) -> None:
        """Put the lanes `which`, which have just been reset, into states.

        The observations of the states are written into `obs`, a tree of arrays ``(B, ...)``.
        """
        which = np.asarray(which, np.intp)
        if len(which):
            rows = self._generator.integers(len(self._states), size=len(which))
            seeds = self._generator.integers(2**31, size=len(which))
            self._states[rows].place(lanes, obs, which, seeds)


def _copied(value: Any) -> NDArray[Any]:
    if hasattr(value, "detach"):  # a tensor of torch, which is not imported here
        value = value.detach().cpu().numpy()
    return np.array(value)
