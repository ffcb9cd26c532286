"""Gymnasium's toy text: FrozenLake, CliffWalking, Taxi and Blackjack, in small rows.

The state consists of the few attributes that ``step`` changes, and the random generator. The tables
of a game (maps, probabilities, rewards) never change and are part of the rows' fingerprint. So a
FrozenLake map that each process generates at random is refused.

The games on a grid are stepped in blocks: the table ``env.P`` as arrays, and the draws of all
generators at once (see `next_doubles`). The results are compared with the game's own step first.
"""

from __future__ import annotations

import contextlib
import hashlib
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.envs.toy_text.blackjack import BlackjackEnv
from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from gymnasium.envs.toy_text.taxi import TaxiEnv
from numpy.typing import NDArray

from plangym_like.envs.codec import Attribute, AttributeCodec
from plangym_like.envs.family_env import FamilyEnv
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.envs.kernel import (
    ArrayKernel,
    Kernel,
    NotVectorisableError,
    Outcomes,
    States,
)
from plangym_like.errors import InputError, SnapshotError, StateFormatError
from plangym_like.snapshots.configuration import qualified_name
from plangym_like.states.rows import HEADER_NBYTES, Row

# PCG64 multiplies its position by this number in each draw.
_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
_HALF = np.uint64(32)
_LOW_HALF = np.uint64((1 << 32) - 1)
_HIGH_FACTOR, _LOW_FACTOR = np.uint64(_MULTIPLIER >> 64), np.uint64(_MULTIPLIER & (1 << 64) - 1)
_FACTORS = _LOW_FACTOR & _LOW_HALF, _LOW_FACTOR >> _HALF

_NOTHING = -1


class GridCodec(AttributeCodec):
    """Saves a game on a grid, which has numbered places and a table of transitions.

    Attributes
    ----------
    bounds : dict of str to range
        The values of the first attributes; the last action is -1 after a reset.
    parts : dict of str to int
        The parts of the number of a place, and how many values each has; the last one counts up
        first.
    has_table : bool
        Whether one table of transitions determines all steps.
    """

    has_table: bool = True

    def __init__(self, base: Any, *more: Attribute) -> None:
        own = Attribute("s", np.int64), Attribute("lastaction", np.int64)
        super().__init__(base, (*own, *more))
        places, actions = range(len(base.P)), range(_NOTHING, int(base.action_space.n))
        self.bounds = {"s": places, "lastaction": actions}
        self.columns = {"prob": ((), np.dtype(np.float64))}
        rows, columns = getattr(base, "desc", base).shape
        self.parts = {"row": int(rows), "column": int(columns)}

    def fingerprint_fields(self) -> Mapping[str, Any]:
        """Return a digest of the tables of the game."""
        table = repr((self._base.P, self._base.initial_state_distrib.tolist()))
        digest = hashlib.blake2b(table.encode(), digest_size=16).hexdigest()
        return {"game": digest, "generator": "behind the game"}

    def values(self) -> Sequence[Any]:
        place, action, *more = super().values()
        return place, _NOTHING if action is None else action, *more

    def put(self, values: Sequence[Any]) -> None:
        """Set the attributes to `values`; raise `StateFormatError` if a row is damaged."""
        for (name, bound), value in zip(self.bounds.items(), values, strict=False):
            if value not in bound:
                raise StateFormatError(f"a state row is damaged: {self.place(name)} is {value}")
        place, action, *more = values
        super().put((place, None if action == _NOTHING else action, *more))

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return ``s``, its `parts`, and the other attributes, each ``(N,)``."""
        found, sizes = super().view(payloads), tuple(self.parts.values())
        number = found.pop("s")
        parts = np.unravel_index(number % len(self._base.P), sizes)
        return {"s": number, **dict(zip(self.parts, parts, strict=True)), **found}

    def build_state(self, payload: Row, physics: Mapping[str, Any]) -> None:
        """Write ``s`` or its `parts`, and the other attributes, by name.

        Parts take precedence over ``s``. A ``lastaction`` of -1 or ``None`` means: none yet.
        """
        first, *others = self.layout.names or ()
        _check_names(physics, (first, *self.parts, *others))
        given, sizes = dict(physics), tuple(self.parts.values())
        if given.get("lastaction", 0) is None:
            given["lastaction"] = _NOTHING
        fields = self.fields(payload[None])[0]
        for name, bound in self.bounds.items():
            fields[name] = _whole(name, given.pop(name, fields[name]), bound)
        parts = zip(self.parts, np.unravel_index(fields["s"], sizes), sizes, strict=True)
        numbers = [_whole(name, given.pop(name, now), range(size)) for name, now, size in parts]
        fields["s"] = np.ravel_multi_index(tuple(numbers), sizes)
        super().build_state(payload, given)


class TaxiCodec(GridCodec):
    """Saves Taxi."""

    def __init__(self, base: Any) -> None:
        # No passenger is fickle before Gymnasium 1.2, and the probability is always 0.3 before 1.3.
        base.fickle_step = bool(getattr(base, "fickle_step", False))
        # A fickle passenger chooses another destination at random.
        self.has_table = not getattr(base, "fickle_passenger", False)
        rest = Attribute("taxi_orientation", np.int64), Attribute("fickle_step", np.bool_)
        super().__init__(base, *rest)
        self.parts = {"taxi_row": 5, "taxi_column": 5, "passenger": 5, "destination": 4}
        self.bounds["taxi_orientation"] = range(4)
        prob, mask = ((), np.dtype(np.float64)), ((6,), np.dtype(np.int8))
        self.columns = {"prob": prob, "action_mask": mask}

    def fingerprint_fields(self) -> Mapping[str, Any]:
        table = super().fingerprint_fields()
        chance = getattr(self._base, "fickle_probability", 0.3)
        return {**table, "game": [table["game"], not self.has_table, repr(chance)]}

    def values(self) -> Sequence[Any]:
        *found, fickle = super().values()
        return *found, bool(fickle)

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return the fields of `GridCodec`, and ``action_mask`` ``(N, 6)``."""
        found = super().view(payloads)
        places, rows = np.unique(found["s"], return_inverse=True)
        masks = [self._base.action_mask(place) for place in places]
        return {**found, "action_mask": np.array(masks, np.int8).reshape(-1, 6)[rows]}


