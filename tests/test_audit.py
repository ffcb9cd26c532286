"""The audit: rows that are stepped a second time, and what it says of those that differ."""

from __future__ import annotations

import os
import random
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from backends import in_workers_too, make_on, sending
from hostile_envs import (
    ClockInInfo,
    LateClassCounter,
    LateNumpyGlobal,
    SavesItself,
    Walk,
)
from playground import CounterEnv, CounterSimulator
from usual import first_of

import plangym_like
from plangym_like import ParallelEnv
from plangym_like.errors import ImpureEnvironmentError
from plangym_like.states.rows import Row

pytestmark = pytest.mark.usefixtures("unhurried_audits")


class Fails(Walk):
    def extra(self, action: int) -> float:
        if action == 2:
            raise ValueError("no")
        return 0.0


def walk(env: Any, steps: int) -> tuple[list[Any], np.ndarray]:
    """Return actions and states of an episode, stepped by `step` without a state."""
    state, _, _ = env.reset(seed=0)
    actions, states = [], [state]
    for step in range(steps):
        actions.append(step % 3)
        env.step(step % 3)
        states.append(env.get_state())
    return actions, np.stack(states[:-1])


def until_noticed(call: Any, rows: int) -> None:
    """Call `call`, which steps `rows` rows, for at most 2,000 rows."""
    for _ in range(2000 // rows):
        call()


@in_workers_too
def test_a_difference_is_an_error_that_names_row_field_values_and_cause(backend: str) -> None:
    with make_on(backend, LateNumpyGlobal) as env:
        actions, states = walk(env, 69)
        with pytest.raises(ImpureEnvironmentError) as told:
            until_noticed(lambda: env.step_batch(actions, states), 69)
    assert told.value.field == "rewards" and told.value.index >= 29
    assert told.value.values in str(told.value)
    assert f"row {told.value.index} of LateNumpyGlobal" in str(told.value)
    assert "a random generator that is not saved" in str(told.value)


CALLS: dict[str, Callable[[Any, Any, np.ndarray], Any]] = {
    "rollout_batch": lambda env, actions, states: env.rollout_batch(
        np.stack([actions] * 3, axis=1), states
    ),
    "future": lambda env, actions, states: env.step_batch(actions, states, blocking=False)(),
    "step": lambda env, actions, states: [
        env.step(action, state) for action, state in zip(actions, states, strict=True)
    ],
}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_is_audited(call: str) -> None:
    with make_on("serial", LateNumpyGlobal) as env:
        actions, states = walk(env, 69)
        with pytest.raises(ImpureEnvironmentError):
            until_noticed(lambda: CALLS[call](env, actions, states), 69)


class WorkersOwnSimulator(CounterSimulator):
    """Action 7 writes the time into the state; a difference says which process found it."""

    def step(self, action: Any, dt: int) -> Any:
        outcome = super().step(action, dt)
        if action == 7:
            self._words[1] = time.monotonic_ns()
        return outcome

    def state_difference(self, one: Row, other: Row) -> tuple[str, str] | None:
        return f"noise, as process {os.getpid()} says", "two values"


class WorkersOwnEnv(CounterEnv):
    """Plans over a `WorkersOwnSimulator`."""

    simulator_class = WorkersOwnSimulator


def test_states_of_isolated_workers_are_not_read_here() -> None:
    options: dict[str, Any] = {"n_workers": 2, "isolate": True, "audit": "warn", "audit_every": 1}
    with ParallelEnv(WorkersOwnEnv, "toy", **options) as env:
        env.batch_env.pool.wait_ready()
        pids = [str(env.batch_env[index].pid) for index in range(2)]
        state = env.reset(seed=1).state
        with pytest.warns(RuntimeWarning, match="next state noise, as process") as caught:
            env.step_batch([7] * 4, state)
        assert any(pid in str(caught[0].message) for pid in pids)


class StaleSum(SavesItself):
    """Adds up late rewards in an attribute that it sets to zero when it is restored."""

    def begin(self) -> None:
        self.total = 0.0

    def extra(self, action: int) -> float:
        self.total += self.time > 30
        return self.total

    def load_state(self, data: bytes) -> None:
        super().load_state(data)
        self.total = 0.0


class StaleInfo(StaleSum):
    """Shows what it forgets in infos only."""

    def extra(self, action: int) -> float:
        super().extra(action)
        return 0.0

    def tell(self) -> dict[str, Any]:
        return {"total": self.total}


@pytest.mark.parametrize("kind", [StaleSum, StaleInfo])
@pytest.mark.parametrize("where", first_of(["serial", "parallel", "isolated"]))
def test_what_a_state_row_does_not_hold_is_noticed_by_going_on_without_it(
    kind: Any, where: str
) -> None:
    with make_on(where, kind) as env:
        actions, states = walk(env, 40)
        with pytest.raises(ImpureEnvironmentError, match="with and without saving") as told:
            until_noticed(lambda: env.step_batch(actions, states), 40)
    assert kind is StaleSum or told.value.field.startswith("info['total']")


def test_rollouts_are_continued_without_saving_too() -> None:
    with plangym_like.make(StaleSum) as env:
        _, states = walk(env, 40)
        with pytest.raises(ImpureEnvironmentError, match="with and without saving"):
            until_noticed(lambda: env.rollout_batch(np.ones((40, 1), int), states), 40)


def test_only_legal_actions_are_followed() -> None:
    class Turns(StaleSum):
        """Takes one action at a time."""

        def step(self, action: Any) -> Any:
            if int(action) != self.time % 3:
                raise ValueError("not now")
            return super().step(action)

    with plangym_like.make(Turns) as env:
        actions, states = walk(env, 40)
        with pytest.raises(ImpureEnvironmentError, match="with and without saving"):
            until_noticed(lambda: env.step_batch(actions, states), 40)


def test_elapsed_seconds_of_statistics_are_no_difference() -> None:
    def statistics(env: Any) -> Any:
        limited = gymnasium.wrappers.TimeLimit(env, 7)
        return gymnasium.wrappers.RecordEpisodeStatistics(limited, stats_key="stats")

    for snapshot in ("auto", "pickle"):
        with plangym_like.make("Pendulum-v1", snapshot=snapshot, wrappers=[statistics]) as env:
            assert env.exactness == "exact"
            state, _, _ = env.reset(seed=0)
            states = np.stack([state] * 10)
            for _ in range(7):
                result = env.step_batch(np.zeros((10, 1)), states)
                states = result.states
            assert set(result.infos[0]["stats"]) == {"r", "l", "t"}


@in_workers_too
def test_a_warning_makes_the_environment_approximate(backend: str) -> None:
    with make_on(backend, LateClassCounter, audit="warn") as env:
        actions, states = walk(env, 69)
        assert env.exactness == "exact"
        with pytest.warns(RuntimeWarning, match=r"rewards.* differed") as told:
            for _ in range(20):
                env.step_batch(actions, states)
        assert len([one for one in told if "differed" in str(one.message)]) == 1
        assert env.exactness == "approximate" and "differed" in env.exactness_note


def test_an_audit_changes_nothing_else() -> None:
    options = {"audit_every": 1}
    with plangym_like.make(Walk, **options) as env, plangym_like.make(Walk, audit="off") as plain:
        actions, states = walk(env, 60)
        walk(plain, 60)
        random.seed(1)
        np.random.seed(1)
        before = random.getstate(), np.random.get_state()[1].tolist(), env.get_state().tobytes()
        one, other = (each.step_batch(actions, states) for each in (env, plain))
        assert env.stats.rows_audited == 60 and plain.stats.rows_audited == 0
        assert one.states.tobytes() == other.states.tobytes()
        assert one.rewards.tobytes() == other.rewards.tobytes()
        after = random.getstate(), np.random.get_state()[1].tolist(), env.get_state().tobytes()
        assert before == after
        assert env.step(1).reward == plain.step(1).reward


def test_rows_that_fail_are_left_out() -> None:
    with make_on("serial", Fails, audit_every=1) as env:
        state, _, _ = env.reset(seed=0)
        result = env.step_batch([0, 1, 2, 0], state, on_error="mask")
        assert result.infos.failed.tolist() == [False, False, True, False]
        assert env.stats.rows_audited == 3


def test_a_row_that_raises_the_second_time_is_noticed() -> None:
    class RaisesLater(Walk):
        kept = threading.local()  # audits do not watch it
        kept.calls = 0

        def extra(self, action: int) -> float:
            self.kept.calls += self.time > 40  # ten of fifty steps
            if self.kept.calls > 12:
                raise ValueError("too often")
            return 0.0

    with plangym_like.make(RaisesLater, audit_every=1) as env:
        actions, states = walk(env, 50)
        RaisesLater.kept.calls = 0
        with pytest.raises(ImpureEnvironmentError, match="too often"):
            until_noticed(lambda: env.step_batch(actions, states), 69)


def test_approximate_environments_are_not_audited() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with plangym_like.make(ClockInInfo) as env:
            assert env.exactness == "approximate"
            actions, states = walk(env, 60)
            env.step_batch(actions, states)
            assert env.stats.rows_audited == 0


def done(future: Any) -> Any:
    until = time.monotonic() + 60
    while not future.done():
        assert time.monotonic() < until
        time.sleep(0.01)
    return future


@pytest.mark.parametrize("isolate", first_of([True, False]))
def test_a_result_that_is_here_outlives_the_environment(isolate: bool) -> None:
    options: Any = {"n_workers": 2, "isolate": isolate, "audit_every": 1}
    with sending(plangym_like.make(Walk, **options)) as env:
        state = env.reset(seed=0).state
        expected = env.step_batch(np.arange(30) % 3, state)
        future = done(env.step_batch(np.arange(30) % 3, state, blocking=False))
        assert future._check is not None
    assert (future.result().states == expected.states).all()


@pytest.mark.parametrize("wrapped", [False, True])
def test_only_an_environment_with_wrappers_of_other_packages_is_copied(wrapped: bool) -> None:
    class Plain(gymnasium.Wrapper):
        pass

    with plangym_like.make("Pendulum-v1", wrappers=[Plain] * wrapped) as env:
        env.step_batch(np.ones((4, 1)), env.reset(seed=0).state)
        stepper = env.row_stepper
        copy = stepper.for_audits()
        assert (copy is not stepper) == wrapped
    assert copy.closed  # it is closed with the environment
