"""Find planners by their names on the command line, and list their options."""

from __future__ import annotations

import inspect
import re
from typing import Any, get_args, get_type_hints

from plangym_like import planners
from plangym_like.cli.arguments import UsageError, described, find
from plangym_like.env import PlanEnv
from plangym_like.planners import Planner

_WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def kebab(name: str) -> str:
    """Return the name of a class in lower case, with hyphens between its words.

    >>> [kebab(name) for name in ("RandomShooting", "UCT", "RolloutIW", "AStar")]
    ['random-shooting', 'uct', 'rollout-iw', 'a-star']
    """
    return _WORD_STARTS.sub("-", name).lower()


def planner_classes() -> dict[str, type[Planner]]:
    """Return every planner class in `plangym_like.planners`, by its name on the command line."""
    public = [getattr(planners, name) for name in planners.__all__]
    return {
        kebab(one.__name__): one
        for one in public
        if inspect.isclass(one) and issubclass(one, Planner) and not inspect.isabstract(one)
    }


def find_planner(name: str) -> type[Planner]:
    """Return the planner class called `name`, ignoring case, hyphens and underscores.

    Raises
    ------
    UsageError
        No planner has that name; the message lists all names.
    """
    classes = planner_classes()
    for known, planner_class in classes.items():
        if _plain(known) == _plain(name):
            return planner_class
    raise UsageError(f"there is no planner {name!r}; there are {', '.join(sorted(classes))}")


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def options_of(planner_class: type[Planner]) -> dict[str, Any]:
    """Return a planner's options with their defaults; ``...`` for an option without a default.

    Options that classes share, such as `Rules`, have the default of the class that uses them.
    """
    defaults: dict[str, Any] = {}
    inits = [vars(one)["__init__"] for one in planner_class.__mro__ if "__init__" in vars(one)]
    for init in reversed(inits):
        for parameter in inspect.signature(init).parameters.values():
            is_required = parameter.default is parameter.empty
            defaults[parameter.name] = ... if is_required else parameter.default
    found = {}
    for parameter in list(inspect.signature(inits[0]).parameters.values())[2:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            for shared in get_args(get_type_hints(inits[0])[parameter.name]):
                found.update({name: defaults.get(name) for name in sorted(shared.__annotations__)})
        else:
            found[parameter.name] = defaults[parameter.name]
    return found


def make_planner(planner_class: type[Planner], env: PlanEnv, options: dict[str, Any]) -> Planner:
    """Make a planner for `env`; option values of the form ``module:callable`` are imported.

    Raises
    ------
    UsageError
        An option is unknown or missing, or a callable does not exist.
    InputError
        A value cannot be used, or the planner cannot plan in this environment.
    """
    known = options_of(planner_class)
    name = kebab(planner_class.__name__)
    unknown = sorted(options.keys() - known.keys())
    if unknown:
        raise UsageError(f"{name} has no option {unknown[0]!r}; it has {', '.join(known)}")
    options = imported_all("--option", options)
    missing = [one for one, default in known.items() if default is ... and one not in options]
    if missing:
        raise UsageError(f"{name} needs --option {missing[0]}=VALUE")
    return planner_class(env, **options)


def imported_all(argument: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of an argument ``NAME=VALUE``, each as `imported` returns it."""
    return {name: imported(f"{argument} {name}", value) for name, value in values.items()}


def imported(argument: str, value: Any) -> Any:
    """Import and return a value of the form ``module:callable``; return other values unchanged.

    Raises
    ------
    UsageError
        There is no such callable; the message begins with `argument`.
    """
    if not isinstance(value, str) or ":" not in value:
        return value
    try:
        found = find(value)
    except ImportError as error:
        raise UsageError(f"{argument}: {described(error)}") from error
    if found is value:
        module, _, attribute = value.partition(":")
        raise UsageError(f"{argument}: the module {module!r} has no {attribute!r}")
    return found
