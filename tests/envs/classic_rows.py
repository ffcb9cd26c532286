"""Rows of classic control to test with: any configuration, any state, both ways to step them."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from plangym_like.batch.arrays import Rows
from plangym_like.batch.simulator import Simulator
from plangym_like.envs.classic.env import ClassicControlEnv, ClassicControlSimulator
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


def make(name: str = "CartPole-v1", **kwargs: Any) -> ClassicControlEnv:
    env = ClassicControlEnv(name, **kwargs)
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


def random_conditions(env: ClassicControlEnv, rng: np.random.Generator, count: int) -> list[Any]:
    """Return `count` pairs of state and hidden attribute: usual, wild, at bounds, ended."""
    simulator = env.simulator
    dynamics = simulator.codec.dynamics
    widest = np.array(dynamics.sample_range)
    numbers = rng.uniform(-1, 1, (count, len(widest))) * widest
    numbers[::3] *= 0.1
    bounds = {
        "CartPole": [(0, 2.4), (0, -2.4), (2, 0.20943951), (2, -0.20943951)],
        "MountainCar": [(0, -1.2), (0, 0.6), (0, 0.5), (1, 0.07), (1, -0.07), (1, 0.0)],
        "MountainCarContinuous": [(0, -1.2), (0, 0.6), (0, 0.45), (1, 0.07), (1, 0.0)],
        "Pendulum": [(0, np.pi), (0, -np.pi), (0, 0.0), (1, 8.0), (1, -8.0), (1, 0.0)],
        "Acrobot": [(0, np.pi), (1, -np.pi), (2, 4 * np.pi), (3, 9 * np.pi), (1, 0.0)],
    }[dynamics.__name__]
    for row in range(0, count, 4):
        column, bound = bounds[rng.integers(len(bounds))]
        numbers[row, column] = bound + rng.choice([0, 1e-9, -1e-9, 1e-3, -1e-3])
    conditions = []
    for row in numbers:
        single = dynamics.takes_single and rng.random() < 0.5
        hidden = None
        if dynamics.hidden == "steps_beyond_terminated" and rng.random() < 0.7:
            hidden = int(rng.integers(3))
        elif dynamics.hidden == "last_u" and rng.random() < 0.7:
            hidden = np.float32(rng.uniform(-2, 2))
        conditions.append((row.astype(np.float32 if single else np.float64), hidden))
    return conditions


def rows_of(env: ClassicControlEnv, conditions: list[Any]) -> Any:
    """Return the rows that the family reads off an environment in each of `conditions`."""
    simulator = env.simulator
    rows = np.repeat(env.get_state()[None], len(conditions), axis=0)
    for row, (state, hidden) in zip(rows, conditions, strict=True):
        simulator.base.state = state
        if simulator.codec.dynamics.hidden:
            setattr(simulator.base, simulator.codec.dynamics.hidden, hidden)
        simulator.read(row[HEADER_NBYTES:])
    return rows


def random_rows(env: ClassicControlEnv, rng: np.random.Generator, count: int) -> Any:
    rows = rows_of(env, random_conditions(env, rng, count))
    limit = env.simulator.memory.time_limit
    if limit is not None:
        at = slice(-8, None)
        rows[:, at].view(np.int64)[:, 0] = rng.integers(0, limit._max_episode_steps, count)
    return rows


Method = Callable[[ClassicControlSimulator, Rows, int, int], None]


def by_blocks(simulator: ClassicControlSimulator, rows: Rows, start: int, stop: int) -> None:
    stepper = simulator.kernel_for(rows.inputs.actions)
    assert stepper is not None
    step = stepper.rollout if rows.inputs.horizon else stepper.step
    with np.errstate(all="ignore"):
        step(rows, start, stop)


def singly(simulator: ClassicControlSimulator, rows: Rows, start: int, stop: int) -> None:
    base = Simulator.rollout_rows if rows.inputs.horizon else Simulator.step_rows
    base(simulator, rows, start, stop)


def outcome(
    env: ClassicControlEnv,
    step: Method,
    actions: Any,
    states: Any,
    dt: Any = 1,
    seeds: Any = None,
    *,
    horizon: bool = False,
    wanted: bool = True,
) -> dict[str, bytes]:
    layout = env.layout
    inputs = layout.check(actions, states, dt, seeds, horizon=horizon)
    rows = layout.allocate(inputs, states=wanted)
    if rows.next_states is not None:
        layout.format.stamp(rows.next_states)
    step(env.simulator, rows, 0, inputs.count)
    found = {
        "observations": rows.observations,
        "rewards": rows.rewards,
        "terminateds": rows.terminateds,
        "truncateds": rows.truncateds,
        "n_step": rows.n_step,
        "next_states": rows.next_states,
    }
    return {key: b"" if array is None else array.tobytes() for key, array in found.items()}


def assert_same(env: ClassicControlEnv, actions: Any, states: Any, *args: Any, **kw: Any) -> None:
    blocks = outcome(env, by_blocks, actions, states, *args, **kw)
    loop = outcome(env, singly, actions, states, *args, **kw)
    assert [key for key in loop if loop[key] != blocks[key]] == []


def falls_back(env: ClassicControlEnv) -> bool:
    state = env.get_state()
    layout = env.layout
    rows = layout.allocate(layout.check(env.sample_action(), state, 1, None))
    return env.simulator.kernel_for(rows.inputs.actions) is None
