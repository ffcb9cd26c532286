"""Environments for video games."""

from __future__ import annotations

from plangym_like.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {"AtariEnv": "atari", "MontezumaEnv": "montezuma", "RetroEnv": "retro"},
)
