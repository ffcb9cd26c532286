"""The perfect player of examples/connect_four.py, and how players are measured with it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scripts import EXAMPLES

import plangym_like
from plangym_like.planners import PUCT


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import connect_four

    return connect_four


def _boards(example: Any, games: list[str]) -> Any:
    """Return the boards after the moves of `games`, whose columns count from 1."""
    boards = np.zeros((len(games), 2), np.int64)
    for row, moves in enumerate(games):
        for move in moves:
            action = np.array([int(move) - 1])
            boards[row : row + 1] = example.ConnectFour.step_states(boards[row : row + 1], action)[
                0
            ]
    return boards


def test_a_board_is_shown_as_stones(example: Any) -> None:
    first, second = example.stones(_boards(example, ["44", "443"]))
    assert first[::-1, 3].tolist() == [1, 2, 0, 0, 0, 0] and first.sum() == 3
    assert second[-1].tolist() == [0, 0, 1, 1, 0, 0, 0] and second[-2, 3] == 2


def test_the_perfect_player_takes_the_best_column(
    example: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Solver:
        def score_all_moves(self, cells: Any) -> dict[int, int]:
            lost = {column: -5 for column in range(7) if cells[0][column] == 0}
            return lost | ({6: 2, 5: 2} if np.sum(cells) else {})

    stub = SimpleNamespace(Board=list, BitBully=Solver)
    monkeypatch.setitem(sys.modules, "bitbully", stub)
    player = example.PerfectPlayer()
    boards = _boards(example, ["", "444444"])
    assert player.scores(boards).tolist() == [[-5] * 7, [-5, -5, -5, example.FULL, -5, 2, 2]]
    chosen = np.array([player(SimpleNamespace(obs=boards), seed) for seed in range(40)])
    assert {*chosen[:, 0]} == {*range(7)} and {*chosen[:, 1]} == {5, 6}


def test_a_match_counts_the_games_of_each_colour(example: Any) -> None:
    def left(positions: Any, seed: Any) -> Any:
        return np.zeros(len(positions.obs), int)

    def right(positions: Any, seed: Any) -> Any:
        return np.full(len(positions.obs), 6)

    with plangym_like.make(example.ConnectFour) as env:
        # Whoever moves first has four stones in a column first.
        assert example.match(env, left, right, 4, seed=0) == (0.5, [0, 6, 0, 6, 0, 6, 0])
        assert example.match(env, right, left, 1, seed=0)[0] == 1.0


# From P. Pons's benchmark, "Solving Connect Four", 2015: columns that were played, and the score.
PUBLISHED = {
    "2252576253462244111563365343671351441": -1,
    "7422341735647741166133573473242566": 1,
    "23163416124767223154467471272416755633": 0,
    "67152117737262713366376314254": 6,
    "3575316255751336464276636772271112": -3,
    "274552224131661": 0,
    "32164625": 11,
    "6146": 18,
    "265756512": -12,
}


def test_the_perfect_player_knows_published_values(example: Any) -> None:
    pytest.importorskip("bitbully", reason="BitBully is not installed: pip install bitbully")
    perfect = example.PerfectPlayer()
    boards = _boards(example, list(PUBLISHED))
    assert perfect.scores(boards).max(axis=1).tolist() == list(PUBLISHED.values())
    # V. Allis, 1988: who begins in the middle wins, beside it draws, and farther out loses.
    first = perfect.scores(np.zeros((1, 2), np.int64))
    assert np.sign(first).tolist() == [[-1, -1, 0, 1, 0, -1, -1]]
    with plangym_like.make(example.ConnectFour) as env:
        score, moves = example.match(env, perfect, perfect, 2, seed=0)
        assert score == 0.5 and len(moves) == 41
        positions, is_right = example.exam(env, perfect, count=10)
        assert len(is_right) == 10
        assert is_right[np.arange(10), perfect(positions, 0)].all()
        legal = positions.infos["action_mask"]
        assert (is_right <= legal).all() and (is_right < legal).any(axis=1).all()


def test_training_continues_from_a_checkpoint_as_if_it_had_not_ended(
    example: Any, tmp_path: Path
) -> None:
    args = SimpleNamespace(seed=0, bfloat16=False, games=2, simulations=4)

    def play_and_train(training: Any) -> None:
        planner = PUCT(env, training.average.module.evaluate, noise=0.25, alpha=1.0)
        training.moves.extend(example.self_play(planner, args, training.rng))
        example.train(training, 2)

    with plangym_like.make(example.ConnectFour) as env:
        once, again = example.Training(args), example.Training(args)
        play_and_train(once)
        once.save(tmp_path / "c4.pt")
        again.load(tmp_path / "c4.pt")
        play_and_train(once)
        play_and_train(again)
    weights = (each.average.state_dict().values() for each in (once, again))
    assert all(one.equal(other) for one, other in zip(*weights, strict=True))
