"""MiniGrid and BabyAI as a family: every id is saved exactly, with its objects and instructions."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from comparing import assert_same
from continuation import assert_equals_gymnasium, assert_goes_on, restore, saved
from usual import first_of, third_of

import plangym_like
from plangym_like import check_env
from plangym_like.errors import SnapshotError, StateFormatError

minigrid = pytest.importorskip("minigrid", reason="minigrid is not installed")
from minigrid import wrappers  # noqa: E402
from minigrid.core.world_object import Ball, Box, Key  # noqa: E402
from minigrid.envs import EmptyEnv  # noqa: E402

from plangym_like.envs.minigrid import Episode, MiniGridEnv, MiniGridSimulator  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.* is out of date:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*A seed has been passed to `ReseedWrapper:UserWarning"),
]
IDS = sorted(
    name
    for name, spec in gymnasium.registry.items()
    # The WFC ids lack files of their package.
    if str(spec.entry_point).startswith("minigrid") and "WFC" not in name
)
FEW = [
    "BabyAI-BossLevel-v0",
    "BabyAI-KeyInBox-v0",
    "BabyAI-PutNextS5N2Carrying-v0",
    "MiniGrid-DoorKey-8x8-v0",
    "MiniGrid-Dynamic-Obstacles-Random-5x5-v0",
    "MiniGrid-LockedRoom-v0",
    "MiniGrid-MultiRoom-N4-S5-v1",
    "MiniGrid-ObstructedMaze-2Dlhb-v1",
]
LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE = range(6)
WRAPPERS: list[Any] = [
    (wrappers.ReseedWrapper, {"seeds": (3, 4, 5)}),
    wrappers.ActionBonus,
    wrappers.PositionBonus,
    wrappers.ImgObsWrapper,
    wrappers.OneHotPartialObsWrapper,
    wrappers.RGBImgObsWrapper,
    wrappers.RGBImgPartialObsWrapper,
    wrappers.FullyObsWrapper,
    wrappers.DictObservationSpaceWrapper,
    wrappers.FlatObsWrapper,
    (wrappers.ViewSizeWrapper, {"agent_view_size": 5}),
    wrappers.DirectionObsWrapper,
    wrappers.SymbolicObsWrapper,
    wrappers.StochasticActionWrapper,
    (wrappers.NoDeath, {"no_death_types": ("lava",)}),
]


def _some(full: list[Any], few: list[Any]) -> list[Any]:
    rest = [pytest.param(each, marks=pytest.mark.full) for each in full if each not in few]
    return [*few, *rest]


def _name(wrapper: Any) -> str:
    return (wrapper[0] if isinstance(wrapper, tuple) else wrapper).__name__


def _made(name: str) -> gymnasium.Env[Any, Any]:
    return gymnasium.make(name, disable_env_checker=True)


@pytest.mark.parametrize("name", _some(IDS, FEW))
def test_every_id_goes_on_from_a_restored_state(name: str) -> None:
    sim = MiniGridSimulator(name)
    assert sim.exactness == "exact"
    # With an open door in the outer wall, steps after the end raise an AssertionError of MiniGrid.
    for seed, ends in ((0, True), (2, "GoToDoor" in name)):
        assert_goes_on(sim, seed=seed, steps=30, ends=ends)
    assert_equals_gymnasium(sim, lambda: _made(name), seed=5, steps=50)


@pytest.mark.parametrize("name", _some(IDS, FEW))
def test_another_simulator_restores_the_same_objects(name: str) -> None:
    sim, other = MiniGridSimulator(name), MiniGridSimulator(name)
    random = np.random.default_rng(4)
    for seed in range(3):
        sim.reset(seed=seed)
        for _ in range(int(random.integers(40))):
            if sum(sim.step(int(random.integers(sim.action_space.n)), 1)[2:4]):
                break
            row = saved(sim)
        row = saved(sim)
        restore(other, row)
        assert saved(other).tobytes() == row.tobytes()
        # The whole graph of objects, whatever has changed since the episode began.
        assert Episode(other.base).data == Episode(sim.base).data
        assert repr(other.base.agent_pos) == repr(sim.base.agent_pos)


@pytest.mark.parametrize(
    "wrapper", third_of([pytest.param(each, id=_name(each)) for each in WRAPPERS])
)
def test_wrappers_of_minigrid_are_exact(wrapper: Any) -> None:
    name = "MiniGrid-LavaGapS5-v0"
    # Two of them count the states that they have seen.
    with plangym_like.make(name, wrappers=[wrapper], state_capacity=8192) as env:
        assert (env.snapshot, env.exactness) == ("native", "exact"), env.snapshot_note
        assert_goes_on(env.simulator, seed=1, steps=30)


@pytest.mark.parametrize("name", first_of(["MiniGrid-DoorKey-8x8-v0", "BabyAI-GoToObj-v0"]))
def test_make_finds_the_family(name: str) -> None:
    report = check_env(name, states=3, steps=3, workers=())
    assert report.ok, str(report)
    assert (report.snapshot, report.exactness) == ("native", "exact")


def test_an_object_that_is_new_is_saved_too() -> None:
    sim, other = (MiniGridSimulator("MiniGrid-Empty-5x5-v0") for _ in range(2))
    sim.reset(seed=0)
    before = saved(sim)
    sim.base.put_obj(Ball("red"), 2, 2)
    row = saved(sim)
    restore(sim, before)
    assert sim.base.grid.get(2, 2) is None
    restore(other, row)
    assert other.base.grid.get(2, 2).color == "red"


def test_rows_do_not_depend_on_which_states_were_saved_before() -> None:
    def last_states(saves: bool) -> Any:
        with plangym_like.make_vec("MiniGrid-DoorKey-5x5-v0", 2) as envs:
            envs.reset(seed=0)
            rng = np.random.default_rng(0)
            for _ in range(20):
                envs.step(rng.integers(6, size=2))
                if saves:
                    envs.get_states()
            return envs.get_states()

    assert (last_states(True) == last_states(False)).all()


def test_a_reset_only_copies_what_steps_may_replace() -> None:
    for name in ("MiniGrid-GoToDoor-5x5-v0", "BabyAI-GoToLocal-v0"):
        with MiniGridEnv(name) as env:
            env.simulator.reset(0)
            assert not {"_objects", "_first"} & vars(env.simulator.codec._episode).keys()


class Hiding(EmptyEnv):
    """Has a key in no cell; when the agent toggles the cell in front of it, the key lies there."""

    __module__ = "minigrid.hiding"  # only MiniGrid's own environments are saved natively

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(size=5)

    def _gen_grid(self, width: int, height: int) -> None:
        super()._gen_grid(width, height)
        key = Key("red")
        if self.place == "box":
            self.put_obj(Box("blue", key), 2, 1)
        else:
            self.hidden = [key] if self.place == "list" else key

    def step(self, action: Any) -> Any:
        if action == TOGGLE and self.place != "box":
            self.grid.set(2, 1, self.hidden[0] if self.place == "list" else self.hidden)
        return super().step(action)


@pytest.mark.parametrize("place", ["box", "list", "attribute"])
def test_an_object_in_no_cell_is_part_of_the_state(place: str) -> None:
    make = functools.partial(Hiding, place)
    with MiniGridEnv(make) as env, MiniGridEnv(make) as other:
        begin = env.reset(seed=0).state
        other.reset(seed=0, return_state=False)
        for action in (TOGGLE, PICKUP):
            env.step(action)
            other.step(action, return_state=False)
        # The key's position has changed. `other` saved nothing before that.
        row = other.get_state()
        assert env.get_state().tobytes() == row.tobytes()
        env.set_state(begin)
        env.set_state(row)
        assert env.simulator.base.carrying.cur_pos.tolist() == [-1, -1]
        for action in (LEFT, DROP):
            assert_same(env.step(action, return_state=True), other.step(action, return_state=True))


def test_rows_of_many_episodes_are_restored() -> None:
    """More than are kept as objects."""
    with MiniGridEnv("MiniGrid-MultiRoom-N2-S4-v0") as env:
        states = np.stack([env.reset(seed=seed).state for seed in range(80)])
        actions = np.full(80, FORWARD)
        batch = env.step_batch(actions, states)
        for index in (0, 40, 79):
            one = env.step(FORWARD, state=states[index])
            assert (one.state == batch.states[index]).all()
        env.simulator.clear_caches()
        assert (env.step_batch(actions, states).states == batch.states).all()


def test_fields_of_states() -> None:
    with MiniGridEnv("MiniGrid-Empty-5x5-v0") as env:
        state = env.reset(seed=0).state
        fields = env.view_state(env.step_batch([LEFT, RIGHT, FORWARD], state).states)
        assert fields["agent_dir"].tolist() == [3, 1, 0]
        assert fields["agent_pos"].tolist() == [[1, 1], [1, 1], [2, 1]]
        assert fields["step_count"].tolist() == [1, 1, 1]


def test_damaged_rows_are_refused() -> None:
    sim = MiniGridSimulator("MiniGrid-DoorKey-5x5-v0")
    sim.reset(seed=0)
    row = saved(sim)[32:]
    begin = 8 * sim.codec.layout.itemsize // 8
    rng = np.random.default_rng(0)
    for _ in range(100):
        forged = row.copy()
        forged[begin + int(rng.integers(900))] ^= int(rng.integers(1, 256))
        with contextlib.suppress(StateFormatError):
            sim.write(forged)
        sim.codec.clear_caches()
    sim.write(row)
    assert saved(sim)[32:].tobytes() == row.tobytes()


def test_a_wrapper_that_paints_doors_is_saved_in_another_way() -> None:
    with plangym_like.make("MiniGrid-DoorKey-5x5-v0", wrappers=[Painter]) as env:
        assert (env.snapshot, env.exactness) == ("pickle", "exact")
        assert "Painter is not MiniGrid's" in env.snapshot_note


class Painter(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Repaints a door in each step, which no step of MiniGrid does."""

    def step(self, action: Any) -> Any:
        base: Any = self.unwrapped
        for cell in base.grid.grid:
            if cell and cell.type == "door":
                cell.color = "blue" if cell.color == "red" else "red"
        return self.env.step(action)


