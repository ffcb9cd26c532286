"""``plangym-like info ID``: the spaces of an environment, and how its states are saved."""

from __future__ import annotations

import argparse
import json
from typing import Any

from plangym_like.cli.arguments import OK, add_env_command, add_json, add_settings, make_env
from plangym_like.env import PlanEnv


def add_to(commands: Any) -> None:
    """Add this command to `commands`, the subparsers of the program."""
    parser = add_env_command(
        commands,
        "info",
        purpose="show spaces, and how states are saved and why",
        description=__doc__,
    )
    add_settings(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Print the spaces of the environment, and how its states are saved."""
    with make_env(chosen.id, **dict(chosen.set)) as env:
        facts = facts_of(env, chosen.id)
    if chosen.json:
        print(json.dumps(facts))
        return OK
    facts["state_nbytes"] = f"{facts['state_nbytes']:,}"
    saved, exact = facts.pop("snapshot_note"), facts.pop("exactness_note")
    if facts["snapshot"] == "native" and not saved:
        saved = "by its family's own method, which reads and writes the whole state"
    facts["snapshot"] += f" ({saved})" if saved else ""
    facts["exactness"] += f" ({exact})" if exact else ""
    names = {"state_nbytes": "bytes of a state", "snapshot": "saved by"}
    for name, value in facts.items():
        print(f"{names.get(name, name.replace('_', ' ')):19s} {value}")
    print(f"{'to test it further':19s} plangym-like check {chosen.id}")
    return OK


def facts_of(env: PlanEnv, name: str) -> dict[str, Any]:
    """Return facts about `env`, which is called `name`, as JSON-serialisable values."""
    return {
        "id": name,
        "family": type(env).__name__,
        "observation_space": str(env.observation_space),
        "action_space": str(env.action_space),
        "frameskip": env.frameskip,
        "state_nbytes": env.state_nbytes,
        "snapshot": env.snapshot,
        "snapshot_note": env.snapshot_note,
        "exactness": env.exactness,
        "exactness_note": env.exactness_note,
    }
