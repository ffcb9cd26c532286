"""The state rows of classic control: what they hold, what they are made of, how they end."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from classic_rows import IDS, edited, make, random_actions, random_rows
from gymnasium.envs.classic_control import CartPoleEnv

from plangym_like.errors import InputError, StateFormatError, StateMismatchError
from plangym_like.states.random_state import seeded_generator
from plangym_like.states.rows import HEADER_NBYTES

# States


def test_rows_are_small() -> None:
    widths = [make(name).state_nbytes for name in IDS]
    assert widths == [112, 96, 96, 104, 112]
    assert make(remove_time_limit=False).state_nbytes == 120


@pytest.mark.parametrize("name", IDS)
def test_seeds_replace_the_generator_and_nothing_else(name: str) -> None:
    env = make(name)
    rng = np.random.default_rng(13)
    states, actions = random_rows(env, rng, 6), random_actions(env, rng, 6)
    seeds = rng.integers(0, 2**63, 6, dtype=np.uint64)
    plain = env.step_batch(actions, states)
    seeded = env.step_batch(actions, states, seeds=seeds)
    again = env.step_batch(actions[::-1], states[::-1], seeds=seeds[::-1])
    assert (again.states[::-1] == seeded.states).all()
    assert (plain.obs == seeded.obs).all() and (plain.rewards == seeded.rewards).all()
    end = HEADER_NBYTES + env.simulator.codec.nbytes + 40
    differing = np.flatnonzero((plain.states != seeded.states).any(axis=0))
    assert end - 40 <= differing.min() and differing.max() < end
    for state, seed in zip(seeded.states, seeds, strict=True):
        env.set_state(state)
        assert env.simulator.base.np_random.random() == seeded_generator(int(seed)).random()


def test_named_fields() -> None:
    env = make(remove_time_limit=False, autoreset=False)
    start = env.get_state()
    states = [start]
    for _ in range(30):
        states.append(env.step(1, return_state=True).state)
    view = env.view_state(np.stack(states))
    assert sorted(view) == ["elapsed_steps", "steps_beyond_terminated", "x"]
    assert view["x"].shape == (31, 4) and view["x"].dtype == np.float64
    assert view["elapsed_steps"].tolist() == list(range(31))
    assert view["x"][-1].tolist() == env.simulator.base.state.tolist()
    beyond = view["steps_beyond_terminated"].tolist()
    first = beyond.index(0)
    assert beyond == [-1] * first + list(range(31 - first))
    pendulum = make("Pendulum-v1")
    assert np.isnan(pendulum.view_state(pendulum.get_state())["last_u"])
    state = pendulum.step([1.25], return_state=True).state
    assert pendulum.view_state(state)["last_u"] == 1.25
    with pytest.raises(ValueError):
        view["x"][0] = 0


@pytest.mark.parametrize("name", IDS)
def test_a_state_made_of_numbers(name: str) -> None:
    env = make(name, remove_time_limit=False)
    before = env.get_state()
    x = np.linspace(-0.3, 0.4, len(env.simulator.base.state))
    state = env.make_state(x=x, elapsed_steps=17)
    view = env.view_state(state)
    assert view["x"].tolist() == x.tolist() and view["elapsed_steps"] == 17
    assert env.get_state().tobytes() == before.tobytes()
    hand: Any = gymnasium.make(name).unwrapped
    hand.reset()
    hand.state = x.copy()
    action = env.sample_action()
    obs, reward, *_ = hand.step(action)
    result = env.step_batch([action] * 2, state)
    assert result.obs[0].tobytes() == obs.tobytes() and result.rewards[0] == reward
    assert env.view_state(result.states)["elapsed_steps"].tolist() == [18, 18]


@pytest.mark.parametrize(
    "physics",
    [
        {"x": [0.0, 0.0]},
        {"x": [0.0, 0.0, 0.0, np.nan]},
        {"x": [0.0, 0.0, np.inf, 0.0]},
        {"x": "abcd"},
        {"x": None},
        {"y": 1},
        {"elapsed_steps": -1},
        {"elapsed_steps": 1.5},
        {"elapsed_steps": True},
    ],
)
def test_no_state_is_made_of_nonsense(physics: dict[str, Any]) -> None:
    env = make(remove_time_limit=False)
    with pytest.raises(InputError, match="|".join(physics)):
        env.make_state(**physics)


def test_the_time_limit_counts_held_frames() -> None:
    env = make("Pendulum-v1", remove_time_limit=False)
    states = np.stack([env.make_state(elapsed_steps=steps) for steps in (0, 195, 198, 199, 300)])
    result = env.step_batch([0.5], states, 3)
    assert result.truncateds.tolist() == [False, False, True, True, True]
    assert result.infos["n_step"].tolist() == [3, 3, 2, 1, 1]
    assert env.view_state(result.states)["elapsed_steps"].tolist() == [3, 198, 200, 200, 301]


def test_rows_belong_to_the_settings_of_a_callables_environment() -> None:
    first, second = make(lambda: CartPoleEnv()), make(lambda: heavier(CartPoleEnv()))
    with pytest.raises(StateMismatchError):
        second.set_state(first.get_state())


def heavier(env: CartPoleEnv) -> CartPoleEnv:
    env.gravity = 12.0
    return env


# Ended and damaged states


def test_an_ended_cart_pole_can_be_stepped_on() -> None:
    env = make(autoreset=False)
    while not env.step(1).terminated:
        pass
    ended = env.get_state()
    rewards = [env.step(1).reward for _ in range(3)]
    assert rewards == [0.0, 0.0, 0.0]
    assert env.step_batch([0, 1], ended).rewards.tolist() == [0.0, 0.0]
    assert env.step_batch([0, 1, 1], ended, [1, 2, 3]).infos["n_step"].tolist() == [1, 1, 1]
    rollout = env.rollout_batch(np.ones((2, 4), int), ended)
    assert rollout.rewards.tolist() == [[0.0] * 4] * 2 and rollout.terminateds.all()


@pytest.mark.parametrize("name", IDS)
def test_a_flipped_byte_is_another_state_or_an_error(name: str) -> None:
    # Bytes that mean nothing come back as they are or as zero, so the audit would object.
    env = make(name)
    rng = np.random.default_rng(14)
    states = random_rows(env, rng, 60)
    at = rng.integers(HEADER_NBYTES, env.state_nbytes, 60)
    states[np.arange(60), at] ^= rng.integers(1, 256, 60).astype(np.uint8)
    refused = 0
    for state, action in zip(states, random_actions(env, rng, 60), strict=True):
        try:
            single = env.step(action, state)
        except (StateFormatError, ValueError) as error:
            refused += 1
            with pytest.raises(type(error)):
                env.step_batch([action] * 2, state)
        else:
            result = env.step_batch([action] * 2, state)
            numbers = np.array([single.reward, *single.obs], np.float64)
            batched = np.array([result.rewards[0], *result.obs[0]], np.float64)
            assert np.array_equal(numbers, batched, equal_nan=True)
    assert refused < 15


@pytest.mark.parametrize(
    ("name", "x"),
    [
        ("Acrobot-v1", [1e9, 0.0, 0.0, 0.0]),
        ("Acrobot-v1", [0.1, 0.2, 3000.0, -1000.0]),
        ("MountainCar-v0", [1e308, 0.0]),
        ("MountainCarContinuous-v0", [np.inf, 0.0]),
    ],
)
def test_numbers_that_nothing_can_be_computed_with(name: str, x: list[float]) -> None:
    env = make(name)
    good = env.get_state()
    bad = good.copy()
    bad[HEADER_NBYTES:][: 8 * len(x)].view(np.float64)[:] = x
    action = env.sample_action()
    with pytest.raises(StateFormatError, match="cannot be stepped from the state"):
        env.step(action, bad)
    with pytest.raises(StateFormatError, match="cannot be stepped from the state") as caught:
        env.step_batch([action] * 3, np.stack([good, bad, good]))
    assert "row 1" in "".join(caught.value.__notes__)


def test_a_faster_acrobot_can_be_stepped_from_its_own_states() -> None:
    env, hand = make("Acrobot-v1"), gymnasium.make("Acrobot-v1", max_episode_steps=1000).unwrapped
    hand.reset(seed=0)
    for base in (env.simulator.base, hand):
        edited(base, {"MAX_VEL_1": 200.0, "MAX_VEL_2": 200.0, "AVAIL_TORQUE": [-50.0, 0.0, 50.0]})
    state, fastest = env.reset(seed=0).state, 0.0
    for _ in range(40):
        hand.step(2)
        state = env.step(2, state).state
        assert env.view_state(state)["x"].tolist() == list(hand.state)
        assert env.step_batch([0, 2], state).obs[1].tobytes() == env.step(2, state).obs.tobytes()
        fastest = max(fastest, *map(abs, hand.state))
    assert fastest > 30.0


def test_no_state_is_made_that_cannot_be_stepped() -> None:
    env = make("Acrobot-v1")
    with pytest.raises(InputError, match="AcrobotEnv cannot be stepped .* outside -30 to 30"):
        env.make_state(x=[0.0, 0.0, 31.0, 0.0])
    with pytest.raises(InputError, match="MountainCarEnv cannot be stepped"):
        make("MountainCar-v0").make_state(x=[1e308, 0.0])
    env.step_batch([0, 1], env.make_state(x=[0.0, 0.0, 30.0, 0.0]))
