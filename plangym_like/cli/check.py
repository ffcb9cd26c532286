"""``plangym-like check ID ...``: test that environments are saved, restored and stepped exactly.

The exit status is 0 if every check passed, 1 if one failed, and 2 if an environment could not be
made.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from plangym_like.cli.arguments import (
    FAILED,
    OK,
    USAGE,
    add_env_command,
    add_json,
    add_settings,
    counts,
    described,
    find,
    whole,
)
from plangym_like.testing import check_env
from plangym_like.testing.report import Report


def add_to(commands: Any) -> None:
    """Add this command to `commands`, the subparsers of the program."""
    parser = add_env_command(
        commands,
        "check",
        purpose="test whether an environment is saved, restored and stepped exactly",
        description=__doc__,
        nargs="+",
    )
    parser.add_argument(
        "--states", type=whole, default=16, help="states to restore and continue (16)"
    )
    parser.add_argument(
        "--steps",
        type=whole,
        default=20,
        help="steps to continue them for (20); episodes are four times as long",
    )
    parser.add_argument(
        "--seed", type=whole, default=0, help="seed of all episodes and actions (0)"
    )
    parser.add_argument(
        "--workers",
        type=counts,
        default=(1, 2, 3),
        help="numbers of worker processes, separated by commas (1,2,3)",
    )
    parser.add_argument(
        "--snapshot",
        default="auto",
        help="how states are saved: auto, native, pickle or replay (auto)",
    )
    add_settings(parser)
    add_json(parser, "print one JSON object per line")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Check each environment in turn; return the highest exit status."""
    status = OK
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
            print(f"{name}: {described(error)}", file=sys.stderr)
            if chosen.json:
                failure = {"ok": False, "error": described(error)}
                print(json.dumps(Report(name).as_dict() | failure), flush=True)
            status = USAGE
            continue
        print(json.dumps(report.as_dict()) if chosen.json else report, flush=True)
        status = max(status, OK if report.ok else FAILED)
    return status
