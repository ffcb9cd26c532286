"""What a robot's step does around the simulation: the part that Gymnasium writes in Python."""

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
    """N rows, each stepped for F frames: what the simulation was before and after each frame.

    Parameters
    ----------
    record : array ``(N, F + 1, W) float64``
    places : mapping of str to (slice, shape)
        Where each array lies in the last axis of `record`, and its shape.
    actions : array ``(N, F, nu)``
        In the dtype they were given in.
    """

    def __init__(
        self,
        record: NDArray[np.float64],
        places: Places,
        actions: Array,
    ) -> None:
        self._record = record
        self._places = places
        self.actions = actions

    def before(self, name: str) -> Array:
        """Return the array `name` before each frame, ``(N, F, *shape)``."""
        return look_in(self._record[:, :-1], self._places, name)

    def after(self, name: str) -> Array:
        """Return the array `name` after each frame, ``(N, F, *shape)``."""
        return look_in(self._record[:, 1:], self._places, name)


class Robot(abc.ABC):
    """One class of Gymnasium's robots, over many rows and frames at once.

    Every result is bit-identical to that of the environment's own ``step``, so each expression
    keeps that step's operands, order and dtypes; the formulas are those of
    ``gymnasium/envs/mujoco``. Settings are read from the living environment, since that is where
    people edit them.

    Attributes
    ----------
    contact_forces : bool
        Whether the step reads what `mj_rnePostConstraint` computes.
    advance : callable
        ``advance(model, data, substeps)`` simulates one frame.
    refresh : callable or None
        ``refresh(model, data)`` computes what `advance` needs after a restore.
    """

    contact_forces: ClassVar[bool] = False
    advance: Callable[[Any, Any, int], None] = staticmethod(mujoco.mj_step)
    refresh: Callable[[Any, Any], None] | None = None

    def __init__(self, env: Any) -> None:
        self.env = env

    def simulation(self) -> tuple[Any, Any, int]:
        """Return model, data, and how many substeps a frame has."""
        return self.env.model, self.env.data, self.env.frame_skip

    @classmethod
    def carried(cls, env: Any) -> dict[str, Array]:
        """Return the live arrays that a step reads *before* it simulates, by name."""
        return {}

    def recorded(self) -> dict[str, Array]:
        """Return the live arrays that a step reads afterwards, besides those of the state."""
        return {}

    def over(self) -> bool:
        """Return whether the episode has ended in this state; ``False`` if in doubt."""
        return False

    @abc.abstractmethod
    def settle(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        """Return rewards, terminated and infos of all frames, each ``(N, F, ...)``."""

    @abc.abstractmethod
    def observe(self, look: Look, out: Array) -> None:
        """Write the observations of what `look` shows, ``(..., shape)``, into `out`."""


def look_in(record: NDArray[np.float64], places: Places, name: str) -> Array:
    """Return the array `name` of all that lies in `record` ``(..., W)``, ``(..., *shape)``."""
    place, shape = places[name]
    part = record[..., place]
    return part if len(shape) == 1 else part.reshape(*record.shape[:-1], *shape)
