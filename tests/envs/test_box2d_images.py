"""Images of a Box2D world's memory: any row is near, and continues as straight play does."""

import logging
from typing import Any

import gymnasium
import numpy as np
import pytest
from backends import sending
from comparing import assert_same, sampler
from usual import first_of

import plangym_like
from plangym_like.envs import box2d_images
from plangym_like.envs.box2d import Box2DEnv

pytest.importorskip("Box2D", reason="Box2D has no wheel here")
pytestmark = [
    pytest.mark.filterwarnings("ignore:builtin type .* has no __module__"),
    pytest.mark.skipif(
        not box2d_images._is_known_build(), reason="the memory of this build of Box2D is not known"
    ),
]

KINDS: dict[str, tuple[str, dict[str, Any], int]] = {
    "lander": ("LunarLander-v3", {}, 80),
    "walker": ("BipedalWalker-v3", {}, 30),
    "racer": ("CarRacing-v3", {"domain_randomize": True}, 3),
    "wind": ("LunarLander-v3", {"enable_wind": True}, 60),
    "hardcore": ("BipedalWalkerHardcore-v3", {}, 40),
}


def straight(name: str, kwargs: dict[str, Any], actions: list[Any], seed: int) -> list[Any]:
    """Return what Gymnasium's steps return for `actions` after a reset."""
    env = gymnasium.make(name, **kwargs)
    env.reset(seed=seed)
    results = [env.step(action)[:4] for action in actions]
    env.close()
    return results


def replayed(env: Any) -> int:
    return int(env.simulator.replayed)


def images(env: Any) -> Any:
    return env.simulator._proxy.cache._images


def walked(env: Any, actions: list[Any], seed: int) -> tuple[list[Any], list[Any]]:
    """Return the states before each action, and the results of all actions."""
    state = env.reset(seed=seed).state
    states, results = [], []
    for action in actions:
        states.append(state)
        state, *result = env.step(action, state=state)
        results.append(tuple(result[:4]))
    return states, results


@pytest.mark.parametrize("kind", first_of(KINDS, 3))
def test_random_rows_go_on_as_in_straight_play_without_replays(kind: str) -> None:
    name, kwargs, steps = KINDS[kind]
    with Box2DEnv(name, autoreset=False, audit="off", **kwargs) as env:
        space = sampler(env, 1)
        branches = []
        for seed in (3, 4):
            actions = [space.sample() for _ in range(steps)]
            expected = straight(name, kwargs, actions, seed)
            states, results = walked(env, actions, seed)
            for ours, theirs in zip(results, expected, strict=True):
                assert_same(ours, (theirs[0], float(theirs[1]), *theirs[2:]))
            branches += list(zip(states, actions, expected, strict=True))
        before = replayed(env)
        rng = np.random.default_rng(0)
        for index in rng.integers(len(branches), size=4 * steps):
            state, action, theirs = branches[index]
            env.step(space.sample(), state=branches[rng.integers(len(branches))][0])
            ours = env.step(action, state=state)
            assert_same(ours[1:5], (theirs[0], float(theirs[1]), *theirs[2:]))
        assert replayed(env) == before


@pytest.mark.parametrize("kind", first_of(["lander", "walker"]))
def test_workers_agree_on_rows_of_all_depths(kind: str) -> None:
    name, kwargs, steps = KINDS[kind]
    with Box2DEnv(name, autoreset=False, **kwargs) as env:
        space = sampler(env, 2)
        actions = [space.sample() for _ in range(steps)]
        states, results = walked(env, actions, 5)
        order = np.random.default_rng(1).permutation(steps)
        rows, chosen = np.stack(states)[order], [actions[index] for index in order]
        expected = env.step_batch(chosen, rows)
        assert_same(expected.obs, np.stack([results[index][0] for index in order]))
        seeds = list(range(steps))
        seeded = env.step_batch(chosen, rows, seeds=seeds)
        with sending(plangym_like.make(name, n_workers=2, autoreset=False, **kwargs)) as workers:
            assert_same(workers.step_batch(chosen, rows), expected)
            assert_same(workers.step_batch(chosen, rows, seeds=seeds), seeded)
            assert_same(workers.step_batch(chosen, rows), expected)


def test_a_process_that_sees_rows_for_the_first_time_replays_little() -> None:
    with Box2DEnv("LunarLander-v3", autoreset=False) as env, env.clone() as other:
        actions = [sampler(env, 0).sample() for _ in range(200)]
        states, _ = walked(env, actions, 0)
        other.step(0, state=states[-1])
        first = replayed(other)
        assert first >= 199
        for state in states[::-1]:
            other.step(0, state=state)
        # At most 32 steps lie between a state and an image.
        assert replayed(other) - first < 200 * 33


