"""What users read after they gave wrong arguments: the message names the mistake and the remedy."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import FlattenObservation, FrameStackObservation, TimeLimit
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import plangym_like
from plangym_like import planners
from plangym_like.batchers.rollout import BaseActorModule, evaluate, multi, same
from plangym_like.batchers.workspaces import ParallelGymAgent, TemporalAgent
from plangym_like.envs.family_env import WAYS
from plangym_like.errors import (
    ActionError,
    InputError,
    RewardError,
    SnapshotError,
    StateFormatError,
)
from plangym_like.support.arguments import OPTIONS


@pytest.fixture
def env() -> Any:
    with plangym_like.make("CartPole-v1") as env:
        env.reset(seed=0)
        yield env


# Options


def test_the_options_of_make_are_known() -> None:
    named = {*inspect.signature(plangym_like.make).parameters} - {"name", "env_kwargs"}
    of_snapshots = {option for _, options in WAYS.values() for option in options}
    assert named | of_snapshots <= OPTIONS.keys()


def test_a_misspelled_option_of_a_class_a_clone_and_a_check(env: Any) -> None:
    for make in (
        partial(plangym_like.ClassicControlEnv, "CartPole-v1"),
        env.clone,
        partial(plangym_like.check_env, "CartPole-v1"),
    ):
        with pytest.raises(InputError, match="an option 'frame_skip'; did you mean 'frameskip'?"):
            make(frame_skip=2)
    with pytest.raises(InputError, match="no option 'n_workers'; give it to plangym_like.make"):
        env.clone(n_workers=2)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"seed": 0}, r"an option 'seed'; give it to reset\(seed=...\)"),
        ({"num_envs": 3}, "an option 'num_envs'; several .* are made by plangym_like.make_vec"),
        ({"env_kwargs": {"a": 1}}, "give its entries as options of their own"),
        ({"ray": 4}, "ray must be True or False, got 4"),
    ],
)
def test_options_that_belong_elsewhere(option: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        plangym_like.make("CartPole-v1", **option)


class Plain(gymnasium.Env):
    """Its class has no constructor."""

    observation_space = gymnasium.spaces.Box(0, 1e9, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.array([float(self.steps)]), 1.0, False, False, {}


CALLABLES: dict[str, Any] = {
    "class": Plain,
    "constructor": CartPoleEnv,
    "function": lambda: Plain(),
    "partial": partial(CartPoleEnv, sutton_barto_reward=True),
}


@pytest.mark.parametrize("kind", CALLABLES)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"frameskp": 2}, "has an option 'frameskp'; did you mean 'frameskip'?"),
        ({"num_envs": 3}, "an option 'num_envs'; several .* are made by plangym_like.make_vec"),
        ({"replay_capacity": 5, "snapshot": "pickle"}, "it belongs to snapshot='replay'"),
        ({"live_prefixes": 5, "snapshot": "pickle"}, "it belongs to snapshot='replay'"),
        ({"allow_pickle": True, "snapshot": "replay"}, "it belongs to snapshot='pickle'"),
        ({"start_method": "spawn"}, "has no option 'start_method'; it belongs to n_workers"),
        ({"runtime_env": {}, "n_workers": 2}, "it belongs to ray=True"),
    ],
)
def test_options_that_no_callable_has(kind: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        plangym_like.make(CALLABLES[kind], **options)


@pytest.mark.parametrize("kind", CALLABLES)
def test_options_that_make_vec_cannot_give_to_a_callable(kind: str) -> None:
    source = CALLABLES[kind]
    with pytest.raises(InputError, match="an option 'gravty'"):
        plangym_like.make_vec(source, 2, gravty=2)
    for option in ("wrappers", "snapshot", "obs_type"):
        with pytest.raises(InputError, match=rf"has no option '{option}'. .*plangym_like.make\("):
            plangym_like.make_vec(source, 2, **{option: []})


def test_help_names_every_option_of_make() -> None:
    told = inspect.getdoc(plangym_like.make) or ""
    for option in OPTIONS:
        assert re.search(rf"^{option} : |``{option}\b", told, re.MULTILINE), option


@pytest.mark.parametrize(
    "call",
    [
        lambda env, huge: env.make_state(x=huge),
        lambda env, huge: planners.UCT(env, discount=huge),
        lambda env, huge: planners.UCT(env, discount=-huge),
        lambda env, huge: plangym_like.make("CartPole-v1", n_workers=1, step_timeout=huge),
        lambda env, huge: plangym_like.make("CartPole-v1", n_workers=1, start_timeout=huge),
        lambda env, huge: plangym_like.make_vec("CartPole-v1", 2, timeout=huge),
        lambda env, huge: env.step(huge),
        lambda env, huge: env.step_batch([0, huge]),
        lambda env, huge: env.step_batch([0, 1], dt=huge),
        lambda env, huge: env.step_batch([0, 1], seeds=[huge, 1]),
    ],
)
def test_numbers_that_are_too_large(env: Any, call: Any) -> None:
    with pytest.raises(InputError):
        call(env, 10**400)


def test_an_action_that_is_too_large(env: Any) -> None:
    with pytest.raises(ActionError, match="whole numbers must fit into 64 bits"):
        env.step(2**70)


# What to make


class Duel:
    """An environment of two agents, with the members that PettingZoo's have."""

    possible_agents = ("player_0", "player_1")

    def __init__(self) -> None:
        self.agents = list(self.possible_agents)


