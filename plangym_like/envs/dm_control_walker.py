"""The vectorised step of dm_control's walker: standing, walking and running.

The formulas come from ``dm_control/suite/walker.py`` and ``dm_control/utils/rewards.py``.
"""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from plangym_like.envs.mujoco_robots.arrays import Array, put_parts
from plangym_like.envs.mujoco_robots.robot import Frames, Look, Robot

_STAND_HEIGHT = 1.2


def _advance(model: Any, data: Any, substeps: int) -> None:
    """Run one step of the task, as dm_control does.

    The first substep has already begun. Finish it, run the others, and begin the next step's first.
    """
    mujoco.mj_step2(model, data)
    if substeps > 1:
        mujoco.mj_step(model, data, substeps - 1)
    mujoco.mj_step1(model, data)


class Walker(Robot):
    """The planar walker; `env` is dm_control's own environment."""

    advance = staticmethod(_advance)
    refresh = staticmethod(mujoco.mj_step1)

    def simulation(self) -> tuple[Any, Any, int]:
        physics = self.env.physics
        return physics.model.ptr, physics.data.ptr, self.env._n_sub_steps

    def recorded(self) -> dict[str, Array]:
        data = self.env.physics.data.ptr
        torso = self.env.physics.model.name2id("torso", "body")
        sensor = self.env.physics.model.ptr.sensor("torso_subtreelinvel")
        return {
            "xmat": data.xmat,
            "torso": data.xpos[torso],
            "upright": data.xmat[torso, 8:],
            "speed": data.sensordata[int(sensor.adr[0]) :][:1],
        }

    def settle(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        standing = _near(frames.after("torso")[..., 2], _STAND_HEIGHT)
        upright = (1 + frames.after("upright")[..., 0]) / 2
        reward = (3 * standing + upright) / 4
        wanted = self.env.task._move_speed
        if wanted != 0:
            moving = _along(frames.after("speed")[..., 0], wanted)
            reward = reward * (5 * moving + 1) / 6
        return reward, False, {}

    def observe(self, look: Look, out: Array) -> None:
        places = look("xmat")[..., 1:, [0, 2]]
        turned = places.reshape(*places.shape[:-2], -1)
        put_parts(out, turned, look("torso")[..., 2:], look("qvel"))


def _near(values: Array, least: float) -> Array:
    """Return ``tolerance(values, (least, inf), margin=least / 2)``; squares use libm's ``pow``."""
    gap = np.where(values < least, least - values, values - np.inf) / (least / 2)
    scaled = gap * np.sqrt(-2 * np.log(0.1))
    return np.where(least <= values, 1.0, np.exp(-0.5 * np.float_power(scaled, 2.0)))


def _along(values: Array, least: float) -> Array:
    """Return what `dm_control.utils.rewards.tolerance` returns for values of at least `least`.

    The other arguments are ``margin=least / 2, sigmoid="linear", value_at_margin=0.5``.
    """
    gap = np.where(values < least, least - values, values - np.inf) / (least / 2)
    scaled = gap * 0.5
    return np.where(least <= values, 1.0, np.where(np.abs(scaled) < 1, 1 - scaled, 0.0))
