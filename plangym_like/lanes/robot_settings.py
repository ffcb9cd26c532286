"""`settings_of`: compare the settings of several robots."""

from __future__ import annotations

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
