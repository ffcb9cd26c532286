"""The generic snapshot: any environment in Python goes on as if nothing had happened."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from continuation import assert_equals_gymnasium, assert_goes_on
from dungeon import CHAINS, Dungeon
from suite import TAXI
from usual import first_of

import plangym_like
from plangym_like.envs import family_env
from plangym_like.envs.pickled import PickledEnv, PickledSimulator

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


class Tabled(gym.Env):
    """To save its table takes longer than a step."""

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


class Marked(Tabled):
    def __init__(self) -> None:
        self.metadata = {"level": 0}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        found = super().reset(seed=seed)
        self.np_random = np.random.Generator(np.random.MT19937(3))
        return found

    def step(self, action: Any) -> Any:
        self.metadata["level"] += 1
        return 0, self.metadata["level"] + self.np_random.random(), False, False, {}


def test_generators_of_other_kinds_and_metadata_are_part_of_the_state() -> None:
    with plangym_like.make(Marked) as env:
        assert (env.snapshot, env.exactness) == ("pickle", "exact")
        state, draws = env.reset(seed=0).state, np.random.Generator(np.random.MT19937(3))
        assert [env.step(1, state=state).reward for _ in range(2)] == [1 + draws.random()] * 2


class ReplayedTable(gym.utils.EzPickle, Tabled):
    """It cannot be pickled."""

    state_attributes = None


class LockedTable(ReplayedTable):
    """It holds an object that is not plain data: its state cannot be listed."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class ListedTable(Tabled):
    state_attributes = (("count", int),)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> Callable[[], list[str]]:
    """What has been logged about `state_attributes`; no class has been measured yet."""
    monkeypatch.setattr(family_env, "_seen", set())
    return lambda: [each.getMessage() for each in caplog.records if "state_attributes" in each.msg]


def test_make_suggests_once_to_list_the_attributes_of_a_class(told: Any) -> None:
    for kind in (Tabled, Tabled, ListedTable, ReplayedTable, ReplayedTable):
        with plangym_like.make(kind) as env:
            state = env.reset(seed=0).state
            assert env.step(1, state=state).obs == 1
    assert all("all attributes that steps and resets change" in each for each in told())
    first, second = told()
    assert "is saved as a pickle" in first and "is saved as its actions" in second


@pytest.mark.parametrize(
    ("kind", "snapshot"),
    [(LockedTable, "replay"), (ListedTable, "pickle"), (ListedTable, "replay")],
)
def test_make_suggests_nothing_that_cannot_be_done(told: Any, kind: Any, snapshot: str) -> None:
    plangym_like.make(kind, snapshot=snapshot).close()
    assert not told()


@pytest.mark.parametrize("snapshot", ["pickle", "replay"])
def test_make_suggests_nothing_to_workers_or_for_installed_classes(
    told: Any, monkeypatch: pytest.MonkeyPatch, snapshot: str
) -> None:
    with monkeypatch.context() as here:
        here.setattr(family_env, "is_worker", lambda: True)
        plangym_like.make(Tabled, snapshot=snapshot).close()
    with monkeypatch.context() as here:
        here.setattr(family_env.sysconfig, "get_path", lambda name: str(Path(__file__).parent))
        plangym_like.make(Tabled, snapshot=snapshot).close()
    assert not told()
    plangym_like.make(Tabled, snapshot=snapshot).close()
    assert told()
