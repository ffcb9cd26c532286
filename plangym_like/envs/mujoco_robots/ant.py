"""The vectorised step of Ant."""

from __future__ import annotations

from typing import Any

import numpy as np

from plangym_like.envs.mujoco_robots.arrays import Array, moved, put_parts, rows_of, total_of
from plangym_like.envs.mujoco_robots.robot import Frames, Look, Robot


class Ant(Robot):
    """Ant-v5. The speed of its main body is computed from positions that are one substep old."""

    contact_forces = True

    @classmethod
    def carried(cls, env: Any) -> dict[str, Array]:
        return {"torso": env.data.body(env._main_body).xpos}

    def recorded(self) -> dict[str, Array]:
        return {"cfrc_ext": self.env.data.cfrc_ext}

    def over(self) -> bool:
        env = self.env
        low, high = env._healthy_z_range
        return not low <= env.data.qpos.item(2) <= high and env._terminate_when_unhealthy

    def healthy(self, frames: Frames) -> Array:
        """Return whether each state is finite, with its height in the healthy range, ``(...,)``."""
        qpos, qvel = frames.after("qpos"), frames.after("qvel")
        low, high = self.env._healthy_z_range
        z = qpos[..., 2]
        finite = np.isfinite(qpos).all(axis=-1) & np.isfinite(qvel).all(axis=-1)
        upright: Array = finite & (low <= z) & (z <= high)
        return upright

    def contacts(self, forces: Array) -> Array:
        """Return `forces`, clipped to the range of contact forces, ``(..., bodies, 6)``."""
        low, high = self.env._contact_force_range
        clipped: Array = np.clip(forces, low, high)
        return clipped

    def speed(self, frames: Frames) -> tuple[Array, Array]:
        """Return the position and speed of the main body, each ``(..., 2)``."""
        place = frames.after("torso")[..., :2]
        return place, (place - frames.before("torso")[..., :2]) / self.env.dt

    def settle(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        env = self.env
        _, speed = self.speed(frames)
        healthy = self.healthy(frames)
        forward = speed[..., 0] * env._forward_reward_weight
        alive = healthy * env._healthy_reward
        effort = env._ctrl_cost_weight * total_of(np.square(frames.actions))
        contacts = self.contacts(frames.after("cfrc_ext"))
        touch = env._contact_cost_weight * total_of(np.square(contacts), 2)
        qpos = frames.after("qpos")
        infos = {
            **moved(qpos[..., :2], speed),
            "reward_forward": forward,
            "reward_ctrl": -effort,
            "reward_contact": -touch,
            "reward_survive": alive,
        }
        ended = ~healthy if env._terminate_when_unhealthy else False
        return forward + alive - (effort + touch), ended, infos

    def observe(self, look: Look, out: Array) -> None:
        env = self.env
        parts = [self.shown_positions(look, 2), look("qvel")]
        if env._include_cfrc_ext_in_observation:
            parts.append(rows_of(self.contacts(look("cfrc_ext")[..., 1:, :])))
        put_parts(out, *parts)


class AntV4(Ant):
    """Ant-v4, where contact forces are optional."""

    contact_forces = False

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.contact_forces = bool(env._use_contact_forces)  # type: ignore[misc]

    @classmethod
    def carried(cls, env: Any) -> dict[str, Array]:
        return {"torso": env.get_body_com("torso")}

    def recorded(self) -> dict[str, Array]:
        return super().recorded() if self.env._use_contact_forces else {}

    def settle(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        env = self.env
        place, speed = self.speed(frames)
        healthy = self.healthy(frames)
        ending = bool(env._terminate_when_unhealthy)
        forward = speed[..., 0]
        alive = (healthy | ending).astype(np.float64) * env._healthy_reward
        effort = env._ctrl_cost_weight * total_of(np.square(frames.actions))
        costs = effort
        infos = {
            "reward_forward": forward,
            "reward_ctrl": -effort,
            "reward_survive": alive,
            **moved(place, speed),
            "forward_reward": forward,
        }
        if env._use_contact_forces:
            contacts = self.contacts(frames.after("cfrc_ext"))
            touch = env._contact_cost_weight * total_of(np.square(contacts), 2)
            costs = effort + touch
            infos["reward_ctrl"] = -touch  # Gymnasium's name for it in version 4
        return forward + alive - costs, ~healthy if ending else False, infos

    def observe(self, look: Look, out: Array) -> None:
        env = self.env
        parts = [self.shown_positions(look, 2), look("qvel")]
        if env._use_contact_forces:
            parts.append(rows_of(self.contacts(look("cfrc_ext"))))
        put_parts(out, *parts)