def rock_paper_scissors() -> Any:
    return Duel()


@pytest.mark.parametrize(
    "call",
    [
        lambda: plangym_like.make(Duel),
        lambda: plangym_like.make(rock_paper_scissors, snapshot="replay"),
        lambda: plangym_like.make(Duel()),  # type: ignore[arg-type]
        lambda: plangym_like.make_vec(Duel, 2),
        lambda: plangym_like.make_vec(Duel(), 2),  # type: ignore[arg-type]
        lambda: plangym_like.check_env(Duel()),
    ],
)
def test_environments_of_several_agents(call: Any) -> None:
    words = r"of 2 agents \(player_0, player_1\)\. A gymnasium.Env has one: write one around it"
    with pytest.raises(InputError, match=words):
        call()


@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
@pytest.mark.parametrize("form", ["env", "parallel_env"])
def test_environments_of_pettingzoo(form: str) -> None:
    game = pytest.importorskip("pettingzoo.classic").rps_v2
    for source in (getattr(game, form), getattr(game, form)()):
        with pytest.raises(InputError, match=r"of 2 agents .* A gymnasium.Env has one"):
            plangym_like.make(source)


def test_rewards_of_several_agents() -> None:
    class Both(Plain):
        def step(self, action: Any) -> Any:
            obs, reward, *rest = super().step(action)
            return obs, {"left": reward, "right": -reward}, *rest

    with plangym_like.make(Both) as env:
        env.reset(seed=0)
        with pytest.raises(RewardError, match="combine the rewards of several agents"):
            env.step(0)


def needs_a_depth(depth: int) -> gymnasium.Env[Any, Any]:
    raise AssertionError(depth)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (["CartPole-v1"] * 2, "for several environments at once there is plangym_like.make_vec"),
        (gymnasium.spec("CartPole-v1"), r"pass its id: make\('CartPole-v1'\)"),
        (needs_a_depth, "needs_a_depth cannot be called: missing a required argument: 'depth'"),
        (TimeLimit, "TimeLimit cannot be called: missing a required argument"),
        (json, "give a class or a function of the module"),
        (":Nope", "':Nope' must begin with the name of a module"),
    ],
)
def test_what_cannot_be_made(name: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        plangym_like.make(name)


def test_an_env_in_place_of_its_id(env: Any) -> None:
    with pytest.raises(InputError, match=r"it was made already: .* call its clone\(\)"):
        plangym_like.make(env)


def test_near_matches_are_sentences() -> None:
    for name in ("CartPole", "CartPol-v1"):
        with pytest.raises(gymnasium.error.Error, match=r"\w`?[.?] Near matches: CartPole-v1"):
            plangym_like.make(name)


def test_an_id_of_a_package_that_was_not_imported() -> None:
    words = r"exist\. If a package registers it, .*: make\('package:Unheard-Of-5x5-v0'\)\.$"
    with pytest.raises(gymnasium.error.NameNotFound, match=words):
        plangym_like.make("Unheard-Of-5x5-v0")


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
    for make in (plangym_like.make, plangym_like.make_vec):
        with pytest.raises(gymnasium.error.UnregisteredEnv, match=words):
            make(name)


@pytest.mark.parametrize("options", [3, "low", ["low"]])
def test_options_of_a_reset_that_are_not_a_dict(env: Any, options: Any) -> None:
    before = env.get_state()
    with pytest.raises(InputError, match="options must be a dict or None, got"):
        env.reset(options=options)
    assert np.array_equal(env.get_state(), before)


def test_a_module_that_does_not_exist() -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        plangym_like.make("no_such_module:Env-v0")
    assert caught.value.__notes__ == [
        "raised while make imported the module of no_such_module:Env-v0"
    ]


def test_an_id_of_another_family() -> None:
    pytest.importorskip("ale_py", reason="ale-py is not installed")
    with pytest.raises(SnapshotError, match="CartPole-v1 is not a game of ale-py"):
        plangym_like.AtariEnv("CartPole-v1")


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        (dict, "builtins.dict is not a gymnasium.Wrapper"),
        (RecordEpisodeStatistics, "apply it to the result of make_vec"),
        (FrameStackObservation, r"missing a required argument: 'stack_size'; .* in a pair"),
        ((FrameStackObservation, {"size": 2}), r"got an unexpected keyword argument|missing a"),
        (partial(FrameStackObservation, size=2), "FrameStackObservation.* cannot be made"),
        (lambda env: None, "<lambda> must return a gymnasium.Env, got .*NoneType"),
    ],
)
def test_wrappers_that_do_not_fit(wrapper: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        plangym_like.make("CartPole-v1", wrappers=[wrapper])


def test_a_wrapper_that_was_made_already() -> None:
    live = FlattenObservation(gymnasium.make("CartPole-v1"))
    with live, pytest.raises(InputError, match="give its class, not the wrapper"):
        plangym_like.make("CartPole-v1", wrappers=[live])


# Actions and states


def test_things_that_are_not_states(env: Any) -> None:
    reset = env.reset(seed=0)
    state = reset.state
    for given, words in (
        (reset, "give its .state$"),
        (env.step_batch([0, 1], state), "give its .states$"),
        (reset.obs, "an observation is not a state: give the state that was returned with it"),
        ([state.tolist()], r"numpy.asarray\(given, numpy.uint8\) makes rows from lists"),
        (state.tobytes(), r"numpy.frombuffer\(given, numpy.uint8\) makes a row"),
        (4, "got int; a dt is given by name, as dt=4"),
    ):
        with pytest.raises(StateFormatError, match=words):
            env.step_batch([0], given)


def test_states_in_place_of_actions(env: Any) -> None:
    state = env.get_state()
    for use in (env.step, env.step_batch, env.rollout_batch):
        with pytest.raises(ActionError, match="these are states: the first argument is the actio"):
            use(state, [0, 1])


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (np.array([1]), "step takes one action, step_batch takes one for each row"),
        (1.0, r"it takes whole numbers: convert them with astype\(int\)"),
        ("1", "they are text"),
        (None, "give an array or a list, not a NoneType"),
    ],
)
def test_actions_of_another_kind(env: Any, action: Any, words: str) -> None:
    with pytest.raises(ActionError, match=words):
        env.step(action)


