"""The suite of dm_control: every task, its futures, its targets, its generator."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from block_steps import compare, pair
from comparing import assert_same
from continuation import assert_goes_on
from usual import first_of, third_of

pytest.importorskip(
    "dm_control", reason="dm_control is not installed: pip install 'plangym_like[dm-control]'"
)

from test_mujoco_images import HAS_LIBRARY, drawing

import plangym_like
from plangym_like.envs.dm_control import (
    RANDOM_NBYTES,
    DmControlSimulator,
    RestorableRandom,
    load_suite,
    parse,
)
from plangym_like.errors import InputError, StateMismatchError
from plangym_like.states.rows import HEADER_NBYTES

suite = load_suite()
TASKS = [f"{domain}-{task}" for domain, task in suite.ALL_TASKS]
if not HAS_LIBRARY:
    # It draws whenever an episode begins.
    TASKS.remove("quadruped-escape")
LARGE = [name for name in TASKS if name.startswith("dog")]
SMALL = [name for name in TASKS if name not in LARGE]


def walk(env: Any, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the states of some episodes, and actions."""
    env.action_space.seed(seed)
    states = []
    for index in range(count):
        if index % 10 == 0:
            env.reset(seed=seed + index)
        states.append(env.step(env.action_space.sample(), return_state=True).state)
    return np.stack(states), np.stack([env.action_space.sample() for _ in range(count)])


@pytest.mark.parametrize("name", [*third_of(SMALL), *first_of(LARGE, 0)])
def test_goes_on_from_a_restored_state(name: str) -> None:
    sim = DmControlSimulator(name)
    assert sim.exactness == "exact"
    assert_goes_on(sim, seed=1, steps=8, ends=False)
    sim.close()


@pytest.mark.full
@pytest.mark.parametrize("name", TASKS)
def test_goes_on_from_twenty_restored_states(name: str) -> None:
    sim = DmControlSimulator(name, remove_time_limit=False)
    for seed in range(20):
        assert_goes_on(sim, seed=seed, steps=20, ends=seed % 2 == 0)
    sim.close()


@pytest.mark.parametrize("name", first_of(["finger-spin", "lqr-lqr_2_1", "walker-walk"], 2))
def test_equals_the_suite(name: str) -> None:
    domain, task, _ = parse(name) or ("", "", False)
    theirs = suite.load(domain, task, task_kwargs={"random": 0})
    if domain == "lqr":
        # Its model has been drawn from the same generator.
        theirs.task.random.seed(0)
    found = theirs.reset()
    env = plangym_like.make(f"dm_control/{name}-v0", remove_time_limit=False, autoreset=False)
    obs = env.reset(seed=0).obs
    for _ in range(25):
        for key, value in found.observation.items():
            assert np.asarray(value).tobytes() == obs[key].tobytes()
        action = env.sample_action()
        found = theirs.step(action)
        step = env.step(action)
        assert step.reward == found.reward
        obs = step.obs
    env.close()


def test_time_is_up_where_the_limit_is_kept() -> None:
    with plangym_like.make("pendulum-swingup", remove_time_limit=False, autoreset=False) as env:
        env.reset(seed=0)
        state = env.get_state().copy()
        at = env.simulator.codec.count_at + HEADER_NBYTES
        state[at : at + 8].view(np.int64)[0] = 998
        assert env.view_state(state)["elapsed_steps"] == 998
        first = env.step_batch([[0.0], [0.5]], state)
        second = env.step_batch([[0.0], [0.5]], first.states)
        third = env.step_batch([[0.0], [0.5]], second.states)
        assert not first.truncateds.any() and second.truncateds.all()
        assert third.truncateds.all() and not third.terminateds.any()
        assert (third.obs != second.obs).any()


def test_an_episode_that_ends_early_is_terminated() -> None:
    with plangym_like.make("lqr-lqr_2_1", autoreset=False) as env:
        env.reset(seed=0)
        still = env.make_state(qpos=[0.0, 0.0], qvel=[0.0, 0.0])
        assert env.step([0.0], still).terminated


# Names


def test_each_name_means_what_it_means_where_it_comes_from() -> None:
    with (
        plangym_like.make("cartpole-balance") as flat,
        plangym_like.make("dm_control/cartpole-balance-v0") as dicts,
    ):
        assert flat.observation_space.shape == (5,)
        assert set(dicts.observation_space.spaces) == {"position", "velocity"}
        state, obs, _ = flat.reset(seed=0)
        parts = dicts.reset(seed=0).obs
        assert_same(obs, np.concatenate([parts["position"], parts["velocity"]]))
        dicts.set_state(state)
        assert_same(dicts.get_state(), state)
        result = dicts.step_batch([[0.0], [1.0]], state)
        assert result.obs["position"].shape == (2, 3)


@pytest.mark.parametrize("name", ["walker-fly", "walker-v1", "dm_control/walker-fly-v0"])
def test_unknown_names_raise_what_gymnasium_raises(name: str) -> None:
    with pytest.raises(gymnasium.error.Error):
        plangym_like.make(name)


# Batches


@pytest.mark.parametrize("limited", first_of([True, False]))
@pytest.mark.parametrize(
    "name", first_of(["reacher-easy", "walker-walk", "walker-stand", "walker-run"], 3)
)
def test_chunks_are_what_single_steps_are(name: str, limited: bool) -> None:
    fast, slow = pair(name, remove_time_limit=not limited, frameskip=2)
    states, actions = walk(slow, 30, seed=3)
    if limited:
        # Some are beyond the end, some run into it, some stay before it.
        at = slow.simulator.codec.count_at + HEADER_NBYTES
        states[:, at : at + 8].view(np.int64)[:, 0] = np.arange(30) + 980
    plans = np.random.default_rng(0).uniform(-1, 1, (30, 7, *actions.shape[1:]))
    plans[:, 0] = actions
    compare(fast, slow, states, plans)
    assert fast.rollout_batch(plans, states).truncateds.any() == limited
    kernels = set(fast.simulator._kernels.values())
    assert kernels and (None in kernels) == (name == "reacher-easy")


