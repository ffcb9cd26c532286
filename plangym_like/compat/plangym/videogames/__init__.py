"""Environments of video games."""

from __future__ import annotations

import importlib
from typing import Any

_PLACES = {"AtariEnv": "atari", "MontezumaEnv": "montezuma", "RetroEnv": "retro"}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return [*_PLACES]
