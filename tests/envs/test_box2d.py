"""Box2D by replay: bit-identical episodes, branches and batches, on every backend."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from comparing import assert_same, reached, sampler
from continuation import assert_equals_gymnasium, assert_goes_on

import plangym_like
from plangym_like.envs.box2d import Box2DEnv, Box2DSimulator

pytest.importorskip("Box2D", reason="Box2D has no wheel here")
pytestmark = pytest.mark.filterwarnings("ignore:builtin type .* has no __module__")

LANDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "lander": ("LunarLander-v3", {}),
    "continuous": ("LunarLanderContinuous-v3", {}),
    "wind": ("LunarLander-v3", {"enable_wind": True, "wind_power": 12.0}),
}
WALKERS: dict[str, tuple[str, dict[str, Any]]] = {
    "walker": ("BipedalWalker-v3", {}),
    "hardcore": ("BipedalWalkerHardcore-v3", {}),
}
RACER = {"racer": ("CarRacing-v3", {"continuous": False})}


@pytest.mark.parametrize("kind", LANDERS | WALKERS)
def test_a_restored_environment_goes_on_as_if_nothing_had_happened(kind: str) -> None:
    name, kwargs = (LANDERS | WALKERS)[kind]
    sim = Box2DSimulator(name, **kwargs)
    assert_goes_on(sim, seed=1, steps=20)


@pytest.mark.parametrize("kind", LANDERS | WALKERS | RACER)
def test_a_seeded_episode_is_gymnasiums(kind: str) -> None:
    name, kwargs = (LANDERS | WALKERS | RACER)[kind]
    with plangym_like.make(name, remove_time_limit=False, **kwargs) as env:
        assert (env.snapshot, env.exactness) == ("replay", "exact")
        steps = 3 if kind == "racer" else 60
        make = partial(gymnasium.make, name, **kwargs)
        assert_equals_gymnasium(env.simulator, make, seed=5, steps=steps)


def test_a_car_comes_back_with_its_track_and_its_tiles() -> None:
    env = Box2DEnv("CarRacing-v3", continuous=False, live_prefixes=2)
    state = env.reset(seed=2).state
    for _ in range(4):
        state = env.step(3, state=state).state
    first = env.step_batch([3, 1, 4], state)
    other = Box2DEnv("CarRacing-v3", continuous=False)
    assert_same(other.step_batch([3, 1, 4], state), first)
    assert len(np.unique(first.obs.reshape(3, -1), axis=0)) == 3


RENDERED = {
    "lander": ("LunarLander-v3", 2, 12),
    "walker": ("BipedalWalker-v3", np.array([0.4, 0.1, -0.2, 0.6], np.float32), 6),
    "racer": ("CarRacing-v3", np.array([0.1, 0.8, 0.0], np.float32), 2),
}


@pytest.mark.parametrize("kind", RENDERED)
def test_images_depend_on_the_state_alone(kind: str) -> None:
    name, action, steps = RENDERED[kind]
    with Box2DEnv(name, obs_type="rgb", live_prefixes=3, autoreset=False) as env:
        state, obs, _ = env.reset(seed=1)
        states, shown = [], [obs]
        for _ in range(steps):
            states.append(state)
            state, obs, *_ = env.step(action, state=state)
            shown.append(obs)
        expected = np.stack(shown[1:])
        rng = np.random.default_rng(0)
        for _ in range(2):
            order = rng.permutation(steps)
            batch = env.step_batch([action] * steps, np.stack(states)[order])
            assert_same(batch.obs, expected[order])
        for index in rng.permutation(steps)[:4]:
            env.set_state(states[index])
            for _ in range(3):
                assert_same(env.get_image(), shown[index])
            assert_same(env.step(action, return_state=True).obs, shown[index + 1])
    theirs = gymnasium.make(name, render_mode="rgb_array")
    theirs.reset(seed=1)
    assert_same(theirs.render(), shown[0])
    for index in range(steps):
        theirs.step(action)
        assert_same(theirs.render(), shown[index + 1], f"step {index}")
    theirs.close()


@pytest.mark.full
@pytest.mark.parametrize("kind", LANDERS | WALKERS)
def test_a_thousand_branches_differ_in_no_byte(kind: str) -> None:
    name, kwargs = (LANDERS | WALKERS)[kind]
    limit = {"remove_time_limit": False, "max_episode_steps": 120}
    env, other = (Box2DEnv(name, **limit, **kwargs) for _ in range(2))
    states = reached(env, 1000, every=3)
    space = sampler(env, 0)
    plans = np.array([[space.sample() for _ in range(20)] for _ in range(1000)])
    order = np.random.default_rng(0).permutation(1000)
    one = env.rollout_batch(plans, states, return_observations=True)
    two = other.rollout_batch(plans[order], states[order], return_observations=True)
    for name in ("states", "observations", "rewards", "terminateds", "truncateds"):
        assert_same(getattr(one, name)[order], getattr(two, name), name)
