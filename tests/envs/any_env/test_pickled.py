"""The generic snapshot: any environment in Python goes on as if nothing had happened."""

import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from continuation import (
    assert_equals_gymnasium,
    assert_goes_on,
    restore,
    saved,
)
from dungeon import CHAINS, Diary, Dungeon
from suite import TAXI
from usual import first_of

import plangym_like
from plangym_like.envs.pickled import PickledEnv, PickledSimulator
from plangym_like.errors import (
    SnapshotError,
    StateMismatchError,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*already returned terminated")


@pytest.mark.parametrize("chain", CHAINS)
def test_a_restored_environment_goes_on_as_if_nothing_had_happened(chain: str) -> None:
    sim = PickledSimulator(Dungeon, wrappers=CHAINS[chain])
    assert sim.exactness == "exact"
    for seed in range(2):
        assert_goes_on(sim, seed=seed, compare_rows=False)


@pytest.mark.parametrize(
    "name", first_of(["CartPole-v1", "Blackjack-v1", "MountainCarContinuous-v0", TAXI], 2)
)
def test_gymnasiums_own_environments_go_on(name: str) -> None:
    sim = PickledSimulator(name)
    for seed in range(2):
        assert_goes_on(sim, seed=seed)


@pytest.mark.parametrize("chain", CHAINS)
def test_episodes_are_those_that_gymnasium_plays(chain: str) -> None:
    def make() -> gym.Env:
        env: gym.Env = Dungeon(size=7)
        for item in CHAINS[chain]:
            env = item[0](env, **item[1]) if isinstance(item, tuple) else item(env)
        return env

    sim = PickledSimulator(Dungeon, size=7, wrappers=CHAINS[chain])
    assert_equals_gymnasium(sim, make, seed=5)


def test_what_is_shared_stays_shared() -> None:
    sim = PickledSimulator(Dungeon, wrappers=[Diary])
    sim.reset(seed=0)
    for action in [2, 0, 2]:
        sim.step(action, 1)
    row = saved(sim)
    sim.reset(seed=1)
    restore(sim, row)
    base = sim.base
    assert base.monster.rng is base.np_random
    assert any(base.here is cell for cell in base.cells)
    assert sim.env.pages[-1] is base.here
    assert base.score is vars(base)["score"]


def test_nothing_shares_memory_with_the_row() -> None:
    sim = PickledSimulator(Dungeon)
    sim.reset(seed=0)
    row = saved(sim)
    kept = row.copy()
    restore(sim, row)
    sim.base.here.visits = 1000
    assert (row == kept).all()
    restore(sim, row)
    assert sim.base.here.visits == 0


def test_the_meaning_tells_environments_apart() -> None:
    class Cave(Dungeon):
        pass

    sims = [
        PickledSimulator(Dungeon),
        PickledSimulator(Dungeon, size=5),
        PickledSimulator(Cave),
        PickledSimulator(lambda: Dungeon(5)),
        PickledSimulator(lambda: Dungeon(6)),
        PickledSimulator(Dungeon, wrappers=[Diary]),
    ]
    assert len({repr(sim.fingerprint_fields()) for sim in sims}) == len(sims)
    assert "0x" not in repr([sim.fingerprint_fields() for sim in sims])
    env, other = PickledEnv(Dungeon), PickledEnv(Dungeon, size=5)
    with pytest.raises(StateMismatchError):
        other.set_state(env.reset(seed=0).state)


# Trying it out leaves no trace


def test_trying_out_leaves_the_environment_as_new() -> None:
    held: list[Dungeon] = []

    def make() -> gym.Env:
        held.append(Dungeon())
        return held[-1]

    before = np.random.get_state()[1].tolist()
    sim = PickledSimulator(make)
    assert np.random.get_state()[1].tolist() == before
    env = sim.base
    assert len(held) == 3
    assert env._np_random is None
    assert env.action_space._np_random is None
    sim.renew()
    assert sim.reset(seed=0)[1] == {"episodes": 1}
    other = PickledSimulator(Dungeon)
    cells = [[cell.kind for cell in s.base.cells] for s in (sim, other) if s.reset()]
    assert cells[0] != cells[1]


def test_a_state_that_is_set_comes_before_the_memory_of_being_new() -> None:
    one, other = PickledEnv(Dungeon), PickledEnv(Dungeon)
    for _ in range(4):
        one.reset(seed=0)
    other.set_state(one.get_state())
    assert other.reset(seed=0).info == {"episodes": 5}


# Images


def test_the_image_is_of_the_current_state() -> None:
    env = PickledEnv(lambda: Dungeon(render_mode="rgb_array"), render_mode="rgb_array")
    state = env.reset(seed=0).state
    image = env.get_image()
    moved = env.step(2, state).state
    assert (env.get_image() != image).any()
    env.set_state(state)
    assert (env.get_image() == image).all()
    env.step_batch([0, 2], moved)
    assert (env.get_image() == image).all()


# Classes of __main__ and functions by value, in worker processes

_SCRIPT = """
import gymnasium as gym
import numpy as np
import plangym_like

class Point:
    def __init__(self, x):
        self.x = x

class Walk(gym.Env):
    observation_space = gym.spaces.Box(-99, 99, (1,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, scale):
        self.scale = scale
        self.bonus = lambda x: x * self.scale

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.points = [Point(0.0)]
        return np.array([0.0]), {}

    def step(self, action):
        self.points.append(Point(self.points[-1].x + self.np_random.normal() + action))
        del self.points[:-4]
        x = self.points[-1].x
        info = {"trace": [point.x for point in self.points]}
        return np.array([x]), self.bonus(x), abs(x) > 9, False, info

class Twice(gym.RewardWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.best = Point(-np.inf)

    def reward(self, reward):
        self.best = max(self.best, Point(reward), key=lambda point: point.x)
        return self.best.x

results = []
for n_workers in (None, 2):
    options = {} if n_workers is None else {"isolate": ISOLATE}
    env = plangym_like.make(lambda: Walk(0.5), n_workers=n_workers, wrappers=[Twice], **options)
    state = env.reset(seed=0).state
    actions = np.arange(64) % 2
    out = env.step_batch(actions, state, seeds=np.arange(64))
    out = env.step_batch(actions, out.states)
    results.append((out.states.tobytes(), out.rewards.tolist(), [i["trace"] for i in out.infos]))
    env.close()
assert results[0] == results[1]
print("equal")
"""


@pytest.mark.parametrize("isolate", first_of([True, False]))
def test_classes_of_main_work_in_workers(isolate: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-"],
        input=_SCRIPT.replace("ISOLATE", repr(isolate)),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stdout.strip() == "equal", done.stderr


def walk_with_a_class_of_its_own() -> gym.Env:
    class Place:
        def __init__(self) -> None:
            self.x = 0.0

    class Local(gym.Env):
        observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.place = Place()
            return np.zeros(1), {}

        def step(self, action: Any) -> Any:
            self.place.x += int(action) + self.np_random.random()
            return np.array([self.place.x]), self.place.x, False, False, {}

    return Local()


def test_each_process_may_make_its_own_classes() -> None:
    actions = np.arange(64) % 2
    with plangym_like.make(walk_with_a_class_of_its_own) as env:
        state = env.reset(seed=0).state
        expected = env.step_batch(actions, env.step_batch(actions, state).states).rewards
    with plangym_like.make(walk_with_a_class_of_its_own, n_workers=2, isolate=True) as env:
        assert env.snapshot == "pickle"
        state = env.reset(seed=0).state
        found = env.step_batch(actions, env.step_batch(actions, state).states).rewards
        assert np.array_equal(found, expected)


def test_a_pickle_has_no_physical_quantities_to_be_built_from() -> None:
    env = PickledEnv(Dungeon)
    with pytest.raises(SnapshotError, match="cannot be built"):
        env.make_state(env.reset(seed=0).state, x=[0.0, 1.0])


class Gambler(Dungeon):
    """Draws with an object that refers to the environment's generator, and with its own one."""

    def reset(self, **kwargs: Any) -> Any:
        self.own = np.random.default_rng(1)
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        self.drawn = np.array([self.monster.rng.random(), self.own.random()])
        return obs, self.drawn[0], *rest


@pytest.mark.parametrize("snapshot", ["pickle", "replay"])
def test_seeds_reach_objects_that_refer_to_the_generator(snapshot: str) -> None:
    env = plangym_like.make(Gambler, snapshot=snapshot)
    state = env.reset(seed=0).state
    rewards = env.step_batch([0, 0, 0], state, seeds=[1, 2, 1]).rewards
    assert rewards[0] != rewards[1] and rewards[0] == rewards[2]
    assert rewards[0] in np.random.default_rng(1).random(4)
    env.close()


class Croupier(gym.Env):
    """Draws 32-bit numbers from generators that share their bits, and spawns from shared seeds."""

    observation_space = gym.spaces.Box(0, 1 << 32, (6,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        bits = self.np_random.bit_generator
        self.twin = np.random.Generator(bits)
        self.cousin = np.random.PCG64(bits.seed_seq)
        entropy = [1, 2]
        self.seeds = np.random.SeedSequence(entropy)
        entropy.append(3)  # this changes `self.seeds.entropy`, but no number that it generates
        self.others = [
            np.random.Generator(kind(7)) for kind in (np.random.MT19937, np.random.SFC64)
        ]
        return self._draw(), {}

    def step(self, action: Any) -> Any:
        return self._draw(), 0.0, False, False, {}

    def _draw(self) -> Any:
        drawn = [each.integers(1 << 31, dtype=np.uint32) for each in (self.np_random, self.twin)]
        (child,) = self.cousin.seed_seq.spawn(1)
        drawn.append(np.random.default_rng(child).integers(1 << 31))
        drawn.append(self.seeds.generate_state(1)[0])
        return np.array([*drawn, *(each.integers(1 << 31) for each in self.others)], np.float64)


def test_generators_that_share_bits_or_seeds_go_on_sharing_them() -> None:
    theirs, env = Croupier(), plangym_like.make(Croupier, snapshot="pickle")
    theirs.reset(seed=3)
    expected = [theirs.step(0)[0] for _ in range(6)]
    state = env.reset(seed=3).state
    for drawn in expected:
        state, obs, *_ = env.step(0, state=state)
        np.testing.assert_array_equal(obs, drawn)
    own = env.gym_env.unwrapped
    assert own.twin.bit_generator is own.np_random.bit_generator
    assert own.cousin.seed_seq is own.np_random.bit_generator.seed_seq
    env.close()


def test_make_suggests_once_to_list_the_attributes_of_a_class(caplog: Any) -> None:
    class Counter(gym.Env):
        observation_space = gym.spaces.Discrete(1000)
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.count = 0
            self.table = [[str(number)] * 9 for number in range(3000)]
            return 0, {}

        def step(self, action: Any) -> Any:
            self.count += 1
            return self.count, 0.0, False, False, {}

    class Listed(Counter):
        state_attributes = (("count", int),)

    for kind in (Counter, Counter, Listed):
        with plangym_like.make(kind) as env:
            state = env.reset(seed=0).state
            assert env.step(1, state=state).obs == 1
    told = [record.getMessage() for record in caplog.records if "state_attributes" in record.msg]
    assert len(told) == 1 and "all attributes that steps and resets change" in told[0]
