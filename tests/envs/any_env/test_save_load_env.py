"""A user's own simulator: two methods make it plannable, a third steps chunks at once."""

from typing import Any

import numpy as np
import pytest
from comparing import assert_same, reached
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import ClipReward, TimeLimit
from small_envs import Sled, Sleds
from usual import first_of

import plangym_like
from plangym_like import check_env
from plangym_like.envs.save_load_env import SaveLoadSimulator
from plangym_like.errors import (
    EnvApiError,
    ImpureEnvironmentError,
    RewardError,
    SnapshotError,
    StateFormatError,
)


class Log(Sled):
    """Its state is a nest, and grows; it draws random numbers."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        obs, info = super().reset(seed=seed, options=options)
        self.log: list[float] = []
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        self.log.append(float(self.np_random.normal()))
        return obs, reward + self.log[-1], False, truncated, {"mean": float(np.mean(self.log))}

    def save_state(self) -> Any:
        return {"x": self.x, "log": self.log}

    def load_state(self, saved: Any) -> None:
        self.x, self.log = saved["x"], saved["log"]


@pytest.mark.parametrize("kind", first_of([Sleds, Log, Sled]))
def test_two_methods_make_it_plannable(kind: Any) -> None:
    report = check_env(kind, states=8, workers=(2,), state_capacity=4096)
    assert report.ok, str(report)
    assert (report.snapshot, report.exactness) == ("native", "exact")


@pytest.mark.parametrize("dt", [1, 3, np.arange(20) % 4 + 1])
def test_chunks_are_what_their_rows_are_one_by_one(dt: Any) -> None:
    one, many = plangym_like.make(Sled), plangym_like.make(Sleds)
    assert many.snapshot == "native"
    states = reached(many, 20, every=3)
    starts = reached(one, 20, every=3)
    actions = np.arange(20) % 3
    before = Sleds.chunks
    chunk = many.step_batch(actions, states, dt=dt)
    rows = one.step_batch(actions, starts, dt=dt)
    assert Sleds.chunks > before
    for name in ("obs", "rewards", "terminateds", "truncateds"):
        assert_same(getattr(chunk, name), getattr(rows, name), name)
    assert_same(list(chunk.infos), list(rows.infos))
    assert_same(chunk.states[:, 32:], rows.states[:, 32:])
    plans = np.tile(np.arange(6) % 3, (20, 1))
    ones = one.rollout_batch(plans, rows.states, dt=dt, return_observations=True)
    chunks = many.rollout_batch(plans, chunk.states, dt=dt, return_observations=True)
    for name in ("observations", "rewards", "terminateds", "truncateds"):
        assert_same(getattr(chunks, name), getattr(ones, name), name)
    assert_same(chunks.states[:, 32:], ones.states[:, 32:])


def test_wrappers_are_around_each_step_not_around_chunks() -> None:
    clip = (ClipReward, {"min_reward": -0.5, "max_reward": 0.0})
    env = plangym_like.make(Sleds, wrappers=[clip, (TimeLimit, 9)])
    states = reached(env, 10, every=2)
    before = Sleds.chunks
    assert (env.step_batch(np.zeros(10, int), states).rewards >= -0.5).all()
    assert Sleds.chunks == before


def test_a_damaged_row_is_refused() -> None:
    env = plangym_like.make(Log, snapshot="native")
    state = env.reset(seed=0).state
    state[100] ^= 1
    with pytest.raises(StateFormatError):
        env.set_state(state)


class Varied(Sled):
    """Its state is a number, or an array or a list of it."""

    kind: Any = np.array

    def save_state(self) -> Any:
        return self.kind(complex(*self.x))

    def load_state(self, saved: Any) -> None:
        self.x = np.atleast_1d(saved).view(float)


def test_arrays_with_axes_stay_such_and_others_are_plain_data(monkeypatch: Any) -> None:
    env = plangym_like.make(Varied, snapshot="native")
    monkeypatch.setattr(Varied, "kind", complex)
    env.step(1, env.reset(seed=0).state)
    monkeypatch.setattr(Varied, "kind", staticmethod(np.atleast_1d))
    env = plangym_like.make(Varied, snapshot="native")
    monkeypatch.setattr(Varied, "kind", "{}".format)
    with pytest.raises(SnapshotError, match="str, .*: always return such an array, or always"):
        env.reset(seed=0)


class Forgets(Sled):
    def save_state(self) -> Any:
        return self.x[:1]

    def load_state(self, saved: Any) -> None:
        self.x[:1] = saved


class Objects(Sled):
    def save_state(self) -> Any:
        return [object()]


class Reversed(Sled):
    def save_state(self) -> Any:
        return self.x[::-1]


class SavesToFile(Sled):
    def save_state(self, path: str) -> None: ...


class Wrong(Sleds):
    def step_states(self, states: Any, actions: Any) -> Any:
        following, obs, rewards, *flags = super().step_states(states, actions)
        return following, obs, rewards + 1e-12, *flags


class Chancy(Sleds):
    def step(self, action: Any) -> Any:
        self.np_random.random()
        return super().step(action)


class Telling(Sleds):
    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {"far": 1}


@pytest.mark.parametrize(
    "kind, reason",
    [
        (Forgets, "does not repeat itself: the observation"),
        (Objects, r"Objects\.save_state\(\) returned cannot be saved"),
        (Reversed, r"save_state\(\) returned is not C-contiguous, .*asarray.*, or always return"),
        (SavesToFile, "SavesToFile.save_state raised TypeError: .* must return the state"),
        (Wrong, r"Wrong\.step_states does not do what step does: the reward of row 0"),
        (Chancy, "draws random numbers"),
        (Telling, "gives infos"),
    ],
)
def test_what_does_not_agree_is_refused(kind: Any, reason: str) -> None:
    with pytest.raises(SnapshotError, match=f"(?s){reason}"):
        SaveLoadSimulator(kind)


def test_what_a_class_declares_and_is_not_used_is_logged(caplog: Any) -> None:
    Undeclared = type("Undeclared", (Forgets,), {"state_attributes": None, "save_state": None})
    assert plangym_like.make(Undeclared).snapshot == "pickle" and not caplog.text
    env = plangym_like.make(Forgets)
    assert env.snapshot == "pickle" and "by native: " in env.snapshot_note
    assert "What the class declares as its state is not used: by native: " in caplog.text
    env = plangym_like.make(Wrong)
    assert env.snapshot == "native" and not env.simulator.steps_batches
    assert "without step_states: Wrong.step_states does not do what step does" in caplog.text


class Steep(Sled):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.slope = (options or {}).get("slope", 1.0)
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, self.slope * reward, *rest


def test_an_option_that_no_row_holds_is_an_error() -> None:
    with plangym_like.make(Steep, snapshot="native") as env:
        state = env.reset(seed=0, options={"slope": 1.0}).state
        reward = env.step(1, state=state).reward
        for _ in range(2):
            with pytest.raises(SnapshotError, match=r"options of reset change Steep\.slope, which"):
                env.reset(seed=0, options={"slope": 5.0})
        assert env.step(1, state=state).reward == reward != 0


class WrongLate(Sleds):
    """Its `step` pays more after 80 steps, but `step_states` does not."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float64)
    action_space = Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x = np.zeros(2)
        return self.x, {}

    def step(self, action: Any) -> Any:
        self.x = self.x + np.array([action, 1.0])
        return self.x, float(self.x[0] + 5 * (self.x[1] > 80)), False, False, {}

    def step_states(self, states: Any, actions: Any) -> Any:
        states = states + np.stack([actions, np.ones(len(actions))], 1)
        ended = np.zeros(len(states), bool)
        return states, states, states[:, 0], ended, ended


