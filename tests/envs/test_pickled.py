"""The generic snapshot: any environment in Python goes on, or is refused with the reason."""

import collections
import dataclasses
import enum
import itertools
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from continuation import (
    assert_equals_gymnasium,
    assert_goes_on,
    content,
    format_of,
    restore,
    saved,
)
from gymnasium import wrappers
from gymnasium.utils import EzPickle

import plangym_like
from plangym_like import states
from plangym_like.envs.pickled import PickledEnv, PickledSimulator
from plangym_like.errors import (
    SnapshotError,
    StateCapacityError,
    StateFormatError,
    StateMismatchError,
    UntrustedStateError,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*already returned terminated")


class Mood(enum.Enum):
    ASLEEP = "asleep"
    AWAKE = "awake"


@dataclasses.dataclass
class Cell:
    kind: str
    visits: int = 0


class Monster:
    def __init__(self, rng: np.random.Generator, cell: Cell) -> None:
        self.rng = rng
        self.cell = cell
        self.mood = Mood.ASLEEP


class Dungeon(gym.Env):
    """A ring of cells with a monster that draws from the environment's generator."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, size: int = 9, render_mode: str | None = None) -> None:
        self.size = size
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0, 100, (3,), np.float64)
        self.action_space = gym.spaces.Discrete(3)
        self.score = lambda cell: -1.0 if cell.kind == "trap" else 0.5
        self.episodes = 0
        self.log: collections.deque = collections.deque(maxlen=5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episodes += 1
        kinds = self.np_random.choice(["floor", "trap", "door"], self.size)
        self.cells = [Cell(str(kind)) for kind in kinds]
        self.here = self.cells[0]
        self.monster = Monster(self.np_random, self.cells[-1])
        self.time = 0
        return self._obs(), {"episodes": self.episodes}

    def step(self, action: Any) -> Any:
        self.time += 1
        place = (self.cells.index(self.here) + int(action) - 1) % self.size
        self.here = self.cells[place]
        self.here.visits += 1
        self.log.append((place, self.here.kind))
        if self.monster.rng.random() < 0.4:
            self.monster.mood = Mood.AWAKE
            self.monster.cell = self.cells[int(self.monster.rng.integers(self.size))]
        caught = self.monster.mood is Mood.AWAKE and self.monster.cell is self.here
        reward = self.score(self.here) - 10.0 * caught
        info = {"log": list(self.log), "mood": self.monster.mood.value}
        return self._obs(), reward, bool(caught and self.time > 5), False, info

    def _obs(self) -> Any:
        return np.array([self.cells.index(self.here), self.here.visits, self.time], np.float64)

    def render(self) -> Any:
        picture = np.zeros((8, self.size, 3), np.uint8)
        picture[:, self.cells.index(self.here)] = 255
        return picture


class Diary(gym.Wrapper):
    """Remembers with objects of its own, one of which is the environment's."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.pages: list[Cell] = []

    def reset(self, **kwargs: Any) -> Any:
        self.pages = []
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.pages.append(self.unwrapped.here)
        del self.pages[:-3]
        info = {**info, "visits": [cell.visits for cell in self.pages]}
        return obs, reward, terminated, truncated, info


CHAINS: dict[str, list[Any]] = {
    "bare": [],
    "diary": [Diary],
    "gymnasium's": [
        (wrappers.TimeLimit, {"max_episode_steps": 25}),
        (wrappers.FrameStackObservation, {"stack_size": 3}),
        wrappers.NormalizeObservation,
        (wrappers.StickyAction, {"repeat_action_probability": 0.3}),
    ],
    "both": [Diary, (wrappers.DelayObservation, {"delay": 2}), Diary, wrappers.NormalizeReward],
}


@pytest.mark.parametrize("chain", CHAINS)
def test_a_restored_environment_goes_on_as_if_nothing_had_happened(chain: str) -> None:
    sim = PickledSimulator(Dungeon, wrappers=CHAINS[chain])
    assert sim.exactness == "exact"
    for seed in range(6):
        assert_goes_on(sim, seed=seed, compare_rows=False)


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "Acrobot-v1", "MountainCarContinuous-v0", "Taxi-v4", "Blackjack-v1"]
)
def test_gymnasiums_own_environments_go_on(name: str) -> None:
    sim = PickledSimulator(name)
    for seed in range(3):
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


