"""Toy text: small rows that hold everything, and episodes as Gymnasium plays them."""

import copy
from collections.abc import Iterable
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
from gymnasium.envs.toy_text.taxi import TaxiEnv
from suite import CLIFF, TAXI, is_at_least, needs

import plangym_like
from plangym_like.envs.toy_text import ToyTextEnv, ToyTextSimulator
from plangym_like.errors import InputError, SnapshotError, StateFormatError

GAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "lake": ("FrozenLake-v1", {}),
    "lake that is not slippery": ("FrozenLake-v1", {"is_slippery": False}),
    "lake with rewards": (
        "FrozenLake8x8-v1",
        {"success_rate": 0.7, "reward_schedule": (10, -5, -0.25)},
    ),
    "lake with a map": ("FrozenLake-v1", {"desc": ["SFFH", "FHFF", "FFFG"]}),
    "lake at random": ("FrozenLake-v1", {"map_name": None}),
    "cliff": (CLIFF, {}),
    "slippery cliff": ("CliffWalkingSlippery-v1", {}),
    "taxi": (TAXI, {}),
    "taxi in the rain": (
        TAXI,
        {"is_rainy": True, "fickle_passenger": True, "fickle_probability": 0.9},
    ),
    "cards": ("Blackjack-v1", {"sab": True}),
    "cards with naturals": ("Blackjack-v1", {"natural": True}),
}
# The lake at random is another in each environment.
FIXED = [game for game in GAMES if game != "lake at random"]
# The first version of Gymnasium that has a game
_NEWER = {"lake with rewards": "1.2.1", "slippery cliff": "1.2", "taxi in the rain": "1.3"}


def cases(games: Iterable[str]) -> list[Any]:
    """Return games to try; what this version of Gymnasium does not have is skipped."""
    return [
        pytest.param(game, marks=needs("gymnasium", _NEWER[game]) if game in _NEWER else ())
        for game in games
    ]


@pytest.mark.parametrize("game", cases(GAMES))
def test_a_restored_game_goes_on_as_if_nothing_had_happened(game: str) -> None:
    name, arguments = GAMES[game]
    sim = ToyTextSimulator(name, **arguments)
    for seed in range(6):
        assert_goes_on(sim, seed=seed, ends=seed % 2 == 0)


@pytest.mark.parametrize("game", cases(FIXED))
def test_a_game_is_played_as_gymnasium_plays_it(game: str) -> None:
    name, arguments = GAMES[game]

    def make() -> gym.Env:
        return gym.make(name, max_episode_steps=20, **arguments)

    sim = ToyTextSimulator(name, remove_time_limit=False, max_episode_steps=20, **arguments)
    for seed in range(3):
        assert_equals_gymnasium(sim, make, seed=seed)


@pytest.mark.parametrize("game", cases(GAMES))
def test_every_attribute_that_changes_is_in_the_row(game: str) -> None:
    name, arguments = GAMES[game]
    sim = ToyTextSimulator(name, **arguments)
    sim.reset(seed=0)

    def attributes() -> dict[str, Any]:
        found = {}
        for key, value in vars(sim.base).items():
            if key not in ("_np_random", "_np_random_seed", "action_space", "observation_space"):
                found[key] = repr(value.tolist() if isinstance(value, np.ndarray) else value)
        found["random"] = repr(sim.base._np_random.bit_generator.state)
        return found

    for action in [0, 1, 1, 0]:
        sim.step(action, 1)
    row, before = saved(sim), attributes()
    sim.reset(seed=9)
    for _ in range(30):
        sim.step(sim.action_space.sample(), 1)
    restore(sim, row)
    after = attributes()
    different = {key for key in before if before[key].replace("np.int64", "") != after.get(key)}
    # Cards and numbers come back as Python's own.
    assert all(eval(before[key], {"np": np}) == eval(after[key], {"np": np}) for key in different)


@pytest.mark.parametrize("game", cases(GAMES))
def test_rows_and_the_batch_agree_with_single_steps(game: str) -> None:
    name, arguments = GAMES[game]
    env = ToyTextEnv(name, **arguments)
    env.action_space.seed(1)
    state, _, _ = env.reset(seed=1)
    states, actions = [], []
    for _ in range(40):
        action = env.sample_action()
        states.append(state)
        actions.append(action)
        state, _, _, terminated, truncated, _ = env.step(action, state)
        if terminated or truncated:
            state = env.reset().state
    batch = env.step_batch(actions, states)
    backward = env.step_batch(actions[::-1], states[::-1])
    assert (batch.states == backward.states[::-1]).all()
    for index in range(40):
        one = env.step(actions[index], states[index])
        row = (
            tuple(part[index] for part in batch.obs)
            if game.startswith("cards")
            else batch.obs[index]
        )
        assert np.array_equal(one.obs, row)
        assert (one.reward, one.terminated) == (batch.rewards[index], batch.terminateds[index])
        assert (one.state == batch.states[index]).all()
        assert set(one.info) == set(batch.infos[index])
        for key, value in one.info.items():
            assert np.array_equal(value, batch.infos[index][key])


