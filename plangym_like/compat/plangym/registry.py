"""`make`: plangym's function that makes an environment from its name."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from plangym_like.compat.plangym.plan_env import PlanEnv
from plangym_like.registry import family_of

if TYPE_CHECKING:
    from plangym_like.compat.plangym.vectorization import VectorizedEnv

# The class of `plangym_like` that an id belongs to -> the module and the class here.
_CLASSES = {
    "AtariEnv": ("videogames", "AtariEnv"),
    "Box2DEnv": ("control", "Box2DEnv"),
    "ClassicControlEnv": ("control", "ClassicControl"),
    "DmControlEnv": ("control", "DMControlEnv"),
    "MujocoEnv": ("control", "MujocoEnv"),
    "RetroEnv": ("videogames", "RetroEnv"),
}
# Ids that exist only in plangym
_OWN = {
    "FastLunarLander-v0": ("control", "LunarLander"),
    "PlanMontezuma-v0": ("videogames", "MontezumaEnv"),
}


def get_planenv_class(
    name: str | None, domain_name: str | None = None, state: str | None = None, **kwargs: Any
) -> type[PlanEnv]:
    """Return the plangym class for an environment; `PlangymEnv` if no other class fits.

    Raises
    ------
    gymnasium.error.Error
        The name is not registered.
    """
    if name in _OWN:
        place = _OWN[name]
    elif state is not None:
        place = _CLASSES["RetroEnv"]
    elif domain_name is not None or "task_name" in kwargs:
        place = _CLASSES["DmControlEnv"]
    else:
        family: Any = family_of(name)  # type: ignore[arg-type]
        place = _CLASSES.get(family.__name__, ("core", "PlangymEnv"))
    module = importlib.import_module(f"{__package__}.{place[0]}")
    found: type[PlanEnv] = getattr(module, place[1])
    return found


def get_environment_class(
    name: str | None = None,
    n_workers: int | None = None,
    ray: bool = False,
    domain_name: str | None = None,
    state: str | None = None,
    **kwargs: Any,
) -> tuple[type[VectorizedEnv] | None, type[PlanEnv]]:
    """Return the classes that `make` uses for its arguments.

    Returns
    -------
    tuple
        The class that steps batches in many processes, or ``None`` if batches are stepped in this
        process; and the class of the environment.

    Examples
    --------
    >>> [each.__name__ for each in get_environment_class("CartPole-v1", n_workers=2)]
    ['ParallelEnv', 'ClassicControl']
    """
    env_class = get_planenv_class(name, domain_name, state, **kwargs)
    if ray or n_workers is not None:
        from plangym_like.compat.plangym import vectorization

        return (vectorization.RayEnv if ray else vectorization.ParallelEnv), env_class
    return None, env_class


def make(
    name: str | None = None,
    n_workers: int | None = None,
    ray: bool = False,
    domain_name: str | None = None,
    state: str | None = None,
    **kwargs: Any,
) -> Any:
    """Make an environment with plangym's interface.

    Parameters
    ----------
    name : str, optional
        A Gymnasium id, ``"domain-task"`` of dm_control, a game of stable-retro,
        ``"FastLunarLander-v0"`` or ``"PlanMontezuma-v0"``.
    n_workers : int, optional
        Step batches in this number of processes: the result is a `ParallelEnv`.
    ray : bool
        Step batches on a Ray cluster: the result is a `RayEnv`.
    domain_name : str, optional
        A domain of dm_control, with ``task_name=`` for the task.
    state : str, optional
        For a game of stable-retro, the saved state that episodes begin in.
    kwargs
        Arguments of the class of environments that `name` stands for.

    Examples
    --------
    >>> env = make("CartPole-v1")
    >>> state, obs, info = env.reset()
    >>> states, observs, rewards, terminals, truncateds, infos = env.step_batch(
    ...     actions=[0, 1, 1], states=[state] * 3, dt=2
    ... )
    >>> rewards
    [2.0, 2.0, 2.0]
    """
    vectorized, env_class = get_environment_class(
        name, n_workers, ray, domain_name, state, **kwargs
    )
    given = {"name": name, "state": state, "domain_name": domain_name}
    kwargs.update({key: value for key, value in given.items() if value is not None})
    if vectorized is None:
        return env_class(**kwargs)
    return vectorized(env_class, n_workers=8 if n_workers is None else n_workers, **kwargs)
