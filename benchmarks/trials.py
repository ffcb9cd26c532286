"""A thousand random restores of each family, each followed for 20 steps: how many bytes differ.

    python benchmarks/trials.py                    # all families: a minute each, CarRacing ten
    python benchmarks/trials.py --only 'MuJoCo'    # families that match

One copy of an environment plays random episodes and is never restored; its state is read before
every step. Another copy is set to a thousand of these states in random order and given the same
actions. Observations, rewards, flags, infos and the next state rows are compared byte by byte.
What was found is kept in ``docs/figures/trials.json``, and ``docs/figures/trials.md`` is its table.
"""

from __future__ import annotations

import argparse
import copy
import json
import pathlib
import re
import sys
import time
from typing import Any

import numpy as np

import plangym_like
from plangym_like.errors import MissingExtraError
from plangym_like.snapshots.trial import compare_outcomes, outcome_of

FIGURES = pathlib.Path(__file__).resolve().parent.parent / "docs" / "figures"
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


def main() -> int:
    """Try, keep, write; the status is 1 if a byte differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="a regular expression that families must match")
    parser.add_argument("--trials", type=int, default=1000, help="restores for each (1000)")
    options = parser.parse_args()
    path = FIGURES / "trials.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    for family, name in FAMILIES.items():
        if not re.search(options.only, family):
            continue
        try:
            found = known[family] = try_out(name, options.trials)
        except MissingExtraError as error:
            print(f"{family}: {error}")
            continue
        print(f"{family}: {found}", flush=True)
    known = {family: known[family] for family in FAMILIES if family in known}
    path.write_text(json.dumps(known, indent=1) + "\n")
    heads = ("family", "environment", "saved by", "restores", "steps compared")
    heads = (*heads, "outcomes that differ", "bytes of states that differ")
    lines = [f"| {' | '.join(heads)} |\n", f"|{' --- |' * 3}{' ---: |' * 4}\n"]
    for family, found in known.items():
        counts = (
            f"{found[key]:,}"
            for key in ("trials", "steps", "different_outcomes", "different_state_bytes")
        )
        cells = [family, f"`{found['id']}`", found["snapshot"], *counts]
        lines.append(f"| {' | '.join(cells)} |\n")
    (FIGURES / "trials.md").write_text("".join(lines))
    differ = (one["different_outcomes"] + one["different_state_bytes"] for one in known.values())
    return int(any(differ))


if __name__ == "__main__":
    sys.exit(main())
