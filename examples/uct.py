"""UCT: play an episode with Monte Carlo tree search, and compare it with random play.

    python examples/uct.py CartPole-v1 --steps 200
    python examples/uct.py ALE/MsPacman-v5 --dt 4 --rollout 10 --batch 16 --steps 100
    python examples/uct.py FrozenLake-v1 --outcomes 4 --discount 0.95 --budget 4000

The search is `plangym_like.planners.UCT`; with ``--outcomes``, it does not know the random numbers
that the environment will draw.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import numpy as np

import plangym_like
from plangym_like.errors import InputError
from plangym_like.planners import UCT, play


def main() -> None:
    """Play one episode with search, and 64 at random."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("env", nargs="?", default="CartPole-v1", help="an id with discrete actions")
    parser.add_argument("--steps", type=int, default=200, help="the largest number of actions")
    parser.add_argument("--budget", type=int, default=1500, help="transitions for each action")
    parser.add_argument("--seconds", type=float, help="the most seconds for each action")
    parser.add_argument("--batch", type=int, default=16, help="descents in a round")
    parser.add_argument("--rollout", type=int, default=20, help="random actions after a new node")
    parser.add_argument("--explore", type=float, default=1.0)
    parser.add_argument("--discount", type=float, default=1.0)
    parser.add_argument("--outcomes", type=int, default=1, help="more than 1 for chance nodes")
    parser.add_argument("--dt", type=int, default=1, help="steps that one action lasts")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    kwargs: dict[str, Any] = {"obs_type": "ram"} if args.env.startswith("ALE/") else {}
    with plangym_like.make(args.env, n_workers=os.cpu_count(), **kwargs) as env:
        start = env.reset(seed=args.seed).state
        try:
            planner = UCT(
                env,
                args.batch,
                args.rollout,
                args.explore,
                args.discount,
                dt=args.dt,
                outcomes=args.outcomes,
            )
        except InputError as error:
            parser.error(str(error))
        episode = play(
            planner,
            args.steps,
            start,
            budget=args.budget,
            seconds=args.seconds,
            seed=args.seed,
            progress=True,
        )
        rng = np.random.default_rng(args.seed)
        plans = planner.actions[rng.integers(len(planner.actions), size=(64, len(episode)))]
        seeds = np.arange(64) if args.outcomes > 1 else None
        rollout = env.rollout_batch(plans, start, dt=args.dt, seeds=seeds)
    print(f"score of UCT:  {episode.score:,.6g} in {len(episode)} actions of {args.dt} steps")
    print(f"random player: {rollout.rewards.sum(axis=1).mean():,.6g} in as many, mean of 64 games")
    spent = episode.spent
    print(f"transitions:   {spent.transitions:,} in {spent.seconds:.0f} s")


if __name__ == "__main__":
    main()
