"""`RobotLanes` give what the environments give, bit for bit."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from playing import Player, plain
from usual import first_of

import plangym_like
from plangym_like.vector.lanes import Lanes
from plangym_like.vector.make_lanes import lanes_from, make_lanes
from plangym_like.vector.sequential_lanes import SequentialLanes

pytest.importorskip("mujoco")

from plangym_like.envs.mujoco.robots import HalfCheetah
from plangym_like.vector.kernel_lanes import KernelLanes
from plangym_like.vector.lanes import StepArrays

COUNT = 5
SEEDS = list(range(COUNT))
ROBOTS = ("HalfCheetah-v5", "Hopper-v5", "Ant-v5", "Reacher-v5")
FULL = (
    *("Walker2d-v5", "Swimmer-v5", "Humanoid-v5", "HumanoidStandup-v5", "Pusher-v5", "Ant-v4"),
    *("Humanoid-v4", "HalfCheetah-v4"),
)
NAMES = (*ROBOTS, *(pytest.param(name, marks=pytest.mark.full) for name in FULL))


def _make(name: str, **options: Any) -> Any:
    return partial(plangym_like.make, name, max_episode_steps=30, **options)


def _both(name: str) -> list[Lanes]:
    """Return lanes in both forms."""
    ways = [lanes_from(_make(name), COUNT, vectorise=way) for way in (True, False)]
    assert [type(lanes) for lanes in ways] == [KernelLanes, SequentialLanes]
    return ways


@pytest.mark.parametrize("mode", ["step_next", "step_same", "step"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:.*is out of date")
def test_they_give_what_the_environments_give(name: str, mode: str) -> None:
    ways = _both(name)
    played = [Player(lanes, mode).play(SEEDS, 70) for lanes in ways]
    assert plain(played[0]) == plain(played[1])
    for one, other in zip(played[0][-1][-1] or (), played[1][-1][-1] or (), strict=True):
        assert {k: type(v) for k, v in one.items()} == {k: type(v) for k, v in other.items()}
    assert _is_fast(ways[0])


def _is_fast(lanes: Any) -> bool:
    """Return whether the last step of all lanes was not the environments' own."""
    kernel = getattr(lanes, "_kernel", None)
    return kernel is not None and bool(kernel._is_recorded.any())


def test_states_and_other_steps_come_between() -> None:
    envs = plangym_like.make_vec("Hopper-v5", COUNT)
    twin = plangym_like.make_vec("Hopper-v5", COUNT, vectorise=False)
    records = []
    for each in (envs, twin):
        each.reset(seed=3)
        each.action_space.seed(4)
        record: list[Any] = []
        for number in range(40):
            record.append(each.step(each.action_space.sample())[:4])
            if number % 9 == 5:
                states = each.get_states()
                # This uses the environments of the lanes for other states.
                for env in each._lanes.envs:
                    batch = env.step_batch(np.full((1, 3), 0.5, np.float32), states[:1])
                    record.append((batch.states, batch.rewards))
            if number % 9 == 8:
                each.set_states(states[::-1])
        record.append(each.get_states())
        records.append(record)
    assert type(envs._lanes) is KernelLanes and type(twin._lanes) is SequentialLanes
    assert plain(records[0]) == plain(records[1])
    envs.close()
    twin.close()


@pytest.mark.parametrize("name", ["HalfCheetah-v5", "Ant-v4"])
@pytest.mark.filterwarnings("ignore:.*is out of date")
def test_lanes_are_named_in_any_order(name: str) -> None:
    ways = _both(name)
    players = [Player(lanes) for lanes in ways]
    for player in players:
        player.start(SEEDS)
    for which in ([2, 0, 4], [1, 3], [4, 3, 2, 1, 0], [], [2], None, [0, 4, 1, 2, 3]):
        for player in players:
            out = StepArrays(player.obs, player.rewards, player.terminated, player.truncated)
            player.lanes.step(player._space.sample(), out, which)
        assert plain(players[0].obs) == plain(players[1].obs)
        assert players[0].rewards.tolist() == players[1].rewards.tolist()
        assert plain(ways[0].infos) == plain(ways[1].infos)


