"""`RobotSettings`: the settings on which the steps of a robot's environment depend."""

from __future__ import annotations

from operator import is_, itemgetter
from typing import Any

import numpy as np

# Attributes that resets change, and that steps do not read.
_OF_RESETS = frozenset(("_np_random", "_np_random_seed", "cylinder_pos", "goal", "goal_pos"))
# Attributes that may differ between robots with the same settings.
_OF_EACH = _OF_RESETS | {
    *("_ezpickle_args", "_ezpickle_kwargs", "action_space", "data", "metadata", "model"),
    *("init_qpos", "mujoco_renderer", "observation_space", "observation_structure", "spec"),
}
_PLAIN = (bool, int, float, str, type(None))


class RobotSettings:
    """The settings of one robot, and whether they have changed since this object was made.

    Parameters
    ----------
    base : gymnasium.envs.mujoco.MujocoEnv
        The environment without wrappers.
    """

    def __init__(self, base: Any) -> None:
        self._attributes = vars(base)
        self._count = len(self._attributes)
        self._read = itemgetter(*(name for name in self._attributes if name not in _OF_RESETS))
        self._values = self._read(self._attributes)
        self._option = base.model.opt
        self._timestep = self._option.timestep
        # A step computes with these numbers, and users may change them in place. Other initial
        # positions are left out, because resets of Pusher change them.
        self._arrays = base.model.body_mass, base.init_qpos[1:3]
        self._numbers = [array.tobytes() for array in self._arrays]

    def have_changed(self) -> bool:
        """Return whether an attribute, the timestep, a mass or the initial height has changed."""
        attributes = self._attributes
        return (
            len(attributes) != self._count
            or not all(map(is_, self._read(attributes), self._values))
            or self._option.timestep != self._timestep
            or [array.tobytes() for array in self._arrays] != self._numbers
        )


def settings_of(base: Any) -> tuple[Any, ...]:
    """Return all settings that affect a robot's results, in a form that can be compared."""
    values = {name: _comparable(each) for name, each in vars(base).items() if name not in _OF_EACH}
    return type(base), base.dt, base.model.nq, base.model.nbody, values


def _comparable(value: Any) -> Any:
    """Return a comparable form of `value`; values with equal forms affect a robot equally."""
    if type(value) in _PLAIN:
        return type(value), value
    if isinstance(value, (tuple, list)):
        return tuple(map(_comparable, value))
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        return value.dtype.str, value.shape, value.tobytes()
    # Other values may have any effect (a function may replace a method), so they are never equal.
    return object()
