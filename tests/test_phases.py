"""What rows spend in each phase: measured where it passes, on a sample, and without an effect."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from comparing import assert_same, reached, sampler
from playground import CounterEnv, CounterSimulator

import plangym_like
from plangym_like import phases
from plangym_like.phases import OBSERVE, RESTORE, SAVE, STEP, PhaseClock
from plangym_like.simulator import Outcome
from plangym_like.states import Row


class Sleds(gymnasium.Env):
    """Steps chunks of its states itself."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x = self.np_random.normal(size=2)
        return self.x.copy(), {}

    def step(self, action: Any) -> Any:
        self.x = self.x + 0.1 * np.array([self.x[1], action - 1.0])
        return self.x.copy(), float(self.x[0]), False, False, {}

    def step_states(self, states: Any, actions: Any) -> Any:
        states = states + 0.1 * np.stack([states[:, 1], actions - 1.0], 1)
        never = np.zeros(len(states), bool)
        return states, states, states[:, 0], never, never

    def save_state(self) -> Any:
        return self.x

    def load_state(self, saved: Any) -> None:
        self.x = saved


ENVS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a game": ("ALE/Breakout-v5", {}, "ale_py"),
    "a game with wrappers": ("ALE/Breakout-v5", {"repeat_action_probability": 0.5}, "ale_py"),
    "classic control": ("CartPole-v1", {}, "numpy"),
    "row by row": ("FrozenLake-v1", {}, "numpy"),
    "a robot": ("HalfCheetah-v5", {}, "mujoco"),
    "chunks of its own": (Sleds, {}, "numpy"),
}


class SlowSimulator(CounterSimulator):
    """A counter whose phases take as many ticks of a clock that only it moves."""

    now = 0.0

    def __init__(self, label: str, render_mode: str, **kwargs: Any) -> None:
        super().__init__(label, **kwargs)

    def write(self, payload: Row) -> None:
        SlowSimulator.now += 3
        super().write(payload)

    def reseed(self, seed: int) -> None:
        SlowSimulator.now += 4
        super().reseed(seed)

    def step(self, action: Any, dt: int) -> Outcome:
        SlowSimulator.now += 50
        return super().step(action, dt)

    def read(self, payload: Row) -> None:
        SlowSimulator.now += 200
        super().read(payload)

    def image(self) -> Any:
        SlowSimulator.now += 1000
        return super().image()


class SlowEnv(CounterEnv):
    """Plans over a `SlowSimulator`."""

    simulator_class = SlowSimulator


def test_each_phase_counts_what_passes_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "perf_counter", lambda: SlowSimulator.now)
    with SlowEnv("toy", return_image=True, render_mode="rgb_array") as env:
        layout, state = env.layout, env.reset(seed=0).state
        inputs = layout.check(np.arange(7), state, 1, np.arange(7))
        rows = layout.allocate(inputs)
        rows.clock = PhaseClock()
        env.run_rows(rows, 2, 7)
        assert rows.clock.seconds == [5 * 7, 5 * 50, 5 * 1000, 5 * 200]
        inputs = layout.check(np.arange(14).reshape(7, 2), state, 1, None, horizon=True)
        rows = layout.allocate(inputs)
        rows.clock = PhaseClock()
        env.run_rows(rows, 0, 7)
        steps = int(np.count_nonzero(~(rows.terminateds | rows.truncateds)[:, 0])) + 7
        assert rows.clock.take() == [7 * 3, steps * 50, 0, 7 * 200]
        assert rows.clock.take() == []


@pytest.mark.parametrize("kind", ENVS)
@pytest.mark.parametrize("horizon", [0, 3])
def test_a_clock_changes_nothing_and_misses_little(kind: str, horizon: int) -> None:
    name, kwargs, module = ENVS[kind]
    pytest.importorskip(module)
    with plangym_like.make(name, **kwargs) as env:
        layout, count = env.layout, 64
        states, space = reached(env, count), sampler(env, 0)
        actions = np.stack([space.sample() for _ in range(count * max(1, horizon))])
        if horizon:
            actions = actions.reshape(count, horizon, *actions.shape[1:])
        inputs = layout.check(actions, states, 1, None, horizon=bool(horizon))
        results, shares = [], []
        for clock in (None, *(PhaseClock() for _ in range(5))):
            rows = layout.allocate(inputs)
            rows.clock = clock
            begun = time.perf_counter()
            env.run_rows(rows, 0, count)
            passed = time.perf_counter() - begun
            results.append(layout.result(rows))
            if clock is not None:
                assert all(clock.seconds[phase] > 0 for phase in (RESTORE, STEP, SAVE))
                assert clock.seconds[OBSERVE] > 0 or kind == "chunks of its own"
                assert sum(clock.seconds) < passed
                shares.append(sum(clock.seconds) / passed)
        for result in results[1:]:
            assert_same(result, results[0])
        assert max(shares) > 0.5


def test_lanes_tell_what_their_phases_take() -> None:
    def dawdle(action: int) -> None:
        until = time.perf_counter() + 1e-3
        while time.perf_counter() < until:
            pass

    for kwargs in ({"isolate": True}, {}):
        with plangym_like.ParallelEnv(CounterEnv, "toy", n_workers=2, trap=dawdle, **kwargs) as env:
            state = env.reset(seed=0).state
            for _ in range(4):
                env.step_batch(np.arange(100), state)
            stats = env.stats
            parts = [
                stats.seconds_restoring,
                stats.seconds_stepping,
                stats.seconds_observing,
                stats.seconds_saving,
            ]
            assert min(parts) > 0
            assert parts[1] > 0.5 * sum(parts)
            whole = stats.seconds_here + stats.seconds_on_lanes
            assert sum(parts) == pytest.approx(whole)