@pytest.mark.parametrize("how", first_of([{}, {"n_workers": 2}, {"n_workers": 2, "isolate": True}]))
def test_the_audit_compares_step_states_with_step(how: Any) -> None:
    with plangym_like.make(WrongLate, audit_every=1, **how) as env:
        state = env.reset(seed=0).state
        states = np.repeat(state[None], 24, axis=0)
        with pytest.raises(ImpureEnvironmentError) as caught:
            states = env.step_batch(np.arange(24) % 2, states, dt=78).states
            for _ in range(8):
                states = env.step_batch(np.arange(24) % 2, states).states
        assert caught.value.field == "rewards"
        if not how:
            assert "without the other rows" in str(caught.value)
            assert "step_states" in str(caught.value)


class ChangesActions(Sleds):
    def step_states(self, states: Any, actions: Any) -> Any:
        found = super().step_states(states, actions)
        actions[:] = 0
        return found


def test_step_states_gets_its_own_actions() -> None:
    env = plangym_like.make(ChangesActions, snapshot="native")
    state, actions = env.reset(seed=0).state, np.arange(32) % 3
    rewards = env.step_batch(actions, state, dt=3).rewards
    assert (actions == np.arange(32) % 3).all()
    assert rewards.tolist() == [env.step(each % 3, state, dt=3).reward for each in range(32)]


