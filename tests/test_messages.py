"""What users read after a mistake: the message names the mistake and the remedy."""

from __future__ import annotations

import copy
import inspect
import json
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
from gymnasium.error import NameNotFound, UnregisteredEnv
from gymnasium.wrappers import FlattenObservation, FrameStackObservation, TimeLimit
from gymnasium.wrappers.vector import RecordEpisodeStatistics
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
from plangym_like.batchers.rollout import BaseActorModule, evaluate, multi, same
from plangym_like.batchers.workspaces import ParallelGymAgent, TemporalAgent
from plangym_like.envs.family_env import WAYS
from plangym_like.errors import (
    ActionError,
    ClosedError,
    EnvApiError,
    InputError,
    PlangymError,
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


class WithoutSomeInfos(Plain):
    """Two actions, which trials do not take, give no info."""

    action_space = gymnasium.spaces.Discrete(1000)

    def step(self, action: Any) -> Any:
        return np.zeros(2), 0.0, False, False, {998: (), 999: None}.get(int(action), {})


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


CALLABLES: dict[str, Any] = {
    "class": Plain,
    "constructor": CartPoleEnv,
    "function": lambda: Plain(),
    "partial": partial(CartPoleEnv, sutton_barto_reward=True),
}
CART = "CartPole-v1"
Call = Callable[..., Any]

# What `make` is given, and words of the InputError.
OF_MAKE: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((CART,), {"frame_skip_": 2}, r"neither make nor \w+Env has an option 'frame_skip_'; did you"),
    ((CART, 1), {"frame_skip_": 2}, "option 'frame_skip_'; did you mean 'frameskip'"),
    (("ALE/Pong-v5",), {"frame_skip_": 2}, "option 'frame_skip_'; did you mean 'frameskip'"),
    (("HalfCheetah-v5",), {"qqq": 1}, "has an option 'qqq'$"),
    ((Plain,), {"n_worker": 2}, "nor Plain has an option 'n_worker'; did you mean 'n_workers'"),
    (
        (CART,),
        {"replay_capacity": 2},
        "no option 'replay_capacity'; it belongs to snapshot='replay'",
    ),
    ((CART,), {"live_prefixes": 2}, "no option 'live_prefixes'; it belongs to snapshot='replay'"),
    ((CART,), {"allow_pickle": 2}, "no option 'allow_pickle'; it belongs to snapshot='pickle'"),
    ((CART,), {"seed": 0}, r"an option 'seed'; give it to reset\(seed=...\)"),
    (
        (CART,),
        {"num_envs": 3},
        "an option 'num_envs'; several .* are made by plangym_like.make_vec",
    ),
    ((CART,), {"env_kwargs": {"a": 1}}, "give its entries as options of their own"),
    ((CART,), {"ray": 4}, "ray must be True or False, got 4"),
    ((Plain,), {"state_capacity": -1}, "state_capacity must be a whole number of at least 1"),
    ((Plain,), {"state_capacity": "2"}, "state_capacity must be a whole number of at least 1"),
    ((Plain,), {"state_capacity": 1.5}, "state_capacity must be a whole number of at least 1"),
    ((CART,), {"n_workers": 0}, "n_workers must be a whole number of at least 1, got"),
    ((CART,), {"n_workers": 2.5}, "n_workers must be a whole number of at least 1, got"),
    ((CART,), {"n_workers": "2"}, "n_workers must be a whole number of at least 1, got"),
    ((CART,), {"n_workers": 1, "step_timeout": 10**400}, "step_timeout"),
    ((CART,), {"n_workers": 1, "start_timeout": 10**400}, "start_timeout"),
    # What to make
    ((dict,), {}, r"dict must return a gymnasium\.Env, got .* builtins\.dict"),
    (([CART] * 2,), {}, "for several environments at once there is plangym_like.make_vec"),
    ((gymnasium.spec(CART),), {}, r"pass its id: make\('CartPole-v1'\)"),
    ((needs_a_depth,), {}, "needs_a_depth cannot be called: missing a required argument: 'depth'"),
    ((TimeLimit,), {}, "TimeLimit cannot be called: missing a required argument"),
    ((json,), {}, "give a class or a function of the module"),
    ((":Nope",), {}, "':Nope' must begin with the name of a module"),
    ((Duel,), {}, r"of 2 agents \(player_0, player_1\)\. A gymnasium.Env has one: write one"),
    ((lambda: Duel(),), {"snapshot": "replay"}, r"of 2 agents \(player_0, player_1\)"),
    ((Duel(),), {}, r"of 2 agents \(player_0, player_1\)"),
    # Wrappers
    ((CART,), {"wrappers": FlattenObservation}, r"a list of wrapper classes or pairs"),
    ((CART,), {"wrappers": ["FlattenObservation"]}, r"a list of wrapper classes or pairs"),
    ((CART,), {"wrappers": (FrameStackObservation, {"stack_size": 2})}, "a list of wrapper"),
    ((CART,), {"wrappers": [dict]}, "builtins.dict is not a gymnasium.Wrapper"),
    ((CART,), {"wrappers": [RecordEpisodeStatistics]}, "apply it to the result of make_vec"),
    (
        (CART,),
        {"wrappers": [FrameStackObservation]},
        "required argument: 'stack_size'; .* in a pair",
    ),
    ((CART,), {"wrappers": [(FrameStackObservation, {"size": 2})]}, "unexpected|missing"),
    ((CART,), {"wrappers": [partial(FrameStackObservation, size=2)]}, "cannot be made"),
    (
        (CART,),
        {"wrappers": [lambda env: None]},
        "<lambda> must return a gymnasium.Env, got .*NoneType",
    ),
]


