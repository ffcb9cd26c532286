"""Reacher and Pusher: an arm moves its tip, or an object, to a target."""

from __future__ import annotations

from typing import Any

import numpy as np

from plangym_like.envs.mujoco_robots.arrays import Array, length_of, put_parts, total_of
from plangym_like.envs.mujoco_robots.robot import Frames, Look, Robot


class Reacher(Robot):
    """Reacher-v5."""

    seen = 2

    def recorded(self) -> dict[str, Array]:
        env = self.env
        return {name: env.get_body_com(name) for name in ("fingertip", "target")}

    def settle(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        env = self.env
        gap = frames.after("fingertip") - frames.after("target")
        distance = -length_of(gap) * env._reward_dist_weight
        effort = -total_of(np.square(frames.actions)) * env._reward_control_weight
        return distance + effort, False, {"reward_dist": distance, "reward_ctrl": effort}

    def observe(self, look: Look, out: Array) -> None:
        qpos = look("qpos")
        gap = look("fingertip") - look("target")
        put_parts(
            out,
            np.cos(qpos[..., :2]),
            np.sin(qpos[..., :2]),
            qpos[..., 2:],
            look("qvel")[..., :2],
            gap[..., : self.seen],
        )


class ReacherV4(Reacher):
    """Reacher-v4, whose reward depends on the tip's position before the step."""

    seen = 3

    @classmethod
    def carried(cls, env: Any) -> dict[str, Array]:
        return {name: env.get_body_com(name) for name in ("fingertip", "target")}

    def recorded(self) -> dict[str, Array]:
        return {}

    def settle(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        distance = -length_of(frames.before("fingertip") - frames.before("target"))
        effort = -total_of(np.square(frames.actions))
        return distance + effort, False, {"reward_dist": distance, "reward_ctrl": effort}


class Pusher(Robot):
    """Pusher-v5."""

    def recorded(self) -> dict[str, Array]:
        env = self.env
        return {name: env.get_body_com(name) for name in ("tips_arm", "object", "goal")}

    def settle(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        env = self.env
        thing = frames.after("object")
        near = -length_of(thing - frames.after("tips_arm")) * env._reward_near_weight
        distance = -length_of(thing - frames.after("goal")) * env._reward_dist_weight
        effort = -total_of(np.square(frames.actions)) * env._reward_control_weight
        infos = {"reward_dist": distance, "reward_ctrl": effort, "reward_near": near}
        return distance + effort + near, False, infos

    def observe(self, look: Look, out: Array) -> None:
        put_parts(
            out,
            look("qpos")[..., :7],
            look("qvel")[..., :7],
            *(look(name) for name in ("tips_arm", "object", "goal")),
        )
