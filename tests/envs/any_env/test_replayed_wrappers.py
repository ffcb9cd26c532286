"""Wrappers that change a replayed environment: equal to Gymnasium alone, everywhere."""

from typing import Any

import changing_wrappers as changing
import gymnasium
import numpy as np
import pytest
from backends import sending
from comparing import assert_same
from gymnasium.utils import EzPickle
from usual import first_of, third_of

import plangym_like


class Model:
    def __init__(self) -> None:
        self.masses = np.array([1.0, 2.0, 3.0])


class Machine(EzPickle, gymnasium.Env):
    """Says that it cannot be pickled, as a simulator in C++ does."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, power: float = 5.0) -> None:
        EzPickle.__init__(self, power)
        self.power = power
        self.model = Model()

    def seed_dice(self, seed: int) -> None:
        self.dice = np.random.RandomState(seed)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seed_dice(0)
        self.at, self.speed = float(self.np_random.random()), 0.0
        return np.array([self.at, self.speed]), {}

    def step(self, action: Any) -> Any:
        push = float(action) - 1 + 0.01 * self.power + 0.01 * self.dice.random_sample()
        self.speed += push / float(self.model.masses.sum())
        self.at += self.speed
        return np.array([self.at, self.speed]), self.at + 0.1 * self.power, False, False, {}


LANDER = "LunarLander-v3", {"enable_wind": True}
# Every kind of wrapper that sets a number.
KINDS: tuple[Any, ...] = (
    *(changing.BeforeReset, changing.AfterReset, changing.BeforeStep, changing.AfterStep),
    changing.EveryThirdEpisode,
)
# The kinds whose unseeded resets draw from the operating system.
SEEDED_ONLY = ("BeforeReset", "InPlace")


def wrapper_of(kind: Any, where: str) -> tuple[Any, dict[str, Any]]:
    return kind, {"where": where, "values": (0.0, 20.0)}


CASES: dict[str, tuple[Any, dict[str, Any], Any]] = {
    **{f"{kind.__name__}-lander": (*LANDER, wrapper_of(kind, "wind_power")) for kind in KINDS},
    **{f"{kind.__name__}-machine": (Machine, {}, wrapper_of(kind, "power")) for kind in KINDS},
    "InPlace-machine": (Machine, {}, (changing.InPlace, {"path": "model.masses"})),
    "BySeedMethod-machine": (Machine, {}, changing.BySeedMethod),
}
IN_WORKERS = ["BeforeReset-lander", "EveryThirdEpisode-machine"]
STEPS = 45
SEEDS = (4, None, None, 7, None)


def alone(name: Any, kwargs: dict[str, Any], wrapper: Any) -> Any:
    """Return the chain that Gymnasium makes, without a time limit."""
    env = name(**kwargs) if callable(name) else gymnasium.make(name, max_episode_steps=-1, **kwargs)
    kind, options = wrapper if isinstance(wrapper, tuple) else (wrapper, {})
    return kind(env, **options)


def made(case: str, **options: Any) -> Any:
    name, kwargs, wrapper = CASES[case]
    return plangym_like.make(name, wrappers=[wrapper], **kwargs, **options)


def seeds_of(case: str) -> tuple[int | None, ...]:
    """Return the seeds of a few episodes; an array may be changed only within an episode."""
    if case.startswith("BySeedMethod"):
        return (4,)
    return tuple(s for s in SEEDS if s is not None) if case.startswith(SEEDED_ONLY) else SEEDS


def actions_of(env: Any, count: int, seed: int = 0) -> list[int]:
    return [int(a) for a in np.random.default_rng(seed).integers(env.action_space.n, size=count)]


def needs_box2d(case: str) -> None:
    if case.endswith("lander"):
        pytest.importorskip("Box2D", reason="Box2D has no wheel here")


def episode(env: Any, seed: int | None, actions: list[int]) -> list[Any]:
    """Return the observations and rewards of an episode in Gymnasium's environment `env`."""
    found: list[Any] = [env.reset(seed=seed)[0]]
    for action in actions:
        obs, reward, terminated, truncated, _ = env.step(action)
        found.append((obs, float(reward), terminated, truncated))
        if terminated or truncated:
            break
    return found


@pytest.mark.parametrize("case", third_of(CASES))
def test_episodes_are_gymnasiums(case: str) -> None:
    needs_box2d(case)
    theirs = alone(*CASES[case])
    with made(case) as env:
        assert (env.snapshot, env.exactness) == ("replay", "exact")
        for number, seed in enumerate(seeds_of(case)):
            actions = actions_of(env, STEPS, number)
            expected = episode(theirs, seed, actions)
            state, obs, _ = env.reset(seed=seed)
            assert_same(obs, expected[0])
            states = [state]
            for action, outcome in zip(actions, expected[1:], strict=False):
                step = env.step(action, state=states[-1])
                assert_same(tuple(step[1:5]), outcome)
                states.append(step.state)
            # Each state leads to the same next one, in any order and from any copy.
            order = np.random.default_rng(0).permutation(len(expected) - 1)
            batch = env.step_batch([actions[i] for i in order], np.stack(states)[order])
            assert_same(batch.states, np.stack(states)[order + 1])
            env.set_state(states[-1])
    theirs.close()