@pytest.mark.parametrize(("given", "options", "words"), OF_MAKE)
def test_what_make_is_given(given: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make(*given, **options)


# A call with an environment, the class of its error, and words of the message.
CALLS: list[tuple[Call, type[Exception], str]] = [
    # Options
    (lambda e: make_vec(CART, 2, n_worker=2), InputError, "'n_worker'; did you mean 'n_workers'"),
    (lambda e: ClassicControlEnv(CART, frame_skip=2), InputError, "did you mean 'frameskip'?"),
    (lambda e: e.clone(frame_skip=2), InputError, "'frame_skip'; did you mean 'frameskip'?"),
    (lambda e: check_env(CART, frame_skip=2), InputError, "did you mean 'frameskip'?"),
    (lambda e: e.clone(n_workers=2), InputError, "no option 'n_workers'; give it to plangym_like"),
    (lambda e: make_vec(CART, 2, timeout=10**400), InputError, "timeout"),
    (lambda e: check_env(CART, states="4"), InputError, "states must be a whole number .* got '4'"),
    (lambda e: planners.UCT(e, discount=10**400), InputError, "discount"),
    (lambda e: planners.UCT(e, discount=-(10**400)), InputError, "discount"),
    (lambda e: e.make_state(x=10**400), InputError, "x"),
    # What to make
    (lambda e: make(e), InputError, r"it was made already: .* call its clone\(\)"),
    (lambda e: make_vec(Duel, 2), InputError, "of 2 agents"),
    (lambda e: make_vec(Duel(), 2), InputError, "of 2 agents"),
    (lambda e: check_env(Duel()), InputError, "of 2 agents"),
    (lambda e: AtariEnv(CART), SnapshotError, "CartPole-v1 is not a game of ale-py"),
    (lambda e: make("Unheard-Of-5x5-v0"), NameNotFound, r"exist\. If a package registers it, .*"),
    (lambda e: make("CartPole"), GymnasiumError, r"\w`?[.?] Near matches: CartPole-v1"),
    (lambda e: make("CartPol-v1"), GymnasiumError, r"\w`?[.?] Near matches: CartPole-v1"),
    (lambda e: make("cartpole-v1"), GymnasiumError, "Near matches: .*CartPole-v1"),
    (lambda e: make("MsPacman-v5"), GymnasiumError, "Near matches: .*ALE/MsPacman-v5"),
    (lambda e: make("ALE/MsPackman-v5"), GymnasiumError, "matches: .*ALE/MsPacman-v5"),
    (lambda e: make("HalfCheetah-v9"), GymnasiumError, "Near matches: .*HalfCheetah-v5"),
    # Environments of another API
    (lambda e: make(OldReset), EnvApiError, r"reset returned a ndarray, not \(obs, info\)"),
    (lambda e: make(OldStep), EnvApiError, r"tuple of 4 parts, not .* as in Gym before 0\.26"),
    (lambda e: make(OldStep, 1), EnvApiError, r"tuple of 4 parts, not .* as in Gym before 0\.26"),
    (lambda e: make(WithoutInfo), EnvApiError, "the info must be a dict, got NoneType"),
    (lambda e: make(ResetWithoutSeed), EnvApiError, r"cannot .* as reset\(self, \*, seed"),
    (lambda e: make(WithoutSpace), EnvApiError, "action_space of WithoutSpace is None, not a"),
    # Actions
    (lambda e: e.step_batch([[0], [1]]), ActionError, r"have shape \(N\), got shape \(2, 1\)"),
    (lambda e: e.step_batch([0.0, 1.0]), ActionError, "dtype float64 do not fit the action"),
    (lambda e: e.step_batch([0, 2]), ActionError, "action 2 .*is not in the action space"),
    (lambda e: e.step_batch([None]), ActionError, "dtype object do not fit"),
    (lambda e: e.step_batch(a for a in (0, 1)), ActionError, "or a list, not a generator"),
    (lambda e: e.step(np.array([1])), ActionError, "step takes one action, step_batch takes"),
    (lambda e: e.step(1.0), ActionError, r"takes whole numbers: convert them with astype"),
    (lambda e: e.step("1"), ActionError, "they are text"),
    (lambda e: e.step(None), ActionError, "give an array or a list, not a NoneType"),
    (lambda e: e.step(2**70), ActionError, "whole numbers must fit into 64 bits"),
    (lambda e: e.step_batch([0, 10**400]), InputError, "64 bits|action"),
    (lambda e: e.step_batch([0, 1], dt=10**400), InputError, "dt must be"),
    (lambda e: e.step_batch([0, 1], seeds=[10**400, 1]), InputError, "seeds must be whole"),
    (lambda e: e.step(e.get_state(), [0, 1]), ActionError, "these are states: the first"),
    (lambda e: e.step_batch(e.get_state(), [0]), ActionError, "these are states: the first"),
    (lambda e: e.rollout_batch(e.get_state(), [0]), ActionError, "these are states: the"),
    # States and seeds
    (lambda e: e.step_batch([0], e.reset(seed=0)), StateFormatError, "give its .state$"),
    (lambda e: e.step_batch([0], e.step_batch([0])), StateFormatError, "give its .states$|.*"),
    (lambda e: e.step_batch([0], e.reset().obs), StateFormatError, "observation is not a"),
    (lambda e: e.step_batch([0], [e.get_state().tolist()]), StateFormatError, "asarray"),
    (lambda e: e.step_batch([0], e.get_state().tobytes()), StateFormatError, "frombuffer"),
    (lambda e: e.step_batch([0], 4), StateFormatError, "got int; a dt is given by name, as dt=4"),
    (lambda e: e.reset(seed="a"), InputError, "seed must be a whole number of at least 0, got"),
    (lambda e: e.reset(seed=-1), InputError, "seed must be a whole number of at least 0, got"),
    (lambda e: e.reset(seed=0.5), InputError, "seed must be a whole number of at least 0, got"),
    (lambda e: e.reset(seed=True), InputError, "seed must be a whole number of at least 0, got"),
    (lambda e: e.reset(options=3), InputError, "options must be a dict or None, got"),
    (lambda e: e.reset(options=["low"]), InputError, "options must be a dict or None, got"),
    # Planners, archives and batchers
    (lambda e: planners.UCT(e.as_gym()), InputError, "environment that as_gym was called on"),
    (lambda e: planners.play(planners.UCT, 10, budget=1), InputError, "play needs a planner"),
    (lambda e: planners.play("UCT", 10, budget=1), InputError, r"such as UCT\(env\), got"),
    (lambda e: planners.play(e, 10, budget=100), InputError, r"such as UCT\(env\), got"),
    (lambda e: StateArchive(e, "visits"), InputError, "must be a dict of names and dtypes, got"),
    (lambda e: same.rollout(CART, Actor(), 5), InputError, "envs must be a list .* got 'CartPole"),
    (lambda e: same.rollout(e, Actor(), 5), InputError, "a list of environments, got"),
    (lambda e: same.rollout([CART], Actor(), 5), InputError, "must hold environments, .* got"),
    (lambda e: same.rollout([e], Actor(), "5"), InputError, "n_steps must be a whole .* got '5'"),
    (lambda e: same.rollout([e], Actor, 5), InputError, "must be a BaseActorModule, .*; make"),
    (lambda e: multi.rollout(CART, Actor, 5), InputError, "must be a BaseActorModule, .*; make"),
    (lambda e: evaluate(CART, Actor()), InputError, "envs must be a list"),
    (lambda e: TemporalAgent(3), InputError, "a TemporalAgent calls an Agent, got 3"),
    (lambda e: ParallelGymAgent(CART, "2"), InputError, "num_envs must be a whole .* got '2'"),
    # Attributes
    (lambda e: e.step_bach, AttributeError, "'PlanEnv' object has no attribute 'step_bach'"),
]


@pytest.mark.parametrize(("call", "error", "words"), CALLS)
def test_a_call(env: Any, call: Call, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(env)


# Options, in other forms


def test_the_options_of_make_are_known_and_explained() -> None:
    named = {*inspect.signature(make).parameters} - {"name", "env_kwargs"}
    of_snapshots = {option for _, options in WAYS.values() for option in options}
    assert named | of_snapshots <= OPTIONS.keys()
    told = inspect.getdoc(make) or ""
    for option in OPTIONS:
        assert re.search(rf"^{option} : |``{option}\b", told, re.MULTILINE), option


@pytest.mark.parametrize("kind", CALLABLES)
def test_options_that_no_callable_has(kind: str) -> None:
    source = CALLABLES[kind]
    for options, words in [
        ({"frameskp": 2}, "has an option 'frameskp'; did you mean 'frameskip'?"),
        ({"num_envs": 3}, "an option 'num_envs'; several .* are made by plangym_like.make_vec"),
        ({"replay_capacity": 5, "snapshot": "pickle"}, "it belongs to snapshot='replay'"),
        ({"live_prefixes": 5, "snapshot": "pickle"}, "it belongs to snapshot='replay'"),
        ({"allow_pickle": True, "snapshot": "replay"}, "it belongs to snapshot='pickle'"),
        ({"start_method": "spawn"}, "has no option 'start_method'; it belongs to n_workers"),
        ({"runtime_env": {}, "n_workers": 2}, "it belongs to ray=True"),
    ]:
        with pytest.raises(InputError, match=words):
            make(source, **options)
    with pytest.raises(InputError, match="an option 'gravty'"):
        make_vec(source, 2, gravty=2)
    for option in ("wrappers", "snapshot", "obs_type"):
        with pytest.raises(InputError, match=rf"has no option '{option}'. .*plangym_like.make\("):
            make_vec(source, 2, **{option: []})


def test_a_type_error_of_the_environment_itself_is_raised_unchanged() -> None:
    def broken() -> gymnasium.Env[Any, Any]:
        raise TypeError("broken() got an unexpected keyword argument 'depth'")

    with pytest.raises(TypeError, match="unexpected keyword argument 'depth'"):
        make(broken)


# What to make, in other forms


def test_an_environment_and_a_wrapper_that_were_made_already() -> None:
    live: Any = gymnasium.make(CART)
    with live, pytest.raises(InputError, match=r"existing environment .*: make\('CartPole-v1'\)$"):
        make(live)
    wrapped = FlattenObservation(gymnasium.make(CART))
    with wrapped, pytest.raises(InputError, match="give its class, not the wrapper"):
        make(CART, wrappers=[wrapped])


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("walker-wallk", "walker-walk"),
        ("dm_control/walker-walk", "dm_control/walker-walk-v0"),
        ("dm_control/walkr-walk-v0", "dm_control/walker-walk-v0"),
    ],
)
def test_names_of_tasks_that_are_nearly_right(name: str, near: str) -> None:
    pytest.importorskip("dm_control", reason="dm_control is not installed")
    with pytest.raises(GymnasiumError, match=f"Near matches: .*{near}"):
        make(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("json:Nope", r"^importing json registers no id 'Nope'. It has no class or function"),
        ("json:JSONDecodr", r"Near matches: JSONDecoder, "),
        ("gymnasium:CartPol-v1", r"Near matches: CartPole-v1, "),
        ("gymnasium:CartPole-v9", r"version `v9` .* Near matches: CartPole-v1"),
        (
            "gymnasium.envs.classic_control:PendulumEnv",
            r"use make\(gymnasium.envs.classic_control.PendulumEnv\)",
        ),
    ],
)
def test_what_a_module_does_not_register(name: str, words: str) -> None:
    for use in (make, make_vec):
        with pytest.raises(UnregisteredEnv, match=words):
            use(name)