def test_batches_are_pure() -> None:
    env = plangym_like.make(Dungeon, wrappers=[Diary])
    assert isinstance(env, PickledEnv)
    env.action_space.seed(0)
    state = env.reset(seed=0).state
    states, actions = [state], [1]
    for _ in range(20):
        actions.append(env.sample_action())
        states.append(env.step(actions[-1], states[-1]).state)
    before = env.get_state()
    one = env.step_batch(actions, states)
    other = env.step_batch(actions[::-1], states[::-1])
    assert (one.states == other.states[::-1]).all()
    assert content(list(one.infos)) == content(list(other.infos)[::-1])
    assert (env.get_state() == before).all()
    again = [env.step(action, row) for action, row in zip(actions, states, strict=True)]
    assert [step.reward for step in again] == one.rewards.tolist()


def test_a_row_of_one_simulator_goes_on_in_another() -> None:
    one, other = (PickledSimulator(Dungeon, wrappers=CHAINS["both"]) for _ in range(2))
    assert format_of(one) == format_of(other)
    one.reset(seed=1)
    for action in [0, 2, 2, 1]:
        one.step(action, 1)
    restore(other, saved(one))
    for action in [2, 1, 0, 2, 2]:
        assert content(one.step(action, 1)) == content(other.step(action, 1))


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
    assert len({repr(sim.meaning()) for sim in sims}) == len(sims)
    assert "0x" not in repr([sim.meaning() for sim in sims])
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
    env = held[0]
    assert env._np_random is None
    assert env.action_space._np_random is None
    assert sim.reset(seed=0)[1] == {"episodes": 1}
    other = PickledSimulator(Dungeon)
    cells = [[cell.kind for cell in s.base.cells] for s in (sim, other) if s.reset()]
    assert cells[0] != cells[1]


def test_a_state_that_is_set_comes_before_the_memory_of_being_new() -> None:
    one, other = PickledSimulator(Dungeon), PickledSimulator(Dungeon)
    for _ in range(4):
        one.reset(seed=0)
    restore(other, saved(one))
    assert other.reset(seed=0)[1] == {"episodes": 5}


class Guarded(Dungeon):
    def reset(self, **kwargs: Any) -> Any:
        self.guards = {"step": threading.Lock(), "other": threading.RLock(), "wait": 0}
        self.rung = threading.Event()
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        with self.guards["step"], self.guards["other"]:
            if action == 2:
                self.rung.set()
            obs, reward, *rest = super().step(action)
            return obs, reward + self.rung.is_set(), *rest


def test_locks_inside_are_made_anew() -> None:
    sim = PickledSimulator(Guarded)
    for seed in range(3):
        assert_goes_on(sim, seed=seed, compare_rows=False)


# What is refused


class Wrapped(Dungeon, EzPickle):
    def __init__(self) -> None:
        Dungeon.__init__(self)
        EzPickle.__init__(self)


class Reduced(Dungeon):
    def __reduce__(self) -> Any:
        return Reduced, ()


class Stated(Dungeon):
    def __getstate__(self) -> Any:
        return {}


class Slotted(Dungeon):
    __slots__ = ("secret",)


class Filed(Dungeon):
    def __init__(self) -> None:
        super().__init__()
        self.file = Path(__file__).open()  # noqa: SIM115

    def close(self) -> None:
        self.file.close()


class Threaded(Dungeon):
    def __init__(self) -> None:
        super().__init__()
        self.workers = [threading.Thread()]


class Nested(Dungeon):
    def __init__(self) -> None:
        super().__init__()
        self.inner = {"robot": Wrapped()}


class Remembering(Dungeon):
    def __init__(self) -> None:
        super().__init__()
        log: list[Any] = []
        self.score = lambda cell: float(log.append(cell) is None)


class Entangled(Dungeon):
    def __init__(self) -> None:
        super().__init__()
        cell = Cell("bonus")
        self.score = lambda _: float(cell.visits)


class ClassCounter(Dungeon):
    total = 0

    def step(self, action: Any) -> Any:
        type(self).total += 1
        obs, reward, *rest = super().step(action)
        return obs, reward + ClassCounter.total, *rest


_moved = {"steps": 0}


class ModuleCounter(Dungeon):
    def step(self, action: Any) -> Any:
        _moved["steps"] += 1
        result = super().step(action)
        result[0][2] = _moved["steps"] % 7
        return result


class SpaceDrawing(Dungeon):
    def step(self, action: Any) -> Any:
        return super().step(self.action_space.sample())


class GlobalDrawing(Dungeon):
    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, np.random.random(), *rest


class Ending(Dungeon):
    ends = itertools.cycle([False, False, False, True])

    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, next(self.ends), info