def test_the_form_is_for_ids_alone() -> None:
    """Other code may keep and change environments that it has made."""
    assert type(make_lanes([_make("HalfCheetah-v5")() for _ in range(COUNT)])) is SequentialLanes
    assert type(lanes_from(lambda: _make("Hopper-v5")(), COUNT)) is SequentialLanes
    assert type(lanes_from(_make("Hopper-v5"), 3)) is SequentialLanes  # too few
    for name, options in (("Hopper-v5", {"render_mode": "rgb_array"}), ("InvertedPendulum-v5", {})):
        assert type(lanes_from(_make(name, **options), COUNT)) is SequentialLanes


def test_a_wrong_formula_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    compute_rewards = HalfCheetah.compute_rewards

    def wrong(self: Any, frames: Any) -> Any:
        rewards, ended, infos = compute_rewards(self, frames)
        return rewards + 1e-12, ended, infos

    monkeypatch.setattr(HalfCheetah, "compute_rewards", wrong)
    ways = [lanes_from(_make("HalfCheetah-v5"), COUNT, vectorise=way) for way in (True, False)]
    assert [type(lanes) for lanes in ways] == [SequentialLanes, SequentialLanes]


class _Twins:
    """Vectorised lanes, and lanes of the same environments that are stepped one by one."""

    def __init__(self, name: str, **options: Any) -> None:
        ways = (True, False)
        make = plangym_like.make_vec
        self.both = [make(name, COUNT, vectorise=way, **options) for way in ways]
        for envs in self.both:
            envs.reset(seed=0)
        self.both[0].action_space.seed(0)

    def step(self, count: int, change: Any = np.asarray) -> None:
        for _ in range(count):
            actions = change(self.both[0].action_space.sample())
            mine, theirs = (envs.step(actions) for envs in self.both)
            assert plain(mine) == plain(theirs)
            assert list(mine[-1]) == list(theirs[-1])

    def edit(self, change: Any) -> None:
        for envs in self.both:
            for lane, env in enumerate(envs.envs):
                change(env.unwrapped, lane)

    @property
    def is_fast(self) -> bool:
        return _is_fast(self.both[0]._lanes)


@pytest.mark.parametrize(
    "values",
    [
        [np.bool_(lane % 2) for lane in range(COUNT)],
        [np.array(lane % 2) for lane in range(COUNT)],
    ],
)
def test_settings_of_numpys_types_may_differ(values: list[Any]) -> None:
    twins = _Twins("Hopper-v5")
    for envs in twins.both:
        envs.set_attr("_terminate_when_unhealthy", values)
    twins.step(30)
    assert not twins.is_fast


def test_a_replaced_method_is_called() -> None:
    twins = _Twins("HalfCheetah-v5")
    twins.step(3)
    assert twins.is_fast
    for envs in twins.both:
        envs.set_attr("do_simulation", lambda action, substeps: None)
    twins.step(4)
    assert not twins.is_fast


@pytest.mark.parametrize("name", ["HalfCheetah-v5", "Ant-v5"])
def test_numbers_of_the_environments_do_not_make_steps_slower(name: str) -> None:
    twins = _Twins(name)
    twins.step(2)
    lanes = twins.both[0]._lanes
    robots = lanes._kernel
    for attribute in ("frame_skip", "np_random_seed", "np_random", "observation_space", "dt"):
        found = [envs.get_attr(attribute) for envs in twins.both]
        if attribute != "np_random":
            assert found[0] == found[1]
        twins.step(1)
        assert twins.is_fast and twins.both[0]._lanes is lanes and lanes._kernel is robots


def test_states_set_by_a_call_are_stepped_from() -> None:
    twins = _Twins("HalfCheetah-v5")
    twins.step(2)
    for envs in twins.both:
        envs.call("set_state", np.linspace(0, 1, 9), np.zeros(9))
    twins.step(2)


@pytest.mark.parametrize("value", [2, [1, 2, 3, 4, 5]])
def test_settings_that_are_changed_count(value: Any) -> None:
    twins = _Twins("Hopper-v5")
    twins.step(2)
    for envs in twins.both:
        envs.set_attr("frame_skip", value)
    twins.step(2)
    for envs in twins.both:
        envs.call("set_wrapper_attr", "_healthy_reward", 3.0)
    twins.step(2)
    assert not twins.is_fast


