"""Atari 2600 games on the Arcade Learning Environment (ALE).

`env` has the environment, its simulator, codec and kernel, `emulator` is ale-py's environment with
exact states, and `quirks` is the table of what single games need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plangym_like.support.lazy_imports import lazy_names

if TYPE_CHECKING:
    from plangym_like.envs.atari.env import AtariEnv, AtariSimulator

__all__ = ["AtariEnv", "AtariSimulator"]

__getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(__all__, "env"))
