"""Positions of games of turns: the rules of a game, and the moves from a position to others.

Moves determine a position exactly. The positions of recent rows are kept, so a row is usually
restored by looking it up; otherwise, its moves are played again.
"""

from __future__ import annotations

import abc
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import InputError

# Instead of a player: it is chance's turn, or the game is over; numbered as in OpenSpiel.
CHANCE, OVER = -1, -4
# How many positions one environment keeps. The largest, of go on 19 x 19 points, take 30 kB each.
_MOST_KEPT = 8192
# If a position is not kept, so many positions before it are looked up.
_MOVES_BACK = 8
# The linear congruential generator of random moves, modulo 2**64: D. E. Knuth, "MMIX", 1999.
LCG_FACTOR = 6364136223846793005


class Rules(abc.ABC):
    """The rules of one game, as functions of its *boards*, which are objects of a library.

    Attributes
    ----------
    title : str
        The name of the game and its parameters, for messages.
    key : str
        The name, and all parameters that change the rules, which are the same in whatever way they
        were given; states of a game of another key are refused.
    library : str
        The version of the library; states of another version are refused.
    n_players, n_actions : int
    n_codes : int
        Moves and chance outcomes are numbers less than this, which is at most 2**32.
    longest : int, optional
        The largest number of moves and chance outcomes in a game, if it is known.
    has_chance : bool
        Whether it may be chance's turn.
    steps_have_chance : bool
        Whether it may be chance's turn after the beginning.
    highest : float
        The highest sum of rewards that a player can get from a position on.
    pays_at_end : bool
        Whether all rewards before the end are 0.
    observation_space : gymnasium.spaces.Box
    render_modes : tuple of str
    """

    title: str
    key: str
    library: str
    n_players: int
    n_actions: int
    n_codes: int
    longest: int | None = None
    has_chance: bool = False
    steps_have_chance: bool = False
    highest: float = 1.0
    pays_at_end: bool = False
    observation_space: gymnasium.spaces.Box
    render_modes: tuple[str, ...] = ()

    @abc.abstractmethod
    def first(self) -> Any:
        """Return a new board, as the game begins."""

    @abc.abstractmethod
    def apply(self, board: Any, move: int) -> None:
        """Play `move`, or a chance outcome, on `board`."""

    @abc.abstractmethod
    def copy(self, board: Any) -> Any:
        """Return a copy of `board` for `apply`."""

    def after(self, board: Any, move: int) -> Any:
        """Return a new board on which `move` has been played; `board` does not change."""
        following = self.copy(board)
        self.apply(following, move)
        return following

    @abc.abstractmethod
    def turn(self, board: Any) -> int:
        """Return the player to move, or `CHANCE`, or `OVER`."""

    @abc.abstractmethod
    def legal(self, board: Any) -> list[int]:
        """Return the legal moves, if it is a player's turn."""

    @abc.abstractmethod
    def returns(self, board: Any) -> list[float]:
        """Return the sum of each player's rewards since the beginning of the game."""

    @abc.abstractmethod
    def observe(self, board: Any, player: int, out: NDArray[Any]) -> None:
        """Write what `player` observes into `out`, which has the shape of the space."""

    @abc.abstractmethod
    def render(self, board: Any, mode: str) -> Any:
        """Return a picture or a text of `board`."""

    def chance_outcomes(self, board: Any) -> Sequence[tuple[int, float]]:
        """Return the chance outcomes and their probabilities, if it is chance's turn."""
        raise NotImplementedError

    def name_of(self, board: Any, move: int) -> str:
        """Return the name of a legal `move`, for messages; empty if it has none."""
        return ""


class Position:
    """A position that is kept: nothing in it changes.

    Attributes
    ----------
    board : object
    history : bytes
        The moves and chance outcomes since the beginning of the game.
    to_play : int
        The player to move; after the end, the player who has moved last.
    mask : bytearray ``(n_actions,)``
        1 for each legal move; all 0 after the end.
    is_over : bool
    returns : list of float
        The sum of each player's rewards.
    """

    __slots__ = ("board", "history", "is_over", "mask", "returns", "to_play")

    def __init__(self, rules: Rules, board: Any, history: bytes, mover: int, turn: int) -> None:
        """Keep a board after `mover` has moved; `turn` is that of the rules."""
        self.board, self.history, self.is_over = board, history, turn == OVER
        has_score = self.is_over or not rules.pays_at_end
        self.returns = rules.returns(board) if has_score else [0.0] * rules.n_players
        self.to_play = mover if self.is_over else turn
        self.mask = mask = bytearray(rules.n_actions)
        for move in () if self.is_over else rules.legal(board):
            mask[move] = 1


class PlayOut(NamedTuple):
    """Moves that were played from a position to the end of the game, or until there were none left.

    `length` is the number of moves. `rewards` holds times, the players who moved, and the rewards
    of all players; others are 0.
    """

    history: bytes
    length: int
    rewards: list[tuple[int, int, list[float]]]
    is_over: bool


