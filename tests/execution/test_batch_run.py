"""How batches are dealt out to workers, and what happens to them when workers fail."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from hosted import wait_until_gone
from playground import (
    AlwaysSend,
    CounterEnv,
    Meeting,
    PressCtrlC,
    Trap,
    get_stuck,
    kill_itself,
    leave,
    refuse,
    sending,
)
from usual import first_of

import plangym_like
from plangym_like.constructors import ParallelEnv
from plangym_like.errors import ClosedError, PoisonInputError
from plangym_like.execution import process_executor, row_pool
from plangym_like.execution.process_executor import CostModel
from plangym_like.execution.shared_batch import SharedBatch
from plangym_like.processes import pool
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.shared_memory import WRITES_IN_ORDER

ACTIONS = np.arange(200)


@pytest.fixture
def make_env() -> Iterator[Callable[..., ParallelEnv]]:
    """``make_env(trap, n_workers=2, ...)``: isolated workers, ready and sent every batch."""
    made: list[ParallelEnv] = []

    def make(trap: Any = None, env_class: Any = CounterEnv, **kwargs: Any) -> ParallelEnv:
        # An audit would step rows that wait for a permit once more.
        kwargs = {"n_workers": 2, "isolate": True, "audit": "off", **kwargs}
        made.append(ParallelEnv(env_class, "toy", trap=trap, **kwargs))
        return sending(made[-1])

    yield make
    for env in made:
        env.close()


@pytest.fixture
def aside() -> Iterator[Callable[..., threading.Thread]]:
    """``aside(function)`` runs it in a thread, which must have ended after the test."""
    threads: list[threading.Thread] = []

    def start(function: Callable[[], object]) -> threading.Thread:
        threads.append(threading.Thread(target=function, daemon=True))
        threads[-1].start()
        return threads[-1]

    yield start
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()


# The same results


@pytest.mark.parametrize("isolate", [True, False])
@pytest.mark.parametrize("n_workers", first_of([3, 1, 2, 5]))
def test_results_do_not_depend_on_workers(
    serial: CounterEnv, make_env: Any, n_workers: int, isolate: bool
) -> None:
    env = make_env(n_workers=n_workers, isolate=isolate)
    rng = np.random.default_rng(n_workers)
    for count in (1, 2, 3, n_workers + 1, 64, 257, 2000):
        actions = rng.integers(0, 4096, count)
        states = serial.step_batch(rng.integers(0, 4096, count), serial.get_state()).states
        states = serial.step_batch(actions[::-1], states).states
        for dt in (1, 3, rng.integers(1, 9, count)):
            for seeds in (None, rng.integers(0, 1 << 40, count)):
                ours = env.step_batch(actions, states, dt, seeds=seeds)
                assert_same(ours, serial.step_batch(actions, states, dt, seeds=seeds))
    assert env.stats.rows == sum((1, 2, 3, n_workers + 1, 64, 257, 2000)) * 6
    assert env.stats.deaths == env.stats.restarts == env.stats.rows_retried == 0


# Fair shares


def test_a_slow_worker_holds_up_only_the_rows_that_it_has_taken(
    serial: CounterEnv, make_env: Any, meeting: Meeting, aside: Any
) -> None:
    # The worker that gets row 0 stays in it until all rows are done that it has not taken.
    env, done = make_env(Trap(meeting, [0])), [0]

    def let_go() -> None:
        meeting.next_report()
        (run,) = env.executor._runs
        until = time.monotonic() + 100
        while done[0] < 120 and time.monotonic() < until:
            time.sleep(0.01)
            done[0] = np.count_nonzero(run._marks)
        meeting.let_go()

    thread = aside(let_go)
    assert_same(
        env.step_batch(ACTIONS, serial.get_state()), serial.step_batch(ACTIONS, serial.get_state())
    )
    thread.join(100)
    assert done[0] >= 120
    assert env.stats.rows_retried == 0


@pytest.mark.skipif(not WRITES_IN_ORDER, reason="only a message says that rows are done")
def test_results_that_are_arrays_need_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    with plangym_like.make("CartPole-v1", n_workers=2, isolate=True, audit="off") as env:
        state, actions = env.reset(seed=0).state, [0, 1] * 20
        env.batch_env.pool.wait_ready()
        env.step_batch(actions, state)
        sent = []
        apply = ExternalProcess.apply

        def counted(process: Any, *args: Any, **kwargs: Any) -> Any:
            sent.append(args)
            return apply(process, *args, **kwargs)

        monkeypatch.setattr(ExternalProcess, "apply", counted)
        for _ in range(30):
            env.step_batch(actions, state)
        assert sent == []
        assert env.stats.rows_sent == env.stats.rows == 31 * 40


def test_a_worker_that_is_not_ready_yet_holds_nothing_up(
    serial: CounterEnv, tmp_path: Path, meeting: Meeting
) -> None:
    owner = os.getpid()

    def construct(name: str, **kwargs: Any) -> CounterEnv:
        if os.getpid() != owner:
            meeting(0)
        return CounterEnv(name, **kwargs)

    with ParallelEnv(construct, "toy", n_workers=2) as env:
        env.batch_env.costs = AlwaysSend()
        expected = serial.step_batch(ACTIONS, serial.get_state())
        assert_same(env.step_batch(ACTIONS, serial.get_state()), expected)
        assert env.stats.rows_sent == 0
        meeting.let_go()
        for worker in env.batch_env.workers:
            worker.process.call("setup")()
            worker.become_ready()
        while env.stats.rows_sent == 0:  # this process may be quicker
            assert_same(env.step_batch(ACTIONS, serial.get_state()), expected)


# Deaths


def test_a_worker_that_is_killed_within_a_row(
    serial: CounterEnv, make_env: Any, meeting: Meeting, tmp_path: Path, aside: Any
) -> None:
    env = make_env(Trap(meeting, [57], tmp_path))
    killed: list[int] = []

    def kill() -> None:
        killed.append(meeting.next_report()[0])
        os.kill(killed[0], signal.SIGKILL)

    thread = aside(kill)
    result = env.step_batch(ACTIONS, serial.get_state())
    thread.join(100)
    assert_same(result, serial.step_batch(ACTIONS, serial.get_state()))
    stats = env.stats
    assert (stats.deaths, stats.restarts, stats.timeouts) == (1, 1, 0)
    assert 1 <= stats.rows_retried < 200
    assert stats.rows == 200 <= stats.rows_sent
    assert wait_until_gone(killed[0], 0)
    assert killed[0] not in [process.pid for process in env.batch_env]


def test_a_death_next_to_the_caller(
    serial: CounterEnv, make_env: Any, meeting: Meeting, tmp_path: Path
) -> None:
    owner, waiting = os.getpid(), [True]

    def trap(action: int) -> None:
        if os.getpid() != owner:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(tmp_path / "died", os.O_CREAT | os.O_EXCL))
                meeting.report()
                kill_itself(action)
        elif waiting:
            waiting.clear()
            meeting.next_report()  # the worker dies in its first row

    env = make_env(trap, isolate=False)
    expected = serial.step_batch(ACTIONS, serial.get_state())
    assert_same(env.step_batch(ACTIONS, serial.get_state()), expected)
    assert env.stats.deaths == 1


@pytest.mark.parametrize("n_workers", [1, 2])
def test_the_first_rows_of_the_first_batch_kill(
    serial: CounterEnv, make_env: Any, n_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Deaths in rows that are tried alone are not counted, however many such rows there are.
    monkeypatch.setattr(pool, "_DEATHS_WITHOUT_PROGRESS", n_workers + 1)
    rows = list(range(n_workers))
    env = make_env(Trap(kill_itself, rows), n_workers=n_workers)
    env.batch_env.costs = CostModel()  # how long rows take is not known yet
    result = env.step_batch(ACTIONS, serial.get_state(), on_error="mask")
    assert list(result.infos.errors) == rows
    expected = serial.step_batch(ACTIONS, serial.get_state())
    assert np.array_equal(result.states[n_workers:], expected.states[n_workers:])


def test_rows_that_a_replaced_worker_had_not_reported_are_stepped_again(
    serial: CounterEnv, make_env: Any, tmp_path: Path
) -> None:
    meeting = Meeting(tmp_path)
    env, state = make_env(Trap(meeting, [150]), n_workers=1), serial.get_state()
    future = env.step_batch(ACTIONS, state, blocking=False)
    meeting.next_report()  # it has stepped many rows, and reports their infos after the last one
    env.executor.pool.replace(env.executor.workers[0])
    late = threading.Thread(target=lambda: (meeting.next_report(), meeting.let_go()))
    late.start()
    assert_same(future.result(100), serial.step_batch(ACTIONS, state))
    late.join()
    meeting.close()


# Batches that end early


def test_tokens_of_a_cancelled_batch_that_come_back_late_mean_nothing(
    serial: CounterEnv, make_env: Any, meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    void = SharedBatch.void
    # The worker is in row 0 until the batch is cancelled.
    monkeypatch.setattr(SharedBatch, "void", lambda self: (void(self), meeting.let_go()))
    env, state = make_env(Trap(meeting, [0]), n_workers=1), serial.get_state()
    future, workers = env.step_batch(ACTIONS, state, blocking=False), env.executor.pool
    key = env.executor._runs[0]._batch.key
    workers._grace = 100.0
    meeting.next_report()
    assert future.cancel()
    sent = env.stats.rows_sent
    workers.tokens.put_back(key, (1, 150))
    while len(workers.tokens) or workers.workers[0].busy:
        workers.prepare()  # the worker has reported, and is to serve again
    workers.count_rows()
    assert env.stats.rows_sent == sent
    assert_same(env.step_batch(ACTIONS[1:], state), serial.step_batch(ACTIONS[1:], state))


def test_pending_batches_that_fail_wait_together_for_one_second(
    serial: CounterEnv, make_env: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trap(action: int) -> None:
        batch, row = divmod(action, 2)
        if row == 1:
            (tmp_path / f"{batch}").touch()
            get_stuck(action)
        while not (tmp_path / f"{batch}").exists():  # until the other row has begun
            time.sleep(1e-3)
        refuse(action)

    env, state, seconds = make_env(trap), serial.get_state(), [0.0]
    workers, clock = env.executor.pool, type("Clock", (), {"monotonic": lambda: seconds[0]})
    wait = workers.wait

    def counted(timeout: float, stop: Any = None) -> float:
        seconds[0] += 0.1 * (timeout == row_pool._CHECK_SECONDS)
        return wait(timeout, stop)

    monkeypatch.setattr(workers, "wait", counted)
    monkeypatch.setattr(row_pool, "time", clock)
    batches = [env.step_batch([2 * k, 2 * k + 1], state, blocking=False) for k in range(3)]
    for future in reversed(batches):
        assert isinstance(future.exception(100), ArithmeticError)
    assert 1.0 <= seconds[0] < 1.2
    assert env.stats.restarts == 3


# Poison


def test_of_two_poisonous_rows_the_lower_is_named(serial: CounterEnv, make_env: Any) -> None:
    env = make_env(Trap(leave, [44, 45, 160]), n_workers=2)
    with pytest.raises(PoisonInputError) as caught:
        env.step_batch(ACTIONS, serial.get_state())
    assert caught.value.index == 44


# Hanging


def test_a_row_that_hangs_once_is_done_again(
    serial: CounterEnv, make_env: Any, tmp_path: Path
) -> None:
    env = make_env(Trap(get_stuck, [57, 130], tmp_path), step_timeout=1.5)
    expected = serial.step_batch(ACTIONS, serial.get_state())
    assert_same(env.step_batch(ACTIONS, serial.get_state()), expected)
    assert (env.stats.timeouts, env.stats.restarts) == (2, 2)


@pytest.mark.parametrize("isolate", [True, False])
def test_closing_during_a_batch_of_another_thread(
    serial: CounterEnv,
    make_env: Any,
    meeting: Meeting,
    tmp_path: Path,
    isolate: bool,
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr(process_executor, "_CLOSE_SECONDS", 0.2)
    owner, wait, begun = os.getpid(), Trap(meeting, [0]), tmp_path / "begun"

    def trap(action: int) -> None:
        while os.getpid() == owner and not begun.exists():
            time.sleep(1e-3)  # a worker has to begin first
        wait(action)

    env = make_env(trap, isolate=isolate)
    with ThreadPoolExecutor(1) as pool:
        batch = pool.submit(env.step_batch, 0 * ACTIONS, serial.get_state())
        meeting.next_report()
        begun.touch()
        env.close()
        with pytest.raises(ClosedError, match="closed"):
            batch.result(100)


# Exceptions of rows


@pytest.mark.parametrize("isolate", [True, False])
@pytest.mark.parametrize("n_workers", first_of([3, 2, 5]))
def test_the_lowest_row_that_fails_is_reported(
    serial: CounterEnv, make_env: Any, n_workers: int, isolate: bool
) -> None:
    def refuse_some(action: int) -> None:
        if action in (44, 45, 90, 150, 199):
            refuse(action)

    env = make_env(refuse_some, n_workers=n_workers, isolate=isolate)
    expected = serial.step_batch(ACTIONS[:44], serial.get_state())
    for _ in range(3):
        with pytest.raises(ArithmeticError, match="action 44 is refused") as caught:
            env.step_batch(ACTIONS, serial.get_state())
        assert caught.value.__notes__ == ["(in row 44 of a batch of 200)"]
        assert_same(env.step_batch(ACTIONS[:44], serial.get_state()), expected)
    assert env.stats.deaths == env.stats.restarts == 0


def test_failures_in_batch_after_batch_leave_the_pool_whole(
    serial: CounterEnv, make_env: Any
) -> None:
    env = make_env(Trap(refuse, [57]), n_workers=3)
    pids = [process.pid for process in env.batch_env]
    for _ in range(30):
        with pytest.raises(ArithmeticError):
            env.step_batch(ACTIONS, serial.get_state())
    assert [process.pid for process in env.batch_env] == pids
    blocks = env.batch_env._blocks
    assert len(blocks._lent) + len(blocks._idle) <= 20


# Ctrl-C


@pytest.fixture
def unwatched_collections() -> Iterator[None]:
    """Take away what is called at garbage collections: a Ctrl-C that strikes there is lost.

    Hypothesis times them so, once some test has imported it.
    """
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = callbacks


@pytest.mark.usefixtures("unwatched_collections")
@pytest.mark.parametrize("isolate", [True, False])
def test_ctrl_c_comes_through_at_once_and_the_next_batch_is_right(
    serial: CounterEnv, make_env: Any, tmp_path: Path, isolate: bool
) -> None:
    press, owner = PressCtrlC(tmp_path), os.getpid()
    once = tmp_path / "once"
    once.mkdir()
    pressing = Trap(press, range(1000, 1050), once)

    def trap(action: int) -> None:
        if action >= 1000 and os.getpid() == owner:
            time.sleep(100)  # until a worker has pressed
        pressing(action)

    env = make_env(trap, isolate=isolate, n_workers=3)
    expected = serial.step_batch(ACTIONS[1:], serial.get_state())
    late: list[float] = []
    # At once at least when the machine has time for it; a crowded one gets more tries.
    while len(late) < 5 or (min(late) >= 0.1 and len(late) < 50):
        with pytest.raises(KeyboardInterrupt):
            env.step_batch(np.full(200, 1000 + len(late)), serial.get_state())
        arrived = time.monotonic()
        late.append(arrived - press.next_report()[1])
        press.let_go()
        assert_same(env.step_batch(ACTIONS[1:], serial.get_state()), expected)
        sending(env)  # a worker that was interrupted while its rows were sent has been replaced
    assert min(late) < 0.1
    assert env.stats.rows_retried == 0
    press.close()


@pytest.mark.usefixtures("ignored_errors")
@pytest.mark.parametrize("isolate", first_of([True, False]))
def test_interrupts_anywhere_leave_every_later_batch_right(
    serial: CounterEnv, make_env: Any, isolate: bool
) -> None:
    """A timer strikes at a random moment of each of many batches."""
    env = make_env(isolate=isolate, n_workers=3)
    rng = np.random.default_rng(1)
    counts = (3, 200, 1500)
    expected = {count: serial.step_batch(np.arange(count), serial.get_state()) for count in counts}
    state = serial.get_state()
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    interrupted = 0
    try:
        for index in range(60):
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 0.01))
                step = partial(env.step_batch, np.arange(counts[index % 3]), state)
                step(blocking=False)() if index % 2 else step()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
            count = counts[index // 3 % 3]
            assert_same(env.step_batch(np.arange(count), state), expected[count])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 5
