"""Environments for control tasks."""

from __future__ import annotations

from plangym_like.support.lazy_imports import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Box2DEnv": "box_2d",
        "ClassicControl": "classic_control",
        "DMControlEnv": "dm_control",
        "LunarLander": "lunar_lander",
        "MujocoEnv": "mujoco",
    },
)
