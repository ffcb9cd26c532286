"""Checks of arguments: whole numbers, seconds, and the names of keyword arguments."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import gymnasium

from plangym_like.errors import InputError

# Python's message about an unknown keyword argument, or about a class without a constructor.
_UNEXPECTED = re.compile(
    r"([\w<>-]+)(?:\.__init__)?\(\) "
    r"(?:got an unexpected keyword argument '(\w+)'|takes no arguments)"
)
# The options of `make` -> what to do if an environment class or function has no such option.
OPTIONS = {
    **dict.fromkeys(
        ("n_workers", "ray", "snapshot", "isolate", "step_timeout", "start_timeout"),
        "give it to plangym_like.make",
    ),
    **dict.fromkeys(
        (
            *("frameskip", "autoreset", "delay_setup", "audit", "audit_every", "out_of_bounds"),
            *("wrappers", "render_mode", "obs_type", "return_image", "remove_time_limit"),
            # Those that `make` documents as `env_kwargs`.
            *("state_capacity", "max_episode_steps", "disable_env_checker"),
        ),
        "other environments have it",
    ),
    "allow_pickle": "it belongs to snapshot='pickle'",
    **dict.fromkeys(("replay_capacity", "live_prefixes"), "it belongs to snapshot='replay'"),
    "start_method": "it belongs to n_workers",
    **dict.fromkeys(
        ("address", "resources", "placement", "runtime_env", "object_store_memory"),
        "it belongs to ray=True",
    ),
}


def as_count(name: str, number: Any, least: int = 1) -> int:
    """Return `number` as an int of at least `least`.

    Raises
    ------
    InputError
        `number` is not a whole number, or is less than `least`; the message calls it `name`.

    Examples
    --------
    >>> import numpy as np
    >>> as_count("n_workers", np.int64(2))
    2
    """
    try:
        whole = -1 if isinstance(number, bool) else operator.index(number)
    except TypeError:
        whole = -1
    if whole < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {number!r}")
    return whole


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise InputError unless `value` is one of `choices`.

    Examples
    --------
    >>> check_choice("on_error", "ignore", ("raise", "mask"))
    Traceback (most recent call last):
        ...
    plangym_like.errors.InputError: on_error must be 'raise' or 'mask', got 'ignore'
    """
    if value not in choices:
        *others, last = map(repr, choices)
        raise InputError(f"{name} must be {', '.join(others)} or {last}, got {value!r}")


def as_number(name: str, number: Any, least: float = -math.inf, most: float = math.inf) -> float:
    """Return `number` as a finite float from `least` to `most`.

    Raises
    ------
    InputError
        `number` is not a finite number, or is out of range; the message calls it `name`.

    Examples
    --------
    >>> as_number("discount", 1, 0.0, 1.0)
    1.0
    """
    try:
        value = float(number)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not (math.isfinite(value) and least <= value <= most):
        limits = f"from {least:g} to {most:g}" if most < math.inf else f"of at least {least:g}"
        raise InputError(f"{name} must be a finite number {limits}, got {number!r}")
    return value


def check_seconds(name: str, seconds: Any) -> None:
    """Raise InputError unless `seconds` is a number greater than 0.

    Examples
    --------
    >>> check_seconds("step_timeout", "5")
    Traceback (most recent call last):
        ...
    plangym_like.errors.InputError: step_timeout must be a number of seconds above 0, got '5'
    """
    try:
        is_time = bool(seconds > 0) and float(seconds) > 0
    except (TypeError, ValueError, OverflowError):
        is_time = False
    if not is_time:
        raise InputError(f"{name} must be a number of seconds above 0, got {seconds!r}")


def unknown_option(error: TypeError, options: Mapping[str, Any]) -> InputError | None:
    """Return the error for an unknown option of an environment.

    Return ``None`` if `error` names none of `options`.

    Parameters
    ----------
    error : TypeError
        Raised by a call with `options`.
    options : mapping
    """
    found = _UNEXPECTED.search(str(error))
    if found is None:
        return None
    # Python names the option unless the class has no constructor.
    option: str | None = found[2] or next((each for each in options if each not in OPTIONS), None)
    if option is None or option not in options:
        return None
    if option in OPTIONS:
        return InputError(f"{found[1]} has no option {option!r}; {OPTIONS[option]}")
    hint = did_you_mean(option, OPTIONS)
    return InputError(f"neither make nor {found[1]} has an option {option!r}{hint}")


def name_of(name: Any) -> str:
    """Return `name` if it is an id, otherwise the name of the callable `name`."""
    return name if isinstance(name, str) else getattr(name, "__name__", "?")


def several_agents(thing: Any) -> str:
    """Return a hint if `thing` is an environment of several agents, otherwise an empty text."""
    if isinstance(thing, gymnasium.Env):
        return ""
    agents = getattr(thing, "possible_agents", None) or getattr(thing, "agents", None)
    if not isinstance(agents, (list, tuple)):
        return ""
    shown = ", ".join(map(str, agents[:4])) + ", ..." * (len(agents) > 4)
    return (
        f", an environment of {len(agents)} agents ({shown}). A gymnasium.Env has one: write one "
        "around it, whose step takes the action of the agent whose turn it is, or a tuple of the "
        "actions of all agents, and returns one number as the reward"
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint that names the most similar word in `known`; empty if none is similar.

    Examples
    --------
    >>> did_you_mean("horizn", ["horizon", "dt"]), did_you_mean("qqq", ["horizon", "dt"])
    ("; did you mean 'horizon'?", '')
    """
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def misfit(function: Callable[..., Any], *args: Any, **options: Any) -> str:
    """Return the reason why `function` cannot be called with these arguments, as text.

    The text is empty if the call is possible, or if the parameters of `function` are not known.

    Examples
    --------
    >>> misfit(lambda env, depth: env, 1)
    "missing a required argument: 'depth'"
    """
    while isinstance(function, functools.partial):
        args, options = (*function.args, *args), {**function.keywords, **options}
        function = function.func
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(*args, **options)
    except TypeError as error:
        return str(error)
    return ""


class Repeatable:
    """Keeps the arguments that its class was called with, so that the call can be repeated.

    This is a base class, because `help` shows a ``__new__`` of the class itself, not ``__init__``.
    """

    _made_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        # The caller may change a list of wrappers afterwards.
        kept = {key: [*value] if type(value) is list else value for key, value in kwargs.items()}
        made._made_with = args, kept
        return made

    def made_with(self, **changed: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return these arguments, by position and by name, updated with `changed`."""
        args, kwargs = list(self._made_with[0]), {**self._made_with[1], **changed}
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        for place, name in enumerate(names[: len(args)]):
            args[place] = kwargs.pop(name, args[place])
        return args, kwargs
