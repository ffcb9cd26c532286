"""The vectorised steps of HalfCheetah, Hopper, Walker2d and Swimmer."""

from __future__ import annotations

from typing import Any

import numpy as np

from plangym_like.envs.mujoco_robots.arrays import Array, moved, put_parts, total_of
from plangym_like.envs.mujoco_robots.robot import Frames, Look, Robot


class HalfCheetah(Robot):
    """HalfCheetah-v5."""

    run_key = "reward_forward"

    def settle(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        env = self.env
        x = frames.after("qpos")[..., 0]
        speed = (x - frames.before("qpos")[..., 0]) / env.dt
        forward = env._forward_reward_weight * speed
        cost = env._ctrl_cost_weight * total_of(np.square(frames.actions))
        infos = {
            "x_position": x,
            "x_velocity": speed,
            self.run_key: forward,
            "reward_ctrl": -cost,
        }
        return forward - cost, False, infos

    def observe(self, look: Look, out: Array) -> None:
        put_parts(out, self.shown_positions(look, 1), look("qvel"))


class HalfCheetahV4(HalfCheetah):
    """HalfCheetah-v4."""

    run_key = "reward_run"


class Walker2d(Robot):
    """Walker2d-v5."""

    def healthy(self, qpos: Array, qvel: Array) -> Array:
        """Return whether the robot is upright, ``(...,)``."""
        env = self.env
        z, angle = qpos[..., 1], qpos[..., 2]
        low, high = env._healthy_z_range
        least, most = env._healthy_angle_range
        upright: Array = (low < z) & (z < high) & (least < angle) & (angle < most)
        return upright

    def over(self) -> bool:
        env = self.env
        qpos = env.data.qpos
        z, angle = qpos.item(1), qpos.item(2)
        low, high = env._healthy_z_range
        least, most = env._healthy_angle_range
        upright = low < z < high and least < angle < most
        return not upright and env._terminate_when_unhealthy

    def settle(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        env = self.env
        qpos = frames.after("qpos")
        speed = (qpos[..., 0] - frames.before("qpos")[..., 0]) / env.dt
        healthy = self.healthy(qpos, frames.after("qvel"))
        forward = env._forward_reward_weight * speed
        cost = env._ctrl_cost_weight * total_of(np.square(frames.actions))
        alive = self.alive(healthy)
        ended = ~healthy if env._terminate_when_unhealthy else False
        infos = self.infos(qpos, speed, forward, cost, alive)
        return forward + alive - cost, ended, infos

    def alive(self, healthy: Array) -> Array:
        """Return the reward for being healthy, ``(...,)``."""
        reward: Array = healthy * self.env._healthy_reward
        return reward

    def infos(
        self, qpos: Array, speed: Array, forward: Array, cost: Array, alive: Array
    ) -> dict[str, Any]:
        """Return the infos; all arrays have the shape ``(...,)``."""
        return {
            "x_position": qpos[..., 0],
            "z_distance_from_origin": qpos[..., 1] - self.env.init_qpos[1],
            "x_velocity": speed,
            "reward_forward": forward,
            "reward_ctrl": -cost,
            "reward_survive": alive,
        }

    def observe(self, look: Look, out: Array) -> None:
        put_parts(out, self.shown_positions(look, 1), np.clip(look("qvel"), -10, 10))


class Walker2dV4(Walker2d):
    """Walker2d-v4, where a step that ends the episode still gets the reward for being healthy."""

    def alive(self, healthy: Array) -> Array:
        env = self.env
        given = (healthy | bool(env._terminate_when_unhealthy)).astype(np.float64)
        reward: Array = given * env._healthy_reward
        return reward

    def infos(
        self, qpos: Array, speed: Array, forward: Array, cost: Array, alive: Array
    ) -> dict[str, Any]:
        return {"x_position": qpos[..., 0], "x_velocity": speed}


class Hopper(Walker2d):
    """Hopper-v5: the whole state except the x position must stay in range, unlike in Walker2d."""

    def healthy(self, qpos: Array, qvel: Array) -> Array:
        low, high = self.env._healthy_state_range
        upright = super().healthy(qpos, qvel)
        for part in (qpos[..., 2:], qvel):
            upright &= ((low < part) & (part < high)).all(axis=-1)
        return upright


class HopperV4(Hopper, Walker2dV4):
    """Hopper-v4."""


class Swimmer(Robot):
    """Swimmer-v5."""

    def settle(self, frames: Frames) -> tuple[Array, Array | bool, dict[str, Any]]:
        env = self.env
        place = frames.after("qpos")[..., :2]
        speed = (place - frames.before("qpos")[..., :2]) / env.dt
        forward = env._forward_reward_weight * speed[..., 0]
        cost = env._ctrl_cost_weight * total_of(np.square(frames.actions))
        return forward - cost, False, self.infos(place, speed, forward, cost)

    def infos(self, place: Array, speed: Array, forward: Array, cost: Array) -> dict[str, Any]:
        """Return the infos; all arrays have the shape ``(...,)``."""
        return {
            **moved(place, speed),
            "reward_forward": forward,
            "reward_ctrl": -cost,
        }

    def observe(self, look: Look, out: Array) -> None:
        put_parts(out, self.shown_positions(look, 2), look("qvel"))


class SwimmerV4(Swimmer):
    """Swimmer-v4."""

    def infos(self, place: Array, speed: Array, forward: Array, cost: Array) -> dict[str, Any]:
        return {
            "reward_fwd": forward,
            "reward_ctrl": -cost,
            **moved(place, speed),
            "forward_reward": forward,
        }
