"""Helpers for all commands: shared arguments, environments and one-line errors."""

from __future__ import annotations

import argparse
import ast
import decimal
import importlib
import math
import os
import re
import sys
from typing import Any

from plangym_like import registry
from plangym_like.env import PlanEnv

# Whole numbers with an exponent; and the most digits that one may have.
_WHOLE, _DIGITS = re.compile(r"[+-]?[0-9_]+[eE]\+?[0-9]+"), 40
# Exit statuses.
OK, FAILED, USAGE, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141


class UsageError(Exception):
    """A request that cannot be fulfilled; the message says why."""


def add_env_command(
    commands: Any, name: str, *, purpose: str, description: str | None, nargs: str | None = None
) -> argparse.ArgumentParser:
    """Add the command `name` to `commands`, the subparsers of the program.

    It takes an environment id, or several if `nargs` says how many, as in ``add_argument``.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=purpose, description=description
    )
    parser.add_argument(
        "ids" if nargs else "id",
        nargs=nargs,
        metavar="ID",
        help="a Gymnasium id, or module:callable for your own environment",
    )
    return parser


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add ``--set NAME=VALUE``, the arguments of `plangym_like.make`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=setting,
        metavar="NAME=VALUE",
        help="an argument for plangym_like.make, as in Python; may be repeated",
    )


def add_json(parser: argparse.ArgumentParser, what: str = "print one JSON object") -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help=what)


def setting(text: str) -> tuple[str, Any]:
    """Return the name and value in ``NAME=VALUE``; a value that is not a literal stays a string.

    >>> setting("obs_type=ram"), setting("frameskip=4")
    (('obs_type', 'ram'), ('frameskip', 4))
    """
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def option(text: str) -> tuple[str, Any]:
    """Return the name and value in ``NAME=VALUE`` as `setting` does, but ``1e4`` is an int.

    >>> option("horizon=1e2"), option("alpha=1e-2")
    (('horizon', 100), ('alpha', 0.01))
    """
    name, value = setting(text)
    if _WHOLE.fullmatch(text.partition("=")[2]):
        value = whole(text.partition("=")[2])
    return name, value


def whole(text: str) -> int:
    """Return a whole number, which may be written with an exponent or with underscores.

    >>> whole("1e4"), whole("2.5e3"), whole("10_000")
    (10000, 2500, 10000)
    """
    try:
        number = decimal.Decimal(text)
        if number.is_finite() and number.adjusted() < _DIGITS and number == int(number):
            return int(number)
    except decimal.InvalidOperation:
        pass
    raise argparse.ArgumentTypeError(f"expected a whole number such as 10000 or 1e4, got {text!r}")


def counts(text: str) -> tuple[int, ...]:
    """Return the whole numbers in a comma-separated list such as ``1,2,4``.

    >>> counts("1,2,1e2"), counts("")
    ((1, 2, 100), ())
    """
    return tuple(whole(part) for part in text.split(",") if part)


def duration(text: str) -> float:
    """Return a finite number of seconds.

    >>> duration("1e-1")
    0.1
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"expected a number of seconds, got {text!r}")
    return number


def find(name: str) -> Any:
    """Import and return ``module:callable``; any other `name` is an id and is returned unchanged.

    Modules are also searched for in the current folder.

    >>> find("CartPole-v1")
    'CartPole-v1'
    >>> find("gymnasium.envs.classic_control:PendulumEnv").__name__
    'PendulumEnv'
    """
    module, colon, attribute = name.partition(":")
    if not colon or not module:
        return name
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:  # as with ``python -m``
        sys.path.insert(0, here)
    found = getattr(importlib.import_module(module), attribute, None)
    # Gymnasium also has ids of the form ``module:id``, where the module registers the id.
    return found if callable(found) else name


def make_env(
    name: str, n_workers: int | None = None, *, source: Any = None, **kwargs: Any
) -> PlanEnv:
    """Make the environment called `name`, or the one that `source` makes, and set it up.

    Raises
    ------
    UsageError
        The environment cannot be made.
    """
    try:
        env = registry.make(find(name) if source is None else source, n_workers, **kwargs)
        env.setup()
    except Exception as error:  # the environment's own constructor may raise anything
        raise UsageError(f"{name} cannot be made: {described(error)}") from error
    return env


def described(error: BaseException) -> str:
    """Return the type and the message of an error in one line.

    >>> described(ValueError("two\\n  lines"))
    'ValueError: two lines'
    """
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def warn(message: str) -> None:
    """Print a message to stderr."""
    print(f"plangym-like: {message}", file=sys.stderr, flush=True)
