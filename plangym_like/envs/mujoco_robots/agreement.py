"""Whether the form of a robot for many rows and its environment agree to the last bit, here."""

from __future__ import annotations

from typing import Any

import numpy as np

from plangym_like.batches import Inputs, Rows
from plangym_like.envs.mujoco_robots.chunk_stepper import ChunkStepper
from plangym_like.simulator import Simulator
from plangym_like.states import HEADER_NBYTES, Row

_TRIALS = 24


def trial_actions(env: Any, kind: str) -> Any:
    """Return random actions ``(trials, nu)`` of dtype `kind`, some of them out of bounds."""
    space, dtype = env.action_space, np.dtype(kind)
    rng = np.random.Generator(np.random.PCG64(6))
    drawn = rng.uniform(-1.2, 1.2, (_TRIALS, *space.shape))
    middle, half = (space.high + space.low) / 2.0, (space.high - space.low) / 2.0
    if dtype.kind in "iu":
        drawn = np.abs(drawn.round()) if dtype.kind == "u" else drawn.round()
        return drawn.astype(dtype)
    return (middle + half * drawn).astype(dtype)


def agrees(stepper: ChunkStepper, sim: Simulator, kind: str) -> bool:
    """Tell whether `stepper` does what `sim` does one by one; leaves `sim` in another state.

    `kind` is the type character of the actions.
    """
    actions = trial_actions(sim.env, kind)
    count = len(actions)
    states = np.zeros((count + 1, HEADER_NBYTES + sim.payload_nbytes), np.uint8)
    sim.env.reset(seed=0)
    sim.save(states[0])
    outcomes = []
    for index, action in enumerate(actions):
        outcomes.append(sim.step(action, 1))
        sim.save(states[index + 1])
    space: Any = sim.observation_space
    trial = Rows(
        Inputs(count, 0, actions, states[:-1], 1, None),
        np.zeros_like(states[:-1]),
        np.empty((count, *space.shape), space.dtype),
        np.empty(count),
        np.empty(count, bool),
        np.empty(count, bool),
        np.empty(count, np.int64),
        {name: np.empty((count, *leaf), kind) for name, (leaf, kind) in sim.columns.items()},
        None,
    )
    stepper.step(trial, 0, count)
    return all(
        _same(trial, index, outcome, state[HEADER_NBYTES:])
        for index, (outcome, state) in enumerate(zip(outcomes, states[1:], strict=True))
    )


def _same(rows: Rows, index: int, outcome: Any, after: Row) -> bool:
    """Tell whether row `index` of stepped `rows` is what the environment's own step gave.

    `outcome` is that of `Simulator.step`, `after` the payload saved after it.
    """
    obs, reward, terminated, truncated, info, _ = outcome
    assert rows.next_states is not None
    return bool(
        np.asarray(obs).tobytes() == rows.observations[index].tobytes()
        and reward == rows.rewards[index]
        and (terminated, truncated) == (rows.terminateds[index], rows.truncateds[index])
        and info.keys() == rows.columns.keys()
        and all(_equal(info[name], column[index]) for name, column in rows.columns.items())
        and after.tobytes() == rows.next_states[index, -len(after) :].tobytes()
    )


def _equal(one: Any, other: Any) -> bool:
    mine, theirs = np.asarray(one), np.asarray(other)
    return mine.shape == theirs.shape and mine.tobytes() == theirs.astype(mine.dtype).tobytes()
