"""Wrappers: what they remember is in the row, and chains go on as if nothing had happened."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from continuation import (
    PlainSimulator,
    assert_equals_gymnasium,
    assert_goes_on,
    content,
    format_of,
    restore,
    saved,
)
from gymnasium import wrappers
from remembering_wrappers import CHAIN_NAMES, CHAINS, Counting, Moody

import plangym_like
from plangym_like.envs.wrapping import without_time_limit
from plangym_like.errors import StateCapacityError, StateFormatError
from plangym_like.snapshots.chain_state import WrapperState
from plangym_like.snapshots.known_wrappers import is_known
from plangym_like.states.random_state import seeded_generator

# Ended episodes are played on, which has to be as deterministic as any other step.
pytestmark = pytest.mark.filterwarnings("ignore:.*already returned terminated")


@pytest.mark.parametrize("chain", CHAIN_NAMES)
def test_a_chain_goes_on_here_and_in_another_simulator_as_gymnasium_does(chain: str) -> None:
    name, made = CHAINS[chain]

    def make() -> gym.Env:
        env = without_time_limit(gym.make(name))
        for item in made:
            env = item[0](env, **item[1]) if isinstance(item, tuple) else item(env)
        return env

    one, other = (PlainSimulator(name, wrappers=made) for _ in range(2))
    assert_equals_gymnasium(one, make, seed=3)
    for seed in range(2):
        assert_goes_on(one, seed=seed, ends=seed % 2 == 0)
    assert format_of(one) == format_of(other)
    one.action_space.seed(0)
    one.reset(seed=1)
    for _ in range(3):
        one.step(one.action_space.sample(), 1)
    restore(other, saved(one))
    for _ in range(3):
        action = one.action_space.sample()
        assert content(one.step(action, 1)) == content(other.step(action, 1))
        assert saved(one).tobytes() == saved(other).tobytes()


class TimeLimit(wrappers.TimeLimit):
    """A time limit of a later version, with one more attribute that steps change."""

    __module__ = "gymnasium.wrappers.common"

    def __init__(self, env: gym.Env, max_episode_steps: int) -> None:
        super().__init__(env, max_episode_steps)
        self._bonus = 0.0

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        self._bonus += 1.0
        return obs, float(reward) + self._bonus, *rest


def test_a_wrapper_of_a_later_gymnasium_is_saved_with_all_of_its_attributes() -> None:
    sim = PlainSimulator("Pendulum-v1", wrappers=[(TimeLimit, 50)])
    assert_goes_on(sim, seed=0, ends=False)
    sim.close()


def test_a_time_limit_alone_is_eight_bytes() -> None:
    env = gym.make("CartPole-v1")
    env.reset(seed=0)
    memory = WrapperState(env)
    assert memory.nbytes == 8
    assert memory.time_limit is env
    env.step(0)
    payload = np.zeros(8, np.uint8)
    memory.read(payload)
    assert payload.view("<i8")[0] == 1
    env.step(0)
    memory.write(payload)
    assert env._elapsed_steps == 1
    assert memory.view(payload[None])["elapsed_steps"].tolist() == [1]


def test_the_memory_has_names() -> None:
    env = wrappers.RecordEpisodeStatistics(
        wrappers.FrameStackObservation(wrappers.TimeLimit(gym.make("CartPole-v1"), 5), 2)
    )
    env.reset(seed=0)
    memory = WrapperState(env)
    payloads = np.zeros((3, memory.nbytes), np.uint8)
    for payload in payloads:
        env.step(1)
        memory.read(payload)
    fields = memory.view(payloads)
    assert fields["elapsed_steps"].tolist() == [1, 2, 3]
    assert fields["RecordEpisodeStatistics.episode_lengths"].tolist() == [1, 2, 3]


def test_statistics_of_episodes_are_kept_and_the_clock_is_not() -> None:
    env = wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1", max_episode_steps=6))
    env.reset(seed=0)
    memory = WrapperState(env)
    payload = np.zeros(memory.nbytes, np.uint8)
    started = env.episode_start_time
    env.step(0)
    memory.read(payload)
    env.reset(seed=1)
    again = np.zeros_like(payload)
    memory.write(payload)
    memory.read(again)
    assert (again == payload).all()
    assert env.episode_start_time != started
    assert (env.episode_lengths, env.episode_returns) == (1, 1.0)
    for _ in range(5):
        info = env.step(0)[4]
    assert (info["episode"]["l"], info["episode"]["r"]) == (6, 6.0)
    memory.write(payload)
    assert (list(env.return_queue), list(env.length_queue), env.episode_count) == ([], [], 0)


@pytest.mark.parametrize("kind", [wrappers.NormalizeObservation, wrappers.NormalizeReward])
def test_frozen_statistics_stay_frozen(kind: Any) -> None:
    env = kind(gym.make("Pendulum-v1"))
    env.reset(seed=0)
    env.update_running_mean = False
    memory = WrapperState(env)
    payload = np.zeros(memory.nbytes, np.uint8)
    memory.read(payload)
    env.update_running_mean = True
    env.step(env.action_space.sample())
    memory.write(payload)
    assert env.update_running_mean is False
    for _ in range(5):
        env.step(env.action_space.sample())
    again = np.zeros_like(payload)
    memory.read(again)
    names = [name for name in memory.view(again[None]) if "_rms." in name]
    before, after = (memory.view(row[None]) for row in (payload, again))
    assert len(names) == 3 and all(np.array_equal(before[name], after[name]) for name in names)


def test_reseeding_restarts_the_wrappers_own_generators() -> None:
    sim = PlainSimulator("Pendulum-v1", wrappers=[Counting, Moody])
    sim.reset(seed=0)
    row = saved(sim)

    def draws(seed: int) -> tuple[float, float]:
        restore(sim, row)
        sim.reseed(seed)
        return sim.env.env.noise.random(), sim.base.np_random.random()

    assert draws(3) == draws(3)
    assert draws(3) != draws(4)
    assert draws(3)[1] == seeded_generator(3).random()
    assert draws(3)[0] != draws(3)[1]


def test_a_damaged_row_changes_nothing() -> None:
    env = wrappers.FrameStackObservation(wrappers.TimeLimit(gym.make("CartPole-v1"), 5), 2)
    env.reset(seed=0)
    memory = WrapperState(env)
    payload = np.zeros(memory.nbytes, np.uint8)
    memory.read(payload)
    env.step(0)
    before = np.zeros_like(payload)
    memory.read(before)
    random = np.random.default_rng(0)
    for length in (-1, 2**40, 0, memory.nbytes, 3):
        damaged = payload.copy()
        damaged[:8].view("<i8")[0] = length
        with pytest.raises(StateFormatError):
            memory.write(damaged)
    after = np.zeros_like(payload)
    memory.read(after)
    assert (after == before).all()
    for _ in range(60):
        damaged = payload.copy()
        damaged[random.integers(len(payload), size=3)] = random.integers(256, size=3)
        try:
            memory.write(damaged)
        except StateFormatError:
            memory.read(after)
            assert (after == before).all()
        else:
            memory.write(before)


class Hoarding(gym.Wrapper):
    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.history: list[Any] = []

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.history.append(result[0])
        return result


def test_memory_without_end_says_which_option_makes_room() -> None:
    env = Hoarding(gym.make("CartPole-v1"))
    env.reset(seed=0)
    memory = WrapperState(env)
    payload = np.zeros(memory.nbytes, np.uint8)
    with pytest.raises(StateCapacityError, match=r"Hoarding.*state_capacity=\d+"):
        for _ in range(200):
            env.step(0)
            memory.read(payload)
    roomy = WrapperState(env, 100_000)
    roomy.read(np.zeros(roomy.nbytes, np.uint8))
    with pytest.raises(StateCapacityError, match="state_capacity"):
        WrapperState(env, 64)


# On a real game


def test_the_memory_of_the_usual_preprocessing_is_restored() -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    made = [
        (wrappers.AtariPreprocessing, {"terminal_on_life_loss": True}),
        (wrappers.FrameStackObservation, {"stack_size": 4}),
    ]
    env = plangym_like.make("ALE/Breakout-v5", frameskip=1, wrappers=made)
    state = env.step(1, env.reset(seed=0).state).state
    preprocessing = env.gym_env.env
    frames = [frame.copy() for frame in preprocessing.obs_buffer]
    preprocessing.game_over = True
    env.step(2, env.step(2, state).state)
    env.set_state(state)
    # An episode that ends between two observations shows what is left in these.
    assert content(preprocessing.obs_buffer) == content(frames)
    assert preprocessing.game_over is False
    env.close()


def test_a_wrapper_of_gymnasium_with_another_attribute_is_not_known() -> None:
    wrapper = wrappers.NormalizeReward(gym.make("CartPole-v1"))
    assert is_known(wrapper)
    vars(wrapper)["of_another_version"] = 0
    assert not is_known(wrapper)
