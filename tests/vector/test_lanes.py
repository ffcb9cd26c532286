"""Lanes: what a seeded lane does is what the seeded environment does, byte for byte."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from small_envs import Nested

from plangym_like.errors import ActionError, InputError
from plangym_like.vector.kernel_lanes import KernelLanes, time_limit
from plangym_like.vector.lanes import Lanes, StepArrays, gym_env_of
from plangym_like.vector.make_lanes import make_envs, make_lanes
from plangym_like.vector.sequential_lanes import SequentialLanes

CLASSIC = [
    "CartPole-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "Acrobot-v1",
]
SEEDS = [3, 4, 3, 99]


def _buffers(lanes: Lanes) -> tuple[Any, ...]:
    count = lanes.num_lanes
    return np.empty(count, np.float32), np.empty(count, bool), np.empty(count, bool)


@pytest.mark.parametrize("name", CLASSIC)
@pytest.mark.parametrize("vectorise", [True, False])
def test_seeded_lanes_equal_seeded_environments(name: str, vectorise: bool) -> None:
    twins = [gymnasium.make(name) for _ in SEEDS]
    lanes = make_lanes([gymnasium.make(name) for _ in SEEDS], vectorise=vectorise)
    assert isinstance(lanes, KernelLanes if vectorise else SequentialLanes)
    obs = lanes.start(SEEDS)
    for lane, twin in enumerate(twins):
        assert twin.reset(seed=SEEDS[lane])[0].tobytes() == obs[lane].tobytes()
    assert obs[0].tobytes() == obs[2].tobytes()
    rewards, terminated, truncated = _buffers(lanes)
    space = twins[0].action_space
    space.seed(1)
    num_ended = 0
    for _ in range(230):
        actions = np.stack([space.sample() for _ in SEEDS])
        lanes.step(actions, StepArrays(obs, rewards, terminated, truncated))
        for lane, twin in enumerate(twins):
            theirs = twin.step(actions[lane])
            ended = theirs[2] or theirs[3]
            assert theirs[0].tobytes() == obs[lane].tobytes()
            assert (np.float32(theirs[1]), *theirs[2:4]) == (
                rewards[lane],
                terminated[lane],
                truncated[lane],
            )
            if ended:
                num_ended += 1
                lanes.reset(obs, [lane])
                assert twin.reset()[0].tobytes() == obs[lane].tobytes()
    assert num_ended or name in ("MountainCarContinuous-v0", "Acrobot-v1")


@pytest.mark.parametrize("vectorise", [True, False])
def test_only_the_named_lanes_move(vectorise: bool) -> None:
    lanes = make_lanes([gymnasium.make("CartPole-v1") for _ in range(4)], vectorise=vectorise)
    obs = lanes.start(SEEDS)
    before = obs.copy()
    rewards, terminated, truncated = _buffers(lanes)
    rewards.fill(-7)
    twin = gymnasium.make("CartPole-v1")
    twin.reset(seed=99)
    for _ in range(5):
        lanes.step(np.ones(4, np.int64), StepArrays(obs, rewards, terminated, truncated), [1, 3])
        expected = twin.step(1)[0]
    assert (obs[[0, 2]] == before[[0, 2]]).all()
    assert obs[3].tobytes() == expected.tobytes()
    assert rewards.tolist() == [-7, 1, -7, 1]


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


def test_the_row_of_a_known_seed() -> None:
    env = gymnasium.make("CartPole-v1")
    lanes = make_lanes([env])
    rows = [lanes.start([4279])[0].copy()]
    obs = rows[0][None].copy()
    for action in (1, 0, 1, 1, 0, 0, 1, 0, 0, 0, 1, 1, 1):
        lanes.step(np.array([action]), StepArrays(obs, *_buffers(lanes)))
        rows.append(obs[0].copy())
    assert np.allclose(rows[0], [-0.0471, 0.0265, 0.0220, -0.0336], atol=5e-5)
    assert np.allclose(rows[-1], [-0.0326, 0.2213, 0.0053, -0.3190], atol=5e-5)


def test_what_has_no_common_form_is_stepped_one_by_one() -> None:
    plain = gymnasium.make("CartPole-v1")
    heavy: Any = gymnasium.make("CartPole-v1")
    heavy.unwrapped.gravity = 20.0
    longer = gymnasium.make("CartPole-v1", max_episode_steps=600)
    watched = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))
    for other in (heavy, longer, watched):
        assert isinstance(make_lanes([plain, other]), SequentialLanes)
    assert isinstance(make_lanes([heavy]), KernelLanes)


@pytest.mark.parametrize("plan_envs", [False, True])
def test_a_changed_attribute_is_noticed_at_the_next_reset(plan_envs: bool) -> None:
    source: Any = "CartPole-v1" if plan_envs else (lambda: gymnasium.make("CartPole-v1"))
    lanes = make_lanes(make_envs(source, 3))
    assert isinstance(lanes, KernelLanes)
    obs = lanes.start()
    lanes.reset(obs)
    base, limit = gym_env_of(lanes.envs[1]).unwrapped, time_limit(gym_env_of(lanes.envs[1]))
    for owner, name in ((base, "force_mag"), (base, "step"), (limit, "_max_episode_steps")):
        before = getattr(owner, name)
        setattr(owner, name, 7)
        lanes.reset(obs, [0, 2])
        with pytest.raises(InputError, match="an attribute of an environment was") as caught:
            lanes.reset(obs)
        assert caught.value.__notes__ == ["raised while lane 1 was reset"]
        setattr(owner, name, before)
        vars(owner).pop("step", None)
        lanes.reset(obs)
    lanes.set_attr("force_mag", [7.0] * 3)
    lanes.reset(obs)
    lanes.close()


def test_nested_observations_and_actions() -> None:
    lanes = make_lanes([Nested(), Nested()])
    obs = lanes.start([5, 6])
    twin = Nested()
    twin.reset(seed=6)
    actions = {"move": np.full((2, 2), 0.5, np.float32), "pick": np.array([1, 2])}
    lanes.step(actions, StepArrays(obs, *_buffers(lanes)))
    theirs, _, _, _, info = twin.step({"move": actions["move"][1], "pick": 2})
    assert obs["place"][1].tobytes() == theirs["place"].tobytes()
    assert obs["cargo"][0].tolist() == [1, 2]
    assert obs["cargo"][1].dtype == np.int8
    assert lanes.infos[1] == info


@pytest.mark.parametrize("vectorise", [True, False])
def test_an_action_outside_the_space_is_refused(vectorise: bool) -> None:
    lanes = make_lanes([gymnasium.make("CartPole-v1") for _ in range(2)], vectorise=vectorise)
    obs = lanes.start([1, 2])
    for wrong in (2, -1):
        with pytest.raises((ActionError, AssertionError)):
            lanes.step(np.array([0, wrong]), StepArrays(obs, *_buffers(lanes)))


def test_steps_that_the_form_cannot_take() -> None:
    names = ["MountainCarContinuous-v0"] * 3
    twins = [gymnasium.make(name) for name in names]
    lanes = make_lanes([gymnasium.make(name) for name in names])
    obs = lanes.start([1, 2, 3])
    for lane, twin in enumerate(twins):
        twin.reset(seed=lane + 1)
    results = _buffers(lanes)
    for step in range(6):
        actions = np.array([[0.5], [1.0], [-0.25]], np.float32)
        if step % 2:
            actions *= 3
        lanes.step(actions, StepArrays(obs, *results))
        for lane, twin in enumerate(twins):
            theirs = twin.step(actions[lane])
            assert theirs[0].tobytes() == obs[lane].tobytes()
            assert np.float32(theirs[1]) == results[0][lane]


def test_factories() -> None:
    assert len(make_envs(Nested, 3)) == 3
    one = Nested()
    with pytest.raises(InputError, match="same environment twice"):
        make_envs(lambda: one, 2)
    with pytest.raises(InputError, match="gymnasium.Env"):
        make_envs(lambda: 3, 1)
    with pytest.raises(InputError, match="at least one environment"):
        make_lanes([])


def test_an_error_names_its_lane() -> None:
    class Broken(Nested):
        def step(self, action: Any) -> Any:
            raise KeyError("gone")

    lanes = make_lanes([Nested(), Broken()])
    obs = lanes.start([1, 2])
    actions = {"move": np.zeros((2, 2), np.float32), "pick": np.array([1, 2])}
    with pytest.raises(KeyError) as caught:
        lanes.step(actions, StepArrays(obs, *_buffers(lanes)))
    assert caught.value.__notes__ == ["raised while lane 1 was stepped"]
