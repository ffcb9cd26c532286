"""What users read after a mistake: the message names the mistake and the remedy."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.error import Error as GymnasiumError
from gymnasium.error import NameNotFound, UnregisteredEnv, VersionNotFound
from gymnasium.wrappers import FlattenObservation, TimeLimit
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from small_envs import Scaled
from suite import TAXI

from plangym_like import (
    AtariEnv,
    ClassicControlEnv,
    StateArchive,
    check_env,
    make,
    make_vec,
    planners,
)
from plangym_like.batchers.rollout import BaseActorModule, same
from plangym_like.batchers.workspaces import ParallelGymAgent, TemporalAgent
from plangym_like.envs.family_env import WAYS
from plangym_like.errors import (
    ActionError,
    EnvApiError,
    InputError,
    RewardError,
    SnapshotError,
    StateFormatError,
    StateMismatchError,
)
from plangym_like.support.arguments import OPTIONS


@pytest.fixture
def env() -> Iterator[Any]:
    with make("CartPole-v1") as env:
        env.reset(seed=0)
        yield env


# Environments to make mistakes with


class Plain(gymnasium.Env[Any, Any]):
    """Has no constructor of its own."""

    observation_space = gymnasium.spaces.Box(-9, 9, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2), 0.0, False, False, {}


class OldReset(Plain):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2)


class OldStep(Plain):
    def step(self, action: Any) -> Any:
        return np.zeros(2), 0.0, False, {}


class ResetWithoutSeed(Plain):
    def reset(self) -> Any:  # type: ignore[override]
        return np.zeros(2), {}


class WithoutSpace(Plain):
    action_space = None  # type: ignore[assignment]


class WithoutInfo(Plain):
    def step(self, action: Any) -> Any:
        return np.zeros(2), 0.0, False, False, None


class Rewards(Plain):
    """Rewards two agents."""

    def step(self, action: Any) -> Any:
        return np.zeros(2), {"left": 1.0, "right": -1.0}, False, False, {}


class Duel:
    """An environment of two agents, with the members that PettingZoo's have."""

    possible_agents = ("player_0", "player_1")

    def __init__(self) -> None:
        self.agents = list(self.possible_agents)


def needs_a_depth(depth: int) -> gymnasium.Env[Any, Any]:
    raise AssertionError(depth)


class Actor(BaseActorModule):
    """Is never called."""


CART = "CartPole-v1"
Call = Callable[..., Any]


def made(*given: Any, **options: Any) -> Call:
    """Return a call of `make`."""
    return lambda e: make(*given, **options)


