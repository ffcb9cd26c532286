"""Environments of control tasks."""

from __future__ import annotations

import importlib
from typing import Any

_PLACES = {
    "Box2DEnv": "box_2d",
    "ClassicControl": "classic_control",
    "DMControlEnv": "dm_control",
    "LunarLander": "lunar_lander",
    "MujocoEnv": "mujoco",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return [*_PLACES]
