"""Make ids that a user's own imports have registered known to worker processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from plangym_like.processes.messages import dumps_by_value


def spec_of(name: Any) -> EnvSpec | None:
    """Return the spec registered under `name` in this process, if there is one."""
    return gymnasium.registry.get(name) if isinstance(name, str) else None


def user_specs() -> list[EnvSpec]:
    """Return the specs registered in this process that are not Gymnasium's own.

    Those that cannot be pickled are left out.
    """
    specs = [
        spec
        for spec in gymnasium.registry.values()
        if not str(spec.entry_point).startswith("gymnasium.")
    ]
    return specs if _is_picklable(specs) else list(filter(_is_picklable, specs))


def _is_picklable(value: Any) -> bool:
    try:
        dumps_by_value(value)
    except Exception:  # what the attributes of a user's class raise
        return False
    return True


def know(spec: EnvSpec | None) -> None:
    """Register `spec` here, unless its id is registered already.

    A package that registers it on import may be imported afterwards. Gymnasium's warning that it
    overrides an id is ignored from then on in this process.
    """
    if spec is not None and spec.id not in gymnasium.registry:
        warnings.filterwarnings("ignore", ".*Overriding environment .* already in registry")
        gymnasium.registry[spec.id] = spec


def construct(spec: EnvSpec | None, env_class: Callable[..., Any], name: Any, **kwargs: Any) -> Any:
    """Return ``env_class(name, **kwargs)``, after registering `spec`."""
    know(spec)
    return env_class(name, **kwargs)