REFUSED = {
    Wrapped: "Wrapped is an EzPickle.*come back from a pickle unstepped.*write a Simulator",
    Reduced: "Reduced has its own __reduce__",
    Stated: "Stated has its own __getstate__",
    Slotted: "Slotted keeps state outside its __dict__",
    Filed: r"Filed\.file, an object of class _io\.TextIOWrapper, cannot be pickled",
    Threaded: r"Threaded\.workers, .*cannot be pickled: what a thread does.*state_attributes",
    Nested: r"Nested\.inner, .*Wrapped is an EzPickle",
    Remembering: r"Remembering\.score cannot be saved: the function changes 'log', a list",
    Entangled: r"Entangled\.score cannot be saved: the function holds an object of class .*Cell",
    ClassCounter: r"ClassCounter does not repeat itself.*the reward of step 1 was",
    ModuleCounter: r"ModuleCounter does not repeat itself.*the observation of step 1 was",
    SpaceDrawing: r"SpaceDrawing does not repeat itself.*draw from self.np_random",
    GlobalDrawing: r"GlobalDrawing does not repeat itself.*the reward of step",
    Ending: "Ending does not repeat itself",
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_what_cannot_be_saved_is_refused_with_the_reason(kind: Any) -> None:
    with pytest.raises(SnapshotError, match=f"(?s){REFUSED[kind]}"):
        PickledSimulator(kind)


def test_a_window_around_it_is_refused() -> None:
    with pytest.raises(SnapshotError, match="RenderCollection cannot be saved"):
        PickledSimulator(
            lambda: wrappers.RenderCollection(Dungeon(render_mode="rgb_array")),
        )


def test_an_attribute_that_becomes_unpicklable_is_named() -> None:
    sim = PickledSimulator(Dungeon)
    sim.reset(seed=0)
    sim.base.words = {"a": 1, "b": (word for word in "ab")}
    with pytest.raises(SnapshotError, match=r"Dungeon\.words.*cannot be pickled"):
        saved(sim)


class Timed(Dungeon):
    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "seconds": time.perf_counter()}


def test_an_info_that_is_not_the_same_again_makes_it_approximate() -> None:
    env = PickledEnv(Timed)
    assert env.exactness == "approximate"
    assert "seconds" in env.exactness_note


class Declared(Wrapped):
    state_attributes = ("cells", "here", "monster", "time", "log", "_np_random", "episodes")

    def __init__(self) -> None:
        super().__init__()
        self.connection = threading.Thread()


def test_a_class_may_say_itself_what_its_memory_is() -> None:
    sim = PickledSimulator(Declared)
    for seed in range(3):
        assert_goes_on(sim, seed=seed, compare_rows=False)


class Picky(Dungeon):
    def step(self, action: Any) -> Any:
        if action == 0 and self.time % 2:
            raise ValueError("not now")
        return super().step(action)


def test_an_environment_may_refuse_an_action() -> None:
    env = PickledEnv(Picky)
    state = env.reset(seed=0).state
    state = env.step(1, state).state
    with pytest.raises(ValueError, match="not now"):
        env.step(0, state)
    assert env.step(1, state).obs[2] == 2


# Rows and trust


def _resealed(env: PickledEnv, row: np.ndarray) -> np.ndarray:
    env.layout.format.seal(row[None])
    return row


def test_a_damaged_row_is_refused() -> None:
    env = PickledEnv(Dungeon)
    state = env.reset(seed=0).state
    random = np.random.default_rng(0)
    for _ in range(50):
        damaged = state.copy()
        damaged[random.integers(32, len(state))] ^= 1 << int(random.integers(8))
        with pytest.raises(StateFormatError):
            env.set_state(damaged)


@pytest.mark.parametrize("place", [32 + 8, 32 + 24, 32 + 100])
def test_a_row_without_the_tag_of_this_session_is_not_unpickled(place: int) -> None:
    env = PickledEnv(Dungeon)
    row = env.reset(seed=0).state
    row[place] ^= 1
    _resealed(env, row)
    with pytest.raises(UntrustedStateError, match="allow_pickle=True"):
        env.set_state(row)
    with pytest.raises(UntrustedStateError):
        env.step_batch([1, 1], row)


def test_a_length_beyond_the_row_is_damage() -> None:
    env = PickledEnv(Dungeon, allow_pickle=True)
    row = env.reset(seed=0).state
    row[32:40] = 255
    _resealed(env, row)
    with pytest.raises(StateFormatError):
        env.set_state(row)


class _Bomb:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.place),)


