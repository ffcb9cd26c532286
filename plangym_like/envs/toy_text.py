"""Gymnasium's toy text: FrozenLake, CliffWalking, Taxi and Blackjack, in rows of about 100 bytes.

What is the state: the few attributes that ``step`` changes, and the generator. The tables that
the games are played by (maps, probabilities, rewards) never change and are part of the rows'
fingerprint; only a lake that was drawn at random when it was made travels in its rows, since
every process draws another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from numpy.typing import NDArray

from plangym_like import random_state
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.envs.toy_text_games import GAMES
from plangym_like.errors import SnapshotError
from plangym_like.plan_env import PlanEnv
from plangym_like.snapshots.configuration import qualified_name
from plangym_like.snapshots.known_wrappers import chain
from plangym_like.states import Row, padded

_SILENT = (OrderEnforcing, PassiveEnvChecker, TimeLimit)


class ToyTextSimulator(GymnasiumSimulator):
    """FrozenLake, CliffWalking, Taxi or Blackjack; the arguments are `GymnasiumSimulator`'s.

    Raises
    ------
    SnapshotError
        The environment is none of the four (a subclass may remember more than they do).
    """

    family = "TOYT"

    def prepare(self) -> None:
        """Find out which game it is, and reset it once."""
        kind = type(self.base)
        if kind not in GAMES:
            raise SnapshotError(
                f"{qualified_name(kind)} is none of Gymnasium's toy text environments; plan over "
                "it with plangym_like.PickledEnv"
            )
        self._game = GAMES[kind](self.base)
        if all(type(wrapper) in _SILENT for wrapper in chain(self.env)):
            self.plain_infos = False
            self.columns = {
                name: (shape, np.dtype(dtype))
                for name, (shape, dtype) in self._game.columns.items()
            }
        super().prepare()
        self._first = np.zeros(1, self._game.layout)
        self._game.read(self._first[0])

    # What is the state

    def base_nbytes(self) -> int:
        """Return the size of the game's fields."""
        return self._game.layout.itemsize

    def meaning(self) -> Mapping[str, Any]:
        """Return id, arguments, wrappers and version, and the table that the game is played by."""
        return {**super().meaning(), "game": self._game.meaning()}

    def fields(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return the game's parts, each ``(N, ...)``, and the wrappers'.

        ``s``, ``row``, ``column`` on the grids; ``taxi_row``, ``taxi_column``, ``passenger``,
        ``destination``, ``fickle_step`` in Taxi; ``player`` and ``dealer`` (cards, zeros behind
        them), ``player_sum``, ``dealer_sum``, ``usable_ace`` in Blackjack; ``lastaction`` is -1
        after a reset.
        """
        layout = self._game.layout
        fields = np.ascontiguousarray(payloads[:, : layout.itemsize]).view(layout)[:, 0]
        behind = padded(layout.itemsize)
        return {**self._game.named(fields), **self.memory.fields(payloads[:, behind:])}

    def compose(self, payload: Row, **physics: Any) -> None:
        """Set ``s`` or its parts (see `fields`); in Blackjack ``player`` and ``dealer``.

        Raises
        ------
        InputError
            A name that the game does not have, or a value that it cannot be.
        """
        layout = self._game.layout
        self._game.compose(payload[: layout.itemsize].view(layout)[0], **physics)

    # How is it read

    def read_base(self, payload: Row) -> None:
        """Write fields and generator into `payload`."""
        layout = self._game.layout
        fields = payload[: layout.itemsize].view(layout)[0]
        self._game.read(fields)
        memory = random_state.save_generator(self.base._np_random)
        payload[: random_state.GENERATOR_NBYTES] = np.frombuffer(memory, np.uint8)
        payload[layout.itemsize :] = 0

    def renew(self) -> None:
        """Have the map, if it is drawn at random, be the one that was drawn here."""
        super().renew()
        self._game.write(self._first[0])

    # How is it written

    def write_base(self, payload: Row) -> None:
        """Set fields and generator; nothing has changed if they are damaged."""
        layout = self._game.layout
        self._game.write(payload[: layout.itemsize].view(layout)[0])
        base = self.base
        memory = payload[: random_state.GENERATOR_NBYTES]
        base._np_random = random_state.load_generator(memory, base._np_random)


class ToyTextEnv(PlanEnv):
    """Plan over FrozenLake, CliffWalking, Taxi or Blackjack.

    >>> env = ToyTextEnv("CliffWalking-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> env.step_batch([0, 1, 2, 3], state).obs
    array([24, 36, 36, 36])
    """

    simulator_class = ToyTextSimulator
