"""Where it is easy to return something else than Gymnasium's SyncVectorEnv."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from test_make_vec import same

import plangym_like
from plangym_like import make_vec, registry
from plangym_like.errors import SnapshotError
from plangym_like.vector.kernel_lanes import RowLanes


class Walk(gymnasium.Env):
    """A random walk that hands out its own buffer and info."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(4)

    def __init__(self) -> None:
        self.place = np.zeros(2)
        self.info: dict[str, Any] = {"place": self.place, "nested": {"place": self.place}}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if options:
            raise ArithmeticError("refused options")
        self.place[:] = self.np_random.normal(), 0
        self.info["steps"] = 0
        return self.place, self.info

    def step(self, action: Any) -> Any:
        if action == 3:
            raise ArithmeticError("refused the action")
        self.place += self.np_random.normal(), 1
        self.info["steps"] += 1
        return self.place, float(action), bool(self.place[1] > 2), False, self.info


def walk_with_states() -> Any:
    return plangym_like.make(Walk)


BOTH = pytest.mark.parametrize("source", [Walk, walk_with_states])


@BOTH
def test_final_infos_are_those_of_before_the_reset(source: Any) -> None:
    theirs = SyncVectorEnv([Walk] * 2, autoreset_mode="SameStep")
    ours = make_vec(source, 2, autoreset_mode="SameStep")
    theirs.reset(seed=1), ours.reset(seed=1)
    for _ in range(3):
        one, other = theirs.step([0, 1]), ours.step([0, 1])
    assert one[4]["final_info"]["steps"].tolist() == [3, 3]
    assert same(one[4]["final_info"], other[4]["final_info"])
    assert same(one[4]["nested"], other[4]["nested"])


class Shared(gymnasium.Env):
    """All environments return the same info, with the same array in it."""

    observation_space = spaces.Box(0, 9, (1,), np.int64)
    action_space = spaces.Discrete(9)
    place = np.zeros(2)
    info: dict[str, Any] = {"steps": 0, "place": place}  # noqa: RUF012

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._tell(seed % 9 if seed is not None else 7)

    def step(self, action: Any) -> Any:
        obs, info = self._tell(int(action))
        return obs, float(action), int(action) == 5, False, info

    def _tell(self, number: int) -> Any:
        self.place[:] = number, 1
        self.info["steps"] = number
        return np.array([number]), self.info


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_infos_that_environments_share(mode: Any) -> None:
    theirs = SyncVectorEnv([Shared] * 3, autoreset_mode=mode)
    ours = make_vec(Shared, 3, autoreset_mode=mode)
    assert same(theirs.reset(seed=1), ours.reset(seed=1))
    for actions in ([1, 5, 2], [3, 1, 5], [2, 3, 4]):
        assert same(theirs.step(np.array(actions)), ours.step(actions))


@pytest.mark.parametrize(
    "info",
    [
        {"final_obs": np.array([1, 2])},
        {"place": 1, "_place": 2},
        {"_place": 2.5, "place": 1},
        {"place": {"_x": 1}, "x": np.float32(1)},
        {7: 1, "x": np.array(3, np.int8)},
    ],
)
def test_names_of_infos(info: Any) -> None:
    class Telling(Walk):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], dict(info)

    theirs, ours = SyncVectorEnv([Telling] * 2), make_vec(Telling, 2)
    theirs.reset(), ours.reset()
    assert same(theirs.step([0, 0])[4], ours.step([0, 0])[4])


@BOTH
@pytest.mark.parametrize("where", ["step", "reset"])
def test_generators_go_on_after_an_exception(source: Any, where: str) -> None:
    theirs, ours = SyncVectorEnv([Walk] * 3), make_vec(source, 3)
    for envs in (theirs, ours):
        envs.reset(seed=1)
        for _ in range(2):
            with pytest.raises(ArithmeticError, match="refused"):
                envs.step([0, 3, 0]) if where == "step" else envs.reset(options={"level": 1})
    assert same(theirs.reset(), ours.reset())
    assert same(theirs.step([1, 1, 1]), ours.step([1, 1, 1]))
    if ours.has_states:
        states, results = ours.get_states(), ours.step([1, 1, 1])
        ours.set_states(states)
        assert same(results, ours.step([1, 1, 1]))


# Actions


