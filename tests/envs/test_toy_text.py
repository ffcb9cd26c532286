"""Toy text: small rows that hold everything, and episodes as Gymnasium plays them."""

import copy
from collections.abc import Iterable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from block_steps import compare, pair
from continuation import (
    assert_equals_gymnasium,
    assert_goes_on,
    format_of,
    restore,
    saved,
)
from gymnasium.envs.toy_text.frozen_lake import generate_random_map
from gymnasium.envs.toy_text.taxi import TaxiEnv
from suite import CLIFF, TAXI, is_at_least, needs
from usual import first_of

import plangym_like
from plangym_like.envs import toy_text
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
    for seed in range(2):
        assert_goes_on(sim, seed=seed, ends=seed % 2 == 0)


@pytest.mark.parametrize("game", cases(GAMES))
def test_a_game_is_played_as_gymnasium_plays_it(game: str) -> None:
    name, arguments = GAMES[game]

    def make() -> gym.Env:
        return gym.make(name, max_episode_steps=20, **arguments)

    sim = ToyTextSimulator(name, remove_time_limit=False, max_episode_steps=20, **arguments)
    assert_equals_gymnasium(sim, make, seed=1)


def test_another_board_gives_rows_another_meaning() -> None:
    here = [game for game in GAMES if is_at_least("gymnasium", _NEWER.get(game, "1.1"))]
    games = [ToyTextSimulator(GAMES[game][0], **GAMES[game][1]) for game in here]
    assert len({format_of(sim).fingerprint for sim in games}) == len(here)
    same = ToyTextSimulator("FrozenLake-v1", desc=["SFFH", "FHFF", "FFFG"])
    assert format_of(same) == format_of(games[here.index("lake with a map")])
    other = ToyTextSimulator("FrozenLake-v1", desc=["SFFH", "FHFH", "FFFG"])
    assert format_of(other) != format_of(same)


def test_a_random_lake_is_refused() -> None:
    with pytest.raises(SnapshotError, match=r"random map, .* desc=generate_random_map\(\)"):
        plangym_like.make("FrozenLake-v1", map_name=None)
    with plangym_like.make("FrozenLake-v1", desc=generate_random_map()) as env:
        assert (env.snapshot, env.exactness) == ("native", "exact")


@pytest.mark.parametrize("game", ["cliff", "taxi", "cards"])
def test_damaged_fields_are_refused_or_another_state(game: str) -> None:
    name, arguments = GAMES[game]
    sim = ToyTextSimulator(name, **arguments)
    sim.reset(seed=0)
    row = saved(sim)
    random = np.random.default_rng(0)
    outcomes = set()
    for _ in range(100):
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
    # What is seen of another state makes that state; a part takes precedence over its place.
    root = cliff.reset(seed=0).state
    other = cliff.step(1, root).state
    made = cliff.make_state(root, **cliff.view_state(other))
    assert cliff.view_state(made) == cliff.view_state(other)
    assert cliff.view_state(cliff.make_state(root, s=5, row=2))["row"] == 2


@pytest.mark.parametrize(
    ("name", "physics", "reason"),
    [
        (TAXI, {"row": 1}, "has no field 'row'"),
        (TAXI, {"taxi_row": 5}, "taxi_row must be a whole number from 0 to 4, got 5"),
        (TAXI, {"taxi_row": 1.5}, "taxi_row must be a whole number from 0 to 4"),
        (TAXI, {"passenger": [1]}, "passenger must be a whole number from 0 to 4"),
        (
            "FrozenLake-v1",
            {"prob": 1},
            "no field 'prob'; its fields are s, row, column, lastaction$",
        ),
        ("FrozenLake-v1", {"s": 16}, "s must be a whole number from 0 to 15, got 16"),
        ("FrozenLake-v1", {"s": 1.5}, "s must be a whole number from 0 to 15, got 1.5"),
        ("FrozenLake-v1", {"s": True}, "s must be a whole number from 0 to 15, got True"),
        ("FrozenLake-v1", {"lastaction": 2.5}, "lastaction must be a whole number"),
        ("FrozenLake-v1", {"lastaction": 4}, "lastaction must be a whole number from -1 to 3"),
        (CLIFF, {"lastaction": 2**70}, "lastaction must be"),
        (TAXI, {"fickle_step": 2.7}, "fickle_step must be bool"),
        ("Blackjack-v1", {"nosuch": 1}, "no field 'nosuch'; its fields are player, dealer"),
        ("Blackjack-v1", {"dealer": [0, 5]}, "a hand is"),
        ("Blackjack-v1", {"dealer": 5}, "a hand is"),
    ],
)
def test_parts_that_do_not_exist_are_refused(name: str, physics: Any, reason: str) -> None:
    env = ToyTextEnv(name)
    env.reset(seed=0)
    with pytest.raises(InputError, match=reason):
        env.make_state(**physics)