def test_the_info_is_columns_of_one_type() -> None:
    env = ToyTextEnv(TAXI)
    state = env.reset(seed=0).state
    infos = env.step_batch(range(6), state).infos
    assert infos["prob"].dtype == np.float64
    assert infos["action_mask"].dtype == np.int8
    assert infos["action_mask"].shape == (6, 6)
    single = env.step(0, state).info["action_mask"]
    assert single.dtype == np.int8


def test_a_wrapper_may_change_the_info() -> None:
    class Quiet(gym.Wrapper):
        def step(self, action: Any) -> Any:
            return (*self.env.step(action)[:4], {"quiet": True})

    env = ToyTextEnv("FrozenLake-v1", wrappers=[Quiet])
    infos = env.step_batch([0, 1], env.reset(seed=0).state).infos
    assert infos["quiet"].tolist() == [True, True]
    assert "prob" not in infos.keys()  # noqa: SIM118


def test_observations_are_arrays() -> None:
    lake = ToyTextEnv("FrozenLake-v1")
    obs = lake.step_batch([0, 1, 2], lake.reset(seed=0).state).obs
    assert (obs.dtype, obs.shape) == (np.int64, (3,))
    cards = ToyTextEnv("Blackjack-v1")
    parts = cards.step_batch([0, 1], cards.reset(seed=0).state).obs
    assert [(part.dtype, part.shape) for part in parts] == [(np.dtype(np.int64), (2,))] * 3


def test_a_game_with_wrappers_goes_on() -> None:
    made = [
        (wrappers.TimeLimit, {"max_episode_steps": 9}),
        (wrappers.StickyAction, {"repeat_action_probability": 0.5}),
        (wrappers.DelayObservation, {"delay": 2}),
    ]
    sim = ToyTextSimulator(TAXI, wrappers=made)
    for seed in range(4):
        assert_goes_on(sim, seed=seed)


def test_another_board_gives_rows_another_meaning() -> None:
    here = [game for game in GAMES if is_at_least("gymnasium", _NEWER.get(game, "1.1"))]
    games = [ToyTextSimulator(GAMES[game][0], **GAMES[game][1]) for game in here]
    assert len({format_of(sim).fingerprint for sim in games}) == len(here)
    same = ToyTextSimulator("FrozenLake-v1", desc=["SFFH", "FHFF", "FFFG"])
    assert format_of(same) == format_of(games[here.index("lake with a map")])
    other = ToyTextSimulator("FrozenLake-v1", desc=["SFFH", "FHFH", "FFFG"])
    assert format_of(other) != format_of(same)


def test_a_random_lake_is_in_its_rows() -> None:
    one, other = (ToyTextSimulator("FrozenLake-v1", map_name=None) for _ in range(2))
    assert (one.base.desc != other.base.desc).any()
    assert format_of(one) == format_of(other)
    one.action_space.seed(3)
    for _ in range(4):
        one.reset()
        restore(other, saved(one))
        assert (one.base.desc == other.base.desc).all()
        for _ in range(20):
            action = one.action_space.sample()
            assert content(one.step(action, 1)) == content(other.step(action, 1))
        assert saved(one).tobytes() == saved(other).tobytes()
    assert content(one.reset(seed=4)) == content(other.reset(seed=4))


@pytest.mark.parametrize(("low", "high"), [(40, 104), (40, 41)])
def test_a_damaged_lake_is_refused(low: int, high: int) -> None:
    sim = ToyTextSimulator("FrozenLake-v1", map_name=None)
    sim.reset(seed=0)
    row = saved(sim)
    row[32 + low : 32 + high] = 255
    with pytest.raises(StateFormatError, match="damaged"):
        restore(sim, row)