class Echo(gymnasium.Env):
    """Its infos say which actions arrive."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Box(0, 200, (2,), np.uint8)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> Any:
        return 0, 0.0, False, False, {"action": action.astype(np.int64)}


def test_whole_numbers_that_the_dtype_cannot_hold_do_not_wrap() -> None:
    theirs, ours = SyncVectorEnv([Echo] * 2), make_vec(Echo, 2)
    theirs.reset(), ours.reset()
    for actions in ([[300, -1], [1, 2]], [[30, 1], [1, 200]]):
        assert same(theirs.step(np.array(actions)), ours.step(np.array(actions)))


@pytest.mark.parametrize("count", [2, 5])
def test_actions_of_environments_that_are_reset_have_no_meaning(count: int) -> None:
    make = partial(gymnasium.make, "CartPole-v1", max_episode_steps=2)
    theirs, ours = (
        SyncVectorEnv([make] * count),
        make_vec("CartPole-v1", count, max_episode_steps=2),
    )
    theirs.reset(seed=1), ours.reset(seed=1)
    for choice in (0, 1, -1, 0):
        actions = np.full(count, choice)
        assert same(theirs.step(actions), ours.step(actions))
    assert actions.tolist() == [0] * count


@pytest.mark.parametrize("count", [2, 5])
def test_a_state_that_is_set_as_a_tuple(count: int) -> None:
    theirs = SyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * count)
    ours = make_vec("CartPole-v1", count)
    for envs in (theirs, ours):
        envs.reset(seed=1)
        envs.set_attr("state", [(0.0, 0.1 * index, 0.01, 0.0) for index in range(count)])
    for _ in range(3):
        assert same(theirs.step([1] * count), ours.step([1] * count))


# Spaces


class Lists(Echo):
    """Observes a list where its space has tuples."""

    observation_space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-9, 9, (), np.float32)))

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return [1, 2.0], {}


def test_containers_are_those_of_the_space() -> None:
    theirs, ours = SyncVectorEnv([Lists] * 2), make_vec(Lists, 2)
    one, other = theirs.reset()[0], ours.reset()[0]
    assert type(one) is type(other) is tuple and same(one, other)


class Trail(Echo):
    """Observes a sequence of arrays."""

    observation_space = spaces.Sequence(spaces.Box(-9, 9, (1,), np.float64))

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return (np.zeros(1), np.ones(1)), {}


def test_observations_that_are_objects_belong_to_the_caller() -> None:
    envs = make_vec(Trail, 2)
    first = envs.reset()[0]
    first[1][0][0] = 7.0
    again = envs.reset(options={"reset_mask": np.array([True, False])})[0]
    assert again[1][0].tolist() == [0.0]


def test_seeds_of_rows_of_one_environment() -> None:
    with make_vec("HalfCheetah-v5", 8) as envs:
        envs.reset(seed=5)
        assert envs.np_random_seed == tuple(range(5, 13))
        envs.reset(seed=[20] * 8, options={"reset_mask": np.arange(8) == 2})
        envs.reset()
        assert envs.np_random_seed == (5, 6, 20, 8, 9, 10, 11, 12)


def test_seeds_of_state_rows_are_those_of_the_lanes() -> None:
    with make_vec(lambda: plangym_like.make("HalfCheetah-v5", n_workers=1), 8) as envs:
        assert type(envs._lanes) is RowLanes
        envs.reset(seed=5)
        assert envs.call("np_random_seed") == tuple(range(5, 13))
        assert envs.call("get_wrapper_attr", "np_random_seed") == tuple(range(5, 13))
        assert envs.call("has_wrapper_attr", "np_random_seed") == (True,) * 8
        envs.call("set_state", np.zeros(9), np.zeros(9))


# Making them


def test_ids_that_gymnasium_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "user_families", [])
    plangym_like.register(
        "mine/", lambda name, **kwargs: plangym_like.ClassicControlEnv(name[5:], **kwargs)
    )
    with make_vec("mine/CartPole-v1", 2) as envs:
        assert envs.spec is None and envs.reset(seed=0)[0].shape == (2, 4)


def test_what_cannot_be_made_is_closed() -> None:
    closed = []

    class Closing(Walk):
        def close(self) -> None:
            closed.append(self)

    for wrong in ({"autoreset_mode": "Never"}, {"observation_mode": "none"}):
        with pytest.raises(ValueError):
            make_vec(Closing, 2, **wrong)
        assert len(closed) == 2
        closed.clear()


@pytest.mark.usefixtures("gymnasium_registry")
def test_ids_that_cannot_be_saved_exactly() -> None:
    class Elsewhere(Walk):
        """Draws from a generator that no state holds."""

        def step(self, action: Any) -> Any:
            return np.array([random.random(), 0]), 0.0, False, False, {}

    gymnasium.register("Elsewhere-v0", Elsewhere)
    with pytest.raises(SnapshotError) as caught:
        make_vec("Elsewhere-v0", 2)
    assert any("without state rows" in note for note in caught.value.__notes__)
    with make_vec(lambda: gymnasium.make("Elsewhere-v0"), 2) as envs:
        assert envs.reset(seed=0)[0].shape == (2, 2)


def test_ids_with_a_module() -> None:
    with make_vec("gymnasium.envs.classic_control:CartPole-v1", 2) as envs:
        assert envs.spec is not None and envs.spec.id == "CartPole-v1"
        assert envs.reset(seed=0)[0].shape == (2, 4)
