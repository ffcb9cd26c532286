"""Control problems with known answers, given as models and rewards.

A cart-pole that is swung up is the first example of docs/control.md, which is run as a test.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'plangym_like[mujoco]'")

from plangym_like import make_mujoco
from plangym_like.planners import CEM, ICEM, play

TIME, HORIZON = 0.05, 10
MASS = f"""
<mujoco><option timestep="{TIME}" gravity="0 0 0"/><worldbody><body>
  <joint name="x" type="slide" axis="1 0 0"/><geom size="0.1" mass="1"/>
</body></worldbody><actuator>
  <motor joint="x" ctrlrange="-20 20" ctrllimited="true"/>
</actuator></mujoco>
"""


def squares(data: Any) -> Any:
    costs = data.qpos**2 + 0.1 * data.qvel**2 + 0.01 * data.ctrl**2
    return -costs[:, 0]


def riccati() -> tuple[np.ndarray, np.ndarray]:
    """Return the gain of the first action, and the matrix of the costs of the whole plan."""
    # MuJoCo moves with the new speed.
    a, b = np.array([[1, TIME], [0, 1]]), np.array([[TIME**2], [TIME]])
    costs, gain = np.zeros((2, 2)), np.zeros((1, 2))
    for _ in range(HORIZON):
        after = costs + np.diag([1, 0.1])
        gain = np.linalg.solve(0.01 + b.T @ after @ b, b.T @ after @ a)
        costs = a.T @ after @ (a - b @ gain)
    return gain[0], costs


def test_the_first_actions_are_those_of_the_linear_quadratic_regulator() -> None:
    gain, costs = riccati()
    with make_mujoco(MASS, reward=squares) as env:
        env.reset(seed=0)
        for number, start in enumerate(np.eye(2)):
            state = env.make_state(qpos=start[:1], qvel=start[1:])
            plan = CEM(env, horizon=HORIZON, batch=200).plan(state, budget=100_000, seed=0)
            assert plan.actions[0, 0] == pytest.approx(-gain[number], rel=0.01)
            assert -plan.score == pytest.approx(start @ costs @ start, rel=1e-4)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_a_cheetah_runs_as_fast_as_its_reward_says() -> None:
    def reward(data: Any) -> Any:
        upright = 0.5 * abs(data.qpos[:, 2]) + 0.01 * (data.ctrl**2).sum(axis=1)
        return -abs(data.qvel[:, 0] - 3) - upright

    with gymnasium.make("HalfCheetah-v5") as cheetah:
        model: Any = cheetah.unwrapped
        with make_mujoco(model.model, reward=reward, n_substeps=model.frame_skip) as env:
            state = env.reset(seed=0).state
            planner = ICEM(env, horizon=15, batch=40, elites=5, beta=0.25)
            episode = play(planner, 100, state, budget=3_200, seed=0)
            run = env.rollout_batch(episode.actions[None], state, return_observations=True)
            places = run.observations[0, :, 0]
            speed = (places[-1] - places[49]) / (50 * model.dt)
    assert speed == pytest.approx(3.0, abs=0.1)
