"""Workers import modules anew: what the program has changed in a module is missing there."""

from __future__ import annotations

import importlib
import itertools
import math
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from usual import first_of

import plangym_like
from plangym_like.errors import DifferentWorkerError
from plangym_like.execution.short_episode import check, first_difference, play

WORKERS = [
    pytest.param({"n_workers": 2}, id="two"),
    pytest.param({"n_workers": 1, "isolate": True}, id="isolated"),
]

MODULE = """
import gymnasium, numpy as np
SCALE = 1

class Scaled(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)
    PRICE = 0.5

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.total = 0.0
        return np.zeros(1), {}

    def step(self, action):
        self.total += SCALE
        return np.array([self.total]), self.PRICE, False, False, {}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of the user's, with an environment that uses a variable of the module."""
    (tmp_path / "scaled_world.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("scaled_world")
    sys.modules.pop("scaled_world")


def use_workers(env: Any, action: Any, state: Any = None) -> Any:
    """Step batches until all workers have stepped rows or are ready; return the last result."""
    state = env.reset(seed=0).state if state is None else state
    while True:
        ready = all(worker.ready for worker in env.executor.workers)
        env.executor.pool.prepare()
        result = env.step_batch([action] * 64, state)
        if ready:
            return result
        env.executor.pool.wait(0.1)


def doubled(env: Any, *args: Any) -> Any:
    reward, parts = env.original(*args)
    return 2 * reward, parts


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    # Workers import this module, and few tests need MuJoCo or torch.
    from gymnasium.envs.mujoco.hopper_v5 import HopperEnv

    monkeypatch.setattr(HopperEnv, "original", HopperEnv._get_rew, raising=False)
    monkeypatch.setattr(HopperEnv, "_get_rew", doubled)


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize("workers", WORKERS)
def test_a_patched_method_is_an_error_that_names_the_cause(workers: dict[str, Any]) -> None:
    with plangym_like.make("Hopper-v5", **workers) as env:
        with pytest.raises(DifferentWorkerError, match="changed an imported module") as caught:
            use_workers(env, np.zeros(3))
        assert caught.value.field == "the reward of step 1"
        with pytest.raises(DifferentWorkerError):
            use_workers(env, np.zeros(3))


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize("workers", WORKERS)
def test_forked_workers_have_the_changes(workers: dict[str, Any]) -> None:
    with plangym_like.make("Hopper-v5", **workers, start_method="fork") as env:
        rewards = use_workers(env, np.zeros(3)).rewards
    with plangym_like.make("Hopper-v5") as serial:
        expected = serial.step_batch([np.zeros(3)], serial.reset(seed=0).state).rewards
    assert (rewards == expected[0]).all()


class CountsEpisodes(gymnasium.Wrapper):
    """Keeps a count and a generator over resets, as curricula and normalisers do."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.episodes, self.rng, self.bonus = 0, np.random.default_rng(0), 0.0

    def reset(self, **kwargs: Any) -> Any:
        self.episodes += 1
        self.bonus = self.episodes + self.rng.normal()
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return obs, float(reward) + self.bonus, *rest


class CountingEnv(CartPoleEnv):
    """Written in Python, and saved by pickle."""

    episodes = 0

    def reset(self, **kwargs: Any) -> Any:
        self.episodes += 1
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, reward / self.episodes, *rest


@pytest.mark.parametrize("workers", first_of(WORKERS))
@pytest.mark.parametrize(
    ("source", "options"),
    [
        pytest.param("FrozenLake-v1", {"wrappers": [CountsEpisodes]}, id="native"),
        pytest.param(
            "Pendulum-v1", {"wrappers": [CountsEpisodes]}, id="dense", marks=pytest.mark.full
        ),
        pytest.param(
            "InvertedPendulum-v5",
            {"wrappers": [CountsEpisodes]},
            id="robot",
            marks=pytest.mark.full,
        ),
        pytest.param(CountingEnv, {"snapshot": "pickle"}, id="pickle"),
        pytest.param(CountingEnv, {"snapshot": "replay"}, id="replay", marks=pytest.mark.full),
    ],
)
def test_what_counts_episodes_is_the_same_in_workers(
    workers: dict[str, Any], source: Any, options: dict[str, Any]
) -> None:
    with plangym_like.make(source, **options) as serial:
        action = serial.action_space.sample()
        expected = serial.step_batch([action], serial.reset(seed=0).state).rewards[0]
    with plangym_like.make(source, **options, **workers) as env:
        assert (use_workers(env, action).rewards == expected).all()


@pytest.mark.parametrize("workers", first_of(WORKERS))
@pytest.mark.parametrize("change", ["SCALE", "PRICE"])
def test_a_changed_variable_is_an_error(
    module: Any, monkeypatch: pytest.MonkeyPatch, workers: dict[str, Any], change: str
) -> None:
    with plangym_like.make(module.Scaled, **workers) as env:
        assert use_workers(env, 0).obs[0] == 1
    monkeypatch.setattr(module if change == "SCALE" else module.Scaled, change, 3)
    field = "observation" if change == "SCALE" else "reward"
    with (
        plangym_like.make(module.Scaled, **workers) as env,
        pytest.raises(DifferentWorkerError, match=f"the {field} of step 1 is"),
    ):
        use_workers(env, 0)


def test_a_change_inside_the_function_that_makes_the_environment_reaches_workers(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SCALE", 1)

    def make() -> Any:
        import scaled_world  # type: ignore[import-not-found]

        scaled_world.SCALE = 3
        return scaled_world.Scaled()

    with plangym_like.make(make, n_workers=2, isolate=True) as env:
        assert use_workers(env, 0).obs[0] == 3


class Sums(gymnasium.Env[Any, Any]):
    """Adds the sine of 1 in each step."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.sum = 0.0
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        self.sum = self.added()
        return np.array([self.sum]), 0.0, False, False, {}

    def added(self) -> float:
        return self.sum + math.sin(1.0)


class Tensors(Sums):
    """Computes with torch's default dtype."""

    def added(self) -> float:
        import torch

        return float(torch.tensor(self.sum) + torch.ones(1).sin()[0])


@pytest.mark.parametrize("workers", first_of(WORKERS))
def test_workers_have_the_default_dtype_of_torch(workers: dict[str, Any]) -> None:
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with plangym_like.make(Tensors, **workers) as env:
            assert (use_workers(env, 0).obs == np.sin(1.0)).all()
    finally:
        torch.set_default_dtype(before)


class Honest(Sums):
    """Gives other infos in each process, and draws from global generators in its constructor."""

    def __init__(self) -> None:
        self.phase = random.random() * 0

    def step(self, action: Any) -> Any:
        *outcome, _ = super().step(action)
        return *outcome, {"pid": os.getpid()}


class Approximate(Sums):
    """Is approximate because its infos count steps, and gives other results in each process."""

    count = itertools.count()

    def step(self, action: Any) -> Any:
        obs, *outcome, _ = super().step(action)
        return obs + os.getpid(), *outcome, {"count": next(self.count)}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("workers", first_of(WORKERS))
@pytest.mark.parametrize("env_class", [Honest, Approximate])
def test_other_differences_between_processes_are_no_error(
    env_class: Any, workers: dict[str, Any]
) -> None:
    with plangym_like.make(env_class, **workers) as env:
        assert env.exactness == ("exact" if env_class is Honest else "approximate")
        use_workers(env, 0)


class Drawn(gymnasium.Env[Any, Any]):
    """Adds a number to its sum in each step; subclasses choose the number."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, given: Any = None) -> None:
        self.total, self.episodes = 0.0, 0
        self.given = given
        self.draw()

    def draw(self) -> None:
        """Draw what differs between environments."""

    def number(self) -> float:
        """Return the number to add."""
        return 1.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episodes += 1
        self.total = 0.0
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        self.total += self.number()
        return np.array([self.total]), self.total, False, False, {}


class DrawnFromGlobal(Drawn):
    def draw(self) -> None:
        self.drawn = random.random() + np.random.random()

    def number(self) -> float:
        return self.drawn


class DrawnFromEntropy(DrawnFromGlobal):
    def draw(self) -> None:
        self.drawn = np.random.default_rng().random()


class DrawnFromTheProcess(DrawnFromGlobal):
    def draw(self) -> None:
        self.drawn = float(os.getpid())


class OwnGenerators(Drawn):
    def draw(self) -> None:
        self.own, self.other = random.Random(), np.random.default_rng()

    def number(self) -> float:
        return self.own.random() + self.other.random()


class FirstEpisode(Drawn):
    def number(self) -> float:
        return float(self.episodes)


class FirstOfItsProcess(DrawnFromGlobal):
    made: ClassVar[list[int]] = []

    def draw(self) -> None:
        self.made.append(os.getpid())
        self.drawn = float(len(self.made) == 1)


class Given(Drawn):
    def number(self) -> float:
        self.given.step(0)
        return float(self.given.total)


LEGITIMATE = [
    DrawnFromGlobal,
    DrawnFromEntropy,
    DrawnFromTheProcess,
    OwnGenerators,
    FirstEpisode,
    FirstOfItsProcess,
    Given,
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("workers", first_of(WORKERS))
@pytest.mark.parametrize("kind", LEGITIMATE)
def test_environments_that_differ_from_each_other_and_not_from_their_states_are_no_error(
    kind: Any, workers: dict[str, Any]
) -> None:
    arguments: dict[str, Any] = {}
    if kind is Given:
        arguments["given"] = FirstEpisode()
        arguments["given"].reset(seed=3)
    with (
        plangym_like.make(kind, **workers, **arguments) as env,
        plangym_like.make(kind, **arguments) as serial,
    ):
        state = env.reset(seed=0).state
        found = use_workers(env, 0, state)
        if env.exactness == "exact":
            expected = serial.step_batch([0], state)
            assert (found.obs == expected.obs[0]).all()
            assert (found.rewards == expected.rewards[0]).all()


def test_the_caller_is_not_disturbed() -> None:
    for name in ("CartPole-v1", "Hopper-v5", "LunarLander-v3"):
        random.seed(5)
        np.random.seed(5)
        with plangym_like.make(name) as serial, plangym_like.make(name, n_workers=2) as env:
            assert random.random() == random.Random(5).random()
            assert np.random.random() == np.random.RandomState(5).random()
            for seed in (3, None, None):
                if seed is None:
                    serial.set_state(env.get_state())
                one, other = (each.reset(seed=seed) for each in (serial, env))
                assert (one.state == other.state).all()
                assert (one.obs == other.obs).all()


def test_the_caller_of_isolated_workers_takes_a_few_steps_after_a_worker_has(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    with plangym_like.make(Recorder, n_workers=1, isolate=True, path=str(log)) as env:
        pids = log.read_text().split()
        use_workers(env, 0)
    ours = str(os.getpid())
    first = pids.index(ours)
    assert 3 <= pids.count(ours) <= 8
    assert first > 8
    # The caller takes no other steps than those that were tried.
    assert log.read_text().split().count(ours) == pids.count(ours)


class Recorder(Tensors):
    """Appends the process id of each step to a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def step(self, action: Any) -> Any:
        with open(self.path, "a") as log:
            log.write(f"{os.getpid()}\n")
        return super().step(action)


class Nested(Tensors):
    """Observations and rewards of several types."""

    def __init__(self, scale: float = 1.0, *, fails_at: int = 10**9) -> None:
        self.scale, self.fails_at, self.count = scale, fails_at, 0

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == self.fails_at:
            raise FloatingPointError("the world is broken")
        obs = {"text": "a", "parts": (np.full((100, 100), self.scale), np.float32(2), None)}
        return obs, 1, False, False, {}


def test_floats_may_differ_a_little_and_other_values_may_not() -> None:
    expected = play(Nested())
    assert 4 <= len(expected.outcomes) <= 9
    check(expected, play(Nested(1 + 1e-9)))
    check(expected, play(Nested(fails_at=3)))
    with pytest.raises(DifferentWorkerError, match=r"of step 1 is 1\.001 in the worker"):
        check(expected, play(Nested(1.001)))
    found = play(Nested(np.nan))
    assert first_difference(found, play(Nested(np.nan))) is None
    assert first_difference(found, expected) == ("the observation of step 1", "nan", "1.0")