class Positions:
    """Finds the position of a history, and plays moves; recent positions are kept.

    Parameters
    ----------
    rules : Rules
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.dtype = np.min_scalar_type(rules.n_codes - 1)
        self._kept: OrderedDict[bytes, Position] = OrderedDict()
        self._first = rules.first()
        self._nothing = [0.0] * rules.n_players

    def clear(self) -> None:
        """Drop the positions that are kept."""
        self._kept.clear()

    def begin(self, source: gymnasium.Env[Any, Any]) -> Position:
        """Return a first position; the chance outcomes before it are drawn from `source`."""
        return self._play_chance(self.rules.copy(self._first), b"", 0, source)

    def play(
        self, position: Position, move: int, source: gymnasium.Env[Any, Any]
    ) -> tuple[Position, list[float]]:
        """Return the position after a legal `move`, and each player's reward.

        The chance outcomes that follow are drawn from ``source.np_random``.
        """
        board = self.rules.after(position.board, move)
        history = position.history + move.to_bytes(self.dtype.itemsize, "little")
        following = self._play_chance(board, history, position.to_play, source)
        if following.returns == position.returns:
            return following, self._nothing
        pairs = zip(following.returns, position.returns, strict=True)
        return following, [now - before for now, before in pairs]

    def _play_chance(
        self, board: Any, history: bytes, mover: int, source: gymnasium.Env[Any, Any]
    ) -> Position:
        """Play chance outcomes on `board`, and keep the position that follows."""
        turn, outcomes = self._after_chance(board, source)
        return self._keep(board, history + outcomes, mover, turn)

    def _after_chance(self, board: Any, source: gymnasium.Env[Any, Any]) -> tuple[int, bytes]:
        """Play chance outcomes on `board` until it is a player's turn, or the game is over.

        Return whose turn it then is, and the outcomes as a history.
        """
        rules, history = self.rules, b""
        turn = rules.turn(board)
        while turn == CHANCE:
            outcome = _drawn(rules.chance_outcomes(board), source.np_random.random())
            rules.apply(board, outcome)
            history += outcome.to_bytes(self.dtype.itemsize, "little")
            turn = rules.turn(board)
        return turn, history

    def play_out(
        self,
        position: Position,
        moves: list[int],
        number: int,
        source: gymnasium.Env[Any, Any],
        observations: NDArray[Any] | None = None,
    ) -> PlayOut:
        """Play `moves`; those that are not legal are replaced, in the list, by random legal ones.

        The random numbers begin with `number`. If `observations` ``(T, *obs_shape)`` are given,
        they are written.
        """
        rules, turn, board = self.rules, position.to_play, self.rules.copy(position.board)
        apply, turn_of, legal_of = rules.apply, rules.turn, rules.legal
        outcomes, count = list[tuple[int, bytes]](), 0
        rewards, before = list[tuple[int, int, list[float]]](), position.returns
        only_moves = rules.pays_at_end and observations is None
        for move in moves:
            legal = legal_of(board)
            if move not in legal:
                number = (number * LCG_FACTOR + 1) % 2**64
                move = moves[count] = legal[(number >> 32) * len(legal) >> 32]
            apply(board, move)
            count += 1
            mover, turn = turn, turn_of(board)
            if only_moves and turn >= 0:
                continue
            if turn == CHANCE:
                turn, drawn = self._after_chance(board, source)
                outcomes.append((count, drawn))
            if turn == OVER or not rules.pays_at_end:
                now = rules.returns(board)
                earned = [one - other for one, other in zip(now, before, strict=True)]
                rewards.append((count - 1, mover, earned))
                before = now
            if observations is not None:
                player = mover if turn == OVER else turn
                rules.observe(board, player, observations[count - 1])
            if turn == OVER:
                break
        history, start = position.history, 0
        for time, drawn in outcomes:
            history += self._as_history(moves[start:time]) + drawn
            start = time
        history += self._as_history(moves[start:count])
        return PlayOut(history, count, rewards, turn == OVER)

    def _as_history(self, moves: list[int]) -> bytes:
        return array(self.dtype.char, moves).tobytes()

    def find(self, history: bytes) -> Position:
        """Return the position after `history`, from a row; play its moves if it is not kept."""
        found = self._kept.get(history)
        if found is not None:
            self._kept.move_to_end(history)
            return found
        rules, size = self.rules, self.dtype.itemsize
        board, mover, start = self._first, 0, 0
        for back in range(1, min(_MOVES_BACK, len(history) // size) + 1):
            before = self._kept.get(history[: -back * size])
            if before is not None:
                board, mover, start = before.board, before.to_play, len(before.history)
                break
        board = rules.copy(board)
        for move in np.frombuffer(history[start:], self.dtype).tolist():
            turn = rules.turn(board)
            mover = mover if turn == CHANCE else turn
            rules.apply(board, move)
        return self._keep(board, history, mover, rules.turn(board))

    def _keep(self, board: Any, history: bytes, mover: int, turn: int) -> Position:
        position = self._kept[history] = Position(self.rules, board, history, mover, turn)
        if len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return position

    def replayed(self, moves: Any) -> Position:
        """Return the position after `moves`, which a user has given.

        Raises
        ------
        InputError
            They are not legal, or end when it is chance's turn.
        """
        try:
            given = np.asarray(moves)
        except ValueError as error:
            raise InputError(f"history must be a list of whole numbers, got {moves!r}") from error
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise InputError(f"history must be a list of whole numbers, got {moves!r}")
        while given.size and given[-1] == -1:  # as `view` fills the histories of shorter games
            given = given[:-1]
        rules, board = self.rules, self.rules.first()
        for index, move in enumerate(given.tolist()):
            turn, allowed = rules.turn(board), list[int]()
            if turn == CHANCE:
                allowed = [outcome for outcome, _ in rules.chance_outcomes(board)]
            elif turn != OVER:
                allowed = rules.legal(board)
            if move not in allowed:
                raise InputError(f"number {index} of the history, {move}, is not a legal move")
            rules.apply(board, move)
        if rules.turn(board) == CHANCE:
            raise InputError("the history ends when it is chance's turn; add a chance outcome")
        return self.find(given.astype(self.dtype).tobytes())


def _drawn(outcomes: Sequence[tuple[int, float]], number: float) -> int:
    """Return the outcome that `number`, drawn from 0 to 1, chooses."""
    total = 0.0
    for outcome, probability in outcomes:
        total += probability
        if number < total:
            return outcome
    return outcomes[-1][0]
