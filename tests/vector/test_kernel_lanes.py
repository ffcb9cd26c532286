"""Lanes that a kernel steps together give what their environments give, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from comparing import assert_same, content
from playing import Player
from usual import first_of

import plangym_like
from plangym_like.errors import InputError
from plangym_like.vector.kernel_lanes import KernelLanes, time_limit
from plangym_like.vector.lanes import Lanes, StepArrays, gym_env_of
from plangym_like.vector.make_lanes import lanes_from, make_envs, make_lanes
from plangym_like.vector.sequential_lanes import SequentialLanes

pytest.importorskip("mujoco")

from plangym_like.envs.mujoco.robots import HalfCheetah

COUNT = 5
SEEDS = list(range(COUNT))
# Fewer are stepped one by one.
FEWEST = {"MountainCarContinuous-v0": 16}
CLASSIC = ("CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0", "Acrobot-v1")
NAMES = (*CLASSIC, "MountainCar-v0", "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "Reacher-v5")
FULL = (
    *("Walker2d-v5", "Swimmer-v5", "Ant-v5", "HumanoidStandup-v5", "Pusher-v5", "Ant-v4"),
    *("Humanoid-v4", "HalfCheetah-v4"),
)
MODES = ("step_next", "step_same", "step")
pytestmark = pytest.mark.filterwarnings("ignore:.*is out of date")


def _make(name: str, **options: Any) -> Any:
    return partial(plangym_like.make, name, max_episode_steps=15, **options)


def _both(name: str) -> list[Lanes]:
    """Return lanes in both forms."""
    count = FEWEST.get(name, COUNT)
    ways = [lanes_from(_make(name), count, vectorise=way) for way in (True, False)]
    assert [type(lanes) for lanes in ways] == [KernelLanes, SequentialLanes]
    return ways


def _is_fast(lanes: Any) -> bool:
    """Return whether steps are the kernel's."""
    return getattr(lanes, "_kernel", None) is not None


def _each_in_one_mode() -> Iterator[Any]:
    for number, name in enumerate((*NAMES, *FULL)):
        for place, mode in enumerate(MODES):
            is_usual = name in NAMES and place == number % 3
            yield pytest.param(name, mode, marks=() if is_usual else pytest.mark.full)


@pytest.mark.parametrize(("name", "mode"), list(_each_in_one_mode()))
def test_they_give_what_the_environments_give(name: str, mode: str) -> None:
    ways = _both(name)
    seeds = list(range(ways[0].num_lanes))
    played = [Player(lanes, mode).play(seeds, 36) for lanes in ways]
    assert_same(played[0], played[1])
    for one, other in zip(played[0][-1][-1], played[1][-1][-1], strict=True):
        assert list(one) == list(other)
    assert _is_fast(ways[0])


# Gymnasium's CartPole warns if a state that is set is the last one of an episode.
@pytest.mark.filterwarnings("ignore:.*You are calling 'step")
@pytest.mark.parametrize("name", ["CartPole-v1", "Hopper-v5"])
def test_states_and_other_steps_come_between(name: str) -> None:
    envs, twin = (plangym_like.make_vec(name, COUNT, vectorise=way) for way in (True, False))
    records = []
    for each in (envs, twin):
        each.reset(seed=3)
        each.action_space.seed(4)
        record: list[Any] = []
        for number in range(20):
            actions = each.action_space.sample()
            record.append(each.step(actions)[:4])
            if number % 9 == 5:
                states = each.get_states()
                # This uses the environments of the lanes for other states.
                for env in each._lanes.envs:
                    batch = env.step_batch(actions[:1], states[:1])
                    record.append((batch.states, batch.rewards))
            if number % 9 == 8:
                each.set_states(states[::-1])
        record.append(each.get_states())
        records.append(record)
    assert _is_fast(envs._lanes)
    assert_same(records[0], records[1])
    envs.close()
    twin.close()


@pytest.mark.parametrize("name", ["CartPole-v1", "HalfCheetah-v5", "Humanoid-v5"])
def test_lanes_are_named_in_any_order(name: str) -> None:
    ways = _both(name)
    players = [Player(lanes) for lanes in ways]
    for player in players:
        player.start(SEEDS)
    for which in ([2, 0, 4], [1, 3], [4, 3, 2, 1, 0], [], [2], None, [0, 4, 1, 2, 3]):
        for player in players:
            out = StepArrays(player.obs, player.rewards, player.terminated, player.truncated)
            player.lanes.step(player._space.sample(), out, which)
        assert_same(players[0].obs, players[1].obs)
        assert players[0].rewards.tolist() == players[1].rewards.tolist()
        assert_same(ways[0].infos, ways[1].infos)