@pytest.mark.parametrize("isolate", first_of([True, False]), ids=["isolated", "workers"])
@pytest.mark.parametrize("case", first_of(IN_WORKERS))
def test_workers_agree(case: str, isolate: bool) -> None:
    needs_box2d(case)
    theirs = alone(*CASES[case])
    with sending(made(case, n_workers=2, isolate=isolate)) as env:
        actions = actions_of(env, STEPS)
        for number in seeds_of(case):
            state = env.reset(seed=number).state
            expected = episode(theirs, number, actions)[1:]
            for action in actions[: len(expected)]:
                env.step(action)
        found = env.rollout_batch([actions[: len(expected)]] * 6, state, return_observations=True)
        for row in range(6):
            assert_same(found.observations[row][-1], expected[-1][0])
            assert found.rewards[row].tolist() == [outcome[1] for outcome in expected]
        children = env.step_batch([0, 1, 2] * 8, state)
        again = env.step_batch([0, 1, 2] * 8, state)
        assert_same(children, again)
    theirs.close()


# Over episodes


class Noting(gymnasium.Wrapper):
    """Adds an attribute to the innermost wrapper, which is one of Gymnasium's."""

    def step(self, action: Any) -> Any:
        link: Any = self.env
        while isinstance(link.env, gymnasium.Wrapper):
            link = link.env
        link.noted = getattr(link, "noted", 0) + 1
        return self.env.step(action)


NORMALISERS = [gymnasium.wrappers.NormalizeObservation, gymnasium.wrappers.NormalizeReward]


@pytest.mark.parametrize(
    "wrappers", [NORMALISERS, [NORMALISERS[1], *NORMALISERS, Noting]], ids=["alone", "changed"]
)
def test_normalisers_keep_their_statistics_over_episodes(wrappers: Any) -> None:
    theirs: Any = Machine()
    for kind in wrappers:
        theirs = kind(theirs)
    with plangym_like.make(Machine, wrappers=wrappers) as env:
        for number, seed in enumerate((1, None, 2, 1)):
            actions = actions_of(env, 20, number)
            expected = episode(theirs, seed, actions)
            state, obs, _ = env.reset(seed=seed)
            assert_same(obs, expected[0])
            for action, outcome in zip(actions, expected[1:], strict=True):
                state, obs, reward, *_ = env.step(action, state=state)
                assert_same((obs, reward), outcome[:2])
        # A row of this episode, in an environment that never played the others.
        with plangym_like.make(Machine, wrappers=wrappers) as other:
            assert_same(other.step(1, state=state), env.step(1, state=state))


class Connected(Machine):
    """Holds numbers that are its own, as of connections to a server in C, and counts episodes."""

    def __init__(self) -> None:
        super().__init__()
        self.connection, self.second, self.episodes = id(self.model), None, 0

    def reset(self, **kwargs: Any) -> Any:
        self.episodes += 1
        if self.second is None:
            self.second = id(self.model)
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if {self.connection, self.second} != {id(self.model)}:
            raise RuntimeError("this is the connection of another copy")
        return super().step(action)


@pytest.mark.parametrize("wrappers", [[], [changing.BySeedMethod]], ids=["bare", "wrapped"])
def test_what_the_environment_sets_itself_begins_anew_in_each_episode(wrappers: Any) -> None:
    with plangym_like.make(Connected, wrappers=wrappers) as env:
        first = env.reset(seed=3).state
        for seed in (1, 2):
            env.reset(seed=seed)
            env.step(1)
        again = env.reset(seed=3)
        assert_same(again.state, first)
        assert env.gym_env.unwrapped.episodes == 1
        env.step_batch([0, 1, 2], again.state)


class Late(gymnasium.Wrapper):
    """Makes an object in its first episode, and keeps it in later ones if `keeps` is true.

    If `counts` is true, the object changes with each step.
    """

    def __init__(self, env: gymnasium.Env, keeps: bool, counts: bool = True) -> None:
        super().__init__(env)
        self.keeps, self.counts = keeps, counts

    def reset(self, **kwargs: Any) -> Any:
        if not self.keeps:
            vars(self).pop("held", None)
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        if not hasattr(self, "held"):
            self.held = Model()
            self.held.count = 0
        self.held.count += self.counts
        return self.env.step(action)


def test_an_object_that_a_wrapper_makes_late_and_keeps_is_named() -> None:
    with plangym_like.make(Machine, wrappers=[(Late, {"keeps": True})]) as env:
        assert env.exactness == "approximate" and "Late.held, which a wrapper" in env.exactness_note
    for options in ({"keeps": False}, {"keeps": True, "counts": False}):
        with plangym_like.make(Machine, wrappers=[(Late, options)]) as env:
            assert env.exactness == "exact"


# Changes from outside


def test_attributes_that_are_set_are_part_of_the_state() -> None:
    theirs, actions = Machine(), [1, 2, 0, 1, 2]
    with plangym_like.make(Machine) as env:
        for part in (env, theirs):
            part.reset(seed=0)
            part.step(1)
        before = env.get_state()
        env.gym_env.set_wrapper_attr("power", 17.0)
        theirs.power = 17.0
        rewards = [theirs.step(action)[1] for action in actions]
        state, found = env.get_state(), []
        for action in actions:
            found.append(env.step(action).reward)
        assert found == rewards
        assert env.step(1, state=before).reward != rewards[0]
        with sending(plangym_like.make(Machine, n_workers=2)) as other:
            for _ in range(2):
                batch = other.rollout_batch([actions] * 5, state)
                assert batch.rewards.tolist() == [rewards] * 5
        # It lasts over a reset, as in Gymnasium.
        env.set_state(state)
        assert_same(env.reset(seed=3).obs, theirs.reset(seed=3)[0])
        assert [env.step(a).reward for a in actions] == [theirs.step(a)[1] for a in actions]