def test_a_module_that_does_not_exist() -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        make("no_such_module:Env-v0")
    assert caught.value.__notes__ == [
        "raised while make imported the module of no_such_module:Env-v0"
    ]


@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
@pytest.mark.parametrize("form", ["env", "parallel_env"])
def test_environments_of_pettingzoo(form: str) -> None:
    game = pytest.importorskip("pettingzoo.classic").rps_v2
    for source in (getattr(game, form), getattr(game, form)()):
        with pytest.raises(InputError, match=r"of 2 agents .* A gymnasium.Env has one"):
            make(source)


def test_rewards_of_several_agents() -> None:
    with make(Rewards) as env:
        env.reset(seed=0)
        with pytest.raises(RewardError, match="combine the rewards of several agents"):
            env.step(0)


@pytest.mark.parametrize(("action", "kind"), [(998, "tuple"), (999, "NoneType")])
def test_an_info_that_is_missing_later(action: int, kind: str) -> None:
    with make(WithoutSomeInfos, audit="off") as env:
        state = env.reset(seed=0).state
        for count in (1, 2):
            with pytest.raises(EnvApiError, match=f"must be a dict, got {kind}"):
                env.step_batch([action] * count, state)
            errors = env.step_batch([action] * count, state, on_error="mask").infos.errors
            assert list(errors) == list(range(count))
            assert all(isinstance(error, EnvApiError) for error in errors.values())
        with pytest.raises(EnvApiError, match=f"must be a dict, got {kind}"):
            env.step(action, state=state)


