"""Make the `plangym_like.PlanEnv` that a plangym class steps; find methods that users override."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from plangym_like.constructors import ParallelEnv
from plangym_like.env import PlanEnv
from plangym_like.envs.family_env import AnyEnv
from plangym_like.registry import make

# Methods that take part in a step
HOOKS = (
    *("step", "begin_step", "step_with_dt", "apply_action", "process_apply_action"),
    *("process_step", "get_step_tuple", "process_obs", "process_reward", "process_terminal"),
    *("process_info", "get_coords_obs", "get_rgb_obs", "get_grayscale_obs"),
    *("get_state", "set_state", "get_image"),
)
_PACKAGE = __name__.rpartition(".")[0]


def make_core(
    source: str | Callable[[], Any],
    family: Callable[..., PlanEnv] | None,
    execution: Mapping[str, Any],
    kwargs: Mapping[str, Any],
) -> PlanEnv:
    """Make the `plangym_like.PlanEnv` that a plangym class steps.

    Parameters
    ----------
    source : str or callable
        An id, or a callable that returns a Gymnasium environment.
    family : callable, optional
        The class that wraps the environment if `source` is a callable.
    execution : mapping
        The arguments of `plangym_like.make` that say where batches are stepped.
    kwargs : mapping
        Other arguments of `plangym_like.make`.
    """
    if isinstance(source, str):
        return make(source, **execution, **kwargs)
    env_class = family or AnyEnv
    if "ray" in execution:
        from plangym_like.constructors import RayEnv

        return RayEnv(env_class, source, n_workers=execution["n_workers"], **kwargs)
    if execution:
        return ParallelEnv(env_class, source, **execution, **kwargs)
    return env_class(source, **kwargs)


def is_ours(env_class: type, name: str) -> bool:
    """Return whether the method `name` of `env_class` is defined here, not in a user's subclass."""
    return str(getattr(env_class, name).__module__).startswith(_PACKAGE)


@cache
def writes_hooks(env_class: type) -> bool:
    """Return whether a user's subclass defines methods that take part in steps.

    Batches of such a subclass are stepped row by row, because its methods determine what a step
    returns.
    """
    return not all(is_ours(env_class, name) for name in HOOKS)