class BlackjackCodec(AttributeCodec):
    """Saves Blackjack: the cards of both hands, and the dealer's card that is shown.

    A player loses with 22 cards at the latest, and has more than `_ROOM` cards only if a game is
    continued long after its end. Then rows hold the sum of the rest, ``more``: nothing else of it
    matters.
    """

    _ROOM = 32
    _SUITS = ("", "C", "D", "H", "S")
    _VALUES = ("", "A", "2", "3", "4", "5", "6", "7", "8", "9", "10", "J", "Q", "K")
    _JACK = 11

    def __init__(self, base: Any) -> None:
        sizes = {"player": self._ROOM, "dealer": self._ROOM, "shown": 2}
        cards = [Attribute(name, np.uint8, (sizes[name],)) for name in sizes]
        super().__init__(base, [*cards, Attribute("more", np.int64)])
        self.columns = {}

    def fingerprint_fields(self) -> Mapping[str, Any]:
        rules = [bool(self._base.natural), bool(self._base.sab)]
        return {"game": rules, "generator": "behind the game"}

    def values(self) -> Sequence[Any]:
        env = self._base
        suit = self._SUITS.index(env.dealer_top_card_suit)
        shown = np.array((suit, self._VALUES.index(env.dealer_top_card_value_str)), np.uint8)
        player, more = env.player[: self._ROOM], sum(env.player[self._ROOM :])
        return self._padded(player), self._padded(env.dealer), shown, more

    def _padded(self, hand: Sequence[int]) -> NDArray[np.uint8]:
        return np.frombuffer(bytes(hand).ljust(self._ROOM, b"\0"), np.uint8)

    def put(self, values: Sequence[Any]) -> None:
        """Set the attributes to `values`; raise `StateFormatError` if a row is damaged."""
        env, (*hands, shown, more) = self._base, values
        player, dealer = (list(hand.tobytes().rstrip(b"\0")) for hand in hands)
        try:
            suit, value = self._SUITS[shown[0]], self._VALUES[shown[1]]
        except IndexError as error:
            raise StateFormatError("a state row is damaged: there is no such card") from error
        if not player or not dealer:
            raise StateFormatError("a state row is damaged: there is no such hand")
        if more < 0 or (more and len(player) < self._ROOM):
            raise StateFormatError(
                f"a state row is damaged: there are no cards with the sum {more}"
            )
        env.player, env.dealer = player + [more] * (more > 0), dealer
        env.dealer_top_card_suit, env.dealer_top_card_value_str = suit, value

    def build_state(self, payload: Row, physics: Mapping[str, Any]) -> None:
        """Write the hands ``player`` and ``dealer``, cards from 1 (ace) to 10.

        The dealer's first card is the one that is shown, in the suit that was shown before. A 10 is
        a jack unless another picture was shown: Gymnasium has no image of another 10.
        """
        _check_names(physics, ("player", "dealer"))
        fields: dict[str, Any] = {"more": 0} if "player" in physics else {}
        for name, cards in physics.items():
            hand = np.asarray(cards)
            is_list = hand.dtype.kind in "iu" and hand.ndim == 1 and 0 < len(hand) <= self._ROOM
            if not is_list or not {*hand} <= {*range(1, 11)}:
                told = f"a hand is a list of 1 to {self._ROOM} cards from 1 (ace) to 10"
                raise InputError(f"{told}, got {cards!r}")
            fields[name] = self._padded(hand.tolist())
            if name == "dealer":
                suit, value = self.fields(payload[None])[0]["shown"]
                fields["shown"] = suit, hand[0] if hand[0] < 10 else max(value, self._JACK)
        super().build_state(payload, fields)


