"""`Robot`: the vectorised form of a robot's computations before and after each simulation step."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import mujoco
import numpy as np
from numpy.typing import NDArray

from plangym_like.envs.mujoco_robots.arrays import Array

Look = Callable[[str], Array]
Places = Mapping[str, tuple[slice, tuple[int, ...]]]


class Frames:
    """The simulation data of N rows before and after each of F frames.

    Parameters
    ----------
    record : array ``(N, F + 1, W) float64``
        The data of each row before the first frame and after each frame, W numbers at a time.
    places : mapping of str to (slice, shape)
        For each array, its slice in the last axis of `record`, and its shape.
    actions : array ``(N, F, nu)``
        The actions, in the dtype in which they were given.
    """

    def __init__(
        self,
        record: NDArray[np.float64],
        places: Places,
        actions: Array,
    ) -> None:
        self._record = record
        self._places = places
        # The order in which NumPy adds up numbers depends on their layout in memory.
        self.actions = np.ascontiguousarray(actions)

    def before(self, name: str) -> Array:
        """Return the array `name` before each frame, ``(N, F, *shape)``."""
        return look_in(self._record[:, :-1], self._places, name)

    def after(self, name: str) -> Array:
        """Return the array `name` after each frame, ``(N, F, *shape)``."""
        return look_in(self._record[:, 1:], self._places, name)


class Robot(abc.ABC):
    """The vectorised step of one class of robots in Gymnasium or dm_control.

    Every result is bit-identical to the result of the environment's own ``step``. So each
    expression keeps the operands, order and dtypes of the formulas in the environment's source.
    Settings are read from the environment at each call, because users may change them there.

    Attributes
    ----------
    contact_forces : bool
        Whether the step reads results of `mj_rnePostConstraint`.
    advance : callable
        ``advance(model, data, substeps)`` simulates one frame.
    refresh : callable or None
        ``refresh(model, data)`` is called after a restore to compute the arrays `advance` reads.
    """

    contact_forces: ClassVar[bool] = False
    advance: Callable[[Any, Any, int], None] = staticmethod(mujoco.mj_step)
    refresh: Callable[[Any, Any], None] | None = None

    def __init__(self, env: Any) -> None:
        self.env = env

    def simulation(self) -> tuple[Any, Any, int]:
        """Return the model, the data, and the number of substeps per frame."""
        return self.env.model, self.env.data, self.env.frame_skip

    @classmethod
    def carried(cls, env: Any) -> dict[str, Array]:
        """Return the simulation's arrays that a step reads *before* it simulates, by name."""
        return {}

    def recorded(self) -> dict[str, Array]:
        """Return the arrays that a step reads after it simulates but that states do not hold."""
        return {}

    def shown_positions(self, look: Look, hidden: int) -> Array:
        """Return ``qpos``, without its first `hidden` numbers if observations exclude them."""
        excluded = self.env._exclude_current_positions_from_observation
        return look("qpos")[..., hidden if excluded else 0 :]

    def over(self) -> bool:
        """Return whether the current state certainly ends the episode."""
        return False

    @abc.abstractmethod
    def settle(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        """Return the rewards, terminated flags and infos of all frames, each ``(N, F, ...)``."""

    @abc.abstractmethod
    def observe(self, look: Look, out: Array) -> None:
        """Write observations into `out`; ``look(name)`` returns an array ``(..., *shape)``."""


def look_in(record: NDArray[np.float64], places: Places, name: str) -> Array:
    """Return the array `name` ``(..., *shape)`` in `record` ``(..., W)``."""
    place, shape = places[name]
    part = record[..., place]
    return part if len(shape) == 1 else part.reshape(*record.shape[:-1], *shape)
