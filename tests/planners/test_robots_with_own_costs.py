"""Robots with costs of their own reach what the cost asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'plangym_like[mujoco]'")

import gymnasium.envs.mujoco

from plangym_like import make_mujoco
from plangym_like.planners import ICEM, MPPI, play

CHEETAH = Path(gymnasium.envs.mujoco.__file__).parent / "assets" / "half_cheetah.xml"

REACHER = """
<mujoco>
  <option timestep="0.01" gravity="0 0 0"/>
  <worldbody>
    <body name="upper">
      <joint name="shoulder" axis="0 0 1" damping="0.05"/>
      <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.02"/>
      <body name="lower" pos="0.3 0 0">
        <joint name="elbow" axis="0 0 1" damping="0.05"/>
        <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.02"/>
        <site name="hand" pos="0.3 0 0"/>
      </body>
    </body>
    <body name="goal" mocap="true"><geom size="0.01" contype="0" conaffinity="0"/></body>
  </worldbody>
  <actuator>
    <motor joint="shoulder" ctrlrange="-1 1"/><motor joint="elbow" ctrlrange="-1 1"/>
  </actuator>
</mujoco>
"""


def near(data: Any) -> Any:
    away = data.site("hand").xpos - data.body("goal").xpos
    return -np.linalg.norm(away, axis=1) - 0.01 * np.square(data.qvel).sum(axis=1)


def test_a_reacher_comes_within_1_cm() -> None:
    goal = np.array([0.1, 0.4, 0.0])
    with make_mujoco(REACHER, reward=near, n_substeps=2) as env:
        env.reset(seed=0)
        root = env.make_state(mocap_pos=goal[None])
        planner = MPPI(env, horizon=15, batch=64, std=0.1, knots=4)
        episode = play(planner, steps=110, state=root, budget=65 * 15, seed=0)
        state = root
        for action in episode.actions:
            state = env.step(action, state=state).state
        one, two = np.cumsum(env.view_state(state)["qpos"])
    hand = 0.3 * np.array([np.cos(one) + np.cos(two), np.sin(one) + np.sin(two)])
    assert np.linalg.norm(hand - goal[:2]) < 0.01


def steadily(data: Any) -> Any:
    return -((data.qvel[:, 0] - 3) ** 2) - 2 * data.qpos[:, 2] ** 2


@pytest.mark.full  # the short form is in docs/control.md
@pytest.mark.parametrize("seed", range(5))
def test_a_cheetah_keeps_a_speed_of_3_m_s(seed: int) -> None:
    with make_mujoco(CHEETAH, reward=steadily, n_substeps=5) as env:
        start = env.reset(seed=0).state
        planner = ICEM(env, horizon=15, batch=50, elites=8)
        episode = play(planner, steps=200, state=start, budget=151 * 15, seed=seed)
        played = env.rollout_batch(episode.actions[None], start, return_observations=True)
    places = played.observations[0, :, 0]
    assert abs((places[199] - places[99]) / 5 - 3) < 0.1
