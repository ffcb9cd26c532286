"""Vectorised steps of Gymnasium's MuJoCo robots."""

from __future__ import annotations

from typing import Any

from plangym_like.envs.mujoco_robots.ant import Ant, AntV4
from plangym_like.envs.mujoco_robots.arms import Pusher, Reacher, ReacherV4
from plangym_like.envs.mujoco_robots.chunk_stepper import ChunkStepper
from plangym_like.envs.mujoco_robots.humanoid import (
    Humanoid,
    HumanoidStandup,
    HumanoidStandupV4,
    HumanoidV4,
)
from plangym_like.envs.mujoco_robots.pendulums import (
    InvertedDoublePendulum,
    InvertedDoublePendulumV4,
    InvertedPendulum,
    InvertedPendulumV4,
)
from plangym_like.envs.mujoco_robots.robot import Robot
from plangym_like.envs.mujoco_robots.runners import (
    HalfCheetah,
    HalfCheetahV4,
    Hopper,
    HopperV4,
    Swimmer,
    SwimmerV4,
    Walker2d,
    Walker2dV4,
)
from plangym_like.snapshots.configuration import qualified_name

_OWN = "gymnasium.envs.mujoco."

# Robots by module and class. Pusher-v4 is left out, because it needs an older MuJoCo.
ROBOTS: dict[str, type[Robot]] = {
    "ant_v4.AntEnv": AntV4,
    "ant_v5.AntEnv": Ant,
    "half_cheetah_v4.HalfCheetahEnv": HalfCheetahV4,
    "half_cheetah_v5.HalfCheetahEnv": HalfCheetah,
    "hopper_v4.HopperEnv": HopperV4,
    "hopper_v5.HopperEnv": Hopper,
    "humanoid_v4.HumanoidEnv": HumanoidV4,
    "humanoid_v5.HumanoidEnv": Humanoid,
    "humanoidstandup_v4.HumanoidStandupEnv": HumanoidStandupV4,
    "humanoidstandup_v5.HumanoidStandupEnv": HumanoidStandup,
    "inverted_double_pendulum_v4.InvertedDoublePendulumEnv": InvertedDoublePendulumV4,
    "inverted_double_pendulum_v5.InvertedDoublePendulumEnv": InvertedDoublePendulum,
    "inverted_pendulum_v4.InvertedPendulumEnv": InvertedPendulumV4,
    "inverted_pendulum_v5.InvertedPendulumEnv": InvertedPendulum,
    "pusher_v5.PusherEnv": Pusher,
    "reacher_v4.ReacherEnv": ReacherV4,
    "reacher_v5.ReacherEnv": Reacher,
    "swimmer_v4.SwimmerEnv": SwimmerV4,
    "swimmer_v5.SwimmerEnv": Swimmer,
    "walker2d_v4.Walker2dEnv": Walker2dV4,
    "walker2d_v5.Walker2dEnv": Walker2d,
}


def robot_for(env: Any) -> type[Robot] | None:
    """Return the `Robot` class for `env`, or ``None`` if `ROBOTS` has none for its class."""
    name = qualified_name(type(env))
    return ROBOTS.get(name.removeprefix(_OWN)) if name.startswith(_OWN) else None


__all__ = ["ROBOTS", "ChunkStepper", "Robot", "robot_for"]