def test_cards_are_drawn_long_after_the_end() -> None:
    env, hand = ToyTextEnv("Blackjack-v1"), gym.make("Blackjack-v1").unwrapped
    hand.reset(seed=0)
    state = env.reset(seed=0).state
    for action in [1] * 60 + [0, 0]:
        obs, reward, *_ = hand.step(action)
        first, again = env.step(action, state), env.step(action, state)
        assert (first.state == again.state).all()
        assert (first.obs, first.reward) == (obs, reward)
        state = first.state
    assert env.step(1, env.make_state(state, player=[2, 3])).obs[0] <= 16
    with pytest.raises(InputError, match="a list of 1 to 32 cards"):
        env.make_state(player=[1] * 33)


def test_the_first_card_of_a_dealer_is_shown() -> None:
    env = ToyTextEnv("Blackjack-v1")
    state = env.make_state(env.reset(seed=0).state, dealer=[2, 5])
    for card, shown in ((1, "A"), (7, "7"), (10, "J")):
        env.set_state(env.make_state(state, dealer=[card, 5]))
        base = env.simulator.base
        assert (base.dealer[0], base.dealer_top_card_value_str) == (card, shown)


def test_only_the_games_themselves_are_taken() -> None:
    class Longer(TaxiEnv):
        pass

    with pytest.raises(SnapshotError, match=r"Longer is not one of .*PickledEnv"):
        ToyTextSimulator(Longer)
    with pytest.raises(SnapshotError, match="not one of Gymnasium's toy text"):
        ToyTextSimulator("CartPole-v1")
    assert ToyTextSimulator(TaxiEnv).reset(seed=0)[1]["prob"] == 1.0


@pytest.mark.parametrize("game", cases(["lake", "taxi in the rain", "cards"]))
def test_seeds_make_chance_nodes(game: str) -> None:
    name, arguments = GAMES[game]
    env = plangym_like.make(name, **arguments)
    state = env.reset(seed=0).state
    seeds = np.arange(64)
    one = env.step_batch([1] * 64, state, seeds=seeds)
    other = env.step_batch([1] * 64, state, seeds=seeds[::-1].copy())
    assert (one.states == other.states[::-1]).all()
    assert len(np.unique(one.states, axis=0)) > 1


# Blocks


TABLES = [game for game in GAMES if not game.startswith("cards") and game != "taxi in the rain"]


def random_rows(env: ToyTextEnv, count: int) -> Any:
    """Return rows in random places, reached or not, each with its own generator."""
    random = np.random.default_rng(3)
    states = np.repeat(env.reset(seed=0).state[None], count, axis=0)
    for index, row in enumerate(states):
        if random.random() < 0.9:
            place = int(random.integers(len(env.simulator.base.P)))
            action = int(random.integers(-1, env.action_space.n))
            row[:] = env.make_state(row, s=place, lastaction=action)
        env.set_state(row)
        env.simulator.reseed(index)
        if index % 3 == 0:
            env.simulator.base.np_random.integers(5, dtype=np.uint32)  # leaves half of a draw
        row[:] = env.get_state()
    return states


@pytest.mark.parametrize("frameskip", first_of([3, 1]))
@pytest.mark.parametrize("limited", first_of([True, False]))
@pytest.mark.parametrize("game", cases(TABLES))
def test_blocks_equal_the_loop(game: str, limited: bool, frameskip: int) -> None:
    name, arguments = GAMES[game]
    limit = {"max_episode_steps": 4} if limited else {}
    fast, slow = pair(
        name, frameskip=frameskip, remove_time_limit=not limited, **limit, **arguments
    )
    assert fast.simulator.steps_batches
    plans = np.random.default_rng(4).integers(fast.action_space.n, size=(40, 6))
    compare(fast, slow, random_rows(slow, 40), plans)


def test_another_table_or_step_of_the_environment_counts() -> None:
    env = ToyTextEnv(CLIFF)
    state, base = env.reset(seed=0).state, env.simulator.base
    before = env.step_batch([0, 1], state)
    table = copy.deepcopy(base.P)
    for place in table.values():
        place[0] = [(0.25, 5, -7, False), (0.75, 6, -8, True)]
    env.gym_env.set_wrapper_attr("P", table)
    after = env.step_batch([0, 1], state)
    assert after.rewards[0] in (-7, -8) and after.rewards[1] == before.rewards[1]
    assert after.obs[0] in (5, 6) and after.infos["prob"][0] in (0.25, 0.75)
    base.step = lambda action: (3, 1.5, False, False, {"prob": 1.0})
    assert env.step_batch([0, 1], state).rewards.tolist() == [1.5, 1.5]


def test_a_damaged_row_is_named_in_a_batch() -> None:
    env = ToyTextEnv(TAXI)
    states = np.repeat(env.reset(seed=0).state[None], 4, axis=0)
    for field, value in ((32, 500), (40, 6), (48, 4)):
        damaged = states.copy()
        damaged[2, field : field + 8].view(np.int64)[:] = value
        with pytest.raises(StateFormatError, match=f"is {value}") as caught:
            env.step_batch([0, 1, 2, 3], damaged)
        assert "row 2" in "".join(caught.value.__notes__)


def test_no_other_kernels_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not ToyTextSimulator("Blackjack-v1").steps_batches
    monkeypatch.setattr(toy_text, "next_doubles", lambda words: np.zeros(words.shape[1]))
    assert not ToyTextSimulator("FrozenLake-v1").steps_batches