def test_words_of_instructions_are_equal_after_a_new_object_is_saved() -> None:
    """A row then begins in the middle of the episode, where an instruction holds "success"."""
    make = functools.partial(plangym_like.make, "BabyAI-GoToSeqS5R2-v0", autoreset=False)
    with make() as env, make() as other:
        env.reset(seed=1)
        for action in np.random.default_rng(1).integers(3, size=40):
            env.step(int(action), return_state=False)
        base = env.simulator.base
        free = base.grid.grid.index(None)
        base.grid.set(free % base.width, free // base.width, Ball("red"))
        row = env.get_state()
        states = env.step_batch([0, 1, 2], row).states
        assert (states == other.step_batch([0, 1, 2], row).states).all()


class Sticky(Ball):
    """A ball that can be picked up at the third attempt."""

    attempts = 0

    def can_pickup(self) -> bool:
        self.attempts += 1
        return self.attempts > 2


def test_objects_of_other_code_are_not_saved_as_if_they_were_those_of_minigrid() -> None:
    with MiniGridEnv("MiniGrid-Empty-5x5-v0", autoreset=False) as env:
        env.reset(seed=0)
        env.simulator.base.put_obj(Sticky("red"), 2, 1)
        with pytest.raises(SnapshotError, match="Sticky is not a class of MiniGrid"):
            env.get_state()


def test_an_object_that_is_put_into_a_list_after_the_reset_is_not_lost() -> None:
    with MiniGridEnv("MiniGrid-Empty-5x5-v0", autoreset=False) as env:
        base = env.simulator.base
        base.things = []
        env.reset(seed=0, return_state=False)
        base.things.append(Ball("red"))
        with pytest.raises(SnapshotError, match="Ball .* put into a list"):
            env.get_state()


def test_a_second_grid_is_saved() -> None:
    make = functools.partial(MiniGridEnv, "MiniGrid-DoorKey-5x5-v0", autoreset=False)
    with make() as env, make() as other:
        env.simulator.base.before = env.simulator.base.grid.copy()
        env.reset(seed=0, return_state=False)
        row = env.get_state()
        assert_same(other.step(2, state=row)[1:5], env.step(2, state=row)[1:5])
        assert other.simulator.base.before == env.simulator.base.before
