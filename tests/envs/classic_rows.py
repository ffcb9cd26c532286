"""Rows of classic control to test with: any configuration, any state, both ways to step them."""

from typing import Any

import gymnasium
import numpy as np

from plangym_like.envs.classic.env import ClassicControlEnv
from plangym_like.states.rows import HEADER_NBYTES

IDS = ["CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1"]
# An id, what it is made with, and what somebody then sets on the environment.
CONFIGURATIONS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("CartPole-v1", {}, {}),
    ("CartPole-v1", {"sutton_barto_reward": True}, {}),
    ("CartPole-v1", {}, {"kinematics_integrator": "semi-implicit", "tau": 0.013}),
    ("CartPole-v1", {}, {"gravity": 10, "length": 0.7, "force_mag": 3.0, "x_threshold": 1.0}),
    ("MountainCar-v0", {}, {}),
    ("MountainCar-v0", {"goal_velocity": 0.03}, {}),
    ("MountainCar-v0", {}, {"force": 0.003, "gravity": 0.0017, "max_speed": 0.05}),
    ("MountainCarContinuous-v0", {}, {}),
    ("MountainCarContinuous-v0", {"goal_velocity": 0.07}, {}),
    ("MountainCarContinuous-v0", {"goal_velocity": 0.01}, {"power": 0.0041, "goal_position": 0}),
    ("Pendulum-v1", {}, {}),
    ("Pendulum-v1", {"g": 9.81}, {}),
    ("Pendulum-v1", {"g": 3}, {"m": 2, "l": 0.7, "dt": 0.02, "max_torque": 1.1, "max_speed": 3.5}),
    ("Acrobot-v1", {}, {}),
    ("Acrobot-v1", {}, {"book_or_nips": "nips", "dt": 0.05}),
    ("Acrobot-v1", {}, {"LINK_LENGTH_1": 0.8, "LINK_MASS_2": 2, "AVAIL_TORQUE": [-2, 0.5, 3.0]}),
]
TOLD = [f"{name} {kwargs} {edits}" for name, kwargs, edits in CONFIGURATIONS]


def make(name: str = "CartPole-v1", **kwargs: Any) -> Any:
    env = ClassicControlEnv(name, audit="off", **kwargs)
    env.reset(seed=0)
    return env


def edited(env: Any, edits: dict[str, Any]) -> Any:
    for key, value in edits.items():
        assert hasattr(env, key)
        setattr(env, key, value)
    return env


def random_actions(env: Any, rng: np.random.Generator, *shape: int) -> Any:
    space = env.action_space
    if isinstance(space, gymnasium.spaces.Discrete):
        return rng.integers(space.n, size=shape)
    actions = rng.uniform(space.low, space.high, (*shape, 1)).astype(np.float32)
    special = rng.random(actions.shape) < 0.1
    choice = np.array([space.low[0], space.high[0], 0.0, -0.0], np.float32)
    actions[special] = rng.choice(choice, int(special.sum()))
    return actions


WIDEST = {
    "CartPole": (3.0, 4.0, 0.3, 4.0),
    "MountainCar": (1.4, 0.08),
    "MountainCarContinuous": (1.4, 0.08),
    "Pendulum": (12.0, 9.0),
    "Acrobot": (3.2, 3.2, 13.0, 29.0),
}
BOUNDS = {
    "CartPole": [(0, 2.4), (0, -2.4), (2, 0.20943951), (2, -0.20943951)],
    "MountainCar": [(0, -1.2), (0, 0.6), (0, 0.5), (1, 0.07), (1, -0.07), (1, 0.0)],
    "MountainCarContinuous": [(0, -1.2), (0, 0.6), (0, 0.45), (1, 0.07), (1, 0.0)],
    "Pendulum": [(0, np.pi), (0, -np.pi), (0, 0.0), (1, 8.0), (1, -8.0), (1, 0.0)],
    "Acrobot": [(0, np.pi), (1, -np.pi), (2, 4 * np.pi), (3, 9 * np.pi), (1, 0.0)],
}


def random_rows(env: Any, rng: np.random.Generator, count: int) -> Any:
    """Return `count` rows: usual, wild, at bounds, ended, before and after a time limit."""
    simulator, dynamics = env.simulator, env.simulator.codec.dynamics
    widest, bounds = np.array(WIDEST[dynamics.__name__]), BOUNDS[dynamics.__name__]
    numbers = rng.uniform(-1, 1, (count, len(widest))) * widest
    numbers[::3] *= 0.1
    for row in range(0, count, 4):
        column, bound = bounds[rng.integers(len(bounds))]
        numbers[row, column] = bound + rng.choice([0, 1e-9, -1e-9, 1e-3, -1e-3])
    rows = np.repeat(env.get_state()[None], count, axis=0)
    for row, state in zip(rows, numbers, strict=True):
        single = dynamics.takes_single and rng.random() < 0.5
        simulator.base.state = state.astype(np.float32 if single else np.float64)
        if dynamics.hidden:
            ended = int(rng.integers(3)), np.float32(rng.uniform(-2, 2))
            hidden = ended[dynamics.hidden == "last_u"] if rng.random() < 0.7 else None
            setattr(simulator.base, dynamics.hidden, hidden)
        simulator.read(row[HEADER_NBYTES:])
    limit = simulator.memory.time_limit
    if limit is not None:
        rows[:, -8:].view(np.int64)[:, 0] = rng.integers(0, limit._max_episode_steps, count)
    return rows


def falls_back(env: Any) -> bool:
    """Return whether the rows of `env` are stepped one by one."""
    return env.simulator.kernel_for(np.asarray(env.sample_action())) is None
