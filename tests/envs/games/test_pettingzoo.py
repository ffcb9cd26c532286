"""PettingZoo's games: a state row restores its position exactly, and no board comes back empty."""

from __future__ import annotations

import copy
import importlib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from backends import make_on
from played_games import assert_restores, assert_same_batch, content, play
from usual import first_of

import plangym_like
from plangym_like.errors import InputError

pytest.importorskip("pettingzoo", reason="pettingzoo is not installed")
pytest.importorskip("chess", reason="chess is not installed")

from plangym_like.envs.pettingzoo import GAMES as MODULES
from plangym_like.envs.pettingzoo import PREFIX, all_ids

POSITIONS = 80
# Each game of perfect information, and other options that change its rules.
GAMES: list[tuple[str, dict[str, Any]]] = [
    ("connect_four_v3", {}),
    ("go_v5", {"board_size": 5}),
    ("chess_v6", {}),
    ("tictactoe_v3", {}),
    ("go_v5", {"board_size": 9, "komi": 0.5}),
    ("go_v5", {}),
]


def own_game(name: str, **options: Any) -> Any:
    """Return PettingZoo's environment, made without this package."""
    place, _ = MODULES[name]
    return importlib.import_module(f"pettingzoo.classic.{place}").raw_env(**options)


class Straight:
    """A game that is played straight through with PettingZoo alone."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.env = own_game(name, **options)

    def begin(self, seed: int) -> tuple[Any, ...]:
        self.env.reset(seed=seed)
        return self.seen()

    def move(self, action: int) -> tuple[Any, ...]:
        env, mover = self.env, self.env.agent_selection
        env.step(action)
        rewards = [env.rewards[agent] for agent in env.possible_agents]
        over = any(env.terminations.values())
        return *self.seen(mover if over else None), rewards, over

    def seen(self, mover: str | None = None) -> tuple[Any, ...]:
        agent = mover or self.env.agent_selection
        found = self.env.observe(agent)
        mask = found["action_mask"] if mover is None else np.zeros_like(found["action_mask"])
        return found["observation"], mask, self.env.possible_agents.index(agent)


def make(name: str, **options: Any) -> Any:
    return plangym_like.make(PREFIX + name, **options)


@pytest.mark.parametrize(("name", "options"), first_of(GAMES, 3))
def test_every_position_is_restored_exactly(name: str, options: dict[str, Any]) -> None:
    with make(name, autoreset=False, **options) as env, make(name, **options) as other:
        assert (env.snapshot, env.exactness) == ("native", "exact")
        assert_restores(env, other, Straight(name, options), POSITIONS)


@pytest.mark.full
@pytest.mark.parametrize("backend", ["isolated", "ray"], indirect=True)
@pytest.mark.parametrize(("name", "options"), GAMES)
def test_every_position_is_restored_exactly_elsewhere(
    name: str, options: dict[str, Any], backend: str
) -> None:
    with (
        make(name, autoreset=False, **options) as env,
        make_on(backend, PREFIX + name, **options) as other,
    ):
        played = play(env, Straight(name, options), 200)
        assert_same_batch(other, played, np.random.default_rng(1).permutation(200))


@pytest.mark.parametrize(("name", "moves"), [("connect_four_v3", [3, 3, 0]), ("chess_v6", [77])])
def test_no_board_comes_back_empty(name: str, moves: list[int]) -> None:
    """PettingZoo's own environments are empty after `copy.deepcopy`; positions are not."""
    with make(name) as env:
        state = env.reset().state
        for move in moves:
            state = env.step(move, state).state
        board = env.simulator.base.position.board
        empty = copy.deepcopy(board)
        empty.reset()
        assert str(empty.board) != str(board.board)
        following = int(np.flatnonzero(env.view_state(state)["action_mask"])[0])
        expected = env.step(following, state)
        env.reset()
        env.simulator.clear_caches()
        assert content(env.step(following, state)) == content(expected)
        assert env.view_state(env.get_state())["history"].tolist() == [*moves, following]
        # A board that is kept is not changed by the moves after it.
        env.simulator.clear_caches()
        batch = env.step_batch([following] * 3, state)
        assert [content(batch, index) for index in range(3)] == [content(expected)] * 3


def test_boards_of_go_of_two_sizes_are_used_in_turn_and_in_two_threads() -> None:
    plans = {5: [0, 12, 1, 6, 2, 24, 8], 9: [0, 40, 1, 30, 2, 80, 10]}

    def played(size: int, together: threading.Barrier) -> list[tuple[Any, ...]]:
        with make("go_v5", board_size=size) as env:
            contents = []
            for _ in range(8):
                together.wait(60)
                env.reset(seed=0)
                contents += [content(env.step(move)) for move in plans[size]]
            return contents

    alone = {size: played(size, threading.Barrier(1)) for size in plans}
    interval, both = sys.getswitchinterval(), threading.Barrier(2)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as pool:
            found = {size: pool.submit(played, size, both) for size in plans}
            assert {size: each.result() for size, each in found.items()} == alone
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("texas_holdem_v4", "do not see the whole position"),
        ("butterfly/pistonball_v6", "move at the same time"),
        ("connect_for_v3", "did you mean 'connect_four_v3'"),
        ("connect_four_v2", "connect_four_v3"),
    ],
)
def test_other_games_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        make(name)


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="board_sizes"):
        make("go_v5", board_sizes=9)
    for options in ({"board_size": 5.0}, {"board_size": "a"}, {"board_size": 0}, {"komi": "x"}):
        with pytest.raises(InputError, match=f"{next(iter(options))} must be"):
            make("go_v5", **options)
    with pytest.raises(InputError, match="render_mode='ansi'"):
        make("connect_four_v3", render_mode="ansi")


@pytest.mark.parametrize("name", [each.removeprefix(PREFIX) for each in all_ids()])
def test_boards_are_drawn(name: str) -> None:
    with make(name) as env, make(name, render_mode="rgb_array") as drawing:
        state = env.reset().state
        first = env.get_image()
        env.step(int(np.flatnonzero(env.view_state(state)["action_mask"])[0]), state)
        second = env.get_image()
        assert first.dtype == second.dtype == np.uint8
        assert first.ndim == 3
        assert (first != second).any()
        drawing.set_state(env.get_state())
        assert (drawing.get_image() == second).all()
