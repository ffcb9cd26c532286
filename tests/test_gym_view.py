"""`PlanEnv.as_gym`: what Gymnasium, its checker and its wrappers see of a `PlanEnv`."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from comparing import assert_same, sampler
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import (
    FrameStackObservation,
    RecordEpisodeStatistics,
    TimeLimit,
    TransformObservation,
)
from small_envs import Levers, Nested
from usual import first_of

import plangym_like
from plangym_like.errors import StateMismatchError
from plangym_like.gym_view import GymView

ATARI = "ALE/MsPacman-v5"
# What `make` and `gymnasium.make` take for the same environment.
FAMILIES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "FrozenLake": ("FrozenLake-v1", {"remove_time_limit": False}, {}),
    "Nested": (Nested, {}, {}),
    "CartPole": ("CartPole-v1", {"remove_time_limit": False}, {}),
    "MsPacman": (ATARI, {"obs_type": "ram"}, {"obs_type": "ram", "repeat_action_probability": 0.0}),
    "Pendulum": ("Pendulum-v1", {"remove_time_limit": False}, {}),
    "Hopper": ("Hopper-v5", {"remove_time_limit": False}, {}),
}


@pytest.fixture(params=first_of(FAMILIES, 3))
def family(request: pytest.FixtureRequest) -> str:
    if request.param == "Hopper":
        pytest.importorskip("mujoco")
    return str(request.param)


def _view(family: str, **more: Any) -> GymView:
    name, kwargs, _ = FAMILIES[family]
    return plangym_like.make(name, **kwargs, **more).as_gym()


def _theirs(family: str) -> gymnasium.Env:
    name, _, kwargs = FAMILIES[family]
    return name() if callable(name) else gymnasium.make(name, **kwargs)


def _play(env: gymnasium.Env, steps: int, seed: int | None = 3) -> list[Any]:
    """Return what `steps` random steps return, over as many episodes as it takes."""
    space = sampler(env, seed=1)
    results: list[Any] = [] if seed is None else [copy.deepcopy(env.reset(seed=seed))]
    for _ in range(steps):
        result = env.step(space.sample())
        results.append(copy.deepcopy(result))
        if result[2] or result[3]:
            results.append(copy.deepcopy(env.reset()))
    return results


# As Gymnasium says it must be


def _complaints(env: gymnasium.Env, **how: Any) -> set[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env, **how)
    return {str(warning.message) for warning in caught}


def test_gymnasiums_checker_finds_no_more_than_in_the_environment_itself(family: str) -> None:
    with _view(family) as view:
        found = _complaints(view, skip_render_check=True)
        assert found == _complaints(_theirs(family).unwrapped, skip_render_check=True)


def test_an_environment_of_a_callable_without_spec() -> None:
    with _view("Nested") as view:
        assert view.spec is None
        assert any("not having a spec" in found for found in _complaints(view))


# The same episodes


def test_seeded_episodes_are_those_of_gymnasium(family: str) -> None:
    theirs = _theirs(family)
    with _view(family) as view:
        assert_same(_play(view, 150), _play(theirs, 150))
    theirs.close()


def test_no_warning_from_the_last_state_of_an_episode() -> None:
    with _view("CartPole") as view:  # any warning is an error
        view.reset(seed=0)
        ends = [view.step(1)[2] for _ in range(20)]
        assert ends == sorted(ends) and ends[-1]


def test_it_never_resets_by_itself_and_the_environment_still_does() -> None:
    env = plangym_like.make("FrozenLake-v1", is_slippery=False)
    view = env.as_gym()
    view.reset(seed=0)
    for action in (1, 2):
        obs, _, terminated, _, _ = view.step(action)
    assert terminated and obs == 5
    assert env.autoreset
    assert_same(env.get_state(), view.get_state())
    assert env.view_state(view.get_state())["s"] == 5
    view.reset(seed=0)
    for action in (1, 2):
        step = env.step(action)
    assert step.terminated and env.view_state(view.get_state())["s"] == 0
    env.close()


class _Counted(Levers):
    """Has infos of the names that `PlanEnv` gives to its counts."""

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {"n_step": "mine", "dt": 0.02}


@pytest.mark.parametrize("kwargs", [{}, {"frameskip": 2}])
def test_the_environments_own_infos_of_the_same_names_are_kept(kwargs: dict[str, Any]) -> None:
    with plangym_like.make(_Counted, **kwargs) as env:
        view = env.as_gym()
        view.reset(seed=0)
        action = np.ones(2, np.uint8)
        assert view.step(action)[4] == {"n_step": "mine", "dt": 0.02}
        assert env.step(action).info == {"n_step": kwargs.get("frameskip", 1), "dt": 1}


# Wrappers around it


def _squared(env: gymnasium.Env) -> gymnasium.Env:
    return TransformObservation(env, np.square, env.observation_space)


WRAPPINGS: dict[str, Callable[[gymnasium.Env], gymnasium.Env]] = {
    "TimeLimit": lambda env: TimeLimit(env, 7),
    "RecordEpisodeStatistics": RecordEpisodeStatistics,
    "TransformObservation": _squared,
    "FrameStackObservation": lambda env: FrameStackObservation(env, 3),
}


@pytest.mark.parametrize("name", WRAPPINGS)
def test_gymnasiums_wrappers_work_around_it(name: str) -> None:
    ours, theirs = WRAPPINGS[name](_view("CartPole")), WRAPPINGS[name](_theirs("CartPole"))
    results = [_play(env, 100) for env in (ours, theirs)]
    for result in results:
        for *_, info in result:
            info.get("episode", {}).pop("t", None)  # seconds
    assert_same(*results)
    if name == "TimeLimit":
        assert ours.spec is not None and ours.spec.max_episode_steps == 7
    view = ours.unwrapped
    assert isinstance(view, GymView)
    state = ours.get_wrapper_attr("get_state")()
    ours.step(ours.action_space.sample())
    view.set_state(state)
    assert_same(view.get_state(), state)
    ours.close()
    theirs.close()


# States


def test_states_mean_the_same_as_on_the_environment() -> None:
    with plangym_like.make("FrozenLake-v1") as env:
        view = env.as_gym()
        assert view.plan_env is env and view.state_nbytes == env.state_nbytes
        obs, _ = view.reset(seed=0)
        state = view.get_state()
        assert_same(state, env.get_state())
        step = env.step(2, state=state)
        view.set_state(state)
        assert_same(view.step(2)[0], step.obs)
        assert_same(view.get_state(), step.state)
        assert_same(env.as_gym().get_state(), step.state)
        with plangym_like.make("CartPole-v1") as other, pytest.raises(StateMismatchError):
            view.set_state(other.reset().state)
        assert_same(view.get_state(), step.state)


# What else Gymnasium environments have


def test_the_generator_is_the_environments() -> None:
    theirs = gymnasium.make("FrozenLake-v1")
    with _view("FrozenLake") as view:
        assert_same(view.reset(seed=9), theirs.reset(seed=9))
        assert view.np_random_seed == 9
        view.step_batch([0, 1])
        assert view.np_random.random() == theirs.np_random.random()
        assert_same(view.step(2), theirs.step(2))
        view.np_random = np.random.default_rng(5)
        theirs.np_random = np.random.default_rng(5)
        assert view.np_random_seed == -1
        assert_same(_play(view, 20, seed=None), _play(theirs, 20, seed=None))


def test_attributes_are_read_and_set_where_the_environment_has_them() -> None:
    theirs = gymnasium.make("CartPole-v1")
    theirs.unwrapped.gravity = 20.0  # type: ignore[attr-defined]
    with _view("CartPole") as view:
        wrapped = TimeLimit(view, 500)
        assert wrapped.get_wrapper_attr("gravity") == 9.8
        assert wrapped.set_wrapper_attr("gravity", 20.0, force=False)
        assert view.gravity == 20.0 and not hasattr(view, "unheard_of")
        assert_same(_play(view, 40), _play(theirs, 40))
        assert not view.set_wrapper_attr("unheard_of", 1, force=False)
        assert view.set_wrapper_attr("unheard_of", 1)
        assert view.unheard_of == 1
        assert view.exactness == "exact"


def test_it_is_rendered_in_the_current_state() -> None:
    pytest.importorskip("pygame")
    theirs = gymnasium.make("FrozenLake-v1", render_mode="rgb_array")
    with _view("FrozenLake", render_mode="rgb_array") as view:
        for use in (view.render, lambda: view.step(0)):
            with pytest.raises(ResetNeeded, match="call reset or set_state"):
                use()
        assert_same(view.reset(seed=9), theirs.reset(seed=9))
        start, image = view.get_state(), theirs.render()
        assert_same(view.render(), image)
        while view.step(2)[0] == 0:
            pass
        view.step_batch([0, 1])
        assert not np.array_equal(view.render(), image)
        view.set_state(start)
        assert_same(view.render(), image)


@pytest.mark.parametrize("remove", [True, False])
def test_the_spec_has_the_time_limit_that_there_is(remove: bool) -> None:
    with plangym_like.make("CartPole-v1", remove_time_limit=remove) as env:
        spec = env.as_gym().spec
        assert spec is not None and spec.id == "CartPole-v1"
        assert spec.max_episode_steps == (None if remove else 500)
        assert gymnasium.spec("CartPole-v1").max_episode_steps == 500
