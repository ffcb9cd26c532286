"""Isolated workers step the states that a caller gives before this process loads them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from playground import CounterEnv, CounterSimulator, kill_itself
from usual import first_of

import plangym_like
from plangym_like.constructors import ParallelEnv
from plangym_like.errors import PoisonInputError, StepTimeoutError
from plangym_like.execution.process_executor import ProcessExecutor
from plangym_like.states.rows import Row
from plangym_like.vector.sequential_lanes import as_gym_env

FORGED, DEADLY = 666, 667


class TouchySimulator(CounterSimulator):
    """A counter with states that end the process that loads them: those whose noise is `DEADLY`."""

    checksum = True

    def __init__(self, label: str = "touchy", *, owner: int = 0, **kwargs: Any) -> None:
        super().__init__(label, **kwargs)
        self._owner_pid = owner

    def write(self, payload: Row) -> None:
        super().write(payload)
        if self._words[1] == DEADLY:
            assert os.getpid() != self._owner_pid, "a deadly state was loaded here"
            kill_itself(0)

    def image(self) -> Any:
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
    """Return a state with this noise, which steps do not change, made by a worker."""
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
    "audits": lambda env, row: [env.step(action, row) for action in range(5)],
}


def plain(result: Any) -> Any:
    """Return what a use returned, with lists for arrays."""
    if isinstance(result, (tuple, list)):
        return [plain(part) for part in result]
    return result.tolist() if isinstance(result, np.ndarray) else result


@pytest.mark.parametrize("use", USES)
def test_given_states_are_used_as_in_one_process(use: str) -> None:
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


def test_lanes_use_given_states() -> None:
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


LOADS: dict[str, Callable[[Any, Row], object]] = {
    name: USES[name] for name in ("set_state", "step", "view_state")
}


@pytest.mark.parametrize("use", first_of(LOADS))
def test_a_state_that_ends_its_worker_is_never_loaded_here(use: str) -> None:
    with ParallelEnv(TouchyEnv, "toy", n_workers=1, isolate=True, owner=os.getpid()) as env:
        row, before = forged(env, DEADLY), env.get_state()
        with pytest.raises(PoisonInputError, match=r"killed \d+ workers") as caught:
            LOADS[use](env, row)
        assert caught.value.index == 0 and caught.value.exitcode
        assert np.array_equal(env.get_state(), before)
        assert env.step(1).obs.shape == (4, 2)


# What one use of a given state costs

USES_OF_GIVEN: dict[str, Callable[[Any, Row], object]] = {
    "set_state": USES["set_state"],
    "view_state": USES["view_state"],
    "step_batch": lambda env, row: env.step_batch([1], row),
    "step": lambda env, row: env.step(1, row),
    "next step": lambda env, row: env.step(1),
    "as_gym": lambda env, row: env.as_gym().step(1),
    "view many": lambda env, row: env.view_state(np.stack([row] * 20)),
}


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The batches that are submitted to workers."""
    given: list[Any] = []
    submit = ProcessExecutor.submit

    def counted(executor: Any, inputs: Any, options: Any) -> Any:
        given.append(inputs)
        return submit(executor, inputs, options)

    monkeypatch.setattr(ProcessExecutor, "submit", counted)
    return given


@pytest.mark.parametrize("use", USES_OF_GIVEN)
def test_each_use_of_a_given_state_is_one_batch(use: str, batches: list[Any]) -> None:
    options: dict[str, Any] = {"n_workers": 1, "isolate": True, "audit": "off"}
    with ParallelEnv(TouchyEnv, "toy", owner=os.getpid(), **options) as env:
        row = forged(env)
        env.set_state(row)
        before, rows = len(batches), env.stats.rows
        USES_OF_GIVEN[use](env, row)
        assert len(batches) == before + 1
        assert env.stats.rows == rows + (use == "step_batch")


def test_a_step_of_a_game_is_one_batch(batches: list[Any]) -> None:
    pytest.importorskip("ale_py")
    options: dict[str, Any] = {"obs_type": "ram", "n_workers": 1, "isolate": True, "audit": "off"}
    with plangym_like.make("ALE/MsPacman-v5", **options) as env:
        state = env.reset(seed=0).state
        for number in range(1, 4):
            state = env.step(2, state).state
            assert len(batches) == number
        assert env.stats.rows == 0


class EndingSimulator(TouchySimulator):
    """Its episodes end at the count of 5."""

    def step(self, action: Any, dt: int) -> Any:
        obs, reward, _, truncated, info, frames = super().step(action, dt)
        return obs, reward, bool(self._words[0] >= 5), truncated, info, frames


class EndingEnv(CounterEnv):
    """Plans over an `EndingSimulator`."""

    simulator_class = EndingSimulator


@pytest.mark.parametrize("autoreset", [True, False])
def test_an_episode_from_a_given_state_ends_as_in_one_process(autoreset: bool) -> None:
    options: dict[str, Any] = {"n_workers": 1, "isolate": True, "autoreset": autoreset}
    with (
        ParallelEnv(EndingEnv, "toy", owner=os.getpid(), **options) as env,
        EndingEnv("toy", autoreset=autoreset) as serial,
    ):
        row = forged(env)
        results = [
            [each.step(1, row), *(each.step(1, return_state=True) for _ in range(12))]
            for each in (env, serial)
        ]
        assert plain(results[0]) == plain(results[1])
        assert any(step.terminated for step in results[0])
        assert np.array_equal(env.get_state(), serial.get_state())


SLOW = 668


class SlowSimulator(TouchySimulator):
    """Restores a state in which it then hangs, in workers alone."""

    def step(self, action: Any, dt: int) -> Any:
        if self._words[1] == SLOW and action == 3 and os.getpid() != self._owner_pid:
            threading.Event().wait()
        return super().step(action, dt)


class SlowEnv(CounterEnv):
    """Plans over a `SlowSimulator`."""

    simulator_class = SlowSimulator


def test_a_step_that_hangs_is_ended_after_step_timeout() -> None:
    options: dict[str, Any] = {"n_workers": 1, "step_timeout": 1.0, "start_timeout": 600.0}
    with ParallelEnv(SlowEnv, "toy", owner=os.getpid(), **options) as env:
        row = forged(env, SLOW)
        with pytest.raises(StepTimeoutError, match=r"took longer than step_timeout=1.0 seconds"):
            env.step(3, row)
        assert env.stats.timeouts == 1
        assert env.step(1, row).obs.shape == (4, 2)


def test_no_other_thread_changes_the_state_between_its_trial_and_its_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submit = ProcessExecutor.submit
    held: list[bool] = []

    def watched(executor: Any, inputs: Any, options: Any) -> Any:
        def look() -> None:
            is_free = lock.acquire(blocking=False)
            held.append(not is_free)
            if is_free:
                lock.release()

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return submit(executor, inputs, options)

    options: dict[str, Any] = {"n_workers": 1, "isolate": True, "audit": "off"}
    with ParallelEnv(TouchyEnv, "toy", owner=os.getpid(), **options) as env:
        env.set_state(forged(env))
        lock = env.row_stepper.lock
        monkeypatch.setattr(ProcessExecutor, "submit", watched)
        env.step(1)
        env.step(1, env.get_state())
        env.as_gym().step(1)
    assert held == [True] * 3
