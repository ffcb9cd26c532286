"""Replay a game that `fmc.py` found, from its first frame, and compare the score.

    python examples/replay.py demo/actions.json
    python examples/replay.py demo/actions.json --gymnasium   # without plangym_like

The exit status is 1 if the score differs.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import plangym_like


def replay(found: dict[str, Any]) -> float:
    """Play the actions of `found` from `reset` on, and return the sum of their rewards."""
    env = plangym_like.make(
        found["id"], autoreset=False, remove_time_limit=False, **found["kwargs"]
    )
    env.reset(seed=found["seed"])
    actions = [(np.asarray(action, env.action_space.dtype), dt) for action, dt in found["actions"]]
    rewards = [env.step(action, dt=dt).reward for action, dt in actions]
    env.close()
    return math.fsum(rewards)


def replay_in_gymnasium(found: dict[str, Any]) -> float:
    """Do the same in the environment that Gymnasium itself makes."""
    kwargs = dict(found["kwargs"])
    if found["id"].startswith("ALE/"):
        import ale_py

        gymnasium.register_envs(ale_py)
        kwargs["repeat_action_probability"] = 0.0  # the convention of plangym_like
    env = gymnasium.make(found["id"], **kwargs)
    env.reset(seed=found["seed"])
    rewards, over = [], False
    for action, dt in found["actions"]:
        if not isinstance(action, int):
            action = np.asarray(action, env.action_space.dtype)
        reward = 0.0
        for _ in range(dt):
            if not over:
                _, gained, terminated, truncated, _ = env.step(action)
                reward += float(gained)
                over = terminated or truncated
        rewards.append(reward)
    env.close()
    return math.fsum(rewards)


def main() -> int:
    """Replay, print both scores, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("actions", nargs="?", type=Path, default=Path("demo/actions.json"))
    parser.add_argument("--gymnasium", action="store_true", help="replay in Gymnasium alone")
    args = parser.parse_args()
    found = json.loads(args.actions.read_text())
    score = (replay_in_gymnasium if args.gymnasium else replay)(found)
    same = score == found["score"]
    print(f"found: {found['score']!r}, replayed: {score!r}: {'the same' if same else 'DIFFERENT'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
