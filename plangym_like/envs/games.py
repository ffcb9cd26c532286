"""Games of turns: the rules of a library's game become an environment with legal moves and players.

A state row holds the moves and chance outcomes since the beginning of the game, and the random
generator of a game with chance. Moves determine a position exactly. The positions of recent rows
are kept, so a row is usually restored by looking it up; otherwise, its moves are played again. The
info of every reset and step has ``action_mask``, ``to_play`` and ``rewards``.
"""

from __future__ import annotations

import abc
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.arrays import Outcome, Rows, given_states
from plangym_like.envs.codec import Codec
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.envs.wrapping import call_source
from plangym_like.errors import ActionError, InputError, StateCapacityError, StateFormatError
from plangym_like.states.random_state import reseed
from plangym_like.states.rows import HEADER_NBYTES, Row, padded

# Instead of a player: it is chance's turn, or the game is over.
CHANCE, OVER = -1, -2
# The most bytes that rows have for moves by default: 1,024 moves if a game has more than 256
# actions. Long games, such as chinese_checkers, may have more.
_ROOM = 2048
# How many positions one environment keeps. The largest, of go on 19 x 19 points, take 30 kB each.
_MOST_KEPT = 8192
# If a position is not kept, so many positions before it are looked up.
_MOVES_BACK = 8
_LENGTH_NBYTES = 8
# Of the generator of random numbers of `Positions.play_out`: D. E. Knuth, "MMIX", 1999.
_FACTOR = 6364136223846793005
_SHOWN_MOVES = 12


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
        self.board, self.history, self.returns = board, history, rules.returns(board)
        self.is_over = turn == OVER
        self.to_play = mover if self.is_over else turn
        self.mask = mask = bytearray(rules.n_actions)
        for move in () if self.is_over else rules.legal(board):
            mask[move] = 1


class PlayOut(NamedTuple):
    """Moves that were played from a position to the end of the game, or until there were none left.

    `rewards` holds times, the players who moved, and the rewards of all players; others are 0.
    """

    history: bytes
    moves: list[int]
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
        """Play `moves`; those that are not legal are replaced by random legal ones.

        The random numbers begin with `number`. If `observations` ``(T, *obs_shape)`` are given,
        they are written.
        """
        rules, turn, board = self.rules, position.to_play, self.rules.copy(position.board)
        apply, turn_of, legal_of = rules.apply, rules.turn, rules.legal
        taken, outcomes = list[int](), list[tuple[int, bytes]]()
        rewards, before = list[tuple[int, int, list[float]]](), position.returns
        for move in moves:
            mover, legal = turn, legal_of(board)
            if move not in legal:
                number = (number * _FACTOR + 1) % 2**64
                move = legal[(number >> 32) * len(legal) >> 32]
            apply(board, move)
            taken.append(move)
            turn = turn_of(board)
            if turn == CHANCE:
                turn, drawn = self._after_chance(board, source)
                outcomes.append((len(taken), drawn))
            if turn == OVER or not rules.pays_at_end:
                now = rules.returns(board)
                earned = [one - other for one, other in zip(now, before, strict=True)]
                rewards.append((len(taken) - 1, mover, earned))
                before = now
            if observations is not None:
                player = mover if turn == OVER else turn
                rules.observe(board, player, observations[len(taken) - 1])
            if turn == OVER:
                break
        history, played, start = position.history, np.array(taken, self.dtype), 0
        for time, drawn in outcomes:
            history += played[start:time].tobytes() + drawn
            start = time
        return PlayOut(history + played[start:].tobytes(), taken, rewards, turn == OVER)

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


