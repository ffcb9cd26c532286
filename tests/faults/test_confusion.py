"""Whatever cuts a call short, no later call gets its answer."""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from playground import CounterSimulator, sending

from plangym_like.batch.arrays import Outcome
from plangym_like.constructors import ParallelEnv
from plangym_like.envs.family_env import FamilyEnv


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