# States of other environments, and what becomes of an environment


@pytest.mark.parametrize(
    ("here", "there", "words"),
    [
        ({}, {"sutton_barto_reward": True}, "kwargs is {'sutton_barto_reward': True} in the row"),
        ({}, {"name": "Acrobot-v1"}, "id is 'Acrobot-v1' in the row and 'CartPole-v1' here$"),
        ({}, {"name": TAXI}, "it is of the family TOYT, but the environment is of CLAS$"),
        (
            {"name": "ALE/MsPacman-v5"},
            {"name": "ALE/Pong-v5"},
            "game is 'pong' in the row and 'ms_pacman' here$",
        ),
        (
            {"name": "ALE/Pong-v5"},
            {"name": "ALE/Pong-v5", "frameskip": 2},
            "frameskip is 2 in the row and 4 here$",
        ),
    ],
)
def test_a_state_of_another_environment(here: Any, there: Any, words: str) -> None:
    name: dict[str, Any] = {"name": CART}
    with make(**{**name, **there}) as other:
        state = other.reset(seed=0).state
    with make(**{**name, **here}) as env:
        for use in (env.set_state, lambda row: env.step_batch([0], row)):
            with pytest.raises(StateMismatchError, match=words) as caught:
                use(state)
            assert len(str(caught.value)) < 400


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("n_workers", [None, 1])
def test_copies_of_a_live_and_of_a_closed_environment(
    copied: Callable[[Any], Any], n_workers: int | None
) -> None:
    env = make(CART, n_workers)
    with env, pytest.raises(TypeError, match=r"use clone\(\)"):
        copied(env)
    with pytest.raises(TypeError, match=r"is closed, and cannot be .* use clone\(\)"):
        copied(env)