def test_what_has_no_kernel_is_stepped_one_by_one() -> None:
    def heavy() -> Any:
        env: Any = gymnasium.make("CartPole-v1")
        env.unwrapped.gravity = 20.0
        return env

    cartpole = partial(gymnasium.make, "CartPole-v1")
    watched = gymnasium.wrappers.RecordEpisodeStatistics(cartpole())
    for other in (heavy(), cartpole(max_episode_steps=600), watched):
        assert type(make_lanes([cartpole(), other])) is SequentialLanes
    assert type(make_lanes([heavy() for _ in range(4)])) is KernelLanes
    # Other code may keep and change robots that it has made.
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
    assert type(lanes_from(_make("HalfCheetah-v5"), COUNT)) is SequentialLanes


class _Twins:
    """Vectorised lanes, and lanes of the same environments that are stepped one by one."""

    def __init__(self, name: str) -> None:
        self.both = [plangym_like.make_vec(name, COUNT, vectorise=way) for way in (True, False)]
        for envs in self.both:
            envs.reset(seed=0)
        self.both[0].action_space.seed(0)

    def step(self, count: int, change: Any = np.asarray) -> None:
        for _ in range(count):
            actions = change(self.both[0].action_space.sample())
            mine, theirs = (envs.step(actions) for envs in self.both)
            assert_same(mine, theirs)
            assert list(mine[-1]) == list(theirs[-1])

    @property
    def is_fast(self) -> bool:
        return _is_fast(self.both[0]._lanes)


def _edit(envs: Any) -> None:
    for lane, env in enumerate(envs.envs):
        env.unwrapped.model.opt.timestep *= 1 + lane / 4


def _replace_method(envs: Any) -> None:
    envs.set_attr("do_simulation", lambda action, substeps: None)


def _set_simulation(envs: Any) -> None:
    envs.call("set_state", np.linspace(0, 1, 9), np.zeros(9))


def _set_setting(envs: Any) -> None:
    envs.call("set_wrapper_attr", "_ctrl_cost_weight", 3.0)


def _set_constants(envs: Any) -> None:
    envs.set_attr("gravity", [9.0 + lane for lane in range(COUNT)])


def _read_states(envs: Any) -> None:
    for state in envs.get_attr("state"):
        state *= 0.5  # the environment's own array


CHANGES = (_edit, _replace_method, _set_simulation, _set_setting)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(("HalfCheetah-v5", change) for change in CHANGES),
        *(("CartPole-v1", change) for change in (_set_constants, _read_states)),
    ],
)
def test_changes_take_effect_at_the_next_step(name: str, change: Any) -> None:
    twins = _Twins(name)
    twins.step(3)
    assert twins.is_fast
    for envs in twins.both:
        change(envs)
    twins.step(4)
    assert not twins.is_fast


@pytest.mark.parametrize(
    ("name", "attributes"), [("Ant-v5", ("frame_skip", "dt")), ("CartPole-v1", ("gravity",))]
)
def test_numbers_of_the_environments_do_not_make_steps_slower(
    name: str, attributes: tuple[str, ...]
) -> None:
    twins = _Twins(name)
    twins.step(2)
    for attribute in (*attributes, "np_random_seed", "np_random", "observation_space"):
        found = [envs.get_attr(attribute) for envs in twins.both]
        if attribute != "np_random":
            assert found[0] == found[1]
        twins.step(1)
        assert twins.is_fast


@pytest.mark.parametrize("name", first_of(["Pusher-v5", "Ant-v5", "Reacher-v5"]))
def test_actions_are_laid_out_in_any_order(name: str) -> None:
    twins = _Twins(name)
    twins.step(3, np.asfortranarray)
    twins.step(3, lambda actions: np.repeat(actions, 2, axis=1)[:, ::2])
    assert twins.is_fast


def test_infos_have_the_types_that_follow_from_the_actions() -> None:
    found = []
    for way in (True, False):
        lanes = lanes_from(_make("Ant-v5"), COUNT, vectorise=way)
        out = StepArrays(lanes.start(SEEDS), np.zeros(COUNT), *np.zeros((2, COUNT), bool))
        for dtype in (np.float32, np.float32, np.float64, np.float16):
            lanes.step(np.full((COUNT, 8), 0.3, dtype), out)
            found.append([{name: type(v) for name, v in info.items()} for info in lanes.infos])
    assert found[:4] == found[4:]