class GameGym(gymnasium.Env[NDArray[Any], int]):
    """A game as a Gymnasium environment, whose steps are the moves of all players in turn.

    The info has ``action_mask`` ``(n_actions,) int8``, 1 for legal moves; ``to_play``, the player
    to move, from 0; and ``rewards`` ``(n_players,) float64``, those of the last step. The reward
    is that of the player who has moved. The observation is that of the player to move. After the
    end, these are of the player who has moved last.

    Parameters
    ----------
    make_rules : callable
        ``make_rules(render_mode, options)`` returns the rules of the game.
    render_mode : str, optional
        One of the modes of the rules.
    options
        The options of the game.
    """

    def __init__(
        self,
        make_rules: Callable[[str | None, dict[str, Any]], Rules],
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        rules = self.rules = make_rules(render_mode, options)
        if render_mode not in (None, *rules.render_modes):
            modes = " or ".join(map(repr, rules.render_modes))
            raise InputError(f"{rules.title} has no render_mode={render_mode!r}, only {modes}")
        self.render_mode = render_mode
        self.metadata = {"render_modes": list(rules.render_modes)}
        self.action_space: Any = gymnasium.spaces.Discrete(rules.n_actions)
        self.observation_space = rules.observation_space
        self.positions = Positions(rules)
        self.position = Position(rules, rules.first(), b"", 0, OVER)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.position = self.positions.begin(self)
        return self.observation(), self.info([0.0] * self.rules.n_players)

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """Play a move; raise `ActionError` if it is illegal, with the position unchanged."""
        self.check(self.position, int(action))
        return self.step_from(self.position, int(action))

    def step_from(
        self, before: Position, move: int
    ) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """Return what a step from the position `before` returns; `move` must be legal."""
        self.position, rewards = self.positions.play(before, move, self)
        over = self.position.is_over
        return self.observation(), rewards[before.to_play], over, False, self.info(rewards)

    def check(self, position: Position, move: int) -> None:
        """Raise `ActionError` if `move` is illegal in `position`."""
        rules, title = self.rules, self.rules.title
        if 0 <= move < rules.n_actions and position.mask[move]:
            return
        if position.is_over:
            raise ActionError(
                f"action {move} cannot be played, because this game of {title} is over"
            )
        moves = np.flatnonzero(position.mask).tolist()
        shown = [f"{x} {rules.name_of(position.board, x)}".rstrip() for x in moves[:_SHOWN_MOVES]]
        more = ", ..." * (len(moves) > len(shown))
        raise ActionError(
            f"action {move} is illegal for player {position.to_play} in this position of {title}; "
            f'legal, as info["action_mask"] says: {", ".join(shown)}{more}'
        )

    def observation(self) -> NDArray[Any]:
        """Return what the player to move observes."""
        space = self.observation_space
        out = np.empty(space.shape or (), space.dtype)
        self.rules.observe(self.position.board, self.position.to_play, out)
        return out

    def info(self, rewards: list[float]) -> dict[str, Any]:
        """Return the info of the position, after a step with `rewards`."""
        return {
            "action_mask": np.frombuffer(bytearray(self.position.mask), np.int8),
            "to_play": self.position.to_play,
            "rewards": np.array(rewards, np.float64),
        }

    def render(self) -> Any:
        if self.render_mode is None:
            raise InputError(f"{self.rules.title} was made without a render_mode")
        return self.rules.render(self.position.board, self.render_mode)


class HistoryCodec(Codec):
    """Saves a game as the number of bytes of its history, the history, and zeros.

    Parameters
    ----------
    base : GameGym
    capacity : int, optional
        The bytes for the history; by default, those of the longest game, or 2,048.
    saves_generator : bool
        Whether the game or a wrapper may draw from the random generator.
    """

    def __init__(self, base: GameGym, capacity: int | None, *, saves_generator: bool) -> None:
        rules, size = base.rules, base.positions.dtype.itemsize
        if capacity is None:
            capacity = _ROOM if rules.longest is None else min(rules.longest * size, _ROOM)
        self._base = base
        self.nbytes = _LENGTH_NBYTES + padded(capacity)
        self.saves_generator = saves_generator
        self.columns = {
            "action_mask": ((rules.n_actions,), np.dtype(np.int8)),
            "to_play": ((), np.dtype(np.int64)),
            "rewards": ((rules.n_players,), np.dtype(np.float64)),
        }

    def fingerprint_fields(self) -> Mapping[str, Any]:
        rules = self._base.rules
        return {"game": rules.key, "library": rules.library, "generator": self.saves_generator}

    def read(self, payload: Row) -> None:
        payload[: self.nbytes] = 0
        self.put(payload.data, 0, self._base.position.history)

    def put(self, memory: memoryview, at: int, history: bytes) -> None:
        """Write `history` into the payload that begins at byte `at` of `memory`.

        Raises
        ------
        StateCapacityError
            The game is too long.
        """
        size = len(history)
        if size > self.nbytes - _LENGTH_NBYTES:
            raise StateCapacityError(
                f"a game of {size} bytes is longer than the {self.nbytes - _LENGTH_NBYTES} that "
                "rows have for moves; make the environment with "
                f"state_capacity={padded(2 * size)}"
            )
        memory[at : at + _LENGTH_NBYTES + size] = size.to_bytes(_LENGTH_NBYTES, "little") + history

    def get(self, memory: memoryview, at: int) -> bytes:
        """Return the history in the payload that begins at byte `at` of `memory`."""
        begin = at + _LENGTH_NBYTES
        size = int.from_bytes(memory[at:begin], "little")
        if size > self.nbytes - _LENGTH_NBYTES:
            raise StateFormatError("a state row is damaged: its length is wrong")
        return bytes(memory[begin : begin + size])

    def write(self, payload: Row) -> None:
        self._base.position = self._base.positions.find(self.get(payload.data, 0))

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return ``history``, ``length``, ``to_play`` and ``action_mask``.

        ``history`` ``(N, max(length))`` ends with -1 where games are shorter; ``length`` ``(N,)``
        is the number of moves and chance outcomes.
        """
        base, dtype = self._base, self._base.positions.dtype
        found = [
            base.positions.find(self.get(np.ascontiguousarray(each).data, 0)) for each in payloads
        ]
        histories = [np.frombuffer(each.history, dtype) for each in found]
        length = np.array([len(each) for each in histories], np.int64)
        history = np.full((len(found), int(np.max(length, initial=0))), -1)
        masks = np.empty((len(found), base.rules.n_actions), np.int8)
        for index, each in enumerate(found):
            history[index, : length[index]] = histories[index]
            masks[index] = each.mask
        to_play = np.array([each.to_play for each in found], np.int64)
        return {"history": history, "length": length, "to_play": to_play, "action_mask": masks}

    def build_state(self, payload: Row, physics: Mapping[str, Any]) -> None:
        """Write the position after ``history``, a list of moves and chance outcomes.

        A history of `view` may end with -1.
        """
        unknown = sorted(set(physics) - {"history"})
        if unknown:
            raise InputError(f"this state has no field {unknown[0]!r}; its field is history")
        position = self._base.positions.replayed(physics["history"])
        payload[: self.nbytes] = 0
        self.put(payload.data, 0, position.history)


class GameSimulator(GymnasiumSimulator):
    """A simulator of a game of turns.

    The arguments are as in `GymnasiumSimulator`, except that ``frameskip`` is 1, because a move is
    never repeated; ``state_capacity`` is the number of bytes for the moves of a game.
    """

    checksum = True
    # The beginning of ids; the rest of an id is the name of a game.
    prefix: ClassVar[str]
    codec: HistoryCodec
    base: GameGym

    @abc.abstractmethod
    def make_rules(self, name: str, render_mode: str | None, options: dict[str, Any]) -> Rules:
        """Return the rules of the game `name` with the given options."""

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Return the game as a Gymnasium environment."""
        mode = {} if self.render_mode is None else {"render_mode": self.render_mode}
        make_rules = partial(self.make_rules, str(self.name).removeprefix(self.prefix))
        options = {**mode, **self.env_kwargs}
        env: gymnasium.Env[Any, Any] = call_source(partial(GameGym, make_rules), options)
        return env

    def fingerprint_fields(self) -> Mapping[str, Any]:
        """Return the fields of `GymnasiumSimulator`, but not in which way the game was named."""
        fields = super().fingerprint_fields()
        return {name: fields[name] for name in fields if name not in ("id", "kwargs")}

    def make_codec(self) -> HistoryCodec:
        """Reset the game, and return its codec."""
        self.reset_once()
        self._check_held(1)
        draws = self.base.rules.has_chance or self.env is not self.base
        return HistoryCodec(self.base, self.state_capacity, saves_generator=draws)

    def _check_held(self, dt: int) -> None:
        if dt * self.frameskip != 1:
            raise InputError(
                "dt and frameskip must be 1 in a game, because a move may be illegal a second "
                f"time; got dt={dt}, frameskip={self.frameskip}"
            )

    def step(self, action: Any, dt: int) -> Outcome:
        """Play `action`; raise `InputError` unless `dt` is 1."""
        self._check_held(dt)
        return super().step(action, dt)

    def clear_caches(self) -> None:
        """Drop the positions that are kept."""
        self.base.positions.clear()

    # Rows without wrappers are stepped from the position that is kept for their history.

    @property
    def _is_bare(self) -> bool:
        return self.env is self.base and not self._images

    def step_row(self, row: Row, action: Any, dt: int) -> tuple[Row, Outcome] | None:
        """Step one row; return ``None`` if there are wrappers or images are observed."""
        self._check_held(dt)
        if not self._is_bare:
            return None
        base, codec, at = self.base, self.codec, HEADER_NBYTES + self._generator_at
        before, fresh = base.positions.find(codec.get(row.data, HEADER_NBYTES)), row.copy()
        move = int(action)
        base.check(before, move)
        if codec.saves_generator:
            self._generator.load(fresh, at)
        result = base.step_from(before, move)
        codec.put(fresh.data, HEADER_NBYTES, base.position.history)
        if codec.saves_generator:
            self._generator.save(fresh, at)
        return fresh, (*result, 1)

    step_row_moves = True

    def step_rows(self, rows: Rows, start: int, stop: int) -> None:
        """Step several rows, or play them out."""
        if rows.inputs.legal:
            self._play_out(rows, start, stop)
            return
        once = bool(np.all(rows.inputs.dt == 1))
        if not self._is_bare or not once or "rgb" in rows.columns or rows.inputs.horizon:
            super().step_rows(rows, start, stop)
            return
        base, codec, find = self.base, self.codec, self.base.positions.find
        block, width = slice(start, stop), self.payload_nbytes + HEADER_NBYTES
        given = np.ascontiguousarray(given_states(rows.inputs, block))
        memory, given_width = given.reshape(-1).data, 0 if len(given) == 1 else width
        written = None
        if rows.next_states is not None:
            fresh = rows.next_states[block]
            fresh[:] = given
            written = fresh.reshape(-1).data
        observations, results = rows.observations, []
        for index, move in enumerate(rows.inputs.actions[block].tolist()):
            rows.cursor[0] = start + index
            before = find(codec.get(memory, index * given_width + HEADER_NBYTES))
            if not before.mask[move]:
                base.check(before, move)
            if codec.saves_generator:
                self._set_generator(rows, start + index, given[0 if len(given) == 1 else index])
            after, earned = base.positions.play(before, move, base)
            if observations is not None:
                base.rules.observe(after.board, after.to_play, observations[start + index])
            if written is not None:
                codec.put(written, index * width + HEADER_NBYTES, after.history)
                if codec.saves_generator:
                    self._generator.save(fresh[index], HEADER_NBYTES + self._generator_at)
            reward = earned[before.to_play]
            results.append((reward, earned, after.to_play, after.is_over, after.mask))
        rewards, all_rewards, players, overs, masks = zip(*results, strict=True)
        legal = np.frombuffer(b"".join(masks), np.int8).reshape(stop - start, -1)
        rows.columns["action_mask"][block] = legal
        rows.rewards[block], rows.columns["rewards"][block] = rewards, all_rewards
        rows.columns["to_play"][block], rows.terminateds[block] = players, overs
        rows.truncateds[block], rows.n_step[block] = False, 1

    @property
    def plays_out(self) -> bool:
        """Whether there are no wrappers, and no images are observed."""
        return self._is_bare

    def _play_out(self, rows: Rows, start: int, stop: int) -> None:
        """Play several moves in each row; those that are not legal are replaced."""
        self._check_held(int(np.max(rows.inputs.dt)))
        base, codec, block = self.base, self.codec, slice(start, stop)
        given, observations = given_states(rows.inputs, block), rows.observations
        plans = np.array(rows.inputs.actions[block], np.int64)
        for column in (rows.columns["rewards"], rows.rewards, rows.terminateds, rows.truncateds):
            column[block] = 0
        if rows.next_states is not None:
            rows.next_states[block] = given
        for index, plan in enumerate(plans.tolist(), start):
            rows.cursor[0] = index
            state = given[0 if len(given) == 1 else index - start]
            before = base.positions.find(codec.get(state.data, HEADER_NBYTES))
            if before.is_over:
                base.check(before, plan[0])
            if codec.saves_generator:
                self._set_generator(rows, index, state)
            shown = None if observations is None else observations[index]
            number = zlib.crc32(plans[index - start])
            found = base.positions.play_out(before, plan, number, base, shown)
            count = rows.n_step[index] = len(found.moves)
            plans[index - start, :count] = found.moves
            for time, mover, earned in found.rewards:
                rows.columns["rewards"][index, time] = earned
                rows.rewards[index, time] = earned[mover]
            if found.is_over:
                rows.terminateds[index, count - 1 :] = True
            if shown is not None:
                shown[count:] = shown[count - 1]
            if rows.next_states is not None:
                fresh = rows.next_states[index]
                codec.put(fresh.data, HEADER_NBYTES, found.history)
                if codec.saves_generator:
                    self._generator.save(fresh, HEADER_NBYTES + self._generator_at)
        rows.columns["actions"][block] = plans

    def _set_generator(self, rows: Rows, index: int, given: Row) -> None:
        """Set the random generator to that of the row `index`, whose state is `given`."""
        if rows.inputs.seeds is None:
            self._generator.load(given, HEADER_NBYTES + self._generator_at)
        else:
            reseed(self.base, int(rows.inputs.seeds[index]))