def _check_names(physics: Mapping[str, Any], names: Sequence[str]) -> None:
    unknown = [name for name in physics if name not in names]
    if unknown:
        told = ", ".join(names)
        raise InputError(f"this state has no field {unknown[0]!r}; its fields are {told}")


def _whole(name: str, value: Any, bound: range) -> int:
    """Return `value`, given as `name`, as an int; raise `InputError` if it is not in `bound`."""
    with contextlib.suppress(TypeError):
        if not isinstance(value, bool) and operator.index(value) in bound:
            return operator.index(value)
    told = f"{name} must be a whole number from {bound.start} to {bound.stop - 1}"
    raise InputError(f"{told}, got {value!r}")


CODECS: dict[type, type[GridCodec | BlackjackCodec]] = {
    CliffWalkingEnv: GridCodec,
    FrozenLakeEnv: GridCodec,
    TaxiEnv: TaxiCodec,
    BlackjackEnv: BlackjackCodec,
}


@dataclass(slots=True)
class Places(States):
    """The states of N rows of a game on a grid, and the probabilities of their last transitions.

    ``places`` and ``actions`` (the last ones) are ``(N,) int64``, ``generators`` is ``(4, N)
    uint64``, and ``chances`` is ``(N,) float64``.
    """

    places: NDArray[np.int64]
    actions: NDArray[np.int64]
    generators: NDArray[np.uint64]
    chances: NDArray[np.float64]