@pytest.mark.parametrize("n_workers", first_of([2, None]))
@pytest.mark.parametrize("name", first_of(["Ant-v5", "HalfCheetah-v5"]))
def test_whoever_looks_at_the_simulation_sees_all_of_it(name: str, n_workers: int | None) -> None:
    envs = plangym_like.make_vec(name, 2 * COUNT, n_workers)
    twin = gymnasium.vector.SyncVectorEnv([partial(gymnasium.make, name)] * 2 * COUNT)
    space = twin.action_space
    for each in (envs, twin):
        each.reset(seed=1)
    space.seed(2)
    for number in range(8):
        action = space.sample()
        assert_same(envs.step(action)[:3], twin.step(action)[:3])
        if number % 4 == 3:
            found = [data.cfrc_ext for data in envs.get_attr("data")]
            assert_same(found, [data.cfrc_ext for data in twin.get_attr("data")])
    envs.close()
    twin.close()


@pytest.mark.parametrize("plan_envs", [False, True])
def test_a_changed_attribute_is_noticed_at_the_next_reset(plan_envs: bool) -> None:
    source: Any = "CartPole-v1" if plan_envs else (lambda: gymnasium.make("CartPole-v1"))
    lanes = make_lanes(make_envs(source, 4))
    assert type(lanes) is KernelLanes
    obs = lanes.start()
    lanes.reset(obs)
    base, limit = gym_env_of(lanes.envs[1]).unwrapped, time_limit(gym_env_of(lanes.envs[1]))
    for owner, name in ((base, "force_mag"), (base, "step"), (limit, "_max_episode_steps")):
        before = getattr(owner, name)
        setattr(owner, name, 7)
        lanes.reset(obs, [0, 2, 3])
        with pytest.raises(InputError, match="an attribute of an environment was") as caught:
            lanes.reset(obs)
        assert caught.value.__notes__ == ["raised while lane 1 was reset"]
        setattr(owner, name, before)
        vars(owner).pop("step", None)
        lanes.reset(obs)
    lanes.close()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lanes_differ_in_precision(dtype: Any) -> None:
    """States that are set are in double precision, and some actions are clipped."""
    env = plangym_like.make("MountainCarContinuous-v0")
    results = []
    for way in (True, False):
        envs = [plangym_like.make("MountainCarContinuous-v0") for _ in range(4)]
        lanes = make_lanes(envs, vectorise=way)
        out = StepArrays(lanes.start(range(4)), np.zeros(4), *np.zeros((2, 4), bool))
        for number in range(4):
            lanes.step(np.array([[0.5], [3.0], [-0.25], [-2.0]], dtype) * (number + 1), out)
            results.append(content(out))
            lanes.set_states(env.reset(seed=number).state, [number])
        results.append(lanes.get_states().tobytes())
    assert results[:5] == results[5:]


@pytest.mark.parametrize("vectorise", [True, False])
def test_reset_options_reach_their_environment(vectorise: bool) -> None:
    lanes = make_lanes([gymnasium.make("CartPole-v1") for _ in range(3)], vectorise=vectorise)
    options = [None, {"low": 0.01, "high": 0.01}, {"low": 0.02, "high": 0.02}]
    obs = lanes.start([1, 1, 1], options)
    assert obs[1:].tolist() == [[np.float32(0.01)] * 4, [np.float32(0.02)] * 4]
    lanes.reset(obs, [2], options=[{"low": 0.03, "high": 0.03}])
    assert obs[2].tolist() == [np.float32(0.03)] * 4
    lanes.reset(obs, [0, 2], seeds=[5, 5])
    assert obs[0].tolist() == obs[2].tolist() != obs[1].tolist()


def test_environments_to_make_lanes_of() -> None:
    cartpole = gymnasium.make("CartPole-v1")
    for make, words in (
        (lambda: make_envs(lambda: cartpole, 2), "same environment twice"),
        (lambda: make_envs(lambda: 3, 1), "gymnasium.Env"),
        (lambda: make_lanes([]), "at least one environment"),
        (lambda: make_lanes([cartpole, cartpole]), "same environment twice"),
    ):
        with pytest.raises(InputError, match=words):
            make()
