"""A thousand random restores of each family, each followed for 20 steps: how many bytes differ.

    python benchmarks/trials.py                    # all families: a minute each, CarRacing ten
    python benchmarks/trials.py --only 'MuJoCo'    # families that match

One copy of an environment plays random episodes and is never restored; its state is read before
every step. Another copy is set to a thousand of these states in random order and given the same
actions. Observations, rewards, flags, infos and the next state rows are compared byte by byte.
What was found is kept in ``docs/figures/trials.json``, and ``docs/figures/trials.md`` is its table.
"""

from __future__ import annotations

import copy
import re
import sys
import time
from typing import Any

import numpy as np
from harness import known, parser, publish, table

import plangym_like
from plangym_like.errors import MissingExtraError
from plangym_like.snapshots.trial import compare_outcomes, outcome_of

FAMILIES = {
    "Atari": "ALE/MsPacman-v5",
    "Atari, settled before restores": "ALE/Qbert-v5",
    "Atari, frames of random number": "MsPacman-v0",
    "classic control": "Acrobot-v1",
    "toy text": "Taxi-v4",
    "MuJoCo": "HalfCheetah-v5",
    "MuJoCo, contact forces": "Humanoid-v5",
    "dm_control": "walker-walk",
    "Box2D, lander": "LunarLander-v3",
    "Box2D, walker": "BipedalWalkerHardcore-v3",
    "Box2D, car": "CarRacing-v3",
    "stable-retro": "Airstriker-Genesis-v0",
    "pickled, MiniGrid": "minigrid:MiniGrid-Dynamic-Obstacles-8x8-v0",
    "JAX, Gymnasium's own": "tabular/Blackjack-v0",
    "JAX, pgx": "pgx/2048",
}
STEPS, EPISODES = 20, 25


def try_out(name: str, trials: int) -> dict[str, Any]:
    """Return what ``trials`` restores of one environment gave."""
    begun = time.perf_counter()
    each = -(-trials // EPISODES)
    with plangym_like.make(name) as played, plangym_like.make(name) as other:
        episodes = [_play(played, seed, each + STEPS) for seed in range(EPISODES)]
        places = [(episode, start) for episode in episodes for start in range(each)]
        order = np.random.default_rng(0).permutation(len(places))[:trials]
        outcomes = nbytes = 0
        for place in order:
            (actions, seen, rows), start = places[place]
            other.set_state(rows[start])
            for step in range(start, start + STEPS):
                outcomes += (
                    compare_outcomes(seen[step], outcome_of(other.step, actions[step])) is not None
                )
                nbytes += int((other.get_state() != rows[step + 1]).sum())
        return {
            "id": name,
            "snapshot": played.snapshot,
            "trials": len(order),
            "steps": STEPS * len(order),
            "different_outcomes": outcomes,
            "different_state_bytes": nbytes,
            "state_nbytes": played.state_nbytes,
            "seconds": round(time.perf_counter() - begun),
        }


def _play(env: Any, seed: int, length: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Return actions, outcomes and states of one run, new episodes begun where one ends."""
    space = copy.deepcopy(env.action_space)
    space.seed(seed)
    rows = [env.reset(seed=seed).state]
    actions, seen = [], []
    for _ in range(length):
        actions.append(space.sample())
        seen.append(outcome_of(env.step, actions[-1]))
        rows.append(env.get_state())
    return actions, seen, rows


def page(found: dict[str, dict[str, Any]]) -> str:
    """Return the figures as a table in Markdown."""
    keys = ("trials", "steps", "different_outcomes", "different_state_bytes")
    rows = [
        (family, f"`{one['id']}`", one["snapshot"], *(f"{one[key]:,}" for key in keys))
        for family, one in found.items()
    ]
    head = ("family", "environment", "saved by", "restores", "steps compared")
    return "\n".join(table((*head, "outcomes that differ", "bytes of states that differ"), rows))


def main() -> int:
    """Try, keep, write; the status is 1 if a byte differs."""
    options = parser(__doc__)
    options.add_argument("--only", default="", help="a regular expression that families must match")
    chosen = options.parse_args()
    found = known("trials")
    for family, name in FAMILIES.items():
        if not re.search(chosen.only, family):
            continue
        try:
            found[family] = try_out(name, 50 if chosen.quick else 1000)
        except MissingExtraError as error:
            print(f"{family}: {error}")
            continue
        print(f"{family}: {found[family]}", flush=True)
    found = {family: found[family] for family in FAMILIES if family in found}
    if not chosen.quick:
        publish("trials", found, page(found))
    differ = (one["different_outcomes"] + one["different_state_bytes"] for one in found.values())
    return int(any(differ))


if __name__ == "__main__":
    sys.exit(main())
