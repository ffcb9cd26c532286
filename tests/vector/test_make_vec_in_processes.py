"""`make_vec` in several processes returns what it returns in one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from small_envs import Fuse, Nested, Teller
from test_make_vec import MODES, compare, same
from usual import first_of

import plangym_like
from plangym_like import make_vec, registry
from plangym_like.errors import RemoteError, WorkerDiedError
from plangym_like.execution import known_ids
from plangym_like.vector.process_lanes import ProcessLanes

pytestmark = pytest.mark.usefixtures("always_in_processes")


@pytest.fixture
def make(make: Callable[..., Any]) -> Callable[..., Any]:
    """Check that the environments are in processes."""

    def make_one(*args: Any, **kwargs: Any) -> Any:
        envs = make(*args, **kwargs)
        assert isinstance(envs._lanes, ProcessLanes)
        return envs

    return make_one


SHORT = partial(gymnasium.make, "HalfCheetah-v5", max_episode_steps=17)
RAM = partial(gymnasium.make, "ALE/MsPacman-v5", obs_type="ram", repeat_action_probability=0.0)


@pytest.mark.parametrize(
    ("source", "mode"),
    [
        *[(source, mode) for source in ("CartPole-v1", SHORT) for mode in MODES],
        ("FrozenLake-v1", "SameStep"),
        ("Hopper-v5", "Disabled"),
        (Teller, "SameStep"),
        *first_of([(source, mode) for source in (Nested, RAM) for mode in MODES], 0),
    ],
)
def test_it_returns_what_gymnasiums_own_returns(
    make: Callable[..., Any], source: Any, mode: str
) -> None:
    one = partial(gymnasium.make, source) if isinstance(source, str) else source
    theirs = SyncVectorEnv([one] * 5, autoreset_mode=mode)
    ours = make(source, 5, 2 if mode == "NextStep" else 3, autoreset_mode=mode)
    assert compare(theirs, ours, steps=60, mode=mode) > 0 or source is RAM
    assert ours.observation_space == theirs.observation_space


@pytest.mark.usefixtures("gymnasium_registry")
def test_ids_that_only_the_caller_has_registered(make: Callable[..., Any]) -> None:
    gymnasium.register("Named-v0", "small_envs:Nested")
    gymnasium.register("Given-v0", Nested)
    gymnasium.register("Other-v0", Nested, kwargs={"lock": threading.Lock()})
    for source in ("Named-v0", lambda: gymnasium.make("Given-v0")):
        envs = make(source, 3, 2)
        here = make_vec(source, 3)
        assert same(envs.reset(seed=1), here.reset(seed=1))


@pytest.mark.usefixtures("gymnasium_registry")
@pytest.mark.filterwarnings("ignore:.*Overriding environment")
def test_gymnasiums_ids_that_the_caller_has_registered_again(make: Callable[..., Any]) -> None:
    entry_point = gymnasium.registry["CartPole-v1"].entry_point
    gymnasium.register("CartPole-v1", entry_point, max_episode_steps=2)
    for source in ("CartPole-v1", lambda: gymnasium.make("CartPole-v1")):
        envs = make(source, 4, 2)
        envs.reset(seed=0)
        assert [envs.step([0] * 4)[3].tolist() for _ in range(2)] == [[False] * 4, [True] * 4]


def test_families_that_the_caller_has_registered(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_ids, "user_families", [])
    monkeypatch.setattr(registry, "user_families", known_ids.user_families)
    plangym_like.register(
        "CartPole-v1", lambda _, **kwargs: plangym_like.ClassicControlEnv("Acrobot-v1", **kwargs)
    )
    assert make("CartPole-v1", 4, 2).reset(seed=0)[0].shape == (4, 6)


@pytest.mark.parametrize("mode", ["Disabled", "NextStep"])
def test_states_of_ended_episodes_are_lost_with_their_process(
    make: Callable[..., Any], mode: str
) -> None:
    envs = make("CartPole-v1", 4, 2, autoreset_mode=mode, max_episode_steps=2)
    envs.reset(seed=3)
    for _ in range(2):
        envs.step([0, 1, 0, 1])
    assert envs.ended.all()
    os.kill(*envs.pids, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(WorkerDiedError):
            envs.get_states()
    assert envs.get_states([0, 1]).shape == (2, envs.state_nbytes)
    if mode == "Disabled":
        envs.reset(options={"reset_mask": np.array([True, True, False, True])})
        with pytest.raises(WorkerDiedError, match=r"lanes \[2\]"):
            envs.get_states()
        envs.reset()
    else:
        assert not envs.step([0, 1, 0, 1])[4]
    assert len(envs.get_states()) == 4 and envs.stats.lanes_ended == 0


class Holder(Fuse):
    """Returns an info that cannot be pickled when it is told to."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(min(action, 2))
        return obs, reward, terminated, truncated, {"lock": threading.Lock()} if action == 3 else {}


@pytest.mark.parametrize("mode", first_of(MODES))
def test_an_info_that_cannot_be_pickled(make: Callable[..., Any], mode: str) -> None:
    envs = make(Holder, 4, 2, autoreset_mode=mode)
    envs.reset(seed=0)
    with pytest.raises(TypeError, match="cannot pickle") as caught:
        envs.step([0, 0, 0, 3])
    assert "the info 'lock' of lane 3 cannot be pickled" in caught.value.__notes__
    envs.reset(seed=0)
    assert envs.step([1] * 4)[0].tolist() == [1, 1, 1, 1]


class Leaver(Fuse):
    """Raises what ends a program."""

    raises: type[BaseException] = SystemExit

    def step(self, action: Any) -> Any:
        raise self.raises


@pytest.mark.parametrize("raises", first_of([KeyboardInterrupt, SystemExit, GeneratorExit]))
def test_what_would_end_the_program_says_which_environment(
    make: Callable[..., Any], raises: type[BaseException]
) -> None:
    envs = make([Fuse, Fuse, Fuse, type("Leaver", (Leaver,), {"raises": raises})], n_workers=2)
    envs.reset(seed=0)
    with pytest.raises(RemoteError, match=raises.__name__) as caught:
        envs.step([0, 0, 0, 0])
    assert any("lane 3" in note for note in caught.value.__notes__)
