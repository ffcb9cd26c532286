"""Blocks of rows against the same rows one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
from comparing import assert_same, row

import plangym_like


def pair(source: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Return two environments; the second steps its rows one by one."""
    fast, slow = (plangym_like.make(source, audit="off", **kwargs) for _ in range(2))
    slow.simulator.kernel_for = lambda actions: None
    for env in (fast, slow):
        env.reset(seed=0)
    return fast, slow


def compare(fast: Any, slow: Any, states: Any, plans: Any) -> None:
    """Step batches and rollouts of all kinds in both environments.

    `states` is ``(N, state_nbytes)``, and `plans` ``(N, T, ...)`` are actions.
    """
    count, actions = len(states), plans[:, 0]
    seeds = np.random.default_rng(5).integers(0, 2**63, count, dtype=np.uint64)
    dts = np.arange(count) % 3 + 1
    for more in ({}, {"dt": 3}, {"dt": dts}, {"seeds": seeds}, {"return_state": False}):
        _compare(fast, slow, "step_batch", actions, states, **more)
    _compare(fast, slow, "step_batch", actions, states[-1], dt=dts, seeds=seeds)
    for more in ({}, {"dt": dts, "seeds": seeds}, {"dt": 2, "return_observations": True}):
        _compare(fast, slow, "rollout_batch", plans, states, **more)
    _compare(fast, slow, "rollout_batch", plans, states[-1], return_observations=True)
    rows = fast.step_batch(actions, states, dt=dts)
    for index in range(3):
        _compare(fast, slow, "step", actions[index], states[index])
        _compare_row(row(rows, index), slow.step(actions[index], states[index], int(dts[index])))


def _compare(fast: Any, slow: Any, method: str, *args: Any, **more: Any) -> None:
    one, other = (getattr(env, method)(*args, **more) for env in (fast, slow))
    assert_same(tuple(one), tuple(other), f"{method} with {more}")


def _compare_row(one: tuple[Any, ...], step: Any) -> None:
    """Compare a row of a batch with a single step, whose numbers may have Python's types."""
    state, obs, reward, terminated, truncated, info = one
    assert_same(state, step.state)
    if isinstance(step.obs, np.ndarray):
        assert_same(obs, step.obs)
    else:
        assert obs.tobytes() == np.asarray(step.obs, obs.dtype).tobytes()
    assert (reward, terminated, truncated) == step[2:5]
    assert info.keys() == step.info.keys()
    for key, value in step.info.items():
        np.testing.assert_array_equal(info[key], value, key)
