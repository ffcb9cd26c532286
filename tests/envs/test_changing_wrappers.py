"""Wrappers that change their environment in each episode: equal to Gymnasium, or refused."""

import contextlib
import importlib.util
import warnings
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import changing_wrappers as changing
import gymnasium
import numpy as np
import pytest
from suite import CLIFF

import plangym_like
from plangym_like import registry
from plangym_like.errors import SnapshotError


class Subject(NamedTuple):
    """An environment: the first argument of `make`, its options, and what wrappers change in it."""

    source: Any
    where: str
    values: tuple[float, float]
    options: Mapping[str, Any] = MappingProxyType({})
    package: str = "gymnasium"


SUBJECTS = {
    "classic control": Subject("MountainCar-v0", "force", (0.0005, 0.003)),
    "toy text": Subject(CLIFF, "P", (-5, 5)),
    "robot's mass": Subject("HalfCheetah-v5", "model.body_mass", (1, 5), {}, "mujoco"),
    "robot's gravity": Subject("Hopper-v5", "model.opt.gravity", (-9, -1), {}, "mujoco"),
    "dm_control's mass": Subject(
        "cheetah-run", "physics.model.ptr.body_mass", (1, 3), {}, "dm_control"
    ),
    "own methods": Subject(changing.Saving, "g", (5, 15)),
    "pickle, object": Subject(changing.Windy, "weather.push", (0, 3)),
    # What wrappers change here is held by nothing but copies of the whole wrapper chain.
    "Box2D": Subject("LunarLander-v3", "wind_power", (0, 20), {"enable_wind": True}, "Box2D"),
    "replay, object": Subject(changing.Windy, "weather.push", (0, 3), {"snapshot": "replay"}),
    "robot": Subject("HalfCheetah-v5", "_ctrl_cost_weight", (0.1, 1), {}, "mujoco"),
}
REPLAYED = "Box2D", "replay, object", "robot"


def subject_named(name: str) -> Subject:
    subject = SUBJECTS[name]
    if importlib.util.find_spec(subject.package) is None:
        pytest.skip(f"{subject.package} is not installed")
    return subject


def raw_env(subject: Subject) -> Any:
    """Return the environment as Gymnasium makes it, without a time limit."""
    own = {key: value for key, value in subject.options.items() if key != "snapshot"}
    if callable(subject.source):
        return subject.source(**own)
    if subject.package == "dm_control":
        return plangym_like.make(subject.source).simulator.make_env()
    spec = registry.find_spec(subject.source)
    return gymnasium.make(spec, max_episode_steps=-1, disable_env_checker=True, **own)


def with_wrapper(kind: Any, subject: Subject) -> tuple[Any, dict[str, Any]]:
    return kind, {"where": subject.where, "values": subject.values}


def played(name: str, kind: Any, count: int) -> tuple[list[Any], list[list[Any]]]:
    """Return actions, and the results of Gymnasium alone in two episodes of them."""
    subject = SUBJECTS[name]
    wrapper, options = with_wrapper(kind, subject)
    env = wrapper(raw_env(subject), **options)
    env.action_space.seed(0)
    actions, episodes = [env.action_space.sample() for _ in range(count)], []
    # A second episode shows what wrappers leave to it. Only in replay, each episode begins in a
    # new copy of the environment, so values that a step has put into its objects are not left.
    fresh = name in REPLAYED and kind is changing.AfterStep
    for seed in (1,) if fresh else (1, 2):
        env.reset(seed=seed)
        results = (env.step(action)[:4] for action in actions)
        episodes.append([(np.array(obs), *map(float, rest)) for obs, *rest in results])
    env.close()
    return actions, episodes


def judge(env: Any, actions: list[Any], episodes: list[list[Any]]) -> None:
    """Compare the results of `env` with Gymnasium's."""
    kept: list[Any] = []
    for episode, steps in enumerate(episodes):
        state = env.reset(seed=1 + episode).state
        for action, wanted in zip(actions, steps, strict=True):
            kept.append((state, action, wanted))
            # One row continues the episode, and the other one is an earlier row again.
            rows = kept[-1], kept[len(kept) // 2]
            result = env.step_batch([row[1] for row in rows], np.stack([row[0] for row in rows]))
            for row, (_, _, expected) in enumerate(rows):
                found = [result[part][row] for part in range(1, 5)]
                assert all(map(np.array_equal, expected, found))
            state = result.states[0]
        # The next reset continues from the end of this episode, as in Gymnasium.
        env.set_state(state)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def outcome(name: str, kind: Any) -> str:
    """Return "equal", "refused" or "declared"; fail if the result is silently wrong."""
    subject = subject_named(name)
    with quiet():
        truth = played(name, kind, 12)
        kwargs = {"wrappers": [with_wrapper(kind, subject)], **subject.options}
        try:
            env = plangym_like.make(subject.source, **kwargs)
        except SnapshotError:
            return "refused"
        with env:
            if env.exactness != "exact":
                return "declared"
            judge(env, *truth)
    return "equal"


KINDS = [changing.AfterStep, changing.BeforeReset, changing.AfterReset, changing.BeforeStep]
FULL = pytest.mark.full
# In `make test`, each kind is tried over classic control, and all other environments with one kind.
CASES = [
    pytest.param(name, kind, marks=() if name == "classic control" or at % 2 == number else FULL)
    for at, name in enumerate(SUBJECTS)
    for number, kind in enumerate(KINDS)
]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_wrapper_that_changes_its_environment_is_exact_or_refused(name: str, kind: Any) -> None:
    outcome(name, kind)


def test_methods_that_seed_the_environment_are_part_of_the_state() -> None:
    assert outcome("own methods", changing.BySeeding) == "equal"


# Environment -> the ways in which domain randomisation by its wrappers is saved.
SAVED = {"toy text": "pickle", "robot's mass": "native", "robot": "replay"}


@pytest.mark.parametrize("name", SAVED)
def test_auto_uses_the_first_way_that_holds_what_wrappers_change(name: str) -> None:
    subject = subject_named(name)
    wrappers = [with_wrapper(changing.BeforeReset, subject)]
    with quiet(), plangym_like.make(subject.source, wrappers=wrappers) as env:
        assert (env.snapshot, env.exactness) == (SAVED[name], "exact")
        if env.snapshot != "native":
            with pytest.raises(SnapshotError):
                plangym_like.make(subject.source, wrappers=wrappers, snapshot="native")
