"""Corrections for games whose states ALE saves incompletely (as of ale-py 0.12.1).

For each game, ALE has "settings": code that counts the score and detects the end of the game. Some
of these settings have more state than ALE saves.
"""

from __future__ import annotations

import struct

import numpy as np
from ale_py import ALEInterface, ALEState
from numpy.typing import NDArray


class GolfCounts:
    """The five counters of ALE's settings for Miniature Golf.

    ALE saves them as booleans but loads them as numbers, so a restored state would give rewards of
    billions of strokes. This class keeps the counters itself, by the rules of
    ``MiniatureGolfSettings::step``, and writes them into saved states, from which ALE loads them.
    """

    _FIELDS = struct.Struct("<5i")
    # The counters end three words before the end of the state.
    _END = -12

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Set the counters to their values at the beginning of a game."""
        self._level = self._par = self._wrapped = self._strokes = self._before = 0

    def follow(self, ram: NDArray[np.uint8]) -> None:
        """Update the counters from `ram`, the console's memory after a frame."""
        shown, other, level = (_decimal(ram[address]) for address in (0x07, 0x08, 0x2F))
        if level != self._level:
            self._level, self._wrapped, self._before = level, 0, self._strokes
        if other:
            self._par = other
            return
        if shown < self._strokes:
            self._wrapped += self._strokes
        self._strokes = shown

    def written_into(self, saved: bytes) -> bytes:
        """Return `saved`, an emulator's serialised state, with these counters written into it."""
        counts = (self._level, self._par, self._wrapped, self._strokes, self._before)
        start = self._END - self._FIELDS.size
        return saved[:start] + self._FIELDS.pack(*counts) + saved[self._END :]

    def read_from(self, saved: bytes) -> None:
        """Read the counters from `saved`, an emulator's serialised state."""
        self._level, self._par, self._wrapped, self._strokes, self._before = (
            self._FIELDS.unpack_from(saved, len(saved) + self._END - self._FIELDS.size)
        )


class LastTimer:
    """Gives ALE the timer's value in the previous frame, which tells ALE whether the time is up.

    The time is up when the timer changes from 255 to 0. States do not include the value in the
    previous frame. So a frame that ends with the right value is run before a state is restored.

    Parameters
    ----------
    ale : ALEInterface
        An emulator in the middle of a game. The constructor changes its state and restores it.
    address : int
        The timer's address in the console's memory.
    """

    def __init__(self, ale: ALEInterface, address: int) -> None:
        self._address = address
        present = ale.cloneState()
        self._before_early = self._before_a(0, ale)
        self._before_late = self._before_a(255, ale)
        ale.restoreState(present)

    def _before_a(self, timer: int, ale: ALEInterface) -> ALEState:
        """Return a state from which the next frame ends with the timer at the value `timer`."""
        while True:
            ale.setRAM(self._address, timer)
            state = ale.cloneState()
            ale.act(0)
            if ale.getRAM()[self._address] == timer:
                return state

    def recall(self, ale: ALEInterface) -> None:
        """Run a frame after which ALE remembers 255 if the timer is now 255, and otherwise 0.

        Only 255 must be told apart from other values. The emulator's state changes.
        """
        late = ale.getRAM()[self._address] == 255
        ale.restoreState(self._before_late if late else self._before_early)
        ale.act(0)


# Game -> the address of the timer that ALE compares with its value in the previous frame.
TIMERS = {"hangman": 0x71, "video_cube": 0x5B}


def _decimal(byte: int) -> int:
    """Return the number that `byte` encodes as two binary-coded decimal digits."""
    return (int(byte) >> 4) * 10 + (int(byte) & 0xF)
