"""What state rows do not hold must not change: attributes, spaces, and objects of the caller."""

import importlib.util
import threading
from functools import cached_property
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

import plangym_like
from plangym_like.errors import ChangedSettingError, SnapshotError
from plangym_like.snapshots.base_settings import AttributeSettings, SpaceSettings

# Later than the trial of `make` sees.
LATE = 15


class Late(gymnasium.Wrapper):
    """Does something to its environment in step LATE of each episode."""

    count = 0

    def reset(self, **kwargs: Any) -> Any:
        self.count = 0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == LATE:
            self.act()
        obs, reward, *rest = self.env.step(action)
        return obs, float(reward) + self.bonus(), *rest

    def act(self) -> None:
        raise NotImplementedError

    def bonus(self) -> float:
        return 0.0


class NewAttribute(Late):
    def act(self) -> None:
        self.unwrapped.phase_two = True

    def bonus(self) -> float:
        return 10.0 * getattr(self.unwrapped, "phase_two", False)


class OtherActions(Late):
    def act(self) -> None:
        self.unwrapped.action_space = spaces.Discrete(50)


class OtherActionsOutside(Late):
    def act(self) -> None:
        self.action_space = spaces.Discrete(50)


class OtherMode(Late):
    def act(self) -> None:
        self.unwrapped.render_mode = "ansi"


class Sampling(Late):
    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.space = spaces.Discrete(9, seed=0)

    def act(self) -> None:
        self.space.sample()


ROBOT = pytest.param(
    "InvertedPendulum-v5",
    marks=pytest.mark.skipif(not importlib.util.find_spec("mujoco"), reason="needs MuJoCo"),
)


@pytest.mark.parametrize("name", ["Pendulum-v1", ROBOT])
@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (NewAttribute, "phase_two changed from nothing to True"),
        (OtherActions, "action_space changed"),
        (OtherActionsOutside, r"OtherActionsOutside\._action_space cannot be saved"),
        (OtherMode, "render_mode changed from None to 'ansi'"),
        (Sampling, r"draw from the generator of Sampling\.space"),
    ],
)
def test_a_late_change_of_what_rows_do_not_hold_is_an_error(
    name: str, kind: Any, what: str
) -> None:
    with plangym_like.make(name, wrappers=[kind], audit="off") as env:
        assert (env.snapshot, env.exactness) == ("native", "exact")
        first = state = env.reset(seed=0).state
        action = np.zeros(1, np.float32)
        for _ in range(LATE - 1):
            state = env.step_batch([action], state).states[0]
        with pytest.raises(SnapshotError, match=what):
            env.step_batch([action], state)
        if kind is not OtherActionsOutside:  # a restore puts it back
            with pytest.raises(ChangedSettingError, match=what):
                env.step_batch([action], first)


class Shop(gymnasium.Env):
    """Replaces its action space."""

    observation_space = spaces.Box(0, 99, (1,))

    def __init__(self) -> None:
        self.action_space = spaces.Discrete(9)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        self.action_space = spaces.Discrete(2)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        if self.time == LATE:
            self.action_space = spaces.Discrete(2 + int(action))
        return np.full(1, self.time, np.float32), float(self.action_space.n), False, False, {}


def test_a_replaced_space_is_in_the_rows_of_a_pickled_environment() -> None:
    with plangym_like.make(Shop, snapshot="pickle") as env:
        assert env.exactness == "exact"
        states = np.stack([env.reset(seed=seed).state for seed in range(2)])
        for _ in range(LATE):
            batch = env.step_batch([0, 1], states)
            states = batch.states
        assert batch.rewards.tolist() == [2.0, 3.0]
        assert env.step_batch([0, 1], states[::-1]).rewards.tolist() == [3.0, 2.0]


