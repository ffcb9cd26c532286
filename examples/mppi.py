"""MPPI: model predictive path integral control, with the simulator itself as the model.

    python examples/mppi.py Pendulum-v1 --steps 200

It plans again before every action, and plays the first action of each plan. For the algorithm, see
`plangym_like.planners.MPPI`.
"""

import argparse
import os

import numpy as np

import plangym_like
from plangym_like.errors import InputError
from plangym_like.planners import MPPI, play

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("env", nargs="?", default="Pendulum-v1", help="an id with continuous actions")
parser.add_argument("--steps", type=int, default=200, help="the largest number of actions")
parser.add_argument("--plans", type=int, default=256, help="plans that are compared")
parser.add_argument("--horizon", type=int, default=25, help="actions in a plan")
parser.add_argument("--dt", type=int, default=1, help="how long each action is held")
parser.add_argument("--noise", type=float, default=0.5, help="fraction of half the action range")
parser.add_argument("--temperature", type=float, default=0.1, help="share of the returns' spread")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

with plangym_like.make(args.env, n_workers=os.cpu_count()) as env:
    start = env.reset(seed=args.seed).state
    try:
        planner = MPPI(
            env,
            horizon=args.horizon,
            batch=args.plans,
            std=args.noise,
            temperature=args.temperature,
            dt=args.dt,
        )
    except InputError as error:
        parser.error(str(error))
    budget = (args.plans + 1) * args.horizon  # one update of the mean, and the mean itself
    episode = play(planner, args.steps, start, budget=budget, seed=args.seed, progress=True)

    # For comparison, play random actions from the same start 64 times.
    shape = (64, len(episode), *planner.low.shape)
    actions = np.random.default_rng(args.seed).uniform(planner.low, planner.high, shape)
    chance = env.rollout_batch(
        actions.astype(env.action_space.dtype), start, dt=args.dt
    ).rewards.sum(axis=1)

print(f"return of MPPI:   {episode.score:,.1f} in {len(episode)} actions")
print(f"the last reward:  {episode.rewards[-1]:.4f}")
print(f"random player:    {chance.mean():,.1f}, mean of 64 games")
