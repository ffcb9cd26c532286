"""Gymnasium's toy text: FrozenLake, CliffWalking, Taxi and Blackjack, in rows of about 100 bytes.

The state consists of the few attributes that ``step`` changes, and the random generator. The tables
of a game (maps, probabilities, rewards) never change and are part of the rows' fingerprint. There
is one exception: a FrozenLake map that was generated at random is stored in rows, because every
process generates a different one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.envs.codec import Codec
from plangym_like.envs.family_env import FamilyEnv
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.envs.toy_text_games import GAMES
from plangym_like.errors import SnapshotError
from plangym_like.snapshots.base_settings import AttributeSettings, ClassSettings, Settings
from plangym_like.snapshots.configuration import qualified_name
from plangym_like.states.rows import Row, padded


class ToyTextCodec(Codec):
    """Saves the fields of one game as a NumPy structure.

    Raises
    ------
    SnapshotError
        The class of the environment is not one of the four: a subclass may have more state.
    """

    def __init__(self, base: Any) -> None:
        kind = type(base)
        if kind not in GAMES:
            raise SnapshotError(
                f"{qualified_name(kind)} is not one of Gymnasium's toy text environments; use "
                "plangym_like.PickledEnv for it"
            )
        self._game = GAMES[kind](base)
        self.columns = {
            name: (shape, np.dtype(dtype)) for name, (shape, dtype) in self._game.columns.items()
        }
        self._used = self._game.layout.itemsize
        self.nbytes = padded(self._used)
        self._first = np.zeros(self.nbytes, np.uint8)

    def keep_first(self) -> None:
        """Keep a copy of the current state, because it holds the map of the first episode."""
        self.read(self._first)

    def fingerprint_fields(self) -> Mapping[str, Any]:
        """Return the fields that identify the tables of the game."""
        return {"game": self._game.fingerprint_fields(), "generator": "behind the game"}

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return the parts of the states by name, each ``(N, ...)``.

        - FrozenLake and CliffWalking: ``s``, ``row``, ``column``, ``lastaction``. FrozenLake adds
          ``desc`` if the map is random.
        - Taxi: ``s``, ``taxi_row``, ``taxi_column``, ``taxi_orientation``, ``passenger``,
          ``destination``, ``fickle_step``, ``lastaction``.
        - Blackjack: ``player`` and ``dealer`` (cards, then zeros), ``player_sum``,
          ``dealer_sum``, ``usable_ace``.

        ``lastaction`` is -1 after a reset.
        """
        fields = np.ascontiguousarray(payloads[:, : self._used]).view(self._game.layout)
        return self._game.named(fields[:, 0])

    def build_state(self, payload: Row, physics: Mapping[str, Any]) -> None:
        """Write the fields `physics` into `payload`; see `view` for their meaning.

        - FrozenLake and CliffWalking: ``s``, ``row``, ``column``, ``lastaction`` (-1 or ``None`` if
          there was no action yet).
        - Taxi: ``s``, ``taxi_row``, ``taxi_column``, ``passenger``, ``destination``,
          ``fickle_step``.
        - Blackjack: ``player``, ``dealer``.

        If ``s`` and parts of it, such as ``row``, are both given, the parts take precedence.
        """
        self._game.build_state(self._fields(payload), **physics)

    def read(self, payload: Row) -> None:
        self._game.read(self._fields(payload))
        payload[self._used :] = 0

    def write(self, payload: Row) -> None:
        """Restore the state in `payload`; raise `StateFormatError` if it is damaged."""
        self._game.write(self._fields(payload))

    def settings(self) -> Sequence[Settings]:
        env = self._game.env
        return AttributeSettings(env, but=self._game.changing), ClassSettings(type(env))

    def renew(self) -> None:
        """Restore the state that `keep_first` kept, and with it the map of the first episode."""
        self._game.write(self._fields(self._first))

    def _fields(self, payload: Row) -> Any:
        return payload[: self._used].view(self._game.layout)[0]


class ToyTextSimulator(GymnasiumSimulator):
    """A simulator of FrozenLake, CliffWalking, Taxi or Blackjack.

    The arguments are as in `GymnasiumSimulator`.
    """

    family = "TOYT"
    other_ways = ("pickle", "replay")

    def make_codec(self) -> ToyTextCodec:
        """Reset the game once, and return its codec."""
        codec = ToyTextCodec(self.base)
        self.reset_once()
        codec.keep_first()
        return codec


class ToyTextEnv(FamilyEnv):
    """A `PlanEnv` of FrozenLake, CliffWalking, Taxi or Blackjack.

    >>> env = ToyTextEnv("CliffWalking-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> env.step_batch([0, 1, 2, 3], state).obs
    array([24, 36, 36, 36])
    """

    simulator_class = ToyTextSimulator
