"""Robots with costs of their own reach what the cost asks for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'plangym_like[mujoco]'")

from plangym_like import make_mujoco
from plangym_like.planners import MPPI, play

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
