"""``python -m plangym_like check ID ...``: test whether environments are saved exactly.

The exit status is 0 if every promise holds, 1 if one is broken, 2 if an environment could not be
made.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import sys
from typing import Any

from plangym_like.testing import check_env

_KEPT, _BROKEN, _NOT_MADE = 0, 1, 2


def add_to(commands: Any) -> None:
    """Add this command to `commands`, the subparsers of the program."""
    parser = commands.add_parser(
        "check",
        help="test whether an environment is saved, restored and stepped exactly",
        description=__doc__,
    )
    parser.add_argument(
        "ids",
        nargs="+",
        metavar="ID",
        help="a Gymnasium id, or module:callable for your own environment",
    )
    parser.add_argument(
        "--states", type=int, default=16, help="states to restore and continue (16)"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=20,
        help="steps to continue them for (20); episodes are four times as long",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of all episodes and actions (0)")
    parser.add_argument(
        "--workers",
        type=_numbers,
        default=(1, 2, 3),
        help="numbers of worker processes (1,2,3)",
    )
    parser.add_argument("--snapshot", default="auto", help="auto, native, pickle or replay")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=_setting,
        metavar="NAME=VALUE",
        help="an argument for plangym_like.make, as in Python; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Check each environment in turn; return the highest status."""
    status = _KEPT
    for name in chosen.ids:
        try:
            report = check_env(
                find(name),
                states=chosen.states,
                steps=chosen.steps,
                seed=chosen.seed,
                workers=chosen.workers,
                snapshot=chosen.snapshot,
                **dict(chosen.set),
            )
        except Exception as error:  # the environment's own constructor may raise anything
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            status = _NOT_MADE
            continue
        print(json.dumps(report.as_dict()) if chosen.json else report, flush=True)
        status = max(status, _KEPT if report.ok else _BROKEN)
    return status


def find(name: str) -> Any:
    """Import ``module:callable``; return any other name, which is an id, unchanged.

    >>> find("CartPole-v1")
    'CartPole-v1'
    >>> find("gymnasium.envs.classic_control:PendulumEnv").__name__
    'PendulumEnv'
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        return name
    # Gymnasium also has ids of the form ``module:id``, where the module registers the id.
    return getattr(importlib.import_module(module), attribute, attribute)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def _setting(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
