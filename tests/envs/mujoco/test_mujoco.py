"""Gymnasium's robots: their rows, their futures, and whole chunks beside single steps."""

import copy
import math
import os
import tracemalloc
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from block_steps import compare, pair
from comparing import assert_same
from continuation import assert_equals_gymnasium, assert_goes_on
from usual import third_of

pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'plangym_like[mujoco]'")

import mujoco
from gymnasium.envs.mujoco.ant_v5 import AntEnv
from suite import ROBOTS

import plangym_like
from plangym_like.envs.mujoco.env import MujocoCodec, MujocoEnv, MujocoSimulator
from plangym_like.envs.mujoco.robots import Ant, Humanoid
from plangym_like.errors import InputError, SnapshotError, StateMismatchError

pytestmark = pytest.mark.filterwarnings("ignore:.*is out of date")

# What rows hold besides the integration state: nothing, all bodies' places, and two bodies' places.
ENDING = ["Hopper-v5", "InvertedDoublePendulum-v5", "Walker2d-v4", "Ant-v4"]


@pytest.fixture(scope="module")
def env() -> Iterator[Any]:
    with plangym_like.make("HalfCheetah-v5") as made:
        yield made


def reached(env: Any, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return states that random play reaches, past the end of episodes too, and actions."""
    space = env.action_space
    space.seed(seed)
    sim = env.simulator
    sim.reset(seed=seed)
    states = []
    for index in range(count):
        if index % 25 == 0:
            sim.reset()
        sim.step(space.sample(), 1)
        states.append(env.get_state())
    return np.stack(states), np.stack([space.sample() for _ in range(count)])


# The future


@pytest.mark.parametrize("name", third_of(ROBOTS))
def test_goes_on_from_a_restored_state(name: str) -> None:
    sim = MujocoSimulator(name)
    assert_goes_on(sim, seed=0, steps=15, ends=False)


@pytest.mark.full
@pytest.mark.parametrize("name", third_of(ROBOTS))
def test_goes_on_from_fifty_restored_states(name: str) -> None:
    sim = MujocoSimulator(name, remove_time_limit=False)
    for seed in range(50):
        assert_goes_on(sim, seed=seed, steps=20, ends=seed % 2 == 0)


@pytest.mark.parametrize("name", ROBOTS)
def test_equals_gymnasium(name: str) -> None:
    sim = MujocoSimulator(name, remove_time_limit=False)
    assert_equals_gymnasium(sim, lambda: gymnasium.make(name), seed=3, steps=30)


@pytest.mark.parametrize("robot", [Ant, Humanoid])
def test_the_first_reward_needs_what_is_carried(
    robot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the integration state alone it would be the reward of another branch's place."""
    name = f"{robot.__name__}-v5"
    monkeypatch.setattr(robot, "carried", classmethod(lambda cls, env: {}))
    monkeypatch.setattr(MujocoCodec, "_find_columns", lambda self: None)
    with pytest.raises(AssertionError, match="step 0 is another"):
        assert_goes_on(MujocoSimulator(name), seed=1, steps=20, ends=False)


# Chunks


def compare_robots(name: str, **kwargs: Any) -> Any:
    """Compare chunks with single steps; return a rollout."""
    fast, slow = pair(name, **kwargs)
    states, _ = reached(slow, 16, seed=6)
    plans = np.array([[slow.action_space.sample() for _ in range(9)] for _ in states])
    compare(fast, slow, states, plans)
    kernels = set(fast.simulator._kernels.values())
    assert kernels and None not in kernels
    return fast.rollout_batch(plans, states, dt=2)


@pytest.mark.parametrize("name", third_of(ROBOTS))
def test_chunks_are_stepped_at_once_and_are_what_single_steps_are(name: str) -> None:
    compare_robots(name)


@pytest.mark.parametrize("name", third_of(["HalfCheetah-v5", "Humanoid-v5", *ENDING]))
@pytest.mark.parametrize("limited", [False, True])
def test_held_actions_and_rollouts(name: str, limited: bool) -> None:
    # Some rows run into the limit at once, some later, and some are beyond it already.
    kwargs = {"remove_time_limit": False, "max_episode_steps": 12} if limited else {}
    found = compare_robots(name, frameskip=2, **kwargs)
    if limited or name in ENDING:
        assert (found.terminateds | found.truncateds).any()


@pytest.mark.parametrize("dt", [10**12, np.array([1, 10**12])], ids=["one", "each"])
def test_memory_does_not_grow_with_dt(dt: Any) -> None:
    fast, slow = pair("Hopper-v5")
    states, _ = reached(slow, 2, seed=6)
    actions = np.ones((2, 3), np.float32)  # it falls within some steps
    fast.step_batch(actions, states)
    tracemalloc.start()
    try:
        mine = fast.step_batch(actions, states, dt=dt)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert_same(mine, slow.step_batch(actions, states, dt=dt))
    assert mine.terminateds[1]


@pytest.mark.parametrize("raises", [False, True])
def test_a_form_that_disagrees_or_raises_is_not_used(
    monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    compute_rewards = Ant.compute_rewards

    def biased(self: Any, frames: Any) -> Any:
        if raises:
            raise KeyError("torso")
        rewards, ended, infos = compute_rewards(self, frames)
        return np.nextafter(rewards, np.inf), ended, infos

    monkeypatch.setattr(Ant, "compute_rewards", biased)
    env, slow = pair("Ant-v5")
    states, actions = reached(slow, 5, seed=9)
    assert_same(env.step_batch(actions, states), slow.step_batch(actions, states))
    assert list(env.simulator._kernels.values()) == [None]


# States


def test_a_robots_pose_becomes_a_root_to_plan_from(env: Any) -> None:
    before = env.get_state()
    rng = np.random.default_rng(2)
    qpos, qvel = rng.normal(0, 0.2, 9), rng.normal(0, 0.2, 9)
    state = env.make_state(qpos=qpos, qvel=qvel)
    assert_same(env.get_state(), before)
    view = env.view_state(state)
    assert view["qpos"].tolist() == qpos.tolist() and view["qvel"].tolist() == qvel.tolist()
    with pytest.raises(ValueError, match="read-only"):
        view["qpos"][0] = 0
    hand: Any = gymnasium.make("HalfCheetah-v5")
    hand.reset(seed=0)
    hand.unwrapped.set_state(qpos, qvel)
    env.reset(seed=0)
    action = env.sample_action()
    step = env.step(action, env.make_state(qpos=qpos, qvel=qvel))
    obs, reward, *_ = hand.step(action)
    assert_same((step.obs, step.reward), (obs, float(reward)))
    hand.close()


@pytest.mark.parametrize(
    "physics",
    [{"qpos": [0.0]}, {"qvel": [np.nan] * 9}, {"qpos": [-2e10] * 9}, {"x": 1}, {"qpos": "far"}],
)
def test_states_cannot_be_made_of_nonsense(env: Any, physics: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(physics))):
        env.make_state(**physics)


def test_the_time_limit_is_part_of_the_state() -> None:
    with plangym_like.make("Reacher-v5", remove_time_limit=False) as env:
        env.reset(seed=0)
        state = env.make_state(elapsed_steps=48)
        assert env.view_state(state)["elapsed_steps"] == 48
        action = env.sample_action()
        first = env.step_batch(action, state)
        second = env.step_batch(action, first.states)
        assert not first.truncateds.any() and second.truncateds.all()
        with pytest.raises(InputError, match="elapsed_steps"):
            env.make_state(elapsed_steps=-1)


def test_rows_of_another_robot_or_model_are_refused(env: Any, tmp_path: Any) -> None:
    state = env.get_state()
    original = os.path.join(os.path.dirname(env.simulator.base.fullpath), "half_cheetah.xml")
    heavier = tmp_path / "heavier.xml"
    with open(original) as file:
        heavier.write_text(file.read().replace('settotalmass="14"', 'settotalmass="15"'))
    for name, kwargs in (("Walker2d-v5", {}), ("HalfCheetah-v5", {"xml_file": str(heavier)})):
        with plangym_like.make(name, **kwargs) as other, pytest.raises(StateMismatchError):
            other.set_state(state)


@pytest.mark.parametrize("name", third_of(ROBOTS))
def test_the_quick_step_from_a_given_state_equals_the_simulators_step(name: str) -> None:
    with plangym_like.make(name) as quick, plangym_like.make(name) as slow:
        slow.simulator.step_row = lambda row, action, dt: None
        states, actions = reached(slow, 4, seed=3)
        assert quick.simulator.step_row(states[0], actions[0], 1) is not None
        for state, action in zip(states, actions, strict=True):
            quick.reset(seed=1)  # its random generator then differs from those in the states
            step = quick.step(action, state)
            assert_same(step, slow.step(action, state))
            info = copy.deepcopy(step.info)
            assert_same(quick.step(action), slow.step(action))
            assert_same(quick.get_state(), slow.get_state())
            assert_same(quick.reset(), slow.reset())
            assert_same(step.info, info)  # later steps do not change it


def test_a_replaced_method_of_a_robot_is_called() -> None:
    with plangym_like.make("HalfCheetah-v5") as env:
        base, state, actions = env.simulator.base, env.reset(seed=0).state, np.zeros((3, 6))
        before, observe = env.step_batch(actions, state), base._get_obs
        for shift in (100.0, 200.0):
            base._get_obs = lambda shift=shift: observe() + shift
            assert_same(env.step_batch(actions, state).obs, before.obs + shift)
            assert_same(env.step(actions[0], state).obs, before.obs[0] + shift)
        del base._get_obs
        assert_same(env.step_batch(actions, state).obs, before.obs)


def test_a_reward_of_minus_zero_becomes_zero() -> None:
    with plangym_like.make("HalfCheetah-v5", forward_reward_weight=0, audit_every=1) as env:
        env.reset(seed=0)
        backward = env.make_state(qvel=[-1.0] + [0.0] * 8)
        single = env.step(np.zeros(6, np.float32), backward)
        assert single.info["reward_forward"] == 0.0
        assert math.copysign(1.0, single.reward) == 1.0


# Classes of one's own


def test_another_class_is_refused() -> None:
    class Leaping(AntEnv):
        pass

    with pytest.raises(SnapshotError, match=r"Leaping is not one of Gymnasium's robots.*AnyEnv"):
        MujocoEnv(Leaping)


class HoldsMujoco(gymnasium.Env[Any, Any]):
    """Holds a model and its data, and does not say what its state is."""

    action_space = observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float64)

    def __init__(self) -> None:
        joint = '<joint type="slide"/><geom size="1"/>'
        xml = f"<mujoco><worldbody><body>{joint}</body></worldbody></mujoco>"
        self.model = mujoco.MjModel.from_xml_string(xml)
        self.data = mujoco.MjData(self.model)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        mujoco.mj_resetData(self.model, self.data)
        return self.data.qpos.clip(-1, 1), {}

    def step(self, action: Any) -> Any:
        self.data.qvel += action
        mujoco.mj_step(self.model, self.data)
        return self.data.qpos.clip(-1, 1), 0.0, False, False, {}


def test_a_class_that_holds_mujocos_data_is_replayed() -> None:
    with plangym_like.make(HoldsMujoco) as env:
        assert (env.snapshot, env.exactness) == ("replay", "exact")
        note = env.snapshot_note
        assert "['data'], two different contents of a mujoco._structs.MjData" in note
        assert "\\x" not in note and "b'" not in note


def test_what_mujoco_says_of_gymnasiums_models_is_neither_printed_nor_written(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with plangym_like.make("HalfCheetah-v5", n_workers=2, isolate=True) as env:
        env.step_batch(np.zeros((2, 6)), env.reset(seed=0).state)
    printed = capfd.readouterr()
    assert (printed.out, printed.err, os.listdir(tmp_path)) == ("", "", [])


def test_the_seed_of_the_generator_stays_what_the_user_gave() -> None:
    with plangym_like.make("InvertedPendulum-v5") as env:
        state = env.reset(seed=5).state
        for kind in (np.float32, np.float64):  # each has a self-test of its own
            env.step_batch(np.zeros((4, 1), kind), state)
            assert env.simulator.base.np_random_seed == 5
