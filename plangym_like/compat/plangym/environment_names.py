"""The names of environments that `make` accepts, by package."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

import gymnasium

with contextlib.suppress(ImportError):
    gymnasium.register_envs(importlib.import_module("ale_py"))


def _ids(entry_point: str, versions: tuple[str, ...] = ("",)) -> list[str]:
    found = [
        name
        for name, spec in gymnasium.registry.items()
        if str(spec.entry_point).startswith(entry_point) and name.endswith(versions)
    ]
    return sorted(found)


CLASSIC_CONTROL = _ids("gymnasium.envs.classic_control.")
BOX_2D = [*_ids("gymnasium.envs.box2d."), "FastLunarLander-v0"]
MUJOCO = _ids("gymnasium.envs.mujoco.", ("-v4", "-v5"))
ATARI = [name for name in _ids("ale_py.", ("-v5",)) if name.startswith("ALE/")]


def __getattr__(name: str) -> Any:
    """Return ``RETRO``, a list of games, or ``DM_CONTROL``, a list of pairs ``(domain, task)``."""
    found: list[Any] = []
    if name == "RETRO":
        with contextlib.suppress(ImportError):
            import stable_retro.data

            found = list(stable_retro.data.list_games())
    elif name == "DM_CONTROL":
        with contextlib.suppress(ImportError):
            from plangym_like.envs.dm_control import load_suite

            found = list(load_suite().ALL_TASKS)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found
