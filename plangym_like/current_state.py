"""The current state of an environment, while its simulator is used for other states too."""

from __future__ import annotations

import contextlib
from typing import Any

from plangym_like.errors import StateLostError
from plangym_like.simulator import Simulator
from plangym_like.states import HEADER_NBYTES, Row, StateFormat


class CurrentState:
    """Knows where the current state of an environment is: in its simulator, or set aside as a row.

    Parameters
    ----------
    simulator : Simulator
    state_format : StateFormat
        The format of its rows.

    Attributes
    ----------
    row : array ``(state_nbytes,) uint8`` or None
        The current state if it is set aside; ``None`` while it is in the simulator.
    started : bool
        Whether there is one: a reset has happened, or a state has been set.
    lost : bool
        Whether the current state is gone, because a call that was to replace it raised half-way.
    """

    def __init__(self, simulator: Simulator, state_format: StateFormat) -> None:
        self._simulator = simulator
        self._format = state_format
        self.row: Row | None = None
        self.started = False
        self.lost = False
        # Whether the episode began with a reset, not with a given state.
        self._own = False
        self._picture: Any = None

    def check(self, name: str) -> None:
        """Raise `StateLostError` if the current state of the environment `name` is gone."""
        if self.lost:
            raise StateLostError(
                f"the current state of {name!r} is gone, because a call that was to replace it "
                "raised half-way: reset the environment or set a state"
            )

    def read(self) -> Row:
        """Return the simulator's state as a new row."""
        rows = self._format.new(1)
        self._simulator.save(rows[0])
        self._format.seal(rows)
        row: Row = rows[0]
        return row

    def set_aside(self) -> None:
        """Keep the current state as a row, so that the simulator can be used for other states."""
        if self.row is None and self.started and not self.lost:
            row = self.read()
            self._picture = self._simulator.keep_picture()
            self.row = row

    def restore(self) -> None:
        """Write the current state back to the simulator; `row` stays until `is_in_simulator`."""
        if self.row is not None:
            self._simulator.write(self.row[HEADER_NBYTES:])
            if self._picture is not None:
                self._simulator.give_picture(self._picture)

    def is_in_simulator(self) -> None:
        """Note that the simulator is in the current state."""
        self.row = self._picture = None

    def begins(self, *, own: bool) -> None:
        """Note that the simulator is in a new current state; `own`: after a reset."""
        self.row = self._picture = None
        self.started, self.lost, self._own = True, False, own

    def fails(self) -> None:
        """Note that the simulator is in no known state, after a call that raised half-way."""
        self.lost = self.started and self.row is None

    def write(self, row: Row) -> None:
        """Write `row` to the simulator.

        If that raises, an episode that began with a reset keeps its current state. An episode that
        began with a given state loses it: to set it aside at every step would slow down a search.
        """
        if self._own:
            self._try_to_set_aside()
        try:
            self._simulator.write(row[HEADER_NBYTES:])
        except BaseException:
            self.fails()
            raise

    def prepare_reset(self) -> None:
        """Set the current state aside, and have the simulator in it.

        A reset goes on with its generator and with what its wrappers remember. If there is no
        current state yet, the simulator is as it was when it was made; if the current state cannot
        be restored, the reset draws a fresh generator.
        """
        if self.started and not self.lost:
            if self.row is None:
                self._try_to_set_aside()
                return
            # A state that cannot be restored must not prevent a reset.
            with contextlib.suppress(Exception):
                self.restore()
                return
        self._simulator.renew()

    def _try_to_set_aside(self) -> None:
        # A state that has outgrown its row cannot be kept, but it can be left.
        with contextlib.suppress(Exception):
            self.set_aside()
