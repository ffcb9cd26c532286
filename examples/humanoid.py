"""A humanoid that stands: a model file, a cost of a few lines, and predictive sampling.

    python examples/humanoid.py --seconds 10

The model is that of Gymnasium's Humanoid, which stands upright at first, and falls within a second
if it does nothing.
"""

import argparse
import math
from pathlib import Path

import gymnasium.envs.mujoco
import numpy as np

import plangym_like
from plangym_like.planners import PredictiveSampling

MODEL = Path(gymnasium.envs.mujoco.__file__).parent / "assets" / "humanoid.xml"
# The height of the torso in metres: what is wanted, and below which the humanoid has fallen.
HEIGHT, FALLEN = 1.3, 0.9
# Each action is held for 0.03 s; a plan is 0.48 s long.
SUBSTEPS, HELD, HORIZON, ACTION_SECONDS = 5, 2, 16, 0.03


def reward(data):
    torso, centre = data.body("torso"), data.subtree_com[:, 1]
    feet = (data.body("right_foot").xpos + data.body("left_foot").xpos) / 2
    height = 10 * np.square(torso.xpos[:, 2] - HEIGHT)
    balance = 10 * np.square(centre[:, :2] - feet[:, :2]).sum(axis=1)
    lean = 2 * (1 - torso.xmat[:, 8])
    motion = 0.01 * np.square(data.qvel).mean(axis=1)
    effort = 0.05 * np.square(data.ctrl / 0.4).mean(axis=1)
    return -height - balance - lean - motion - effort


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--seconds", type=float, default=10.0, help="of simulated time")
parser.add_argument("--plans", type=int, default=64, help="plans that are compared")
parser.add_argument("--workers", type=int, default=None, help="processes that simulate")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
if not ACTION_SECONDS <= args.seconds < float("inf"):
    parser.error(f"--seconds must be at least {ACTION_SECONDS}, the length of an action")

with plangym_like.make_mujoco(
    MODEL, reward=reward, n_substeps=SUBSTEPS, n_workers=args.workers
) as env:
    state = env.reset(seed=0).state
    planner = PredictiveSampling(
        env, horizon=HORIZON, batch=args.plans, dt=HELD, knots=4, spline="cubic", std=0.3
    )
    rng, heights = np.random.default_rng(args.seed), []
    for _ in range(math.ceil(args.seconds / ACTION_SECONDS - 1e-9)):
        seed = int(rng.integers(2**31))
        plan = planner.plan(state, budget=(args.plans + 1) * HORIZON, seed=seed)
        state = env.step(plan.next_action, state=state, dt=HELD).state
        planner.advance()
        heights.append(env.view_state(state)["qpos"][2])
        if heights[-1] < FALLEN:
            break

print(f"seconds: {ACTION_SECONDS * len(heights):.2f}")
print("it has fallen" if heights[-1] < FALLEN else "it stands")
print(f"least height of the torso: {min(heights):.2f} m")
