"""`FamilyEnv`: the base class of environment classes such as `AtariEnv`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import gymnasium

from plangym_like.batch.simulator import Simulator
from plangym_like.env import PlanEnv
from plangym_like.errors import InputError
from plangym_like.support.arguments import unknown_option

# The entries of `kwargs` that `PlanEnv` takes; the simulator takes all others.
_OWN_OPTIONS = ("return_image", "audit", "audit_every", "out_of_bounds")


class FamilyEnv(PlanEnv):
    """A `PlanEnv` without workers; its simulator is an instance of ``simulator_class``.

    Parameters
    ----------
    name : str or callable
        A registered Gymnasium id, or a callable that returns a `gymnasium.Env`.
    frameskip, autoreset, delay_setup
        As in `make`.
    fallback : callable, optional
        ``fallback(simulator_class, name, **kwargs)`` makes the simulator, which may be of another
        class if the wrappers change what rows of the family do not hold. By default, this is an
        error.
    kwargs
        Other options that `make` documents, except those of workers and ``snapshot``; arguments of
        the simulator and of the environment itself.
    """

    simulator_class: ClassVar[Callable[..., Simulator]]

    def __init__(
        self,
        name: str | Callable[..., gymnasium.Env[Any, Any]],
        frameskip: int | tuple[int, int] | None = None,
        autoreset: bool = True,
        delay_setup: bool = False,
        *,
        fallback: Callable[..., Simulator] | None = None,
        **kwargs: Any,
    ) -> None:
        if "wrappers" in kwargs:  # the caller may change the list afterwards
            kwargs["wrappers"] = as_wrappers(kwargs["wrappers"])
        own = {key: kwargs[key] for key in _OWN_OPTIONS if key in kwargs}
        rest = {key: kwargs[key] for key in kwargs if key not in own}
        make: Callable[..., Simulator] = type(self).simulator_class
        if fallback is not None:
            make = partial(fallback, make)
        try:
            super().__init__(
                partial(make, name, frameskip=frameskip, **rest),
                name=name,
                autoreset=autoreset,
                delay_setup=delay_setup,
                **own,
            )
        except TypeError as error:
            unknown = unknown_option(error, rest)
            if unknown is None:
                raise
            raise unknown from error
        env_kwargs = {"frameskip": frameskip, "autoreset": autoreset, **kwargs}
        if fallback is not None:
            env_kwargs["fallback"] = fallback
        self.recipe = (type(self), name, env_kwargs)


def as_wrappers(given: Sequence[Any] | None) -> tuple[Any, ...]:
    """Return a user's list of wrappers as a tuple, after checking it.

    Raises
    ------
    InputError
        `given` is not a sequence, or an item is not a wrapper class, a function that wraps an
        environment, or a pair of one of these and its arguments.
    """
    if given is None:
        return ()
    wrappers = tuple(given) if isinstance(given, list | tuple) else (None,)
    for item in wrappers:
        wrapper = item[0] if isinstance(item, tuple) and len(item) == 2 else item
        if not callable(wrapper):
            hint = "; give its class, not the wrapper" * isinstance(wrapper, gymnasium.Env)
            raise InputError(
                "wrappers must be a list of wrapper classes or pairs (class, arguments), got "
                f"{given!r}{hint}"
            )
        if isinstance(wrapper, type) and not issubclass(wrapper, gymnasium.Env):
            hint = ""
            if issubclass(wrapper, gymnasium.vector.VectorWrapper):
                hint = "; it is for vector environments: apply it to the result of make_vec"
            raise InputError(
                f"{wrapper.__module__}.{wrapper.__qualname__} is not a gymnasium.Wrapper{hint}"
            )
    return wrappers
