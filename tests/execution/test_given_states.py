"""Isolated environments load no state that a caller gave into the simulator of this process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from playground import CounterEnv, CounterSimulator, kill_itself

from plangym_like.errors import PoisonInputError
from plangym_like.lanes.sequential_lanes import as_gym_env
from plangym_like.parallel_env import ParallelEnv
from plangym_like.states import Row

FORGED, DEADLY = 666, 667


class TouchySimulator(CounterSimulator):
    """A counter that must not load forged states in its owner's process.

    A state is forged if its noise is `FORGED`, which steps do not change. Deadly ones end workers.
    """

    checksum = True

    def __init__(self, label: str = "touchy", *, owner: int = 0, **kwargs: Any) -> None:
        super().__init__(label, **kwargs)
        self._owner_pid = owner

    def write(self, payload: Row) -> None:
        super().write(payload)
        if os.getpid() == self._owner_pid:
            assert self._words[1] not in (FORGED, DEADLY), "a forged state was loaded here"

    def image(self) -> Any:
        if self._words[1] == DEADLY:
            kill_itself(0)
        return np.full((2, 2, 3), self._words[0] % 256, np.uint8)

    def view(self, payloads: Row) -> dict[str, Any]:
        counts, before = [], self._words
        for payload in payloads:
            self.write(payload)
            counts.append(int(self._words[0]))
        self._words = before
        return {"count": np.array(counts)}


class TouchyEnv(CounterEnv):
    """Plans over a `TouchySimulator`."""

    simulator_class = TouchySimulator


def forged(env: Any, noise: int = FORGED) -> Row:
    """Return a forged state that a worker has made."""
    state = env.reset(seed=3).state
    row: Row = env.step_batch([1], state, seeds=[noise]).states[0]
    return row


USES: dict[str, Callable[[Any, Row], object]] = {
    "set_state": lambda env, row: env.set_state(row),
    "step": lambda env, row: env.step(1, row),
    "steps": lambda env, row: [env.step(1, row), *(env.step(action) for action in range(40))],
    "view_state": lambda env, row: env.view_state(row)["count"].tolist(),
    "get_image": lambda env, row: (env.set_state(row), env.get_image().tolist()),
    "reset": lambda env, row: (env.set_state(row), env.reset(), env.step(1)),
    "as_gym": lambda env, row: (env.set_state(row), env.as_gym().step(1)[1:]),
    "sync_states": lambda env, row: env.sync_states(row),
    "audits": lambda env, row: [env.step(action, row) for action in range(5)],
}


def plain(result: Any) -> Any:
    """Return what a use returned, with lists for arrays."""
    if isinstance(result, (tuple, list)):
        return [plain(part) for part in result]
    return result.tolist() if isinstance(result, np.ndarray) else result


@pytest.mark.parametrize("use", USES)
def test_no_given_state_is_loaded_here(use: str) -> None:
    options: dict[str, Any] = {"n_workers": 1, "isolate": True}
    with (
        ParallelEnv(TouchyEnv, "toy", owner=os.getpid(), **options) as env,
        TouchyEnv("toy") as serial,
    ):
        row = forged(env)
        serial.reset(seed=3)
        assert plain(USES[use](env, row)) == plain(USES[use](serial, row))
        assert np.array_equal(env.get_state(), serial.get_state())
        with env.clone() as other:
            assert np.array_equal(other.get_state(), serial.get_state())
            assert plain(other.step(2)) == plain(serial.step(2))


def test_lanes_load_no_given_state_here() -> None:
    with ParallelEnv(TouchyEnv, "toy", n_workers=1, isolate=True, owner=os.getpid()) as env:
        row = forged(env)
        lane = as_gym_env(env)
        env.set_state(row)
        assert np.array_equal(lane.step(1)[0], env.step_batch([1], row).obs[0])


def test_states_of_own_episodes_are_used_here() -> None:
    with ParallelEnv(TouchyEnv, "toy", n_workers=1, isolate=True, owner=os.getpid()) as env:
        env.reset(seed=1)
        before = env.batch_env[0].call("get_state")()
        env.step(1)
        assert env.get_image().shape == (2, 2, 3)
        assert env.stats.rows == 0
        assert np.array_equal(env.batch_env[0].call("get_state")(), before)


def test_a_state_that_ends_its_worker_in_use_is_an_error() -> None:
    with ParallelEnv(TouchyEnv, "toy", n_workers=1, isolate=True, owner=os.getpid()) as env:
        row = forged(env, DEADLY)
        env.set_state(row)
        with pytest.raises(PoisonInputError, match="killed its worker the last time") as caught:
            env.get_image()
        assert caught.value.index == 0 and caught.value.exitcode
        assert env.stats.deaths == 3
        assert np.array_equal(env.get_state(), row)
        assert env.step(1).obs.shape == (4, 2)
