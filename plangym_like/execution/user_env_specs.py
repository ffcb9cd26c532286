"""Ids that a user's own imports have registered, in processes that did not import the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec


def spec_of(name: Any) -> EnvSpec | None:
    """Return what is registered here under `name`, if it is a registered id."""
    return gymnasium.registry.get(name) if isinstance(name, str) else None


def know(spec: EnvSpec | None) -> None:
    """Register `spec` here, unless its id is registered already."""
    if spec is not None:
        gymnasium.registry.setdefault(spec.id, spec)


def construct(spec: EnvSpec | None, env_class: Callable[..., Any], name: Any, **kwargs: Any) -> Any:
    """Return ``env_class(name, **kwargs)``, with `spec` known before."""
    know(spec)
    return env_class(name, **kwargs)
