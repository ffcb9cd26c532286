"""`StartStates`: the states that episodes begin in, with their observations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from plangym_like.errors import InputError
from plangym_like.vector.batching import checked_observations
from plangym_like.vector.lanes import Lanes
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
    def of(cls, given: Any) -> Self | None:
        """Check and copy the user's ``states=(rows, obs)``; ``None`` stays ``None``.

        Raises
        ------
        InputError
            `given` is not a pair of state rows and observations, with one observation for each row.
        """
        if given is None:
            return None
        if not isinstance(given, tuple) or len(given) != 2:
            raise InputError(
                "states must be a pair (rows, obs) of state rows and the observations that came "
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
        if isinstance(index, torch.Tensor):
            index = index.numpy()
        return type(self)(self.rows[index], take(self.obs, index))

    def check(self, num_lanes: int) -> None:
        """Raise an `InputError` unless there is one state for each of `num_lanes` lanes."""
        if len(self) != num_lanes:
            raise InputError(f"{len(self)} states were given for {num_lanes} environments")

    def place(self, lanes: Lanes, obs: Any) -> None:
        """Set the states of all `lanes`; write the observations into `obs`.

        Raises
        ------
        InputError
            An observation does not fit the lanes' observation space.
        SnapshotError, StateError
            As in `Lanes.set_states`.
        """
        lanes.set_states(self.rows)
        space = lanes.observation_space
        observations = checked_observations(self.obs, space, lanes.num_lanes)
        write_rows(obs, ..., observations)


def _copied(value: Any) -> NDArray[Any]:
    return np.array(value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value)