class TableBlocks(ArrayKernel[Places]):
    """Steps blocks of rows of a game on a grid with its table of transitions.

    Parameters
    ----------
    sim : ToyTextSimulator
        A simulator whose codec has ``has_table``.
    """

    # The arrays of this many rows fit into a core's own cache.
    most = 8192

    def __init__(self, sim: Any) -> None:
        super().__init__(sim)
        env, bounds = sim.base, [*sim.codec.bounds.values()]
        self._bounds = bounds
        self._num_actions = count = int(env.action_space.n)
        # The transitions of each place and action; a shorter list is filled up.
        lists = [env.P[place][action] for place in bounds[0] for action in range(count)]
        self._most = most = max(map(len, lists))
        filled = [way for ways in lists for way in (*ways, *ways[:1] * (most - len(ways)))]
        # `categorical_sample` takes the first transition whose sum of probabilities exceeds a draw,
        # and transition 0 if there is none. So those that fill a list up have a negative sum.
        self._sums = np.full((len(lists), most), -1.0)
        for sums, ways in zip(self._sums, lists, strict=True):
            sums[: len(ways)] = np.cumsum([way[0] for way in ways])
        chances, places, rewards, ends = zip(*filled, strict=True)
        self._chances, self._places = np.array(chances, np.float64), np.array(places, np.int64)
        self._rewards, self._ends = np.array(rewards, np.float64), np.array(ends, bool)
        self._masks: NDArray[Any] | None = None
        if hasattr(env, "action_mask"):
            self._masks = np.stack([env.action_mask(place) for place in bounds[0]])

    def load(self, given: Row, count: int) -> Places:
        words = np.broadcast_to(given.view(np.int64), (count, given.shape[1] // 8))
        numbers = words[:, HEADER_NBYTES // 8 :].T[: len(self._bounds)]
        generators = words[:, self._generator_at // 8 :].T[:4].view(np.uint64)
        for number, bound in zip(numbers, self._bounds, strict=True):
            if np.count_nonzero((number < bound.start) | (number >= bound.stop)):
                raise NotVectorisableError
        if not generators[2].all():
            raise NotVectorisableError  # a row without a generator
        places, actions = numbers[:2].copy()
        return Places(places, actions, generators.copy(), np.empty(count))

    def frame(self, states: Places, actions: NDArray[Any], out: Outcomes) -> None:
        draws = next_doubles(states.generators)
        at = states.places * self._num_actions + actions
        if self._most > 1:
            way = (self._sums.take(at, axis=0) > draws[:, None]).argmax(axis=1)
            at = at * self._most + way
        states.places[:], states.actions[:] = self._places[at], actions
        states.chances[:] = self._chances[at]
        out.rewards[:], out.terminated[:] = self._rewards[at], self._ends[at]

    def observe(self, states: Places, out: NDArray[Any]) -> None:
        out[:] = states.places

    def infos(self, states: Places) -> Mapping[str, NDArray[Any]]:
        found: dict[str, NDArray[Any]] = {"prob": states.chances}
        if self._masks is not None:
            found["action_mask"] = self._masks[states.places]
        return found

    def store(self, states: Places, fresh: Row) -> None:
        words, at = fresh.view(np.int64), HEADER_NBYTES // 8
        words[:, at], words[:, at + 1] = states.places, states.actions
        at = self._generator_at // 8
        words[:, at : at + 4] = states.generators.view(np.int64).T


class ToyTextSimulator(GymnasiumSimulator):
    """A simulator of FrozenLake, CliffWalking, Taxi or Blackjack.

    The arguments are as in `GymnasiumSimulator`.
    """

    family = "TOYT"
    other_ways = ("pickle", "replay")
    # Episodes are short, and resets of rows take longer than those of an environment.
    fewest_rows = 64
    codec: GridCodec | BlackjackCodec

    def make_codec(self) -> GridCodec | BlackjackCodec:
        """Reset the game, and return its codec.

        Raises
        ------
        SnapshotError
            The class is not one of the four: a subclass may have more state. Or the map of a
            FrozenLake is a random one.
        """
        kind = type(self.base)
        if kind not in CODECS:
            raise SnapshotError(
                f"{qualified_name(kind)} is not one of Gymnasium's toy text environments; use "
                "plangym_like.PickledEnv for it"
            )
        given = {} if self.base.spec is None else self.base.spec.kwargs
        if "map_name" in given and given["map_name"] is None and given.get("desc") is None:
            raise SnapshotError(
                "FrozenLake was made with a random map, which is another one in each process, and "
                "which no state row holds; give the map as desc=generate_random_map()"
            )
        self.reset_once()
        return CODECS[kind](self.base)

    def make_kernel(self, kind: str) -> Kernel | None:
        """Return the kernel that steps rows with a table, if there is one."""
        codec = self.codec
        if not isinstance(codec, GridCodec) or not codec.has_table:
            return None
        return TableBlocks(self)

    def configuration(self) -> tuple[Any, ...]:
        return (vars(self.base).get("P"),)


class ToyTextEnv(FamilyEnv):
    """A `PlanEnv` of FrozenLake, CliffWalking, Taxi or Blackjack.

    >>> env = ToyTextEnv("CliffWalking-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> env.step_batch([0, 1, 2, 3], state).obs
    array([24, 36, 36, 36])
    """

    simulator_class = ToyTextSimulator


def next_doubles(generators: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Advance N generators, and return the numbers ``(N,)`` that ``Generator.random`` returns.

    Parameters
    ----------
    generators : array ``(4, N) uint64``
        The first four words of `save_generator` of each generator; changed in place.

    Examples
    --------
    >>> from plangym_like.states.random_state import save_generator, seeded_generator
    >>> made = [seeded_generator(seed) for seed in range(3)]
    >>> saved = b"".join(map(save_generator, made))
    >>> words = np.frombuffer(saved, np.uint64).reshape(3, 5)[:, :4].T.copy()
    >>> next_doubles(words).tolist() == [generator.random() for generator in made]
    True
    """
    low, high, added_low, added_high = generators
    # The 128-bit position times the 128-bit multiplier: the upper word of the product of the lower
    # words is computed from their halves.
    first, second = low & _LOW_HALF, low >> _HALF
    cross, other = first * _FACTORS[1], second * _FACTORS[0]
    carried = first * _FACTORS[0] >> _HALF
    carried += cross & _LOW_HALF
    carried += other & _LOW_HALF
    high *= _LOW_FACTOR
    high += low * _HIGH_FACTOR
    high += second * _FACTORS[1]
    high += cross >> _HALF
    high += other >> _HALF
    high += carried >> _HALF
    low *= _LOW_FACTOR
    low += added_low
    high += added_high
    high += low < added_low
    word, turn = high ^ low, high >> np.uint64(58)
    word = word >> turn | word << (-turn & np.uint64(63))
    draws: NDArray[np.float64] = (word >> np.uint64(11)) * 2.0**-53
    return draws