def _weight(base: Any, lane: int) -> None:
    base._forward_reward_weight = float(lane)


def _timestep(base: Any, lane: int) -> None:
    base.model.opt.timestep *= 1 + lane / 4


def _method(base: Any, lane: int) -> None:
    base.control_cost = lambda action: float(lane)


@pytest.mark.parametrize("steps", [0, 4])
@pytest.mark.parametrize("edit", [_weight, _timestep, _method])
def test_edits_of_the_environments_are_seen(edit: Any, steps: int) -> None:
    twins = _Twins("HalfCheetah-v5")
    twins.step(steps)
    twins.edit(edit)
    twins.step(4)
    assert not twins.is_fast


class _Twice(gymnasium.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return obs, 2 * float(reward), *rest


def _put_inside(env: Any) -> None:
    env.env = _Twice(env.env)


def _replace_step(env: Any) -> None:
    inner = env.env
    env.step = lambda action: _Twice(inner).step(action)


@pytest.mark.parametrize("change", [_put_inside, _replace_step])
def test_wrappers_that_are_put_inside_later_take_effect(change: Any) -> None:
    twins = _Twins("HalfCheetah-v5")
    twins.step(3)
    assert twins.is_fast
    for envs in twins.both:
        change(envs.envs[2])
    twins.step(3)
    assert not twins.is_fast


@pytest.mark.parametrize("name", first_of(["Pusher-v5", "Ant-v5", "Reacher-v5"]))
def test_actions_are_laid_out_in_any_order(name: str) -> None:
    twins = _Twins(name)
    twins.step(3)
    twins.step(5, np.asfortranarray)
    twins.step(5, lambda actions: np.repeat(actions, 2, axis=1)[:, ::2])
    assert twins.is_fast


def test_infos_have_the_environments_order() -> None:
    twins = _Twins("Humanoid-v5")
    twins.step(4)
    assert twins.is_fast


def test_infos_have_the_types_that_follow_from_the_actions() -> None:
    found = []
    for way in (True, False):
        lanes = lanes_from(_make("Ant-v5"), COUNT, vectorise=way)
        out = StepArrays(lanes.start(SEEDS), np.zeros(COUNT), *np.zeros((2, COUNT), bool))
        for dtype in (np.float32, np.float32, np.float32, np.float64, np.float16):
            lanes.step(np.full((COUNT, 8), 0.3, dtype), out)
            found.append([{name: type(v) for name, v in info.items()} for info in lanes.infos])
    assert found[:5] == found[5:]


@pytest.mark.parametrize("n_workers", [None, 2])
@pytest.mark.parametrize("name", first_of(["Ant-v5", "HalfCheetah-v5"]))
def test_whoever_looks_at_the_simulation_sees_all_of_it(name: str, n_workers: int | None) -> None:
    envs = plangym_like.make_vec(name, 2 * COUNT, n_workers)
    twin = gymnasium.vector.SyncVectorEnv([partial(gymnasium.make, name)] * 2 * COUNT)
    space = twin.action_space
    for each in (envs, twin):
        each.reset(seed=1)
    space.seed(2)
    for number in range(12):
        action = space.sample()
        assert plain(envs.step(action)[:3]) == plain(twin.step(action)[:3])
        if number % 4 == 3:
            found = [data.cfrc_ext for data in envs.get_attr("data")]
            assert plain(found) == plain([data.cfrc_ext for data in twin.get_attr("data")])
    envs.close()
    twin.close()


def test_changes_by_a_user_take_effect_at_the_next_step() -> None:
    envs = plangym_like.make_vec("HalfCheetah-v5", COUNT)
    twin = plangym_like.make_vec("HalfCheetah-v5", COUNT, vectorise=False)
    for each in (envs, twin):
        each.reset(seed=1)
        each.action_space.seed(2)
    for number in range(20):
        results = []
        for each in (envs, twin):
            if number >= 10:
                # The environments are the user's from the first look on.
                base = each.envs[number % COUNT].unwrapped
                base.set_state(base.data.qpos + 0.5, base.data.qvel)
            results.append(each.step(each.action_space.sample()))
        assert plain(results[0]) == plain(results[1])
    assert envs._lanes._kernel is None
    envs.close()
    twin.close()