def test_what_a_form_does_not_cover_is_stepped_row_by_row() -> None:
    for kwargs in ({"obs_type": "dict"}, {"visualize_reward": True}):
        with plangym_like.make("walker-walk", **kwargs) as env:
            env.reset(seed=0)
            env.step_batch(np.zeros((3, 6)), env.get_state())
            assert not any(env.simulator._kernels.values())


def test_models_drawn_by_lot_are_the_same_each_time() -> None:
    with (
        plangym_like.make("lqr-lqr_6_2") as env,
        plangym_like.make("lqr-lqr_6_2") as same,
        plangym_like.make("lqr-lqr_6_2", task_kwargs={"random": 5}) as other,
    ):
        states, actions = walk(env, 10, seed=4)
        assert_same(same.step_batch(actions, states), env.step_batch(actions, states))
        with pytest.raises(StateMismatchError):
            other.set_state(states[0])


# States


@pytest.mark.parametrize(
    "name", first_of(["finger-turn_easy", "fish-swim", "manipulator-insert_peg"])
)
def test_targets_that_are_moved_in_the_model_are_part_of_the_state(name: str) -> None:
    with plangym_like.make(name) as env:
        states, rewards = [], []
        for seed in range(3):
            states.append(env.reset(seed=seed).state)
            rewards.append(env.step(np.zeros(env.action_shape), states[-1]).obs)
        for index in (1, 0, 2):
            again = env.step(np.zeros(env.action_shape), states[index])
            assert_same(again.obs, rewards[index])
        assert (rewards[0] != rewards[1]).any()
        edited = env.simulator.codec.edited
        assert edited and f"model.{edited[0]}" in env.simulator.codec.physics.carried


def test_named_fields_and_made_states() -> None:
    with plangym_like.make("walker-walk") as env:
        states, _ = walk(env, 5, seed=0)
        view = env.view_state(states)
        assert view["qpos"].shape == (5, 9) and view["elapsed_steps"].tolist() == [1, 2, 3, 4, 5]
        data = env.simulator.base.physics.data
        assert view["qvel"][-1].tolist() == data.qvel.tolist()
        before = env.step_batch(env.sample_action(), env.get_state()).obs
        qpos = view["qpos"][0] + 0.1
        made = env.make_state(qpos=qpos)
        assert env.view_state(made)["qpos"].tolist() == qpos.tolist()
        assert before.shape == (1, 24)
        with pytest.raises(InputError, match="qpos"):
            env.make_state(qpos=[1.0])
        with plangym_like.make("walker-walk") as twin:
            twin.set_state(env.get_state())
            assert_same(tuple(env.step(data.ctrl * 0)), tuple(twin.step(data.ctrl * 0)))


def test_the_generator_is_part_of_the_state() -> None:
    with plangym_like.make("walker-walk") as env:
        state = env.reset(seed=5).state
        first, second = env.reset().obs, env.reset().obs
        assert (first != second).any()
        env.set_state(state)
        assert_same(env.reset().obs, first)
        seeded = [env.step_batch(env.action_space.low, state, seeds=[seed]) for seed in (1, 2, 1)]
        assert_same(seeded[0].states, seeded[2].states)
        assert (seeded[0].states != seeded[1].states).any()
        assert_same(seeded[0].obs, seeded[1].obs)
    with plangym_like.make("walker-walk") as one, plangym_like.make("walker-walk") as other:
        assert (one.reset().obs != other.reset().obs).any()


def test_a_generator_is_restored_when_it_is_asked_for() -> None:
    random = RestorableRandom(np.random.RandomState(3))
    random.randn()
    memory = np.zeros(RANDOM_NBYTES, np.uint8)
    random.read(memory)
    expected = [random.randn(), random.uniform(), *random.randn(3)]
    random.write(memory)
    again = np.zeros(RANDOM_NBYTES, np.uint8)
    random.read(again)
    assert again.tobytes() == memory.tobytes()
    assert [random.randn(), random.uniform(), *random.randn(3)] == expected
    random.restart(9)
    first = random.uniform()
    random.restart(9)
    assert random.uniform() == first


# Images


@drawing
@pytest.mark.parametrize("name", first_of(["walker-walk", "fish-swim", "quadruped-escape"]))
def test_an_image_shows_the_state_that_was_set(name: str) -> None:
    kwargs = {"render_mode": "rgb_array", "width": 96, "height": 72}
    with plangym_like.make(name, **kwargs) as env, plangym_like.make(name, **kwargs) as other:
        env.reset(seed=0)
        other.reset(seed=7)
        for _ in range(4):
            env.step(env.sample_action())
        state, image = env.get_state(), env.get_image()
        assert image.shape == (72, 96, 3) and image.std() > 3
        env.reset(seed=1)
        assert (env.get_image() != image).any()
        for each in (env, other):
            each.set_state(state)
            assert (each.get_image() == image).all()


def test_the_action_space_is_not_seeded_by_us() -> None:
    name = "cartpole-swingup"
    with plangym_like.make(name) as one, plangym_like.make(name) as other:
        actions = [np.stack([env.sample_action() for _ in range(8)]) for env in (one, other)]
    assert not np.array_equal(*actions)
