"""The four games of Gymnasium's toy text: their states, and how a row stores them."""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import gymnasium
import numpy as np
from gymnasium.envs.toy_text.blackjack import BlackjackEnv, sum_hand, usable_ace
from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from gymnasium.envs.toy_text.taxi import TaxiEnv
from numpy.typing import NDArray

from plangym_like.errors import InputError, StateFormatError

_NOTHING = -1
_sum_hand: Any = sum_hand
_usable_ace: Any = usable_ace
_LAKE_ARGUMENTS = ("is_slippery", "success_rate", "reward_schedule")


class ToyTextGame(abc.ABC):
    """Reads and writes the state of one of the games; `layout` is the dtype of a payload."""

    env_class: ClassVar[type[gymnasium.Env[Any, Any]]]
    layout: np.dtype[Any]
    columns: ClassVar[dict[str, tuple[tuple[int, ...], Any]]] = {}

    def __init__(self, env: Any) -> None:
        self.env = env

    def fingerprint_fields(self) -> Any:
        """Return a digest of the tables of the game."""
        table = repr((self.env.P, self.env.initial_state_distrib.tolist()))
        return hashlib.blake2b(table.encode(), digest_size=16).hexdigest()

    @property
    def changing(self) -> tuple[str, ...]:
        """The attributes of `env` that rows hold, and that episodes change."""
        return self.layout.names or ()

    @abc.abstractmethod
    def read(self, fields: np.void) -> None:
        """Write the state of `env`, without its random generator, into `fields`."""

    @abc.abstractmethod
    def write(self, fields: np.void) -> None:
        """Set the state of `env`, but not its random generator, to `fields`."""

    @abc.abstractmethod
    def named(self, fields: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return the parts of the N states in `fields` by name, each ``(N, ...)``."""

    @abc.abstractmethod
    def build_state(self, fields: np.void, **physics: Any) -> None:
        """Write the named values `physics` into `fields`."""


class Grid(ToyTextGame):
    """The base class of the games on a grid, with numbered places and a table of transitions."""

    layout = np.dtype([("s", "<i8"), ("lastaction", "<i8")])
    columns: ClassVar = {"prob": ((), np.float64)}

    def read(self, fields: np.void) -> None:
        env = self.env
        fields["s"] = env.s
        fields["lastaction"] = _NOTHING if env.lastaction is None else env.lastaction

    def write(self, fields: np.void) -> None:
        env, action, place = self.env, int(fields["lastaction"]), self.place(fields["s"])
        if not _NOTHING <= action < env.action_space.n:
            raise StateFormatError(f"a state row is damaged: there is no action {action}")
        env.s = place
        env.lastaction = None if action == _NOTHING else action

    def place(self, number: Any) -> int:
        """Return `number` as an int; raise `StateFormatError` if the grid has no such place."""
        if int(number) not in self.env.P:
            raise StateFormatError(
                f"a state row is damaged: {type(self.env).__name__} has no place {int(number)}"
            )
        return int(number)

    def shape(self) -> tuple[int, int]:
        """Return the numbers of rows and columns of the grid."""
        board = self.env.desc if hasattr(self.env, "desc") else self.env
        rows, columns = board.shape
        return rows, columns

    def named(self, fields: NDArray[Any]) -> dict[str, NDArray[Any]]:
        row, column = np.divmod(fields["s"], self.shape()[1])
        return {
            "s": fields["s"].copy(),
            "lastaction": fields["lastaction"].copy(),
            "row": row,
            "column": column,
        }

    def build_state(self, fields: np.void, **physics: Any) -> None:
        _only(physics, "s", "row", "column", "lastaction")
        number = _choice(physics, "s", int(fields["s"]), len(self.env.P))
        row, column = divmod(number, self.shape()[1])
        row, column = _whole(physics, "row", row), _whole(physics, "column", column)
        if not (0 <= row < self.shape()[0] and 0 <= column < self.shape()[1]):
            raise InputError(f"there is no place ({row}, {column}) on a board of {self.shape()}")
        fields["s"] = row * self.shape()[1] + column
        if physics.get("lastaction", _NOTHING) is None:
            fields["lastaction"] = _NOTHING
        else:
            action = _whole(physics, "lastaction", int(fields["lastaction"]))
            if not _NOTHING <= action < self.env.action_space.n:
                raise InputError(f"lastaction must be an action, -1 or None, got {action}")
            fields["lastaction"] = action


class CliffWalking(Grid):
    env_class = CliffWalkingEnv


class _Lake(NamedTuple):
    """The attributes of a FrozenLake environment that depend on its map."""

    desc: Any
    table: Any
    initial_state_distrib: Any

    @classmethod
    def of(cls, env: Any) -> Self:
        return cls(env.desc, env.P, env.initial_state_distrib)


class FrozenLake(Grid):
    """FrozenLake; a map that was generated at random is stored in the row."""

    env_class = FrozenLakeEnv

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        arguments = {} if env.spec is None else env.spec.kwargs
        self._arguments = {key: arguments[key] for key in arguments if key in _LAKE_ARGUMENTS}
        named = arguments.get("desc"), arguments.get("map_name")
        self.drawn = bool(arguments) and named == (None, None)
        self._lakes: dict[bytes, _Lake] = {env.desc.tobytes(): _Lake.of(env)}
        if self.drawn:
            self.layout = np.dtype([*Grid.layout.descr, ("desc", "u1", (env.desc.size,))])

    @property
    def changing(self) -> tuple[str, ...]:
        return (*super().changing, *_Lake._fields) if self.drawn else super().changing

    def fingerprint_fields(self) -> Any:
        if not self.drawn:
            return super().fingerprint_fields()
        return {key: repr(value) for key, value in sorted(self._arguments.items())}

    def read(self, fields: np.void) -> None:
        super().read(fields)
        if self.drawn:
            fields["desc"] = self.env.desc.view(np.uint8).ravel()

    def write(self, fields: np.void) -> None:
        letters = fields["desc"].tobytes() if self.drawn else b""
        lake = self._lake_of(letters) if letters and letters != self.env.desc.tobytes() else None
        super().write(fields)  # all maps have the same places
        if lake is not None:
            self.env.desc, self.env.P, self.env.initial_state_distrib = lake

    def _lake_of(self, letters: bytes) -> _Lake:
        lake = self._lakes.get(letters)
        if lake is None:
            if not set(letters) <= set(b"SFHG") or b"S" not in letters:
                raise StateFormatError("a state row is damaged: its map is not a frozen lake")
            size = self.env.desc.shape[1]
            text = letters.decode("ascii")
            rows = [text[start : start + size] for start in range(0, len(text), size)]
            lake = _Lake.of(FrozenLakeEnv(desc=rows, **self._arguments))
            self._lakes[letters] = lake
        return lake

    def named(self, fields: NDArray[Any]) -> dict[str, NDArray[Any]]:
        found = super().named(fields)
        if self.drawn:
            found["desc"] = fields["desc"].copy().view("S1").reshape(-1, *self.shape())
        return found


class Taxi(Grid):
    env_class = TaxiEnv
    layout = np.dtype([*Grid.layout.descr, ("taxi_orientation", "<i8"), ("fickle_step", "<i8")])
    columns: ClassVar = {"prob": ((), np.float64), "action_mask": ((6,), np.int8)}

    def fingerprint_fields(self) -> Any:
        # No passenger is fickle before Gymnasium 1.2, and the probability is always 0.3 before 1.3.
        return [
            super().fingerprint_fields(),
            bool(getattr(self.env, "fickle_passenger", False)),
            repr(getattr(self.env, "fickle_probability", 0.3)),
        ]

    def read(self, fields: np.void) -> None:
        super().read(fields)
        fields["taxi_orientation"] = self.env.taxi_orientation
        fields["fickle_step"] = getattr(self.env, "fickle_step", False)

    def write(self, fields: np.void) -> None:
        if not (0 <= fields["s"] < 500 and 0 <= fields["taxi_orientation"] < 4):
            raise StateFormatError("a state row is damaged: Taxi has no such place or direction")
        super().write(fields)
        self.env.taxi_orientation = int(fields["taxi_orientation"])
        self.env.fickle_step = bool(fields["fickle_step"])

    def named(self, fields: NDArray[Any]) -> dict[str, NDArray[Any]]:
        number = fields["s"]
        return {
            "s": number.copy(),
            "taxi_row": number // 100,
            "taxi_column": number // 20 % 5,
            "passenger": number // 4 % 5,
            "destination": number % 4,
            "lastaction": fields["lastaction"].copy(),
            "taxi_orientation": fields["taxi_orientation"].copy(),
            "fickle_step": fields["fickle_step"] != 0,
        }

    def build_state(self, fields: np.void, **physics: Any) -> None:
        parts = ("taxi_row", "taxi_column", "passenger", "destination")
        _only(physics, "s", *parts, "fickle_step")
        number = _choice(physics, "s", int(fields["s"]), 500)
        places = [number // 100, number // 20 % 5, number // 4 % 5, number % 4]
        values = [
            _choice(physics, name, place, count)
            for name, place, count in zip(parts, places, (5, 5, 5, 4), strict=True)
        ]
        fields["s"] = self.env.encode(*values)
        fickle = physics.get("fickle_step", fields["fickle_step"])
        if np.ndim(fickle) or fickle not in (0, 1):
            raise InputError(f"fickle_step must be true or false, got {fickle!r}")
        fields["fickle_step"] = bool(fickle)


class Blackjack(ToyTextGame):
    """Blackjack. A row holds the first cards of each hand, and the sum of the remaining ones.

    There is room for `_PLAYER` cards of the player, and `_DEALER` cards of the dealer. A player
    loses with 22 cards at the latest, and the dealer stops at 17 points. So a hand has more cards
    only if a game is continued after its end; then only the sum of the remaining cards matters.
    """

    env_class = BlackjackEnv
    _PLAYER, _DEALER = 32, 24
    _SUITS = ("", "C", "D", "H", "S")
    _VALUES = ("", "A", "2", "3", "4", "5", "6", "7", "8", "9", "10", "J", "Q", "K")
    layout = np.dtype(
        [
            ("player", "u1", (_PLAYER,)),
            ("dealer", "u1", (_DEALER,)),
            ("more", "<i8", (2,)),
            ("suit", "u1"),
            ("value", "u1"),
        ]
    )

    @property
    def changing(self) -> tuple[str, ...]:
        return "player", "dealer", "dealer_top_card_suit", "dealer_top_card_value_str"

    def fingerprint_fields(self) -> Any:
        return [bool(self.env.natural), bool(self.env.sab)]

    def read(self, fields: np.void) -> None:
        env = self.env
        for index, (name, room) in enumerate((("player", self._PLAYER), ("dealer", self._DEALER))):
            hand = getattr(env, name)
            cards = fields[name]
            cards[: len(hand)] = hand[:room]
            cards[len(hand) :] = 0
            fields["more"][index] = sum(hand[room:])
        fields["suit"] = self._SUITS.index(env.dealer_top_card_suit)
        fields["value"] = self._VALUES.index(env.dealer_top_card_value_str)

    def write(self, fields: np.void) -> None:
        env = self.env
        hands = []
        for index, name in enumerate(("player", "dealer")):
            hand = fields[name].tolist()
            hand = hand[: hand.index(0)] if 0 in hand else hand
            more = int(fields["more"][index])
            if not hand or more < 0 or max(hand) > 10:
                raise StateFormatError(f"a state row is damaged: no such hand of the {name}")
            hands.append(hand + [more] * (more > 0))
        if fields["suit"] >= len(self._SUITS) or fields["value"] >= len(self._VALUES):
            raise StateFormatError("a state row is damaged: no such card")
        env.player, env.dealer = hands
        env.dealer_top_card_suit = self._SUITS[fields["suit"]]
        env.dealer_top_card_value_str = self._VALUES[fields["value"]]

    def named(self, fields: NDArray[Any]) -> dict[str, NDArray[Any]]:
        more = fields["more"]
        found = {}
        for index, name in enumerate(("player", "dealer")):
            pairs = zip(fields[name], more[:, index], strict=True)
            hands = [[*cards[cards > 0].tolist(), int(rest)] for cards, rest in pairs]
            found[name] = fields[name].copy()
            found[f"{name}_sum"] = np.array([_sum_hand(hand) for hand in hands], np.int64)
            if name == "player":
                found["usable_ace"] = np.array([_usable_ace(hand) for hand in hands], np.int64)
        return found

    def build_state(self, fields: np.void, **physics: Any) -> None:
        _only(physics, "player", "dealer")
        for index, (name, room) in enumerate((("player", self._PLAYER), ("dealer", self._DEALER))):
            if name not in physics:
                continue
            hand = np.asarray(physics[name])
            wrong = hand.dtype.kind not in "iu" or hand.ndim != 1 or not 2 <= len(hand) <= room
            if wrong or hand.min() < 1 or hand.max() > 10:
                raise InputError(f"a hand is 2 to {room} cards from 1 (ace) to 10, got {hand}")
            fields[name][:] = 0
            fields[name][: len(hand)] = hand
            fields["more"][index] = 0
            if name == "dealer":
                fields["value"] = hand[0]


GAMES: dict[type, type[ToyTextGame]] = {
    game.env_class: game for game in (CliffWalking, FrozenLake, Taxi, Blackjack)
}


def _only(physics: Mapping[str, Any], *names: str) -> None:
    unknown = sorted(set(physics) - set(names))
    if unknown:
        told = ", ".join(names)
        raise InputError(f"this state has no field {unknown[0]!r}; its fields are {told}")


def _whole(physics: Mapping[str, Any], name: str, default: int) -> int:
    value = physics.get(name, default)
    if isinstance(value, np.ndarray) and value.ndim == 0:  # as `view` returns it
        value = value[()]
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise InputError(f"{name} must be a whole number, got {value!r}")
    return int(value)


def _choice(physics: Mapping[str, Any], name: str, default: int, count: int) -> int:
    value = _whole(physics, name, default)
    if not 0 <= value < count:
        raise InputError(f"{name} must be a whole number from 0 to {count - 1}, got {value}")
    return value
