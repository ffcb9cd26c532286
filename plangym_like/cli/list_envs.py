"""``plangym-like list [FAMILY]``: the families of environments, or the ids of one family.

``list planners`` names the planners with their options.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import json
from typing import Any

import gymnasium

from plangym_like.cli.arguments import OK, UsageError, add_json, warn
from plangym_like.cli.planner_classes import options_of, planner_classes
from plangym_like.registry import FAMILIES, GENERIC, Family

# The extras of families whose ids are not registered in Gymnasium; their modules list them.
_UNREGISTERED = ("dm-control", "openspiel", "pettingzoo")


def add_to(commands: Any) -> None:
    """Add this command to `commands`, the subparsers of the program."""
    parser = commands.add_parser(
        "list", help="list families, the ids of a family, or planners", description=__doc__
    )
    parser.add_argument(
        "family",
        nargs="?",
        metavar="FAMILY",
        help="a family, 'other' for all other ids, or 'planners'",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Print the families, the ids of one family, or the planners."""
    if chosen.family == "planners":
        _print_planners(chosen.json)
        return OK
    _register_packages()
    ids: dict[str, list[str]] = {}
    extras = {}
    for family in (*FAMILIES, GENERIC):
        name = family_name(family)
        ids[name] = sorted(ids.get(name, []) + ids_of(family))
        extras[name] = f", with the extra {family.extra}" if family.extra else ""
    if chosen.family is None:
        if chosen.json:
            print(json.dumps(ids))
            return OK
        for name, found in ids.items():
            count = f"{len(found)} ids" if found else "no known ids"
            print(f"{name:18s} {count}{extras[name]}")
        return OK
    wanted = chosen.family.lower().replace("-", "_")
    if wanted not in ids:
        pgx = "; pgx's games are in functional, and pgx.available_envs() names them"
        raise UsageError(
            f"there is no family {chosen.family!r}; the families are {', '.join(ids)}"
            f"{pgx if wanted == 'pgx' else ''}"
        )
    if chosen.json:
        print(json.dumps(ids[wanted]))
    elif ids[wanted]:
        print("\n".join(ids[wanted]))
    else:
        warn(f"no ids of {wanted} are known: its package is not installed, or lists none")
    return OK


def family_name(family: Family) -> str:
    """Return the name of a family: of its module or folder, or ``other`` for `GENERIC`.

    >>> family_name(FAMILIES[0]), family_name(GENERIC)
    ('retro', 'other')
    """
    return "other" if family is GENERIC else family.place.partition(":")[0].partition(".")[0]


def _register_packages() -> None:
    """Import the packages that register ids, if they are installed."""
    for family in FAMILIES:
        if family.package:
            with contextlib.suppress(ImportError):
                gymnasium.register_envs(importlib.import_module(family.package))


def ids_of(family: Family) -> list[str]:
    """Return the known ids of a family."""
    if family.extra in _UNREGISTERED:
        with contextlib.suppress(ImportError):
            module = importlib.import_module(f"plangym_like.envs.{family_name(family)}")
            return [name for name in module.all_ids() if not name.startswith("dm_control/")]
        return []
    return [
        spec.id
        for spec in gymnasium.registry.values()
        if _family_of(spec.entry_point) is family and not spec.id.startswith("dm_control/")
    ]


def _family_of(entry_point: Any) -> Family:
    if isinstance(entry_point, str):
        for family in FAMILIES:
            if family.entry_point and entry_point.startswith(family.entry_point):
                return family
    return GENERIC


def _print_planners(as_json: bool) -> None:
    classes = planner_classes()
    if as_json:
        told = {
            name: {
                "summary": _summary(one),
                "options": {
                    option: None if default is ... else default
                    for option, default in options_of(one).items()
                },
            }
            for name, one in classes.items()
        }
        print(json.dumps(told, default=str))
        return
    for name, one in classes.items():
        print(f"{name}: {_summary(one)}")
        options = options_of(one).items()
        for option, default in options:
            print(f"    --option {option}={'...' if default is ... else default}")


def _summary(planner_class: type) -> str:
    return (inspect.getdoc(planner_class) or "").partition("\n\n")[0].replace("\n", " ")
