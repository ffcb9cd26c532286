"""InvertedPendulum and InvertedDoublePendulum: a cart balances one pole or two."""

from __future__ import annotations

from typing import Any

import numpy as np

from plangym_like.envs.mujoco_robots.arrays import Array, put_parts
from plangym_like.envs.mujoco_robots.robot import Frames, Look, Robot


class InvertedPendulum(Robot):
    """InvertedPendulum-v5."""

    def over(self) -> bool:
        return bool(abs(self.env.data.qpos.item(1)) > 0.2)

    def settle(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        qpos, qvel = frames.after("qpos"), frames.after("qvel")
        finite = np.isfinite(qpos).all(axis=-1) & np.isfinite(qvel).all(axis=-1)
        ended = ~finite | (np.abs(qpos[..., 1]) > 0.2)
        return self.rewards(ended)[0], ended, self.rewards(ended)[1]

    def rewards(self, ended: Array) -> tuple[Array, dict[str, Any]]:
        """Return the rewards and the infos, in arrays of the shape of `ended`."""
        upright = (~ended).astype(np.int64)
        return upright, {"reward_survive": upright}

    def observe(self, look: Look, out: Array) -> None:
        put_parts(out, look("qpos"), look("qvel"))


class InvertedPendulumV4(InvertedPendulum):
    """InvertedPendulum-v4, where every step is rewarded."""

    def rewards(self, ended: Array) -> tuple[Array, dict[str, Any]]:
        return np.ones(ended.shape), {}


class InvertedDoublePendulum(Robot):
    """InvertedDoublePendulum-v5."""

    seen_forces = 1

    def recorded(self) -> dict[str, Array]:
        data = self.env.data
        return {"tip": data.site_xpos[0], "qfrc_constraint": data.qfrc_constraint}

    def over(self) -> bool:
        return bool(self.env.data.site_xpos[0, 2] <= 1)

    def settle(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        tip, qvel = frames.after("tip"), frames.after("qvel")
        x, y = tip[..., 0], tip[..., 2]
        ended = y <= 1
        distance = 0.01 * _squared(x) + _squared(y - 2)
        velocity = 1e-3 * _squared(qvel[..., 1]) + 5e-3 * _squared(qvel[..., 2])
        bonus = self.bonus(ended)
        infos = {
            "reward_survive": bonus,
            "distance_penalty": -distance,
            "velocity_penalty": -velocity,
        }
        return bonus - distance - velocity, ended, self.infos(infos)

    def bonus(self, ended: Array) -> Array:
        """Return the reward for staying upright, ``(...,)``."""
        standing: Array = self.env._healthy_reward * (~ended).astype(np.int64)
        return standing

    def infos(self, infos: dict[str, Any]) -> dict[str, Any]:
        """Return the entries of `infos` that this version of the environment has."""
        return infos

    def observe(self, look: Look, out: Array) -> None:
        qpos = look("qpos")
        put_parts(
            out,
            qpos[..., :1],
            np.sin(qpos[..., 1:]),
            np.cos(qpos[..., 1:]),
            np.clip(look("qvel"), -10, 10),
            np.clip(look("qfrc_constraint"), -10, 10)[..., : self.seen_forces],
        )


class InvertedDoublePendulumV4(InvertedDoublePendulum):
    """InvertedDoublePendulum-v4."""

    seen_forces = 3

    def bonus(self, ended: Array) -> Array:
        return np.full(ended.shape, 10)

    def infos(self, infos: dict[str, Any]) -> dict[str, Any]:
        return {}


def _squared(numbers: Array) -> Array:
    """Return ``x**2`` of each number, computed with libm's ``pow``, not as ``x * x``."""
    squares: Array = np.float_power(numbers, 2.0)
    return squares