def test_attributes_that_were_set_are_part_of_the_states() -> None:
    with Box2DEnv("LunarLander-v3", autoreset=False, enable_wind=True) as env, env.clone() as other:
        chain: Any = env.gym_env
        start = env.reset(seed=2).state
        chain.set_wrapper_attr("wind_power", 19.0)
        changed = env.get_state()
        calm, windy = (env.step(0, state=state) for state in (start, changed))
        assert not np.array_equal(calm.obs, windy.obs)
        for state, expected in ((changed, windy), (start, calm)) * 2:
            assert_same(env.step(0, state=state), expected)
            assert_same(other.step(0, state=state), expected)


def test_a_world_that_outgrows_its_images_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box2d_images._LanderParts, "contacts", 1)
    actions = [0] * 90
    expected = straight("LunarLander-v3", {}, actions, 0)
    with Box2DEnv("LunarLander-v3", autoreset=False) as env:
        states, results = walked(env, actions, 0)
        for ours, theirs in zip(results, expected, strict=True):
            assert_same(ours, (theirs[0], float(theirs[1]), *theirs[2:]))
        for index in (80, 3, 85, 40):
            result = env.step(0, state=states[index])
            assert_same(result[1:5], results[index])
        assert replayed(env) > 0


def test_nothing_is_read_from_the_memory_of_an_unknown_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(box2d_images, "_is_known_build", lambda: False)
    monkeypatch.setattr(box2d_images, "Imager", None)
    with Box2DEnv("LunarLander-v3", autoreset=False) as env:
        states, results = walked(env, [2] * 20, 1)
        assert_same(env.step(2, state=states[7])[1:5], results[7])
        assert not len(images(env))


@pytest.mark.parametrize("steps", [0, 2])
def test_a_world_that_was_changed_by_hand_is_restored_whole(steps: int) -> None:
    """Otherwise, contacts that the change has made would stay, and Box2D might never return."""
    with Box2DEnv("LunarLander-v3", autoreset=False, audit="off") as env:
        states, results = walked(env, [0] * 20, 1)
        env.set_state(states[3])
        base = env.gym_env.unwrapped
        fall = base.lander.position[1] - base.helipad_y - 0.4
        for body in (base.lander, *base.legs):
            body.position = body.position[0], body.position[1] - fall
        for _ in range(steps):
            env.step(0)
        env.get_state()
        for place in (7, 4):
            assert_same(env.step(0, state=states[place])[1:5], results[place])
        assert env.simulator._proxy._current.image is None


class Doubled(gymnasium.RewardWrapper):
    def reward(self, reward: Any) -> float:
        return 2.0 * float(reward)


def test_wrappers_with_foreign_code_are_replayed_and_those_of_gymnasium_are_not() -> None:
    clip = (
        gymnasium.wrappers.RescaleAction,
        {"min_action": np.float32(-2), "max_action": np.float32(2)},
    )
    for wrapper, has_images in ((Doubled, False), (clip, True)):
        with Box2DEnv("LunarLanderContinuous-v3", wrappers=[wrapper], autoreset=False) as env:
            actions = [np.array([1.5, -1.5], np.float32)] * 12
            states, results = walked(env, actions, 1)
            assert_same(env.step(actions[0], state=states[5])[1:5], results[5])
            assert bool(len(images(env))) == has_images


def test_images_that_lead_elsewhere_are_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def put(self: Any, image: Any, now: Any) -> bool:
        return True

    monkeypatch.setattr(box2d_images.Imager, "put", put)
    caplog.set_level(logging.WARNING, "plangym_like")
    with Box2DEnv("LunarLander-v3", autoreset=False) as env:
        assert "which is slower" in caplog.text
        states, results = walked(env, [2] * 20, 1)
        assert_same(env.step(2, state=states[7])[1:5], results[7])
        assert not len(images(env))


def test_there_are_no_images_of_subclasses() -> None:
    kind: Any = gymnasium.make("LunarLander-v3").unwrapped.__class__
    for name, module in (("LunarLander", __name__), ("Other", kind.__module__)):
        other = type(
            name, (kind,), {"__module__": module, "step": lambda self, a: kind.step(self, a)}
        )
        assert not box2d_images.has_images(other())
    assert box2d_images.has_images(kind())