class OnlyOnInstances:
    """A descriptor with no value for the class."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return instance.x  # ``None`` has none


class Described(Sleds):
    place = OnlyOnInstances()


def test_a_class_may_have_descriptors_without_a_value() -> None:
    env = plangym_like.make(Described)
    assert len(env.step_batch([0, 1], env.reset(seed=0).state).rewards) == 2


class Short(WrongLate):
    """From a number of rows, `step_states` returns what is of another shape or dtype."""

    def __init__(self, part: int, change: Any, rows: int) -> None:
        self.part, self.change, self.rows = part, change, rows

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, 0.0, *rest

    def step_states(self, states: Any, actions: Any) -> Any:
        found = [*super().step_states(states, actions)]
        found[2] = np.zeros(len(states))
        if len(states) >= self.rows:
            found[self.part] = self.change(found[self.part])
        return found


MISFITS = [
    (0, lambda states: states[:1], EnvApiError, "next states float64"),
    (0, lambda states: states.astype(np.float32), EnvApiError, "next states float32"),
    (2, lambda rewards: rewards[0], RewardError, "rewards of shape"),
    (2, lambda rewards: rewards[1:], RewardError, "rewards of shape"),
    (3, lambda flags: flags[:1], EnvApiError, "terminateds of shape"),
    (4, lambda flags: flags[0], EnvApiError, "truncateds of shape"),
]


@pytest.mark.parametrize("part, change, error, message", MISFITS)
def test_step_states_returns_one_of_each_for_each_row(
    part: int, change: Any, error: Any, message: str
) -> None:
    with pytest.raises(SnapshotError, match=f"it raises {error.__name__}: .*{message}"):
        SaveLoadSimulator(lambda: Short(part, change, 1))
    env = plangym_like.make(lambda: Short(part, change, 40), snapshot="native", audit="off")
    state = env.reset(seed=0).state
    with pytest.raises(error, match=message) as caught:
        env.step_batch([0] * 64, state)
    assert "(raised for rows 0 to 63 together, for none alone)" in caught.value.__notes__


class Fragile(WrongLate):
    """It raises an error far away, in `step` and in `step_states`."""

    def step(self, action: Any) -> Any:
        found = self.step_states(self.x[None], np.array([action]))
        self.x = found[0][0]
        return self.x, float(found[2][0]), False, False, {}

    def step_states(self, states: Any, actions: Any) -> Any:
        if (states[:, 0] > 1000).any():
            raise ValueError("too far")
        return super().step_states(states, actions)


@pytest.mark.parametrize("how", first_of([{}, {"n_workers": 2}]))
def test_an_error_of_step_states_names_the_first_row_that_raises_it(how: Any) -> None:
    with plangym_like.make(Fragile, **how) as env:
        states = np.repeat(env.reset(seed=0).state[None], 10, axis=0)
        env.simulator.base.x = np.array([2000.0, 0])
        states[[6, 8]] = env.get_state()
        for call in (
            lambda: env.step_batch([0] * 10, states),
            lambda: env.rollout_batch(np.zeros((10, 3), int), states),
        ):
            with pytest.raises(ValueError, match="too far") as caught:
                call()
            assert caught.value.__notes__ == ["(in row 6 of a batch of 10)"]


class Counted(Sled):
    """It counts its episodes, and shows their numbers to the user."""

    def __init__(self, seen: list[int], kept: Any = None) -> None:
        self.seen, self.kept, self.episodes = seen, kept, 0
        self.dealer, self.x = np.random.default_rng(3), np.zeros(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.episodes += 1
        self.seen.append(self.episodes)
        obs, _ = super().reset(seed=seed)
        return obs, {"episode": self.episodes, "drawn": self.dealer.random()}

    def save_state(self) -> Any:
        return [*self.x, self.episodes]

    def load_state(self, saved: Any) -> None:
        self.x, self.episodes = np.array(saved[:2]), saved[2]


class CountedLate(Counted):
    """Its state before the first reset is ``None``, which `load_state` does not take."""

    def __init__(self, seen: list[int]) -> None:
        super().__init__(seen)
        self.x = None

    def save_state(self) -> Any:
        return None if self.x is None else super().save_state()


def test_the_first_episode_is_the_first() -> None:
    expected = {"episode": 1, "drawn": np.random.default_rng(3).random()}

    def unpicklable() -> Any:
        return Counted([], (_ for _ in ()))

    for wrappers in ([], [(ClipReward, (-1, 1))]):
        with plangym_like.make(unpicklable, wrappers=wrappers, snapshot="native") as env:
            assert env.reset(seed=0).info == expected


def test_an_environment_keeps_the_objects_of_the_user() -> None:
    seen: list[int] = []
    with plangym_like.make(lambda: Counted(seen), snapshot="native") as env:
        seen.clear()
        env.reset(seed=0)
    assert seen == [1]


def test_a_state_from_before_the_first_reset_that_cannot_be_loaded() -> None:
    with plangym_like.make(lambda: CountedLate([]), snapshot="native") as env:
        assert env.reset(seed=0).info["episode"] == 1