@pytest.mark.parametrize("game", ["cliff", "taxi", "cards"])
def test_damaged_fields_are_refused_or_another_state(game: str) -> None:
    name, arguments = GAMES[game]
    sim = ToyTextSimulator(name, **arguments)
    sim.reset(seed=0)
    row = saved(sim)
    random = np.random.default_rng(0)
    outcomes = set()
    for _ in range(300):
        damaged = row.copy()
        damaged[random.integers(32, len(row) - 40, 2)] = random.integers(256, size=2)
        try:
            restore(sim, damaged)
        except StateFormatError:
            outcomes.add("refused")
        else:
            outcomes.add("another")
            sim.step(1, 1)
    assert "refused" in outcomes


def test_the_fields_are_the_games_own() -> None:
    is_fickle = is_at_least("gymnasium", _NEWER["taxi in the rain"])
    fickle = {"fickle_passenger": True, "fickle_probability": 1.0} if is_fickle else {}
    env = ToyTextEnv(TAXI, **fickle)
    states = [env.reset(seed=seed).state for seed in range(5)]
    fields = env.view_state(states)
    for index, state in enumerate(states):
        env.set_state(state)
        row, column, passenger, destination = env.unwrapped.gym_env.unwrapped.decode(
            int(fields["s"][index])
        )
        assert fields["taxi_row"][index] == row
        assert fields["taxi_column"][index] == column
        assert fields["passenger"][index] == passenger
        assert fields["destination"][index] == destination
        assert fields["fickle_step"][index] == is_fickle
    assert fields["lastaction"].tolist() == [-1] * 5
    lake = ToyTextEnv("FrozenLake8x8-v1")
    lake.reset(seed=0)
    lake.set_state(lake.make_state(row=3, column=5))
    view = lake.view_state(lake.get_state())
    assert (view["s"], view["row"], view["column"]) == (29, 3, 5)
    cards = ToyTextEnv("Blackjack-v1")
    view = cards.view_state(cards.make_state(player=[1, 7], dealer=[10, 6]))
    assert view["player"][:3].tolist() == [1, 7, 0]
    assert (view["player_sum"], view["usable_ace"], view["dealer_sum"]) == (18, 1, 16)


def test_a_state_can_be_made_of_its_parts() -> None:
    taxi = ToyTextEnv(TAXI)
    taxi.reset(seed=0)
    state = taxi.make_state(taxi_row=0, taxi_column=0, passenger=0, destination=1)
    picked = taxi.step(4, state)
    assert picked.obs == TaxiEnv().encode(0, 0, 4, 1)
    cards = ToyTextEnv("Blackjack-v1")
    state = cards.make_state(player=[10, 10], dealer=[10, 9])
    assert cards.step(0, state).reward == 1.0
    assert cards.step(0, state).obs == (20, 10, 0)
    cliff = ToyTextEnv(CLIFF)
    assert cliff.step(1, cliff.make_state(s=0)).obs == 1


@pytest.mark.parametrize("name", ["FrozenLake-v1", CLIFF])
def test_a_state_can_be_made_of_what_is_seen_of_another(name: str) -> None:
    env = ToyTextEnv(name)
    root = env.reset(seed=0).state
    other = env.step(1, root).state
    made = env.make_state(root, **env.view_state(other))
    assert env.view_state(made) == env.view_state(other)
    # A part takes precedence over the number of the place.
    assert env.view_state(env.make_state(root, s=5, row=2))["row"] == 2


@pytest.mark.parametrize(
    ("name", "physics", "reason"),
    [
        (TAXI, {"row": 1}, "this state has no field 'row'"),
        (TAXI, {"taxi_row": 5}, "0 to 4"),
        (TAXI, {"taxi_row": 1.5}, "whole number"),
        ("FrozenLake-v1", {"row": 4}, r"no place \(4, 0\)"),
        ("FrozenLake-v1", {"s": 16}, "0 to 15"),
        ("FrozenLake-v1", {"lastaction": 2.5}, "whole number"),
        ("FrozenLake-v1", {"lastaction": 4}, "lastaction must be"),
        (CLIFF, {"lastaction": 2**70}, "lastaction must be"),
        (TAXI, {"fickle_step": 2.7}, "true or false"),
        (CLIFF, {"player": [1, 2]}, "has no field"),
        ("Blackjack-v1", {"player": [1]}, "2 to 32 cards"),
        ("Blackjack-v1", {"dealer": [0, 5]}, "from 1"),
        ("Blackjack-v1", {"dealer": [[1, 5]]}, "a hand is"),
    ],
)
def test_parts_that_do_not_exist_are_refused(name: str, physics: Any, reason: str) -> None:
    env = ToyTextEnv(name)
    env.reset(seed=0)
    with pytest.raises(InputError, match=reason):
        env.make_state(**physics)


