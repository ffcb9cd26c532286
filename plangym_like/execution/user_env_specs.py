"""Make ids that a user's own imports have registered known to worker processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from plangym_like.processes.messages import dumps_by_value


def specs_for(name: Any) -> list[EnvSpec]:
    """Return the specs registered in this process that another one needs in order to make `name`.

    A callable may make any id, so it needs all of `user_specs`.
    """
    if not isinstance(name, str):
        return user_specs()
    return [gymnasium.registry[name]] if name in gymnasium.registry else []


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
    except Exception:  # what the attributes of a user's class raise
        return False
    return True


def know(specs: Sequence[EnvSpec]) -> None:
    """Register those of `specs` whose ids are not registered here.

    A package that registers them on import may be imported afterwards. Gymnasium's warning that it
    overrides an id is ignored from then on in this process.
    """
    unknown = {spec.id: spec for spec in specs if spec.id not in gymnasium.registry}
    if unknown:
        warnings.filterwarnings("ignore", ".*Overriding environment .* already in registry")
        gymnasium.registry.update(unknown)


def construct(
    specs: Sequence[EnvSpec], env_class: Callable[..., Any], name: Any, **kwargs: Any
) -> Any:
    """Return ``env_class(name, **kwargs)``, after registering `specs`."""
    know(specs)
    return env_class(name, **kwargs)
