"""The vectorised steps of Humanoid and HumanoidStandup."""

from __future__ import annotations

from typing import Any

import numpy as np

from plangym_like.envs.mujoco_robots.arrays import Array, moved, put_parts, rows_of, total_of
from plangym_like.envs.mujoco_robots.robot import Frames, Look, Robot


class _Humanoid(Robot):
    """The base class of all humanoids, with the observation of version 5."""

    contact_forces = True

    def recorded(self) -> dict[str, Array]:
        data = self.env.data
        names = ("cinert", "cvel", "qfrc_actuator", "cfrc_ext", "ten_length", "ten_velocity")
        return {name: getattr(data, name) for name in names}

    def observe(self, look: Look, out: Array) -> None:
        env = self.env
        parts = [self.shown_positions(look, 2), look("qvel")]
        if env._include_cinert_in_observation is True:
            parts.append(rows_of(look("cinert")[..., 1:, :]))
        if env._include_cvel_in_observation is True:
            parts.append(rows_of(look("cvel")[..., 1:, :]))
        if env._include_qfrc_actuator_in_observation is True:
            parts.append(look("qfrc_actuator")[..., 6:])
        if env._include_cfrc_ext_in_observation is True:
            parts.append(rows_of(look("cfrc_ext")[..., 1:, :]))
        put_parts(out, *parts)


class Humanoid(_Humanoid):
    """Humanoid-v5. The speed of its centre of mass uses positions that are one substep old."""

    @classmethod
    def carried(cls, env: Any) -> dict[str, Array]:
        return {"xipos": env.data.xipos}

    def over(self) -> bool:
        env = self.env
        low, high = env._healthy_z_range
        return not low < env.data.qpos.item(2) < high and env._terminate_when_unhealthy

    def healthy(self, frames: Frames) -> Array:
        """Return whether the robot's height is in its healthy range, ``(...,)``."""
        z = frames.after("qpos")[..., 2]
        low, high = self.env._healthy_z_range
        upright: Array = (low < z) & (z < high)
        return upright

    def speed(self, frames: Frames) -> tuple[Array, Array]:
        """Return the position and speed of the centre of mass, each ``(..., 2)``."""
        place = self._centre(frames.after("xipos"))
        return place, (place - self._centre(frames.before("xipos"))) / self.env.dt

    def _centre(self, places: Array) -> Array:
        mass = self.env.model.body_mass
        centre: Array = (np.einsum("b,nfbj->nfj", mass, places) / mass.sum())[..., :2]
        return centre

    def settle(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        env = self.env
        _, speed = self.speed(frames)
        healthy = self.healthy(frames)
        forward = env._forward_reward_weight * speed[..., 0]
        alive = healthy * env._healthy_reward
        effort = env._ctrl_cost_weight * total_of(np.square(frames.after("ctrl")))
        touch = env._contact_cost_weight * total_of(np.square(frames.after("cfrc_ext")), 2)
        touch = np.clip(touch, *env._contact_cost_range)
        qpos = frames.after("qpos")
        infos = {
            "x_position": qpos[..., 0],
            "y_position": qpos[..., 1],
            "tendon_length": frames.after("ten_length"),
            "tendon_velocity": frames.after("ten_velocity"),
            # The first two keys, which are in `moved` too, keep their order in the dict.
            **moved(qpos[..., :2], speed),
            "reward_survive": alive,
            "reward_forward": forward,
            "reward_ctrl": -effort,
            "reward_contact": -touch,
        }
        ended = ~healthy if env._terminate_when_unhealthy else False
        return forward + alive - (effort + touch), ended, infos


class HumanoidV4(Humanoid):
    """Humanoid-v4, without contact costs, and with the world body in the observation."""

    def settle(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        env = self.env
        place, speed = self.speed(frames)
        healthy = self.healthy(frames)
        ending = bool(env._terminate_when_unhealthy)
        forward = env._forward_reward_weight * speed[..., 0]
        alive = (healthy | ending).astype(np.float64) * env._healthy_reward
        effort = env._ctrl_cost_weight * total_of(np.square(frames.after("ctrl")))
        infos = {
            "reward_linvel": forward,
            "reward_quadctrl": -effort,
            "reward_alive": alive,
            **moved(place, speed),
            "forward_reward": forward,
        }
        return forward + alive - effort, ~healthy if ending else False, infos

    def observe(self, look: Look, out: Array) -> None:
        put_parts(out, self.shown_positions(look, 2), *_everything_else(look))


class HumanoidStandup(_Humanoid):
    """HumanoidStandup-v5."""

    def settle(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        env = self.env
        qpos = frames.after("qpos")
        upward, effort, impact = self._costs(frames)
        infos = {
            "x_position": qpos[..., 0],
            "y_position": qpos[..., 1],
            "z_distance_from_origin": qpos[..., 2] - env.init_qpos[2],
            "tendon_length": frames.after("ten_length"),
            "tendon_velocity": frames.after("ten_velocity"),
            "reward_linup": upward,
            "reward_quadctrl": -effort,
            "reward_impact": -impact,
        }
        return upward - effort - impact + 1, False, infos

    def _costs(self, frames: Frames) -> tuple[Array, Array, Array]:
        env = self.env
        upward = (frames.after("qpos")[..., 2] - 0) / env.model.opt.timestep
        effort = env._ctrl_cost_weight * total_of(np.square(frames.after("ctrl")))
        impact = env._impact_cost_weight * total_of(np.square(frames.after("cfrc_ext")), 2)
        return upward, effort, np.clip(impact, *env._impact_cost_range)


class HumanoidStandupV4(HumanoidStandup):
    """HumanoidStandup-v4."""

    def settle(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        upward = (frames.after("qpos")[..., 2] - 0) / self.env.model.opt.timestep
        effort = 0.1 * total_of(np.square(frames.after("ctrl")))
        impact = 0.5e-6 * total_of(np.square(frames.after("cfrc_ext")), 2)
        impact = np.minimum(impact, 10)
        infos = {
            "reward_linup": upward,
            "reward_quadctrl": -effort,
            "reward_impact": -impact,
        }
        return upward - effort - impact + 1, False, infos

    def observe(self, look: Look, out: Array) -> None:
        put_parts(out, look("qpos")[..., 2:], *_everything_else(look))


def _everything_else(look: Look) -> list[Array]:
    return [
        look("qvel"),
        rows_of(look("cinert")),
        rows_of(look("cvel")),
        look("qfrc_actuator"),
        rows_of(look("cfrc_ext")),
    ]