def test_generators_are_not_batches(env: Any) -> None:
    with pytest.raises(ActionError, match="give an array or a list, not a generator"):
        env.step_batch(action for action in range(2))


# Things that need an environment


def test_what_is_not_an_environment_of_make(env: Any) -> None:
    plan = planners.RandomShooting(env, horizon=5).plan(budget=50, seed=0)
    with gymnasium.make("CartPole-v1") as foreign:
        for use in (planners.UCT, plan.replay, plangym_like.StateArchive):
            with pytest.raises(InputError, match="needs an environment of plangym_like.make"):
                use(foreign)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="give the environment that as_gym was called on"):
        planners.UCT(env.as_gym())


@pytest.mark.parametrize("given", [planners.UCT, "UCT"])
def test_what_is_not_a_planner(env: Any, given: Any) -> None:
    for each in (given, env):
        with pytest.raises(InputError, match=r"play needs a planner, such as UCT\(env\), got"):
            planners.play(each, 10, budget=100)


def test_columns_are_a_dict(env: Any) -> None:
    with pytest.raises(InputError, match="columns must be a dict of names and dtypes, got 'vis"):
        plangym_like.StateArchive(env, "visits")  # type: ignore[arg-type]


def test_a_folder_that_does_not_exist(env: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such folder: .*missing'"):
        env.save_states(tmp_path / "missing" / "states", env.get_state()[None])


def test_an_evaluation_that_is_not_a_pair(env: Any) -> None:
    planner = planners.PUCT(env, evaluate=lambda obs: len(obs))  # type: ignore[arg-type, return-value]
    with pytest.raises(InputError, match=r"evaluate must return a pair \(priors, values\)"):
        planner.plan(budget=100)


def test_numbers_that_are_text() -> None:
    with pytest.raises(InputError, match="states must be a whole number of at least 1, got '4'"):
        plangym_like.check_env("CartPole-v1", states="4")  # type: ignore[arg-type]
    envs = plangym_like.make_vec("CartPole-v1", 1)
    with pytest.raises(InputError, match="seed must be a whole number .* got '1'"):
        envs.reset(seed="1")  # type: ignore[arg-type]
    envs.close()


# Batchers


class Actor(BaseActorModule):
    """Is never called."""


def test_rollouts(env: Any) -> None:
    rollout: Callable[..., Any] = same.rollout
    with pytest.raises(InputError, match="envs must be a list of environments, got 'CartPole"):
        rollout("CartPole-v1", Actor(), 5)
    with pytest.raises(InputError, match="envs must be a list of environments, got Classic"):
        rollout(env, Actor(), 5)
    with pytest.raises(InputError, match="envs must hold environments, .* got 'CartPole-v1'"):
        rollout(["CartPole-v1"], Actor(), 5)
    with pytest.raises(InputError, match="n_steps must be a whole number .* got '5'"):
        rollout([env], Actor(), "5")
    multiple: Callable[..., Any] = multi.rollout
    for collect in (rollout, multiple):
        with pytest.raises(InputError, match="must be a BaseActorModule, .*; make one of this cl"):
            collect([env] if collect is rollout else "CartPole-v1", Actor, 5)
    with pytest.raises(InputError, match="envs must be a list"):
        evaluate("CartPole-v1", Actor())  # type: ignore[arg-type]


def test_workspaces() -> None:
    with pytest.raises(InputError, match="a TemporalAgent calls an Agent, got 3"):
        TemporalAgent(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="num_envs must be a whole number .* got '2'"):
        ParallelGymAgent("CartPole-v1", "2")  # type: ignore[arg-type]