# A call with an environment, the class of its error, and words of the message.
CALLS: list[tuple[Call, type[Exception], str]] = [
    # Options
    (made(CART, qqq=2), InputError, r"neither make nor \w+Env has an option 'qqq'$"),
    (made(CART, 1, frame_skip_=2), InputError, "option 'frame_skip_'; did you mean 'frameskip'"),
    (made(Plain, n_worker=2), InputError, "nor Plain has an option 'n_worker'; did you mean"),
    (made(partial(CartPoleEnv), frameskp=2), InputError, "did you mean 'frameskip'"),
    (made(CART, replay_capacity=2), InputError, "'replay_capacity'; it belongs to snapshot='repl"),
    (made(Plain, start_method="spawn"), InputError, "'start_method'; it belongs to n_workers"),
    (made(CART, ray=4), InputError, "ray must be True or False, got 4"),
    (made(CART, snapshot="copy"), InputError, "'native', 'pickle' or 'replay', got 'copy'"),
    (made(CART, out_of_bounds="no"), InputError, "must be 'pass', 'raise' or 'clip', got 'no'"),
    (made(CART, audit_every=0), InputError, "audit_every must be a whole number of at least 1"),
    (made(Plain, state_capacity=1.5), InputError, "state_capacity must be a whole number of at"),
    (made(CART, obs_type="ram"), InputError, "obs_type must be one of"),
    (made(CART, frameskip=0), InputError, "frameskip must be a whole number of at least 1"),
    (made(CART, n_workers=0), InputError, "n_workers must be a whole number of at least 1, got 0"),
    (made(CART, n_workers=1, step_timeout=10**400), InputError, "step_timeout"),
    (lambda e: make_vec(CART, 2, n_worker=2), InputError, "'n_worker'; did you mean 'n_workers'"),
    (lambda e: ClassicControlEnv(CART, frame_skip=2), InputError, "did you mean 'frameskip'?"),
    (lambda e: e.clone(n_workers=2), InputError, "no option 'n_workers'; give it to plangym_like"),
    (lambda e: check_env(CART, states="4"), InputError, "states must be a whole number .* got '4'"),
    (lambda e: e.make_state(x=10**400), InputError, "x"),
    # What to make
    (made(3), InputError, "Gymnasium id or a callable that returns .*, got 3"),
    (made([CART]), InputError, r"for several environments at once there is plangym_like.make_vec"),
    (lambda e: make(e), InputError, "it was made already: give its id, or a function that makes"),
    (made("foo.xml"), InputError, r"make_mujoco\('/.*/foo.xml', reward=\.\.\.\).* with --reward$"),
    (made("/x/foo.URDF"), InputError, r"make_mujoco\('/x/foo.URDF', reward="),
    (made(Path("foo.xml")), InputError, r"make_mujoco\('/.*/foo.xml', reward="),
    (made(dict), InputError, r"dict must return a gymnasium\.Env, got .* builtins\.dict"),
    (made(needs_a_depth), InputError, "cannot be called: missing a required argument: 'depth'"),
    (made(TimeLimit), InputError, "TimeLimit cannot be called: missing a required argument"),
    (made(":Nope"), InputError, "':Nope' must begin with the name of a module"),
    (made(Duel), InputError, r"of 2 agents \(player_0, player_1\)\. A gymnasium.Env has one"),
    (lambda e: make_vec(Duel, 2), InputError, "of 2 agents"),
    (lambda e: AtariEnv(CART), SnapshotError, "CartPole-v1 is not a game of ale-py"),
    (made("Unheard-Of-5x5-v0"), NameNotFound, r"exist\. If a package registers it, .*package:Unh"),
    (made("CartPole"), GymnasiumError, r"\w`?[.?] Near matches: CartPole-v1"),
    (made("CartPole-v9"), VersionNotFound, "Near matches: .*CartPole-v1"),
    (made("ALE/MsPackman-v5"), NameNotFound, "matches: .*ALE/MsPacman-v5"),
    (made("json:Nope"), UnregisteredEnv, "^importing json registers no id 'Nope'. The module has"),
    (made("json:JSONDecoder"), UnregisteredEnv, r"use make\(json.JSONDecoder\)"),
    (lambda e: make_vec("gymnasium:CartPol-v1", 2), UnregisteredEnv, "has no callable of this"),
    # Wrappers
    (made(CART, wrappers=FlattenObservation), InputError, "a list of wrapper classes or pairs"),
    (made(CART, wrappers=[dict]), InputError, "builtins.dict is not a gymnasium.Wrapper"),
    (made(CART, wrappers=[RecordEpisodeStatistics]), InputError, "apply it to the result"),
    (made(CART, wrappers=[TimeLimit]), InputError, "required argument: 'max_ep.*; .* in a pair"),
    (made(CART, wrappers=[partial(TimeLimit, size=2)]), InputError, "cannot be made"),
    (made(CART, wrappers=[lambda env: None]), InputError, "<lambda> must return a gymnasium.Env"),
    # Environments of another API
    (made(OldReset), EnvApiError, r"reset returned a ndarray, not \(obs, info\)"),
    (made(OldStep), EnvApiError, r"tuple of 4 parts, not .* as in Gym before 0\.26"),
    (made(WithoutInfo), EnvApiError, "the info must be a dict, got NoneType"),
    (made(ResetWithoutSeed), EnvApiError, r"cannot .* as reset\(self, \*, seed"),
    (made(WithoutSpace), EnvApiError, "action_space of WithoutSpace is None, not a"),
    # Actions
    (lambda e: e.step_batch([[0], [1]]), ActionError, r"have shape \(N\), got shape \(2, 1\)"),
    (lambda e: e.step_batch([0.0, 1.0]), ActionError, "whole numbers: convert them with astype"),
    (lambda e: e.step_batch(a for a in (0, 1)), ActionError, "or a list, not a generator"),
    (lambda e: e.step(np.array([1])), ActionError, "step takes one action, step_batch takes"),
    (lambda e: e.step(None), ActionError, "give an array or a list, not a NoneType"),
    (lambda e: e.step_batch([0, 1], dt=10**400), InputError, "dt must be"),
    (lambda e: e.step(0, dt=[1, 2]), InputError, "step takes one dt, not one for each row"),
    (lambda e: e.step_batch([0, 1], on_error="ignore"), InputError, "on_error must be 'raise' or"),
    # States and seeds
    (lambda e: e.step_batch([0], e.reset(seed=0)), StateFormatError, "give its .state$"),
    (lambda e: e.step_batch([0], 4), StateFormatError, "of class int; a dt is given by name, as"),
    (lambda e: e.step_batch([0], e.reset().obs), StateFormatError, "observation is not a"),
    (lambda e: e.set_state([e.get_state()] * 2), InputError, "expected one state row, got 2"),
    (lambda e: e.reset(seed="a"), InputError, "seed must be a whole number of at least 0, got"),
    (lambda e: e.reset(options=["low"]), InputError, "options must be a dict or None, got"),
    # Planners, archives and batchers
    (lambda e: planners.UCT(e.as_gym()), InputError, "environment that as_gym was called on"),
    (lambda e: planners.UCT(gymnasium.make(CART)), InputError, "needs an environment of plangym"),
    (lambda e: planners.play("UCT", 10, budget=1), InputError, r"such as UCT\(env\), got"),
    (lambda e: StateArchive(e, "visits"), InputError, "must be a dict of names and dtypes, got"),
    (lambda e: same.rollout(CART, Actor(), 5), InputError, "envs must be a list .* got 'CartPole"),
    (lambda e: same.rollout([CART], Actor(), 5), InputError, "must hold environments, .* got"),
    (lambda e: same.rollout([e], Actor(), "5"), InputError, "n_steps must be a whole .* got '5'"),
    (lambda e: same.rollout([e], Actor, 5), InputError, "must be a BaseActorModule, .*; make"),
    (lambda e: TemporalAgent(3), InputError, "a TemporalAgent calls an Agent, got 3"),
    (lambda e: ParallelGymAgent(CART, "2"), InputError, "num_envs must be a whole .* got '2'"),
    # Attributes and files
    (lambda e: e.step_bach, AttributeError, "'PlanEnv' object has no attribute 'step_bach'"),
    (lambda e: e.save_states("/no/such", e.get_state()), FileNotFoundError, "no such folder: .*no"),
]


