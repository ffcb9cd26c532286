"""Replay: exact, cheap to continue, and refused where an environment does not repeat itself."""

import sys
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from backends import sending
from comparing import assert_same, reached, sampler
from continuation import assert_equals_gymnasium, assert_goes_on
from dungeon import CHAINS as DUNGEON_CHAINS
from dungeon import ClassCounter, Dungeon, Shy
from gymnasium import spaces
from small_envs import Fuse, Nested, Teller
from usual import first_of

import plangym_like
from plangym_like.envs.replayed import ReplayedEnv, ReplayedSimulator
from plangym_like.errors import (
    SnapshotError,
    StateCapacityError,
    StateFormatError,
)
from plangym_like.snapshots.action_log import RESEED, ActionLogFormat, Start
from plangym_like.snapshots.replay import CachedCopy, ReplayCache
from plangym_like.snapshots.replayed_chain import ReplayedChain
from plangym_like.states.rows import HEADER_NBYTES

pytestmark = pytest.mark.filterwarnings("ignore:.*already returned terminated")


class Keeper(gymnasium.Env):
    """Keeps the very array that it was given, draws from a generator that only a seed sets."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.own = np.random.RandomState(seed)
        self.last = np.zeros(2, np.float32)
        return np.zeros(2), {}

    def step(self, action: Any) -> Any:
        obs = self.last + self.own.normal(size=2)
        self.last = action
        return obs, float(obs.sum()), False, False, {"log": [float(x) for x in obs]}


def replayed(env: Any) -> int:
    """Return how many steps were replayed, without restoring the current state."""
    return int(env.row_stepper.simulator.replayed)


# Exactness


@pytest.mark.parametrize("chain", ["bare", "gymnasium's"])
def test_a_restored_environment_goes_on_as_if_nothing_had_happened(chain: str) -> None:
    sim = ReplayedSimulator(Dungeon, wrappers=DUNGEON_CHAINS[chain])
    for seed in range(3):
        assert_goes_on(sim, seed=seed)


@pytest.mark.parametrize("make", [Nested, Teller, Keeper], ids=lambda make: make.__name__)
def test_whatever_its_actions_and_observations_are(make: Any) -> None:
    env = ReplayedEnv(make)
    states = reached(env, 12)
    space = sampler(env, 1)
    actions = [space.sample() for _ in range(12)]
    whole = env.step_batch(actions, states)
    for index in reversed(range(12)):
        assert_same(env.step_batch([actions[index]], states[index]).states, whole.states[[index]])
    other = ReplayedEnv(make).step_batch(actions, states)
    assert_same(other, whole)


@pytest.mark.parametrize("name", ["CartPole-v1", "FrozenLake-v1"])
def test_episodes_are_those_that_gymnasium_plays(name: str) -> None:
    sim = ReplayedSimulator(name, remove_time_limit=False)
    assert_equals_gymnasium(sim, lambda: gymnasium.make(name), seed=4)


def test_an_environment_with_generators_of_its_own_draws_seeds() -> None:
    env = ReplayedEnv(Keeper)
    assert env.exactness == "exact"
    env.reset(seed=0)
    env.reset()
    states = reached(env, 4)
    again = ReplayedEnv(Keeper)
    assert_same(again.step_batch(np.ones((4, 2)), states), env.step_batch(np.ones((4, 2)), states))


# What it costs


def test_continuing_branches_plays_nothing_again() -> None:
    env = ReplayedEnv(Dungeon, live_prefixes=20, audit="off")
    state = env.reset(seed=0).state
    states = env.step_batch(np.arange(16) % 3, state).states
    before = replayed(env)
    for _ in range(12):
        states = env.step_batch(np.arange(16) % 3, states).states
    assert replayed(env) == before


def test_a_sibling_costs_its_log_and_a_descendant_what_lies_between() -> None:
    env = ReplayedEnv(Dungeon, audit="off")
    state = env.reset(seed=0).state
    for _ in range(10):
        state = env.step(1, state=state).state
    before = replayed(env)
    children = env.step_batch([0, 1], state).states
    assert replayed(env) == before + 10
    grandchild = env.step(2, state=children[0]).state
    fresh = ReplayedEnv(Dungeon)
    fresh.set_state(children[0])
    fresh.set_state(grandchild)
    assert replayed(fresh) == 11 + 1


@pytest.mark.parametrize("most", [1, 2])
def test_few_copies_are_slower_and_as_exact(most: int) -> None:
    env, roomy = ReplayedEnv(Dungeon, live_prefixes=most, audit="off"), ReplayedEnv(Dungeon)
    state = env.reset(seed=0).state
    states = np.stack([state] * 8)
    for time in range(6):
        actions = (np.arange(8) + time) % 3
        one, other = env.step_batch(actions, states), roomy.step_batch(actions, states)
        assert_same(one, other)
        states = one.states
    assert len(env.simulator._proxy.cache._copies) == most
    if most > 1:  # of branches in turn, all but one of the copies go on with theirs
        before = replayed(env)
        env.step_batch(np.zeros(8, int), states)
        assert replayed(env) - before <= 6 * (8 - most + 1)


def test_workers_agree_and_rows_travel() -> None:
    serial = ReplayedEnv(Shy)
    states = reached(serial, 24, every=2)
    actions = np.arange(24) % 3
    expected = serial.step_batch(actions, states)
    with sending(plangym_like.make(Shy, n_workers=1, isolate=True)) as env:
        assert env.snapshot == "replay"
        assert_same(env.step_batch(actions, states), expected)
        assert_same(env.step_batch(actions[::-1], expected.states).states.shape, states.shape)


# What is refused


def test_a_log_that_outgrows_its_row_says_which_option_helps() -> None:
    env = ReplayedEnv(Nested, replay_capacity=3)
    state = env.reset(seed=0).state
    action = {"move": np.zeros(2, np.float32), "pick": np.int64(0)}
    for _ in range(3):
        state = env.step(action, state=state).state
    with pytest.raises(StateCapacityError, match="replay_capacity="):
        for _ in range(20):
            state = env.step(action, state=state).state
    env.reset(seed=0)
    for _ in range(20):
        env.step(action)  # only rows limit the length of an episode


def test_what_does_not_repeat_itself_is_refused() -> None:
    reason = "(?s)does not repeat itself.*the reward of step 1 was.*do not read the clock"
    with pytest.raises(SnapshotError, match=reason):
        ReplayedSimulator(ClassCounter)


def test_what_was_another_elsewhere_is_found_out_in_the_current_state_too() -> None:
    env = ReplayedEnv(Dungeon)
    state = env.reset(seed=0).state
    state[HEADER_NBYTES + 8] ^= 1  # in the digest of what was seen elsewhere
    env.layout.format.seal(state[None])
    with pytest.raises(SnapshotError, match="did not repeat itself"):
        env.set_state(state)


@pytest.mark.parametrize("data", [b"", b"X", b"A", b"S\xff\xff\xff\xff", b"R123"])
def test_bytes_that_are_not_a_log_are_refused(data: bytes) -> None:
    logs = ActionLogFormat(gymnasium.spaces.MultiDiscrete([3, 300]))
    with pytest.raises(StateFormatError):
        list(logs.entries(data)) or ReplayedSimulator(Dungeon)._proxy.restore(data, b"")


def test_logs_keep_actions_to_the_bit() -> None:
    logs = ActionLogFormat(gymnasium.spaces.MultiDiscrete([3, 300]))
    actions = [np.array([2, 299]), np.array([9, 70000]), np.array([1, 1], np.int8), 3, {"a": 1.5}]
    start = Start(3, None, {"x": 1})
    log = logs.start(start) + b"".join(logs.action(action)[0] for action in actions)
    log += logs.reseed(2**64 - 1)
    read = list(logs.entries(log))
    assert read[0][1] == start and read[-1][:2] == (RESEED, 2**64 - 1)
    for action, (_, again, _) in zip(actions, read[1:-1], strict=True):
        assert_same(again, action)
        assert_same(logs.action(action)[1], action)


def test_a_step_that_raises_leaves_the_state() -> None:
    env = ReplayedEnv(Fuse)
    env.reset(seed=0)
    env.step(2)
    state = env.get_state()
    with pytest.raises(ArithmeticError):
        env.step(3)
    assert_same(env.get_state(), state)
    assert env.step(1)[0] == 3.0


class Single(Shy):
    """Of which there can be but one at a time."""

    living = 0

    def __init__(self) -> None:
        if Single.living:
            raise RuntimeError("there is one already")
        Single.living += 1
        super().__init__()

    def reset(self, **kwargs: Any) -> Any:
        self.episodes = 0
        self.log.clear()
        return super().reset(**kwargs)

    def close(self) -> None:
        Single.living = 0


def test_what_there_can_be_only_one_of_is_not_replayed() -> None:
    with pytest.raises(SnapshotError, match="by replay: a second copy raised RuntimeError: there"):
        plangym_like.make(Single)
    assert Single.living == 0


# Chance, and what a row shows


def test_the_length_of_a_log_has_a_name() -> None:
    env = ReplayedEnv(Dungeon)
    states = np.stack([env.reset(seed=0).state, env.step(0, return_state=True).state])
    assert env.view_state(states)["n_actions"].tolist() == [0, 1]


@pytest.mark.parametrize("at", first_of([ReplayedChain.step, CachedCopy.note, ReplayCache._replay]))
def test_an_interrupt_at_any_moment_leaves_a_log_and_a_digest_that_fit(at: Any) -> None:
    code, left = at.__code__, 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code is not code:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if not left:
                raise KeyboardInterrupt
        return trace

    one, other = ReplayedSimulator(Shy), ReplayedSimulator(Shy)
    root, row = np.zeros((2, one.payload_nbytes), np.uint8)
    one.reset(0)
    for _ in range(3):
        one.step(1, 1)
    one.read(root)
    moment, done = 0, False
    while not done:
        moment += 1
        one.clear_caches()
        left, before = moment, sys.gettrace()
        sys.settrace(trace)
        try:
            one.write(root)
            one.step(2, 1)
            done = True
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        one.step(0, 1)
        one.read(row)
        other.write(row)  # raises SnapshotError if the digest is that of another log
    assert moment > 20


# Copies are closed


class Owned(gymnasium.Env):
    """Cannot be pickled; notes whether it was closed."""

    observation_space = spaces.Box(0, 99, (1,))
    action_space = spaces.Discrete(2)
    made: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.is_open = True
        self.made.append(self)

    def __reduce__(self) -> Any:
        raise TypeError("no")

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def close(self) -> None:
        self.is_open = False


def test_make_closes_every_copy_of_a_replayed_environment() -> None:
    with plangym_like.make(Owned) as env:
        assert env.snapshot == "replay"
        state = env.reset(seed=0).state
        env.step_batch([0, 1], state)
        assert any(each.is_open for each in Owned.made)
    assert len(Owned.made) > 2
    assert not any(each.is_open for each in Owned.made)
    Owned.made.clear()


def test_options_that_cannot_be_saved_leave_no_copy_behind() -> None:
    with plangym_like.make(Owned) as env:
        env.reset(seed=0)
        before = sum(each.is_open for each in Owned.made)
        with pytest.raises(SnapshotError, match="options of reset"):
            env.reset(options={"it": object()})
        assert sum(each.is_open for each in Owned.made) == before
    Owned.made.clear()
