"""In worker processes, register the environment ids that a user's own imports have registered."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from plangym_like.processes.messages import dumps_by_value


def specs_for(name: Any) -> list[EnvSpec]:
    """Return the registered specs that another process needs in order to make `name`.

    If `name` is a callable, or an id of a user's own family, it may make an environment of any id,
    so the result is `user_specs()`.
    """
    if isinstance(name, str) and name in gymnasium.registry:
        return [gymnasium.registry[name]]
    return user_specs()


def user_specs() -> list[EnvSpec]:
    """Return the specs registered in this process that are not Gymnasium's own.

    Specs that cannot be pickled are left out.
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
    except Exception:  # raised by the attributes of a user's class
        return False
    return True


def know(specs: Sequence[EnvSpec]) -> None:
    """Register `specs`, even if their ids are already registered for something else.

    If a package that registers these ids is imported later, Gymnasium warns that it overrides
    them. So this process ignores this warning from now on.
    """
    if specs:
        warnings.filterwarnings("ignore", ".*Overriding environment .* already in registry")
        gymnasium.registry.update({spec.id: spec for spec in specs})


def construct(
    specs: Sequence[EnvSpec], env_class: Callable[..., Any], name: Any, **kwargs: Any
) -> Any:
    """Return ``env_class(name, **kwargs)``, after registering `specs`."""
    know(specs)
    return env_class(name, **kwargs)
