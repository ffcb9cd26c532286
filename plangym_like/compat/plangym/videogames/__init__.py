"""Environments for video games."""

from __future__ import annotations

from plangym_like.support.lazy_imports import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {"AtariEnv": "atari", "MontezumaEnv": "montezuma", "RetroEnv": "retro"},
)
