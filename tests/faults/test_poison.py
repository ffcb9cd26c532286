"""Rows that kill whoever steps them are found, named and left out; others are never blamed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from comparing import assert_same, row
from harm import Killer, dangerous, kill, overflow
from playground import CounterEnv, kill_itself, leave, read_nowhere, refuse, sending

from plangym_like.constructors import ParallelEnv
from plangym_like.errors import PoisonInputError, StepTimeoutError, WorkerDiedError

COUNT = 150
HARMS: dict[Callable[[int], None], int] = {
    kill_itself: -signal.SIGKILL,
    read_nowhere: -signal.SIGSEGV,
    leave: 7,
    overflow: -signal.SIGSEGV,
}


def test_a_deadly_row_is_named_and_the_next_batch_is_fine(serial: CounterEnv) -> None:
    find_poison(serial, times=1)


@pytest.mark.full
def test_fifty_deadly_rows_of_each_kind(serial: CounterEnv) -> None:
    find_poison(serial, times=50)


def find_poison(serial: CounterEnv, times: int) -> None:
    rng = np.random.default_rng(times)
    states = serial.step_batch(np.arange(COUNT), serial.get_state()).states
    with ParallelEnv(dangerous(list(HARMS)), "toy", n_workers=2, isolate=True) as env:
        sending(env)
        for _ in range(times):
            for kind, exitcode in enumerate(HARMS.values()):
                actions = rng.integers(0, 4096, COUNT)
                index, before = int(rng.integers(COUNT)), env.stats.deaths
                actions[index] = 4096 + kind
                with pytest.raises(PoisonInputError) as caught:
                    env.step_batch(actions, states)
                assert (caught.value.index, caught.value.exitcode) == (index, exitcode)
                assert "killed 5 workers that were trying it alone" in str(caught.value)
                died = env.stats.deaths
                assert died - before in (5, 6)
                actions[index] = 0
                ours = env.step_batch(actions, states)
                assert_same(ours, serial.step_batch(actions, states))
                assert env.stats.deaths == died


@pytest.mark.parametrize("batches", [12, pytest.param(150, marks=pytest.mark.full)])
def test_a_slow_row_among_killings_is_never_blamed(
    serial: CounterEnv, tmp_path: Path, batches: int
) -> None:
    begun = tmp_path / "begun"
    begun.touch()

    def take_long(action: int) -> None:
        with open(begun, "ab") as file:
            file.write(b"x")
        time.sleep(0.06)

    actions = np.arange(COUNT)
    expected = serial.step_batch(actions, serial.get_state())
    actions[70] = 4096
    other = CounterEnv("toy", num_actions=4097)
    expected = other.step_batch(actions, serial.get_state())
    with ParallelEnv(dangerous([take_long]), "toy", n_workers=2, isolate=True) as env:
        sending(env)
        kill(env.batch_env[0])
        with Killer(env.batch_env, 0.05):
            done = 0
            # Until a worker has been killed in that row, too: each batch begins it once.
            while done < batches or begun.stat().st_size == done:
                assert_same(env.step_batch(actions, serial.get_state()), expected)
                done += 1


@pytest.mark.full
def test_a_pool_whose_workers_die_in_every_row_gives_up(serial: CounterEnv) -> None:
    with ParallelEnv(dangerous([leave]), "toy", n_workers=2, isolate=True) as env:
        sending(env)
        with pytest.raises(WorkerDiedError, match="64 workers died in succession without"):
            env.step_batch(np.full(COUNT, 4096), serial.get_state(), on_error="mask")
        ours = env.step_batch(np.arange(COUNT), serial.get_state())
        assert_same(ours, serial.step_batch(np.arange(COUNT), serial.get_state()))


# Failed rows masked


@pytest.mark.parametrize("isolate", [True, False])
@pytest.mark.parametrize("return_state", [True, False])
def test_masked_rows_that_raise(serial: CounterEnv, isolate: bool, return_state: bool) -> None:
    def refuse_some(action: int) -> None:
        if action in (0, 44, 45, 90, 149):
            refuse(action)

    actions = np.arange(COUNT)
    state = serial.get_state()
    expected = serial.step_batch(actions, state, return_state=return_state)
    with (
        CounterEnv("toy", trap=refuse_some) as one,
        ParallelEnv(CounterEnv, "toy", n_workers=3, isolate=isolate, trap=refuse_some) as many,
    ):
        sending(many)
        for env in (one, many):
            result = env.step_batch(actions, state, return_state=return_state, on_error="mask")
            assert np.flatnonzero(result.infos.failed).tolist() == [0, 44, 45, 90, 149]
            for index, error in result.infos.errors.items():
                assert isinstance(error, ArithmeticError)
                assert str(error) == f"action {index} is refused"
                assert error.__notes__ == [f"(in row {index} of a batch of {COUNT})"]
            for index in np.flatnonzero(~result.infos.failed):
                assert_same(row(result, index), row(expected, index))
            assert np.isnan(result.rewards[result.infos.failed]).all()
            if return_state:
                assert not result.states[result.infos.failed].any()
        assert many.stats.deaths == 0
        both = [env.step_batch(actions, state, on_error="mask") for env in (one, many)]
        assert_same(tuple(both[0]), tuple(both[1]))
        assert not many.step_batch([1, 2], state, on_error="mask").infos.failed.any()
        with pytest.raises(ArithmeticError, match="action 0 is refused"):
            many.step_batch(actions, state)


def test_masked_rows_that_kill_hang_and_raise(serial: CounterEnv) -> None:
    deadly = [kill_itself, read_nowhere, leave]  # the others take time to die
    harms = [*deadly, lambda action: time.sleep(600), refuse]
    bad = {7: 4096, 31: 4097, 32: 4098, 120: 4099, 149: 4100}
    actions = np.arange(COUNT)
    expected = serial.step_batch(actions, serial.get_state())
    for index, action in bad.items():
        actions[index] = action
    with ParallelEnv(dangerous(harms), "toy", n_workers=2, isolate=True, step_timeout=3) as env:
        sending(env)
        result = env.step_batch(actions, serial.get_state(), on_error="mask")
        errors = result.infos.errors
        assert sorted(errors) == np.flatnonzero(result.infos.failed).tolist() == sorted(bad)
        for index, harm in zip(bad, deadly, strict=False):
            error = errors[index]
            assert isinstance(error, PoisonInputError)
            assert (error.index, error.exitcode) == (index, HARMS[harm])
        assert isinstance(errors[120], StepTimeoutError) and errors[120].indices == (120,)
        assert isinstance(errors[149], ArithmeticError)
        for index in np.flatnonzero(~result.infos.failed):
            assert_same(row(result, index), row(expected, index))
        # What is masked cannot be mistaken for a state.
        with pytest.raises(ValueError, match="state row 7 "):
            env.step_batch(np.arange(COUNT), result.states)


def test_masked_rows_of_rollouts(serial: CounterEnv) -> None:
    def refuse_some(action: int) -> None:
        if action == 4001:
            refuse(action)

    plans = np.arange(COUNT * 3).reshape(COUNT, 3)
    expected = serial.rollout_batch(plans, serial.get_state(), return_observations=True)
    assert expected.infos["n_step"].max() == 3 and not expected.infos.failed.any()
    lost = {12: 0, 77: 2, 149: 1}
    begun = {index: not at or expected.rewards[index, at] for index, at in lost.items()}
    for index, at in lost.items():
        plans[index, at] = 4001
    with (
        CounterEnv("toy", trap=refuse_some) as one,
        ParallelEnv(CounterEnv, "toy", n_workers=2, trap=refuse_some) as many,
        ParallelEnv(dangerous(list(HARMS)), "toy", n_workers=2, isolate=True) as isolated,
    ):
        for env in (one, many, isolated):
            if env is not one:
                sending(env)
            if env is isolated:
                for number, (index, at) in enumerate(lost.items()):
                    plans[index, at] = 4096 + number
            result = env.rollout_batch(
                plans, serial.get_state(), return_observations=True, on_error="mask"
            )
            failed = [index for index in lost if begun[index]]
            assert sorted(result.infos.errors) == failed
            kind = PoisonInputError if env is isolated else ArithmeticError
            assert all(isinstance(error, kind) for error in result.infos.errors.values())
            for index in np.flatnonzero(~result.infos.failed):
                assert_same(row(result, index), row(expected, index))
            assert np.isnan(result.rewards[failed]).all()
            assert not (result.states[failed].any() or result.observations[failed].any())
            with pytest.raises(kind):
                env.rollout_batch(plans, serial.get_state())


def test_statistics_add_up(serial: CounterEnv) -> None:
    with ParallelEnv(CounterEnv, "toy", n_workers=2, isolate=True) as env:
        sending(env)
        for _ in range(5):
            env.step_batch(np.arange(COUNT), serial.get_state())
        stats = env.stats
        assert (stats.batches, stats.rows) == (5, 5 * COUNT)
        assert stats.bytes_shared > 5 * COUNT * env.state_nbytes
        assert stats.seconds_on_workers > 0 and stats.seconds_waiting > 0
        assert stats.seconds_here == 0
    with ParallelEnv(CounterEnv, "toy", n_workers=2) as env:
        env.step_batch(np.arange(COUNT), serial.get_state())
        assert env.stats.seconds_here > 0
