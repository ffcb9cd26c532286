"""With isolated batches, a worker tries an environment out, so it cannot stop the caller."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from usual import first_of

import plangym_like
from plangym_like.errors import (
    EnvApiError,
    SnapshotError,
    WorkerDiedError,
    WorkerTimeoutError,
)


class Trapped(gymnasium.Env[Any, Any]):
    """Its action 1 hangs, or ends the process."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, trap: str, caller: int = 0) -> None:
        self.trap = trap
        while trap == "constructor" and os.getpid() != caller:
            time.sleep(0.1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0.0
        while self.trap == "reset":
            time.sleep(0.1)
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        if self.trap == "exit" and action:
            os._exit(7)
        while self.trap == "hang" and action:
            time.sleep(0.1)
        self.count += 1 + (self.np_random.random() if self.trap == "none" else 0)
        if self.trap == "clock":
            self.count += time.perf_counter_ns()
        return np.array([self.count]), 1.0, False, False, {}


@pytest.mark.parametrize("snapshot", first_of(["auto", "replay"]))
@pytest.mark.parametrize("options", [{"step_timeout": 1}, {"isolate": True, "n_workers": 2}])
def test_an_action_that_ends_its_process(snapshot: str, options: dict[str, Any]) -> None:
    with pytest.raises(
        WorkerDiedError, match=r"Trapped could not be made.*exit status 7"
    ) as caught:
        plangym_like.make(Trapped, snapshot=snapshot, trap="exit", **options)
    assert caught.value.exitcode == 7


@pytest.mark.parametrize("trap", first_of(["hang", "reset"]))
@pytest.mark.parametrize("snapshot", first_of(["auto", "replay"]))
def test_an_action_or_a_reset_that_hangs(snapshot: str, trap: str) -> None:
    options = {"step_timeout": 1, "start_timeout": 3}
    with pytest.raises(WorkerTimeoutError, match=r"Trapped could not be made.*start_timeout=3 "):
        plangym_like.make(Trapped, snapshot=snapshot, trap=trap, **options)


def test_a_constructor_that_hangs() -> None:
    with pytest.raises(WorkerTimeoutError, match=r"Trapped could not be made.*start_timeout=2 "):
        plangym_like.make(
            Trapped, trap="constructor", caller=os.getpid(), isolate=True, start_timeout=2
        )


@pytest.mark.full
def test_a_wrapper_is_tried_in_a_worker_too() -> None:
    class Hanging(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            while action:
                time.sleep(0.1)
            return super().step(action)

    options = {"isolate": True, "start_timeout": 3}
    with pytest.raises(WorkerTimeoutError, match="CartPole-v1 could not be made"):
        plangym_like.make("CartPole-v1", wrappers=[Hanging], **options)


@pytest.mark.parametrize("snapshot", first_of(["auto", "pickle", "replay"]))
def test_the_caller_uses_what_the_worker_found_out(snapshot: str) -> None:
    options: dict[str, Any] = {"snapshot": snapshot, "trap": "none"}
    with (
        plangym_like.make(Trapped, **options) as serial,
        plangym_like.make(Trapped, isolate=True, n_workers=2, **options) as env,
    ):
        assert (env.snapshot, env.exactness) == (serial.snapshot, "exact")
        assert env.snapshot_note == serial.snapshot_note
        state = env.reset(seed=0).state
        assert (state == serial.reset(seed=0).state).all()
        for one, other in zip(
            env.step_batch([0, 1] * 8, state), serial.step_batch([0, 1] * 8, state), strict=True
        ):
            assert np.array_equal(one, other)


def test_a_refusal_of_the_worker_is_raised() -> None:
    with pytest.raises(SnapshotError, match="Trapped cannot be saved exactly"):
        plangym_like.make(Trapped, trap="clock", isolate=True)

    class Old(Trapped):
        def step(self, action: Any) -> Any:
            return super().step(action)[:4]

    with pytest.raises(EnvApiError, match="4 parts"):
        plangym_like.make(Old, trap="", isolate=True)


class Killed(Trapped):
    """Its first so many workers are killed, as by the kernel when memory is short."""

    def __init__(self, folder: str, times: int, caller: int) -> None:
        super().__init__("none")
        if os.getpid() != caller and len(os.listdir(folder)) < times:
            (Path(folder) / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_is_killed_while_it_tries_out_the_environment_is_replaced(
    tmp_path: Path,
) -> None:
    options = {"folder": str(tmp_path), "times": 2, "caller": os.getpid()}
    with plangym_like.make(Killed, **options, isolate=True) as env:
        assert env.step_batch([0], env.reset(seed=0).state).rewards == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_an_environment_whose_trial_is_always_killed_is_an_error(tmp_path: Path) -> None:
    options = {"folder": str(tmp_path), "times": 99, "caller": os.getpid()}
    with pytest.raises(WorkerDiedError, match="tries it out"):
        plangym_like.make(Killed, **options, isolate=True)
    assert len(list(tmp_path.iterdir())) == 3
