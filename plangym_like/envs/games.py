"""Games of turns: the rules of a library's game become an environment with legal moves and players.

A state row holds the moves and chance outcomes since the beginning of the game, and the random
generator of a game with chance. The info of every reset and step has ``action_mask``, ``to_play``
and ``rewards``.
"""

from __future__ import annotations

import abc
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.arrays import Outcome, Rows, given_states
from plangym_like.batch.layout import GameFacts
from plangym_like.envs.codec import Codec
from plangym_like.envs.game_positions import OVER, Position, Positions, Rules
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.envs.wrapping import call_source
from plangym_like.errors import ActionError, InputError, StateCapacityError, StateFormatError
from plangym_like.states.random_state import reseed
from plangym_like.states.rows import HEADER_NBYTES, Row, padded

# The most bytes that rows have for moves by default: 1,024 moves if a game has more than 256
# actions. Long games, such as chinese_checkers, may have more.
_ROOM = 2048
_LENGTH_NBYTES = 8
_SHOWN_MOVES = 12


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
    def game(self) -> GameFacts:
        """The highest return of a player, whether steps draw chance, and how many players."""
        rules = self.base.rules
        return GameFacts(rules.highest, rules.steps_have_chance, rules.n_players)

    @property
    def plays_out(self) -> bool:
        """Whether there are no wrappers, and no images are observed."""
        return self._is_bare

    def _play_out(self, rows: Rows, start: int, stop: int) -> None:
        """Play several moves in each row; those that are not legal are replaced."""
        base, codec, block = self.base, self.codec, slice(start, stop)
        given, observations = given_states(rows.inputs, block), rows.observations
        actions = np.ascontiguousarray(rows.inputs.actions[block], np.int64)
        plans, counts, ends = actions.tolist(), list[int](), list[bool]()
        all_rewards, rewards = rows.columns["rewards"], rows.rewards
        all_rewards[block], rewards[block] = 0, 0
        if rows.next_states is not None:
            rows.next_states[block] = given
        for index, plan in enumerate(plans, start):
            rows.cursor[0] = index
            state = given[0 if len(given) == 1 else index - start]
            before = base.positions.find(codec.get(state.data, HEADER_NBYTES))
            if before.is_over:
                base.check(before, plan[0])
            if codec.saves_generator:
                self._set_generator(rows, index, state)
            shown = None if observations is None else observations[index]
            number = zlib.crc32(actions[index - start])
            history, count, paid, is_over = base.positions.play_out(
                before, plan, number, base, shown
            )
            counts.append(count)
            ends.append(is_over)
            for time, mover, earned in paid:
                all_rewards[index, time], rewards[index, time] = earned, earned[mover]
            if shown is not None:
                shown[count:] = shown[count - 1]
            if rows.next_states is not None:
                fresh = rows.next_states[index]
                codec.put(fresh.data, HEADER_NBYTES, history)
                if codec.saves_generator:
                    self._generator.save(fresh, HEADER_NBYTES + self._generator_at)
        rows.columns["actions"][block], rows.n_step[block] = plans, counts
        last = np.array(counts)[:, None] - 1
        is_after = np.arange(actions.shape[1]) >= last
        rows.terminateds[block] = is_after & np.array(ends)[:, None]
        rows.truncateds[block] = False

    def _set_generator(self, rows: Rows, index: int, given: Row) -> None:
        """Set the random generator to that of the row `index`, whose state is `given`."""
        if rows.inputs.seeds is None:
            self._generator.load(given, HEADER_NBYTES + self._generator_at)
        else:
            reseed(self.base, int(rows.inputs.seeds[index]))
