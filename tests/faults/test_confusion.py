"""Whatever cuts a call short, no later call gets its answer."""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hosted import HostedObject, run_script
from playground import CounterSimulator, sending

from plangym_like.batch.arrays import Outcome
from plangym_like.constructors import ParallelEnv
from plangym_like.envs.family_env import FamilyEnv
from plangym_like.processes.external_process import ExternalProcess


class EchoSimulator(CounterSimulator):
    """Observes the action that it was given; some actions raise."""

    def __init__(self, label: str, **kwargs: Any) -> None:
        super().__init__(label, num_actions=1 << 40, **kwargs)
        self.observation_space = spaces.Box(0, 1 << 40, (), np.int64)
        self.env = gymnasium.Env()

    def step(self, action: Any, dt: int) -> Outcome:
        if action % 1000 == 999:
            raise ArithmeticError(f"{action}")
        outcome = super().step(action, dt)
        return np.int64(action), float(action), *outcome[2:]


class EchoEnv(FamilyEnv):
    """Plans over an `EchoSimulator`."""

    simulator_class = EchoSimulator


class Alarm(KeyboardInterrupt):
    """What the test's signal handler raises."""


def raise_alarm(number: int, frame: object) -> None:
    raise Alarm


@pytest.fixture
def at_random() -> Any:
    """``at_random(seconds, handler)`` has a signal strike within so many seconds."""
    rng = random.Random(7)
    before = signal.getsignal(signal.SIGALRM)

    def strike(seconds: float, handler: Callable[[int, Any], object]) -> None:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(2e-5, seconds))

    yield strike
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("ignored_errors")
@pytest.mark.parametrize(
    ("isolate", "wanted"),
    [
        (True, 40),
        pytest.param(False, 60, marks=pytest.mark.full),
        pytest.param(True, 500, marks=pytest.mark.full),
    ],
)
def test_no_batch_gets_the_rows_of_another(isolate: bool, wanted: int, at_random: Any) -> None:
    """Interrupts, alarms, timeouts, dropped futures and failing rows, in random order."""
    rng = random.Random(wanted)
    disturbed: Counter[str] = Counter()
    ways = ("interrupt", "alarm", "timeout", "dropped", "failure")
    with ParallelEnv(EchoEnv, "echo", n_workers=3, isolate=isolate) as env:
        state = env.reset(seed=0).state
        sending(env)
        number = 0
        while min(disturbed[way] for way in ways) < wanted // len(ways):
            way = ways[number % len(ways)]
            count, number = rng.choice((3, 60, 900)), number + 1
            actions = number * 1_000_000 + np.arange(count) % 900
            future = None
            try:
                if way == "interrupt":
                    at_random(0.004, lambda *_: signal.raise_signal(signal.SIGINT))
                elif way == "alarm":
                    at_random(0.004, raise_alarm)
                elif way == "failure":
                    actions[rng.randrange(count)] = number * 1_000_000 + 999
                if way in ("timeout", "dropped"):
                    future = env.step_batch(actions, state, blocking=False)
                    if way == "timeout":
                        future(timeout=0.0)
                    else:
                        disturbed[way] += 1
                        continue
                result = env.step_batch(actions, state) if future is None else future()
                signal.setitimer(signal.ITIMER_REAL, 0)
                assert (result.obs == actions).all()
            except (KeyboardInterrupt, Alarm, ArithmeticError) as error:
                disturbed[way] += 1
                if way == "failure":
                    assert str(error) == str(number * 1_000_000 + 999)
            except TimeoutError as error:
                assert "result() may be called again" in str(error)
                disturbed[way] += 1
                assert future is not None
                if rng.random() < 0.5:
                    assert (future().obs == actions).all()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            clean = number * 1_000_000 + 500_000 + np.arange(rng.choice((2, 300))) % 900
            after = env.step_batch(clean, state)
            assert (after.obs == clean).all() and (after.rewards == clean).all()
    assert sum(disturbed.values()) >= wanted


def test_threads_that_step_one_env() -> None:
    with ParallelEnv(EchoEnv, "echo", n_workers=3) as env:
        state = env.reset(seed=0).state
        sending(env)
        wrong: list[int] = []

        def use(thread: int) -> None:
            for number in range(30):
                actions = thread * 10_000_000 + number * 1000 + np.arange(20 + 200 * (number % 3))
                actions -= (actions % 1000 == 999) * 1
                result = env.step_batch(actions, state)
                if not (result.obs == actions).all():
                    wrong.append(number)

        threads = [threading.Thread(target=use, args=(number,)) for number in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        assert not wrong
        assert env.stats.rows == 4 * 10 * (20 + 220 + 420)


@pytest.mark.parametrize("calls", [60, pytest.param(500, marks=pytest.mark.full)])
def test_a_single_process_mixes_nothing_up_either(calls: int) -> None:
    with ExternalProcess(HostedObject) as process:
        late = 0
        for number in range(calls):
            future = process.call("echo", (number, b"x" * (number % 7 * 40_000)))
            way = number % 4
            if way == 0:
                with pytest.raises(ValueError, match=f"^{number}$"):
                    process.fail(ValueError(f"{number}"))
            elif way == 1:
                try:
                    assert future(0.0)[0] == number
                except TimeoutError:
                    late += 1
            elif way == 2:
                del future
            assert process.echo(-number) == -number
        assert late > 0


ON_SIGINT = """
import os, signal, sys, threading, time
import numpy as np
sys.path.insert(0, {folder!r})
from test_confusion import EchoEnv
from playground import sending
from plangym_like.constructors import ParallelEnv

env = ParallelEnv(EchoEnv, "echo", n_workers=2, isolate=True)
state = env.reset(seed=0).state
sending(env)
begun, over, noticed = threading.Event(), threading.Event(), threading.Event()
late = 0
# Python itself ignores a Ctrl-C that arrives while it calls a finalizer, and reports that here.
sys.unraisablehook = lambda report: noticed.set()

def press():
    global late
    begun.wait()
    for number in range({times}):
        time.sleep(0.003)
        noticed.clear()
        os.kill(os.getpid(), signal.SIGINT)
        # Every other press comes while the last one may still be dealt with.
        if number % 2:
            late += not noticed.wait(60)
    over.set()

thread = threading.Thread(target=press)
caught = wrong = number = 0
thread.start()
while True:
    try:
        begun.set()
        while not over.is_set():
            number += 1
            actions = number * 1000 + np.arange(400)
            wrong += not (env.step_batch(actions, state).obs == actions).all()
        break
    except KeyboardInterrupt:
        caught += 1
        noticed.set()
thread.join()
signal.signal(signal.SIGINT, signal.SIG_IGN)
actions = np.arange(400)
wrong += not (env.step_batch(actions, state).obs == actions).all()
env.close()
print(caught >= {times} // 2, late, wrong, env._closed)
"""


@pytest.mark.parametrize("times", [40, pytest.param(500, marks=pytest.mark.full)])
def test_ctrl_c_pressed_again_and_again(times: int) -> None:
    folder = str(Path(__file__).parent)
    result = run_script(ON_SIGINT.format(folder=folder, times=times))
    assert (result.stdout, result.returncode) == ("True 0 0 True\n", 0), result.stderr