def test_use_after_close(env: Any) -> None:
    env.close()
    for use in (env.reset, env.get_state, lambda: env.step(0), lambda: env.step_batch([0])):
        with pytest.raises(ClosedError, match="CartPole-v1 has been closed"):
            use()
    with pytest.raises(AttributeError, match="closed 'PlanEnv' object has no attribute 'gravity'"):
        _ = env.gravity


class _Steps(torch.utils.data.Dataset[float]):
    def __init__(self, env: Any) -> None:
        self.env, self.state = env, env.reset(seed=0).state

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> float:
        return float(self.env.step_batch([index], self.state).rewards[0])


# Forking is what this test is about; Python 3.12 warns of it in programs with threads.
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_an_environment_in_a_data_loader() -> None:
    def load(env: Any) -> list[Any]:
        loader = torch.utils.data.DataLoader(
            _Steps(env), num_workers=1, multiprocessing_context="fork"
        )
        return [float(value) for value in loader]

    with make(CART) as env:
        assert load(env) == [1.0, 1.0]
    env = make(CART, n_workers=1)
    with env, pytest.raises(PlangymError, match="make or clone another one here"):
        load(env)


def test_a_folder_that_does_not_exist(env: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such folder: .*missing'"):
        env.save_states(tmp_path / "missing" / "states", env.get_state()[None])


def test_what_is_not_an_environment_of_make(env: Any) -> None:
    plan = planners.RandomShooting(env, horizon=5).plan(budget=50, seed=0)
    with gymnasium.make(CART) as foreign:
        for use in (planners.UCT, plan.replay, StateArchive):
            with pytest.raises(InputError, match="needs an environment of plangym_like.make"):
                use(foreign)


def test_an_evaluation_that_is_not_a_pair(env: Any) -> None:
    planner = planners.PUCT(env, evaluate=lambda obs: len(obs))  # type: ignore[arg-type, return-value]
    with pytest.raises(InputError, match=r"evaluate must return a pair \(priors, values\)"):
        planner.plan(budget=100)


def test_a_seed_of_make_vec_that_is_text() -> None:
    envs = make_vec(CART, 1)
    with pytest.raises(InputError, match="seed must be a whole number .* got '1'"):
        envs.reset(seed="1")  # type: ignore[arg-type]
    envs.close()


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