def test_a_hand_without_end_keeps_its_sum() -> None:
    env = ToyTextEnv("Blackjack-v1", autoreset=False)
    state = env.reset(seed=0).state
    plain = gym.make("Blackjack-v1")
    plain.reset(seed=0)
    for _ in range(60):
        state, obs, reward, terminated, _, _ = env.step(1, state)
        expected = plain.step(1)
        assert (obs, reward, terminated) == expected[:3]
    env.set_state(state)
    assert sum(env.gym_env.unwrapped.player) == sum(plain.unwrapped.player)
    assert env.gym_env.unwrapped.player[:32] == plain.unwrapped.player[:32]
    assert env.step(0, state).reward == plain.step(0)[1]


def test_the_image_is_of_the_current_state() -> None:
    moves = {"FrozenLake-v1": 2, CLIFF: 0, TAXI: 0, "Blackjack-v1": 1}
    for name, action in moves.items():
        arguments = {"is_slippery": False} if name == "FrozenLake-v1" else {}
        env = ToyTextEnv(name, render_mode="rgb_array", autoreset=False, **arguments)
        state, _, _ = env.reset(seed=1)
        image = env.get_image()
        env.step(action)
        env.step_batch([action] * 3, state)
        assert (env.get_image() != image).any(), name
        env.set_state(state)
        assert (env.get_image() == image).all(), name
        env.close()


def test_only_the_games_themselves_are_taken() -> None:
    class Longer(TaxiEnv):
        pass

    with pytest.raises(SnapshotError, match=r"Longer is not one of .*PickledEnv"):
        ToyTextSimulator(Longer)
    with pytest.raises(SnapshotError, match="not one of Gymnasium's toy text"):
        ToyTextSimulator("CartPole-v1")
    assert ToyTextSimulator(TaxiEnv).reset(seed=0)[1]["prob"] == 1.0


@pytest.mark.parametrize("game", cases(["lake at random", "taxi in the rain", "cards"]))
def test_seeds_make_chance_nodes(game: str) -> None:
    name, arguments = GAMES[game]
    env = plangym_like.make(name, **arguments)
    state = env.reset(seed=0).state
    seeds = np.arange(64)
    one = env.step_batch([1] * 64, state, seeds=seeds)
    other = env.step_batch([1] * 64, state, seeds=seeds[::-1].copy())
    assert (one.states == other.states[::-1]).all()
    assert len(np.unique(one.states, axis=0)) > 1
    assert copy.copy(type(env)) is ToyTextEnv


@pytest.mark.parametrize("game", cases(["lake at random", "taxi in the rain"]))
def test_workers_play_the_same_game(game: str) -> None:
    name, arguments = GAMES[game]
    results = []
    env = plangym_like.make(name, **arguments)
    state = env.reset(seed=0).state
    actions = np.arange(100) % env.action_space.n
    for options in ({}, {"n_workers": 2, "isolate": True}):
        with plangym_like.make(name, **arguments, **options) as lanes:
            first = lanes.step_batch(actions, state, seeds=np.arange(100))
            then = lanes.step_batch(actions, first.states)
            results.append((then.states.tobytes(), then.rewards.tolist(), then.obs.tolist()))
    assert results[0] == results[1]


def test_a_damaged_place_leaves_the_map_alone() -> None:
    sim, other = (ToyTextSimulator("FrozenLake-v1", map_name=None) for _ in range(2))
    sim.reset(seed=0)
    other.reset(seed=0)
    assert (sim.base.desc != other.base.desc).any()
    before, row = sim.base.desc.copy(), saved(other)
    for field, message in ((32, "no place -2"), (40, "no action -2")):
        damaged = row.copy()
        damaged[field : field + 8].view(np.int64)[:] = -2
        with pytest.raises(StateFormatError, match=message):
            restore(sim, damaged)
        assert (sim.base.desc == before).all()


@pytest.mark.parametrize("game", ["lake", "cliff", "taxi"])
def test_a_damaged_last_action_is_refused(game: str) -> None:
    name, arguments = GAMES[game]
    sim = ToyTextSimulator(name, **arguments)
    sim.reset(seed=0)
    before, row = int(sim.base.s), saved(sim)
    row[32:40] = 0
    row[40:48].view(np.int64)[:] = 99
    with pytest.raises(StateFormatError, match="no action 99"):
        restore(sim, row)
    assert sim.base.s == before
