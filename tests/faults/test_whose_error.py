"""What a row raises is that row's error, whatever its type, and never taken for its worker's."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from playground import CounterEnv, CounterSimulator, sending
from usual import first_of

from plangym_like.batch.arrays import Outcome
from plangym_like.constructors import ParallelEnv
from plangym_like.env import PlanEnv
from plangym_like.envs.family_env import FamilyEnv
from plangym_like.errors import (
    PoisonInputError,
    RemoteError,
    RemoteTraceback,
    StepTimeoutError,
    WorkerDiedError,
    WorkerError,
    WorkerStartError,
)

COUNT = 60
BACKENDS: dict[str, dict[str, Any]] = {
    "serial": {},
    "parallel": {"n_workers": 2},
    "isolated": {"n_workers": 2, "isolate": True},
    "timed": {"n_workers": 2, "step_timeout": 60.0},
}
OWN_WORKER: dict[str, Callable[[], BaseException]] = {
    "died": lambda: WorkerDiedError("my own worker died", 1, -9),
    "timed out": lambda: StepTimeoutError("my own rows took too long", [1234]),
    "poisoned": lambda: PoisonInputError("row 1234 of my own", 1234, -9),
    "never started": lambda: WorkerStartError("my own worker never started"),
}
EXITS: dict[str, Callable[[], BaseException]] = {
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": lambda: KeyboardInterrupt("mine"),
    "GeneratorExit": GeneratorExit,
    "group": lambda: BaseExceptionGroup("mine", [SystemExit(4), ValueError(5)]),
}


def raising(errors: dict[str, Callable[[], BaseException]], **options: Any) -> Any:
    """Return an environment whose last actions raise `errors`, wherever they are stepped."""
    makers = list(errors.values())

    def trap(action: int) -> None:
        if action >= 4096:
            raise makers[action - 4096]()

    given = {"trap": trap, "num_actions": 4096 + len(makers)}
    if not options:
        return CounterEnv("toy", **given)
    return sending(ParallelEnv(CounterEnv, "toy", **given, **options))


@pytest.mark.parametrize("backend", first_of(["isolated", "serial", "parallel", "timed"]))
def test_a_rows_own_worker_error(backend: str) -> None:
    with raising(OWN_WORKER, **BACKENDS[backend]) as env:
        state = env.reset(seed=1).state
        expected = env.step_batch(np.arange(COUNT), state)
        pids = [process.pid for process in env.batch_env] if backend != "serial" else []
        for number, make in enumerate(OWN_WORKER.values()):
            for row in (0, 41, COUNT - 1):
                actions = np.arange(COUNT)
                actions[row] = 4096 + number
                with pytest.raises(WorkerError) as caught:
                    env.step_batch(actions, state)
                masked = env.step_batch(actions, state, on_error="mask")
                assert list(masked.infos.errors) == [row]
                for error in (caught.value, masked.infos.errors[row]):
                    assert type(error) is type(make())
                    assert (str(error), error.args) == (str(make()), make().args)
                    assert f"(in row {row} of a batch of {COUNT})" in error.__notes__
                others = np.arange(COUNT) != row
                assert np.array_equal(masked.states[others], expected.states[others])
        if pids:
            assert [process.pid for process in env.batch_env] == pids
            assert env.stats.deaths == env.stats.restarts == env.stats.timeouts == 0


@pytest.mark.parametrize(
    ("error", "seen", "match"),
    [
        (WorkerDiedError("my own worker died", 1, -9), WorkerDiedError, "my own worker died"),
        (SystemExit(3), RemoteError, r"SystemExit\(3\)"),
    ],
)
def test_a_constructors_own_error_is_not_a_death(
    error: BaseException, seen: type[Exception], match: str
) -> None:
    owner = os.getpid()

    def make(name: str, **kwargs: Any) -> PlanEnv:
        if os.getpid() != owner:
            raise error
        return CounterEnv(name, **kwargs)

    with ParallelEnv(make, "toy", n_workers=2, isolate=True) as env:
        state = env.reset(seed=1).state
        with pytest.raises(seen, match=match) as caught:
            env.step_batch(np.arange(COUNT), state)
        assert isinstance(caught.value.__cause__, RemoteTraceback)
        assert env.stats.deaths == 0


# What would end the program


@pytest.mark.parametrize("what", EXITS)
def test_a_row_that_ends_the_program_here(what: str) -> None:
    with raising(EXITS) as env:
        state = env.reset(seed=1).state
        expected = env.step_batch(np.arange(COUNT), state)
        actions = np.arange(COUNT)
        actions[41] = 4096 + list(EXITS).index(what)
        for on_error in ("raise", "mask"):
            with pytest.raises(type(EXITS[what]())) as caught:
                env.step_batch(actions, state, on_error=on_error)
            assert f"(in row 41 of a batch of {COUNT})" in caught.value.__notes__
        assert np.array_equal(env.step_batch(np.arange(COUNT), state).states, expected.states)


# Infos, observations and actions that cannot travel


class OddSimulator(CounterSimulator):
    """A counter that at some actions says what cannot be sent, or cannot be read."""

    def step(self, action: Any, dt: int) -> Outcome:
        obs, reward, terminated, truncated, info, frames = super().step(action % 1000, dt)
        if action == 1001:
            info["lock"] = threading.Lock()
        elif action == 1002:
            info["riddle"] = Unreadable()
        elif action == 1003:
            info["exit"] = Unsendable()
        return obs, reward, terminated, truncated, info, frames


class OddEnv(FamilyEnv):
    """Plans over an `OddSimulator`."""

    simulator_class = OddSimulator


class Unreadable:
    """Pickles, and cannot be loaded."""

    def __reduce__(self) -> Any:
        return pickle.loads, (b"nonsense",)


class Unsendable:
    """Exits where it is pickled."""

    def __reduce__(self) -> Any:
        raise SystemExit(3)


@pytest.mark.parametrize("action", range(1001, 1004), ids=["lock", "riddle", "exit"])
@pytest.mark.parametrize("count", first_of([60, 1]))
def test_an_info_that_cannot_travel(action: int, count: int) -> None:
    with OddEnv("odd") as alone, ParallelEnv(OddEnv, "odd", n_workers=2, isolate=True) as env:
        sending(env)
        state = alone.reset(seed=1).state
        expected = alone.step_batch(np.arange(count), state)
        pids = [process.pid for process in env.batch_env]
        for row in {0, count // 2, count - 1}:
            actions = np.arange(count)
            actions[row] = action
            with pytest.raises(Exception) as caught:
                env.step_batch(actions, state)
            masked = env.step_batch(actions, state, on_error="mask")
            assert list(masked.infos.errors) == [row]
            for error in (caught.value, masked.infos.errors[row]):
                assert isinstance(error, Exception)
                assert f"(in row {row} of a batch of {count})" in error.__notes__
            for index in set(range(count)) - {row}:
                assert masked.infos[index] == expected.infos[index]
                assert np.array_equal(masked.states[index], expected.states[index])
        assert [process.pid for process in env.batch_env] == pids
