"""MPPI: model predictive path integral control, with the simulator itself as the model.

    python examples/mppi.py Pendulum-v1 --steps 200

At every step: disturb the present plan N times, roll all N plans out from the present state in one
`rollout_batch`, and make the new plan their mean, each weighted by ``exp(return / temperature)``.
Play its first action, shift it by one, go on. (G. Williams et al., "Information theoretic MPC for
model-based reinforcement learning", ICRA 2017.)
"""

import argparse
import os
import time

import numpy as np
from tqdm import trange

import plangym_like

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("env", nargs="?", default="Pendulum-v1", help="an id with continuous actions")
parser.add_argument("--steps", type=int, default=200, help="length of the game")
parser.add_argument("--plans", type=int, default=256, help="N")
parser.add_argument("--horizon", type=int, default=25, help="T, actions in a plan")
parser.add_argument("--noise", type=float, default=0.5, help="as a part of half the action range")
parser.add_argument("--temperature", type=float, default=0.1, help="part of the returns' spread")
parser.add_argument("--seconds", type=float, default=60.0, help="stop playing after so long")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

env = plangym_like.make(args.env, n_workers=os.cpu_count())
low, high = env.action_space.low, env.action_space.high
rng = np.random.default_rng(args.seed)
start = env.reset(seed=args.seed).state

plan = np.zeros((args.horizon, *env.action_shape))
state, total, end = start, 0.0, time.perf_counter() + args.seconds
played = 0
with trange(args.steps, desc="MPPI") as bar:
    for _ in bar:
        noise = rng.normal(scale=args.noise, size=(args.plans, *plan.shape)) * (high - low) / 2
        plans = np.clip(plan + noise, low, high)
        returns = env.rollout_batch(plans.astype(env.action_space.dtype), state).rewards.sum(axis=1)
        weights = np.exp((returns - returns.max()) / (args.temperature * returns.std() + 1e-9))
        plan = np.tensordot(weights / weights.sum(), plans, axes=1)

        action = plan[0].astype(env.action_space.dtype)
        state, obs, reward, terminated, truncated, info = env.step(action, state=state)
        # What comes after the horizon is not planned yet: begin with what stood at its end.
        plan = np.concatenate([plan[1:], plan[-1:]])
        total, played = total + reward, played + 1
        bar.set_postfix_str(f"return {total:,.1f}, last reward {reward:.3f}")
        if terminated or truncated or time.perf_counter() > end:
            break

# The same number of steps from the same start, 64 times at random.
random_plans = rng.uniform(low, high, (64, played, *env.action_shape))
chance = env.rollout_batch(random_plans.astype(env.action_space.dtype), start).rewards.sum(axis=1)
print(f"return of MPPI:   {total:,.1f} in {played} steps, the last reward {reward:.4f}")
print(f"random player:    {chance.mean():,.1f}, mean of 64 games")
env.close()
