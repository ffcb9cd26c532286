"""Fractal Monte Carlo plays one game, and keeps its best episode.

    python examples/fmc.py ALE/MsPacman-v5 --seconds 60

It writes the actions (for `replay.py`), a chart of the score, and a film of the game.
The search is `plangym_like.planners.FractalMonteCarlo`.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from show import draw_scores, film

import plangym_like
from plangym_like.errors import InputError
from plangym_like.planners import FractalMonteCarlo

LONGEST = 10_000  # steps of a random player, because some environments never end


def random_scores(env: plangym_like.PlanEnv, episodes: int, seed: int) -> np.ndarray:
    """Return the scores ``(episodes,)`` of random actions."""
    states = np.stack([env.reset(seed=seed + 1 + index).state for index in range(episodes)])
    actions = gymnasium.vector.utils.batch_space(env.action_space, LONGEST)
    actions.seed(seed)
    plans = np.stack([actions.sample() for _ in range(episodes)])
    scores: np.ndarray = env.rollout_batch(plans, states).rewards.sum(axis=1)
    return scores


def main() -> None:
    """Search, compare with a random player, and show the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("env", nargs="?", default="ALE/MsPacman-v5", help="a Gymnasium id")
    parser.add_argument("--seconds", type=float, help="how long to search, by default 60")
    parser.add_argument("--budget", type=int, help="transitions to search, instead of --seconds")
    parser.add_argument("--walkers", type=int, default=16)
    parser.add_argument("--hold", type=int, default=8, help="longest hold of one action, in steps")
    parser.add_argument("--alpha", type=float, default=2.0, help="weight of the score")
    parser.add_argument("--beta", type=float, default=1.0, help="weight of the distance")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--episodes", type=int, default=8, help="games of the random player")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the results")
    args = parser.parse_args()

    if args.seconds is None and args.budget is None:
        args.seconds = 60.0
    # Distances between memory rows are more useful, and cheaper, than distances between screens.
    kwargs: dict[str, Any] = {"obs_type": "ram"} if args.env.startswith("ALE/") else {}
    with plangym_like.make(
        args.env, n_workers=args.workers, remove_time_limit=False, **kwargs
    ) as env:
        try:
            planner = FractalMonteCarlo(env, args.walkers, args.hold, args.alpha, args.beta)
        except InputError as error:
            parser.error(str(error))
        chance = random_scores(env, args.episodes, args.seed).mean()
        state = env.reset(seed=args.seed).state
        plan = planner.plan(
            state, budget=args.budget, seconds=args.seconds, seed=args.seed, progress=True
        )

    args.out.mkdir(parents=True, exist_ok=True)
    found = {
        "id": args.env,
        "kwargs": kwargs,
        "seed": args.seed,
        "score": plan.score,
        "frames": plan.info["frames"],
        "random_mean": float(chance),
        "actions": list(zip(plan.actions.tolist(), plan.dt.tolist(), strict=True)),
    }
    (args.out / "actions.json").write_text(json.dumps(found))
    draw_scores(args.out / "score.png", found, plan.curve)
    film(args.out / "game.gif", found)

    times = f" ({plan.score / chance:.1f} times)" if min(plan.score, chance) > 0 else ""
    spent = plan.spent
    print(f"score of the search: {plan.score:,.6g} in a game of {found['frames']:,} frames")
    print(f"random player:       {chance:,.6g}, mean of {args.episodes} games{times}")
    print(f"simulated:           {spent.transitions:,} transitions, {spent.frames:,} frames")
    for name in ("actions.json", "score.png", "game.gif"):
        print(f"wrote {args.out / name}")


if __name__ == "__main__":
    main()