def test_a_foreign_pickle_does_not_run(tmp_path: Path) -> None:
    env = PickledEnv(Dungeon)
    row = env.reset(seed=0).state
    data = pickle.dumps(_Bomb(tmp_path / "mark"))
    row[32:] = 0
    row[32:40].view(np.uint64)[0] = len(data)
    row[56 : 56 + len(data)] = np.frombuffer(data, np.uint8)
    _resealed(env, row)
    with pytest.raises(UntrustedStateError):
        env.set_state(row)
    assert not (tmp_path / "mark").exists()


def test_rows_of_another_session_need_a_word(tmp_path: Path, monkeypatch: Any) -> None:
    env = PickledEnv(Dungeon)
    state = env.reset(seed=0).state
    future = env.step(2, state)
    env.save_states(tmp_path / "states", [state])
    monkeypatch.setattr(states, "_session_key", b"another session's key of 32 byte")
    rows = env.load_states(tmp_path / "states")
    with pytest.raises(UntrustedStateError):
        env.step(2, rows[0])
    trusting = PickledEnv(Dungeon, allow_pickle=True)
    again = trusting.step(2, rows[0])
    assert content(tuple(again)[1:]) == content(tuple(future)[1:])


class Growing(Dungeon):
    def reset(self, **kwargs: Any) -> Any:
        self.history: list[float] = []
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.history += [float(self.time)] * 50
        return super().step(action)


def test_a_snapshot_that_outgrows_the_row_says_which_option_helps() -> None:
    env = PickledEnv(Growing)
    state = env.reset(seed=0).state
    with pytest.raises(StateCapacityError, match=r"state_capacity=\d+"):
        for _ in range(100):
            state = env.step(1, state).state
    roomy = PickledEnv(Growing, state_capacity=200_000)
    assert roomy.state_nbytes == 200_000 + 32
    state = roomy.reset(seed=0).state
    for _ in range(100):
        state = roomy.step(1, state).state
    with pytest.raises(StateCapacityError, match="200 are reserved"):
        PickledEnv(Growing, state_capacity=200)


def test_rows_are_zero_behind_the_pickle() -> None:
    env = PickledEnv(Growing)
    state = env.reset(seed=0).state
    later = env.step(1, state).state
    used = int(state[16:24].view(np.uint64)[0])
    assert (state[32 + used :] == 0).all()
    assert int(later[16:24].view(np.uint64)[0]) > used


def test_the_fields_are_the_attributes_that_are_numbers() -> None:
    env = PickledEnv("CartPole-v1")
    first = env.reset(seed=0)
    batch = env.step_batch([0, 1], first.state)
    fields = env.view_state(batch.states)
    assert np.allclose(fields["state"], batch.obs)
    assert fields["gravity"].tolist() == [9.8, 9.8]
    assert env.view_state(first.state)["state"].shape == (4,)


def test_seeds_make_chance_nodes() -> None:
    env = PickledEnv(Dungeon)
    state = env.step(2, env.reset(seed=0).state).state
    one = env.step_batch([1] * 30, state, seeds=range(30))
    other = env.step_batch([1] * 30, state, seeds=list(range(30))[::-1])
    assert (one.states == other.states[::-1]).all()
    assert len(np.unique(one.states, axis=0)) == 30


# Pictures


class Painting(Dungeon):
    def render(self) -> Any:
        import pygame

        if not hasattr(self, "canvas"):
            self.canvas = pygame.Surface((self.size, 8))
            self.brushes = {"here": pygame.Surface((1, 8))}
            self.clock = pygame.time.Clock()
            self.guard = threading.Lock()
        with self.guard:
            self.brushes["here"].fill((255, 255, 255))
            self.canvas.fill((0, 0, 0))
            self.canvas.blit(self.brushes["here"], (self.cells.index(self.here), 0))
            return pygame.surfarray.array3d(self.canvas).transpose(1, 0, 2)


@pytest.mark.parametrize("kind", [Dungeon, Painting])
def test_the_picture_is_of_the_current_state(kind: Any) -> None:
    pytest.importorskip("pygame")
    env = PickledEnv(lambda: kind(render_mode="rgb_array"), render_mode="rgb_array")
    state = env.reset(seed=0).state
    picture = env.get_image()
    moved = env.step(2, state).state
    assert (env.get_image() != picture).any()
    env.set_state(state)
    assert (env.get_image() == picture).all()
    env.step_batch([0, 2], moved)
    assert (env.get_image() == picture).all()


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


@pytest.mark.parametrize("isolate", [False, True])
def test_classes_of_main_work_in_workers(isolate: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-"],
        input=_SCRIPT.replace("ISOLATE", repr(isolate)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "equal", done.stderr
