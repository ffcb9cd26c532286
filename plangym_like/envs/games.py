"""Games of turns: the rules of a library's game become an environment with legal moves and players.

A state row holds the moves and chance outcomes since the beginning of the game, and the random
generator of a game with chance. Moves determine a position exactly. The positions of recent rows
are kept, so a row is usually restored by looking it up; otherwise, its moves are played again. The
info of every reset and step has ``action_mask``, ``to_play`` and ``rewards``.
"""

from __future__ import annotations

import abc
import array
import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

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

# Why games are refused.
IMPERFECT = (
    "it has imperfect information: a search from a state would know what the player to move does "
    "not"
)
SIMULTANEOUS = "its players move at the same time, and here one moves after the other"
# Instead of a player: it is chance's turn, or the game is over.
CHANCE, OVER = -1, -2
# The most bytes that rows have for moves by default: 1,024 moves if a game has more than 256
# actions. Long games, such as chinese_checkers, may have more.
_ROOM = 2048
# The largest number of bytes that the kept positions of one environment need.
_KEPT_NBYTES = 1 << 26
# The bytes of a position without its board, its history and its legal moves.
_POSITION_NBYTES = 640
# Python keeps one object for each whole number up to this; a larger one needs an object of its own,
# so that an array needs less memory than a list.
_SHARED_NUMBERS = 256
# From so many legal moves on, NumPy writes a mask faster than a loop (OpenSpiel's go, chess).
_MANY_MOVES = 128
# If a position is not kept, so many positions before it are looked up.
_MOVES_BACK = 8
_LENGTH_NBYTES = 8
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
    observation_space : gymnasium.spaces.Box
    board_nbytes, move_nbytes : int
        The most bytes that a board needs: at the beginning of a game, and in addition for each move
        and chance outcome.
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
    observation_space: gymnasium.spaces.Box
    board_nbytes: int
    move_nbytes: int
    render_modes: tuple[str, ...] = ()

    @abc.abstractmethod
    def first(self) -> Any:
        """Return a new board, as the game begins."""

    @abc.abstractmethod
    def after(self, board: Any, move: int) -> Any:
        """Return a new board on which `move` has been played; `board` does not change."""

    @abc.abstractmethod
    def apply(self, board: Any, move: int) -> None:
        """Play `move`, or a chance outcome, on `board`."""

    @abc.abstractmethod
    def copy(self, board: Any) -> Any:
        """Return a copy of `board` for `apply`."""

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
    legal : list or array of int
        The legal moves; empty after the end.
    returns : list of float
        The sum of each player's rewards.
    """

    __slots__ = ("board", "history", "legal", "returns", "to_play")

    def __init__(self, rules: Rules, board: Any, history: bytes, mover: int, turn: int) -> None:
        """Keep a board after `mover` has moved; `turn` is that of the rules."""
        self.board, self.history, self.returns = board, history, rules.returns(board)
        self.legal: Sequence[int]
        if turn == OVER:
            self.to_play, self.legal = mover, []
        elif rules.n_actions <= _SHARED_NUMBERS:
            self.to_play, self.legal = turn, rules.legal(board)
        else:
            self.to_play, self.legal = turn, array.array("I", rules.legal(board))


class Positions:
    """Finds the position of a history, and plays moves; recent positions are kept.

    Parameters
    ----------
    rules : Rules
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        kinds = np.uint8, np.uint16, np.uint32
        self.dtype = next(
            np.dtype(each) for each in kinds if rules.n_codes - 1 <= np.iinfo(each).max
        )
        self._kept: OrderedDict[bytes, Position] = OrderedDict()
        self._nbytes = 0
        # The bytes of a kept position, and in addition for each byte of its history.
        fixed = _POSITION_NBYTES + rules.board_nbytes
        self._cost = fixed, 1 + rules.move_nbytes // self.dtype.itemsize
        self._first = rules.first()
        self._nothing = [0.0] * rules.n_players

    def clear(self) -> None:
        """Drop the positions that are kept."""
        self._kept.clear()
        self._nbytes = 0

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
        """Play chance outcomes on `board` until it is a player's turn, or the game is over."""
        rules = self.rules
        turn = rules.turn(board)
        while turn == CHANCE:
            outcome = _drawn(rules.chance_outcomes(board), source.np_random.random())
            rules.apply(board, outcome)
            history += outcome.to_bytes(self.dtype.itemsize, "little")
            turn = rules.turn(board)
        return self._keep(board, history, mover, turn)

    def find(self, history: bytes) -> Position:
        """Return the position after `history`; play its moves if it is not kept.

        Raises
        ------
        StateFormatError
            The history is not one of this game.
        """
        found = self._kept.get(history)
        if found is not None:
            self._kept.move_to_end(history)
            return found
        rules, size = self.rules, self.dtype.itemsize
        start, board, mover = 0, self._first, 0
        for at in range(len(history) - size, max(-1, len(history) - size * _MOVES_BACK - 1), -size):
            before = self._kept.get(history[:at])
            if before is not None:
                start, board, mover = at, before.board, before.to_play
                break
        board = rules.copy(board)
        try:
            for move in np.frombuffer(history[start:], self.dtype).tolist():
                turn = rules.turn(board)
                if turn == OVER:
                    raise ValueError("a move after the end of the game")
                mover = mover if turn == CHANCE else turn
                rules.apply(board, move)
            turn = rules.turn(board)
        except Exception as error:
            raise StateFormatError(f"a state row is damaged: {error}") from error
        if turn == CHANCE:
            raise StateFormatError("a state row is damaged: it ends when it is chance's turn")
        return self._keep(board, history, mover, turn)

    def _keep(self, board: Any, history: bytes, mover: int, turn: int) -> Position:
        position = Position(self.rules, board, history, mover, turn)
        kept = self._kept
        if history not in kept:
            self._nbytes += self._nbytes_of(position)
        kept[history] = position
        while self._nbytes > _KEPT_NBYTES and len(kept) > 1:
            self._nbytes -= self._nbytes_of(kept.popitem(last=False)[1])
        return position

    def _nbytes_of(self, position: Position) -> int:
        """Return how many bytes a kept position needs."""
        fixed, each = self._cost
        return fixed + each * len(position.history) + 8 * len(position.legal)

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
        rules, board, mover = self.rules, self.rules.first(), 0
        for index, move in enumerate(given.tolist()):
            turn = rules.turn(board)
            if turn == CHANCE:
                allowed = [outcome for outcome, _ in rules.chance_outcomes(board)]
            else:
                allowed, mover = ([] if turn == OVER else rules.legal(board)), turn
            if move not in allowed:
                raise InputError(f"number {index} of the history, {move}, is not a legal move")
            rules.apply(board, move)
        if rules.turn(board) == CHANCE:
            raise InputError("the history ends when it is chance's turn; add a chance outcome")
        history = given.astype(self.dtype).tobytes()
        return self._keep(board, history, max(mover, 0), rules.turn(board))


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
    rules : Rules
    render_mode : str, optional
        One of the modes of the rules.
    """

    def __init__(self, rules: Rules, render_mode: str | None = None) -> None:
        if render_mode not in (None, *rules.render_modes):
            modes = " or ".join(map(repr, rules.render_modes))
            raise InputError(f"{rules.title} has no render_mode={render_mode!r}, only {modes}")
        self.rules, self.render_mode = rules, render_mode
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
        before, move = self.position, int(action)
        if move not in before.legal:
            self.refuse(before, move)
        self.position, rewards = self.positions.play(before, move, self)
        over = not self.position.legal
        return self.observation(), rewards[before.to_play], over, False, self.info(rewards)

    def refuse(self, position: Position, move: int) -> NoReturn:
        """Raise the error for an illegal `move`."""
        title, rules = self.rules.title, self.rules
        if not position.legal:
            raise ActionError(
                f"action {move} cannot be played, because this game of {title} is over"
            )
        moves = position.legal[:_SHOWN_MOVES]
        names = [f"{each} {rules.name_of(position.board, each)}".rstrip() for each in moves]
        more = ", ..." * (len(position.legal) > len(moves))
        raise ActionError(
            f"action {move} is illegal for player {position.to_play} in this position of {title}; "
            f'legal, as info["action_mask"] says: {", ".join(names)}{more}'
        )

    def observation(self) -> NDArray[Any]:
        """Return what the player to move observes."""
        space = self.observation_space
        out = np.empty(space.shape or (), space.dtype)
        self.rules.observe(self.position.board, self.position.to_play, out)
        return out

    def info(self, rewards: list[float]) -> dict[str, Any]:
        """Return the info of the position, after a step with `rewards`."""
        mask = np.zeros(self.rules.n_actions, np.int8)
        mask[self.position.legal] = 1
        return {
            "action_mask": mask,
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
        masks = np.zeros((len(found), base.rules.n_actions), np.int8)
        for index, each in enumerate(found):
            history[index, : length[index]] = histories[index]
            masks[index, each.legal] = 1
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
    # The beginning of ids, and the class of the environment, which takes the rest of the id.
    prefix: ClassVar[str]
    gym_class: ClassVar[Callable[..., GameGym]]
    codec: HistoryCodec
    base: GameGym

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Return the game as a Gymnasium environment."""
        make = functools.partial(type(self).gym_class, str(self.name).removeprefix(self.prefix))
        mode = {} if self.render_mode is None else {"render_mode": self.render_mode}
        env: gymnasium.Env[Any, Any] = call_source(make, {**mode, **self.env_kwargs})
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
        base, codec, move = self.base, self.codec, int(action)
        before = base.positions.find(codec.get(row.data, HEADER_NBYTES))
        if move not in before.legal:
            base.refuse(before, move)
        fresh = row.copy()
        if codec.saves_generator:
            self._generator.load(fresh, HEADER_NBYTES + self._generator_at)
        base.position, rewards = base.positions.play(before, move, base)
        codec.put(fresh.data, HEADER_NBYTES, base.position.history)
        if codec.saves_generator:
            self._generator.save(fresh, HEADER_NBYTES + self._generator_at)
        over = not base.position.legal
        info = base.info(rewards)
        return fresh, (base.observation(), rewards[before.to_play], over, False, info, 1)

    step_row_moves = True

    def step_rows(self, rows: Rows, start: int, stop: int) -> None:
        """Step several rows; the moves of all of them are checked first."""
        once = bool(np.all(rows.inputs.dt == 1))
        if not self._is_bare or not once or "rgb" in rows.columns or rows.inputs.horizon:
            super().step_rows(rows, start, stop)
            return
        before = self._legal_positions(rows, start, stop)
        self._play_rows(rows, start, before)

    def _legal_positions(self, rows: Rows, start: int, stop: int) -> list[Position]:
        """Return the positions of rows; raise `ActionError` if the move of one is illegal."""
        inputs, find, get = rows.inputs, self.base.positions.find, self.codec.get
        shared = len(inputs.states) == 1
        states = inputs.states if shared else np.ascontiguousarray(inputs.states[start:stop])
        memory, width = states.reshape(-1).data, states.shape[1]
        found: list[Position] = []
        for index, move in enumerate(inputs.actions[start:stop].tolist()):
            if not (shared and found):
                position = find(get(memory, index * width + HEADER_NBYTES))
            if move not in position.legal:
                rows.cursor[0] = start + index
                self.base.refuse(position, move)
            found.append(position)
        return found

    def _play_rows(self, rows: Rows, start: int, before: list[Position]) -> None:
        """Play the move of each row from its position in `before`, and write the results."""
        base, codec, rules, stop = self.base, self.codec, self.base.rules, start + len(before)
        block, width, count = (
            slice(start, stop),
            self.payload_nbytes + HEADER_NBYTES,
            rules.n_actions,
        )
        given, written = given_states(rows.inputs, block), None
        if rows.next_states is not None:
            fresh = rows.next_states[block]
            fresh[:] = given
            written = fresh.reshape(-1).data
        masks = rows.columns["action_mask"][block].reshape(-1).view(np.uint8).data
        observations, observe = rows.observations, rules.observe
        rewards, all_rewards, players, overs = [], [], [], []
        moves = rows.inputs.actions[block].tolist()
        for index, (position, move) in enumerate(zip(before, moves, strict=True)):
            rows.cursor[0] = start + index
            if codec.saves_generator:
                self._prepare_chance(rows, start + index, given[0 if len(given) == 1 else index])
            after, earned = base.positions.play(position, move, base)
            mask, legal = bytearray(count), after.legal
            if len(legal) < _MANY_MOVES:
                for each in legal:
                    mask[each] = 1
            else:
                np.frombuffer(mask, np.uint8)[np.asarray(legal)] = 1
            masks[index * count : (index + 1) * count] = mask
            if observations is not None:
                observe(after.board, after.to_play, observations[start + index])
            if written is not None:
                codec.put(written, index * width + HEADER_NBYTES, after.history)
                if codec.saves_generator:
                    self._generator.save(fresh[index], HEADER_NBYTES + self._generator_at)
            rewards.append(earned[position.to_play])
            all_rewards.append(earned)
            players.append(after.to_play)
            overs.append(not legal)
        rows.rewards[block], rows.columns["rewards"][block] = rewards, all_rewards
        rows.columns["to_play"][block], rows.terminateds[block] = players, overs
        rows.truncateds[block], rows.n_step[block] = False, 1

    def _prepare_chance(self, rows: Rows, index: int, given: Row) -> None:
        """Set the random generator to that of the row `index`, whose state is `given`."""
        if rows.inputs.seeds is None:
            self._generator.load(given, HEADER_NBYTES + self._generator_at)
        else:
            reseed(self.base, int(rows.inputs.seeds[index]))