class Goals(gymnasium.Env):
    """Draws goals from a space of its own, seeded in each reset; the steps draw late."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Discrete(2)
    steps_draw = True

    def __init__(self) -> None:
        self.goals = spaces.Tuple([spaces.Box(-1, 1, (1,))])

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.goals.seed(int(self.np_random.integers(1000)))
        (self.goal,) = self.goals.sample()
        self.time = 0
        return self.goal, {}

    def step(self, action: Any) -> Any:
        self.time += 1
        if self.steps_draw and self.time == LATE:
            (self.goal,) = self.goals.sample()
        return self.goal, float(self.goal[0]), False, False, {}


class OnlyResets(Goals):
    steps_draw = False


@pytest.mark.parametrize("kind", [Goals, OnlyResets])
def test_steps_must_not_draw_from_spaces_but_resets_may(kind: Any) -> None:
    with plangym_like.make(kind, snapshot="pickle") as env:
        states = np.stack([env.reset(seed=seed).state for seed in range(2)])
        env.action_space.sample()  # a user may
        for _ in range(LATE - 1):
            states = env.step_batch([0, 1], states).states
        if kind is OnlyResets:
            assert env.step_batch([0, 1], states).rewards[0] != env.reset(seed=5).obs[0]
            return
        with pytest.raises(ChangedSettingError, match=r"draw from the generator of Goals\.goals"):
            env.step_batch([0, 1], states)
    with plangym_like.make(kind, snapshot="replay") as env:
        states = np.stack([env.reset(seed=seed).state for seed in range(2)])
        raw = [kind() for _ in range(2)]
        for seed, each in enumerate(raw):
            each.reset(seed=seed)
        for _ in range(LATE + 1):
            batch = env.step_batch([0, 1], states)
            states = batch.states
            assert batch.rewards.tolist() == [each.step(0)[1] for each in raw]


class StepsStates(gymnasium.Env):
    """Samples from its space in each reset; saves its own state, and steps many."""

    observation_space = spaces.Box(-1, 1, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.place = self.observation_space.sample()
        return self.place, {}

    def step(self, action: Any) -> Any:
        self.place = self.place + np.float64(action)
        return self.place, float(self.place[0]), False, False, {}

    def save_state(self) -> Any:
        return self.place.copy()

    def load_state(self, state: Any) -> None:
        self.place = state.copy()

    def step_states(self, states: Any, actions: Any) -> Any:
        states = states + actions[:, None].astype(float)
        ends = np.zeros(len(states), bool)
        return states, states, states[:, 0], ends, ends


def test_a_reset_that_samples_does_not_turn_the_kernel_off() -> None:
    with plangym_like.make(StepsStates) as env:
        assert (env.snapshot, env.simulator.steps_batches) == ("native", True)
        state, obs, _ = env.reset(seed=3)
        rewards = env.step_batch([0, 1, 1], state).rewards
        assert rewards.tolist() == [obs[0], obs[0] + 1, obs[0] + 1]


def test_generators_of_nested_spaces_are_watched() -> None:
    env = CartPoleEnv()
    env.inner = spaces.Dict(
        a=spaces.Tuple([spaces.Discrete(2)]), b=spaces.Sequence(spaces.Discrete(3))
    )
    for inner in (env.inner["a"][0], env.inner["b"].feature_space):
        watched = SpaceSettings(env)
        assert watched.change() == ""
        inner.sample()
        assert watched.change() == "steps draw from the generator of CartPoleEnv.inner"
        watched.note()
        assert watched.change() == ""
        inner.sample()
        assert watched.change()


def test_an_attribute_that_its_class_computes_once_is_no_change() -> None:
    class Table:
        @cached_property
        def squares(self) -> list[int]:
            return [number**2 for number in range(3)]

    table = Table()
    settings = AttributeSettings(table)
    assert table.squares == [0, 1, 4]
    assert settings.change(thorough=True) == ""
    table.other = 1
    assert settings.change() == "Table.other changed from nothing to 1"


class Maze(gymnasium.Env):
    """Eats what is on a grid that the caller has made."""

    observation_space = spaces.Box(0, 99, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self, grid: Any, names: Any = ()) -> None:
        self.grid, self.names = grid, names

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.place = (self.place + 1 + int(action)) % len(self.grid)
        reward, self.grid[self.place] = float(self.grid[self.place]), 0
        if self.names:
            self.names["eaten"].append(self.place)
        return np.full(1, self.place, np.float32), reward, False, False, {}


def test_objects_of_the_caller_are_unchanged_after_make() -> None:
    grid, names = np.ones(40), {"eaten": [7]}
    eaten = names["eaten"]
    with plangym_like.make(lambda: Maze(grid, names)) as env:
        assert grid.sum() == 40
        assert names == {"eaten": [7]} and names["eaten"] is eaten
        assert (env.snapshot, env.exactness) == ("pickle", "exact")
        state = env.reset(seed=0).state
        for _ in range(6):
            batch = env.step_batch([0, 0], state)
            assert batch.rewards.tolist() == [1.0, 1.0]
            state = batch.states[0]


class Client:
    """Counts the messages to a server; others hold its lock, so it cannot be copied."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sent: list[int] = []


class Grid:
    """An object that its user keeps."""

    def __init__(self) -> None:
        self.cells, self.eaten = [1] * 40, 0


class Connected(Maze):
    def __init__(self, grid: Grid, client: Client) -> None:
        super().__init__(grid.cells)
        self.map, self.client = grid, client

    def step(self, action: Any) -> Any:
        self.map.eaten += 1
        self.client.sent.append(1)
        return super().step(action)


def test_what_cannot_be_copied_is_left_alone() -> None:
    grid, client = Grid(), Client()
    with plangym_like.make(lambda: Connected(grid, client)):
        assert (grid.cells, grid.eaten) == ([1] * 40, 0)
        assert len(client.sent) > 12


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