@pytest.mark.filterwarnings("ignore:.*unclosed")
@pytest.mark.parametrize(("call", "error", "words"), CALLS)
def test_a_call(env: Any, call: Call, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(env)


def test_the_options_of_make_are_known_and_explained() -> None:
    named = {*inspect.signature(make).parameters} - {"name", "env_kwargs"}
    of_snapshots = {option for _, options in WAYS.values() for option in options}
    assert named | of_snapshots <= OPTIONS.keys()
    told = inspect.getdoc(make) or ""
    for option in OPTIONS:
        assert re.search(rf"^{option} : |``{option}\b", told, re.MULTILINE), option


def test_errors_of_the_users_own_code_are_raised_unchanged() -> None:
    def broken() -> gymnasium.Env[Any, Any]:
        raise TypeError("broken() got an unexpected keyword argument 'depth'")

    with pytest.raises(TypeError, match="unexpected keyword argument 'depth'"):
        make(broken)
    with pytest.raises(ModuleNotFoundError) as caught:
        make("no_such_module:Env-v0")
    assert "make imported the module of no_such_module:Env-v0" in caught.value.__notes__[0]


def test_rewards_of_several_agents() -> None:
    with make(Rewards) as env:
        env.reset(seed=0)
        with pytest.raises(RewardError, match="combine the rewards of several agents"):
            env.step(0)


PONG: dict[str, Any] = {"name": "ALE/Pong-v5", "obs_type": "ram"}
STICKY, BREAKOUT = {**PONG, "repeat_action_probability": 0.25}, {**PONG, "name": "ALE/Breakout-v5"}
TWICE, THRICE = ({"wrappers": [(Scaled, {"scale": scale})]} for scale in (2.0, 3.0))


@pytest.mark.parametrize(
    ("here", "other", "words"),
    [
        ({}, {"sutton_barto_reward": True}, "kwargs is {'sutton_barto_reward': True} in the row"),
        ({"sutton_barto_reward": True}, {}, "kwargs is {} in the row and {'sutton_barto_reward'"),
        ({}, {"remove_time_limit": False}, "wrappers is .*_steps': 500.* in the row and .. here$"),
        (TWICE, THRICE, "'scale': 3.0.* in the row and .*'scale': 2.0.* here$"),
        ({}, {"name": "Acrobot-v1"}, "id is 'Acrobot-v1' in the row and 'CartPole-v1' here$"),
        ({}, {"name": TAXI}, "it is of the family TOYT, but the environment is of CLAS$"),
        (PONG, STICKY, "settings is {.* in the row and {.* here$"),
        (PONG, BREAKOUT, "game is 'breakout' in the row and 'pong' here$"),
    ],
)
def test_a_state_of_another_environment(here: Any, other: Any, words: str) -> None:
    with make(**{"name": CART, **here}) as env, make(**{"name": CART, **other}) as there:
        env.reset(seed=0)
        state = there.reset(seed=0).state
        for use in (env.set_state, lambda row: env.step_batch([0], row)):
            with pytest.raises(StateMismatchError, match=words) as caught:
                use(state)
            assert len(str(caught.value)) < 400


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_copies_of_a_live_and_of_a_closed_environment(copied: Callable[[Any], Any]) -> None:
    env = make(CART)
    with env, pytest.raises(TypeError, match=r"use clone\(\)"):
        copied(env)
    with pytest.raises(TypeError, match=r"is closed, and cannot be .* use clone\(\)"):
        copied(env)
    with pytest.raises(AttributeError, match="closed 'PlanEnv' object has no attribute 'gravity'"):
        _ = env.gravity


# What is no mistake


class ForeignArray:
    """Becomes an array of NumPy as JAX's arrays do."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self.values, dtype)

    def __index__(self) -> int:
        return int(self.values)

    def __getitem__(self, index: int) -> ForeignArray:
        return ForeignArray(self.values[index])


@pytest.mark.parametrize("kind", [torch.tensor, ForeignArray])
def test_arrays_of_other_libraries_are_taken_as_arrays(env: Any, kind: Any) -> None:
    state = env.get_state()
    expected = env.step_batch([0, 1], state)
    assert np.array_equal(env.step_batch(kind([0, 1]), kind(state[None])).states, expected.states)
    assert np.array_equal(env.step(kind(1), kind(state)).state, expected.states[1])
    assert np.array_equal(env.reset(seed=np.int64(3)).state, env.reset(seed=3).state)
