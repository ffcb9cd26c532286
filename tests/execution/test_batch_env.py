"""A `BatchEnv` made by hand of processes, as its users make it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from gymnasium import spaces
from playground import CounterEnv

import plangym_like as pl
from plangym_like.constructors import BatchEnv
from plangym_like.errors import StateFormatError, StateMismatchError
from plangym_like.processes.external_process import ExternalProcess

ACTIONS = np.arange(100)


def processes(count: int, constructor: Callable[[], Any]) -> list[ExternalProcess]:
    return [ExternalProcess(constructor) for _ in range(count)]


@pytest.fixture(scope="module")
def batch_env() -> Iterator[BatchEnv]:
    with BatchEnv(processes(3, lambda: CounterEnv("toy")), False) as env:
        yield env


def test_it_is_a_sequence_of_its_processes() -> None:
    envs = processes(3, lambda: pl.make("CartPole-v1"))
    with BatchEnv(envs, False) as env:
        assert len(env) == 3
        assert [env[0], env[1], env[2], env[-1]] == [*envs, envs[-1]]
        assert list(env) == envs
        with pytest.raises(IndexError):
            env[3]
        assert env.observation_space == env[1].observation_space
        assert env.action_space == spaces.Discrete(2)


# Calls


def test_the_positional_call(batch_env: BatchEnv, serial: CounterEnv) -> None:
    state = serial.get_state()
    transition = batch_env.step_batch(ACTIONS, state, 2, True)
    assert isinstance(transition, pl.BatchTransition)
    assert_same(transition, serial.step_batch(ACTIONS, state, 2, True))
    step = batch_env.step_batch(ACTIONS, state, 2, False)
    assert isinstance(step, pl.BatchStep)
    assert_same(step, serial.step_batch(ACTIONS, state, 2, False))


def test_set_states_are_what_batches_branch_from(batch_env: BatchEnv, serial: CounterEnv) -> None:
    first, second = serial.step_batch([1, 2], serial.get_state()).states
    for state in (first, second):
        batch_env.set_state(state)
        ours = batch_env.step_batch(ACTIONS)
        assert isinstance(ours, pl.BatchStep)
        assert_same(ours, serial.step_batch(ACTIONS, state, return_state=False))
    given = first.copy()
    batch_env.set_state(given)
    given[:] = 0
    ours = batch_env.step_batch(ACTIONS, None, 1, True)
    assert_same(ours, serial.step_batch(ACTIONS, first))
    with pytest.raises(StateFormatError):
        batch_env.set_state(given)


def test_without_any_state_the_first_environments_own_counts() -> None:
    with CounterEnv("toy") as one, BatchEnv(processes(2, lambda: CounterEnv("toy"))) as env:
        ours = env.step_batch(ACTIONS, return_state=True)
        assert_same(ours, one.step_batch(ACTIONS, one.get_state()))


# What fits together


@pytest.mark.parametrize(
    "other", [lambda name: pl.make("CartPole-v1"), lambda name: CounterEnv("another")]
)
def test_environments_that_do_not_fit_together(other: Any) -> None:
    one = ExternalProcess(lambda: CounterEnv("toy"))
    with one, ExternalProcess(lambda: other("toy")) as two, BatchEnv([one, two], False) as env:
        state = env.reset(seed=0).state
        two.wait_ready()
        with pytest.raises(
            StateMismatchError, match="the environments .* given to a BatchEnv differ"
        ):
            for _ in range(1000):
                env.step_batch(ACTIONS, state)


def test_no_environments() -> None:
    with pytest.raises(ValueError, match="at least one"):
        BatchEnv([], False)


# Futures


def test_a_clone_has_processes_of_its_own(batch_env: BatchEnv, serial: CounterEnv) -> None:
    batch_env.set_state(serial.get_state())
    with batch_env.clone() as other:
        assert isinstance(other, pl.PlanEnv) and other.n_workers == batch_env.n_workers == 3
        assert (
            other.isolate
            and {each.pid for each in other} & {each.pid for each in batch_env} == set()
        )
        assert_same(other.get_state(), serial.get_state())
        assert_same(other.step_batch(ACTIONS), serial.step_batch(ACTIONS))
