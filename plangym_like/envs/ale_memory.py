"""What ALE's saved states lack in some games (as of ale-py 0.12.1), and how it is made up for.

Besides the console's state, each game has a referee in ALE that counts the score and tells when the
game is over. Some referees remember more than they save.
"""

from __future__ import annotations

import struct

import numpy as np
from ale_py import ALEInterface, ALEState
from numpy.typing import NDArray


class GolfCounts:
    """The five counts of Miniature Golf's referee.

    ALE saves them as truth values but loads them as numbers, so a restored state would earn rewards
    of some thousand million strokes. Here they are counted once more, by the rules of
    ``MiniatureGolfSettings::step``, and put into what is saved, where ALE then finds them.
    """

    _FIELDS = struct.Struct("<5i")
    # They end three words before the state does.
    _END = -12

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin a game."""
        self._level = self._par = self._wrapped = self._strokes = self._before = 0

    def follow(self, ram: NDArray[np.uint8]) -> None:
        """Count what happened in a frame that has led to this memory of the console."""
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
        """Return an emulator's serialised state with these counts."""
        counts = (self._level, self._par, self._wrapped, self._strokes, self._before)
        start = self._END - self._FIELDS.size
        return saved[:start] + self._FIELDS.pack(*counts) + saved[self._END :]

    def read_from(self, saved: bytes) -> None:
        """Take the counts over from a serialised state."""
        self._level, self._par, self._wrapped, self._strokes, self._before = (
            self._FIELDS.unpack_from(saved, len(saved) + self._END - self._FIELDS.size)
        )


class LastTimer:
    """The timer of the frame before, by which a referee tells that the time is over.

    It is over when 255 is followed by 0. No state holds the 255 of the frame before, so a frame
    that has it, or that has it not, is run before a state is restored.

    Parameters
    ----------
    ale : ALEInterface
        In play; its state is restored afterwards.
    address : int
        Where the timer is in the console's memory.
    """

    def __init__(self, ale: ALEInterface, address: int) -> None:
        self._address = address
        present = ale.cloneState()
        self._before_early = self._before_a(0, ale)
        self._before_late = self._before_a(255, ale)
        ale.restoreState(present)

    def _before_a(self, timer: int, ale: ALEInterface) -> ALEState:
        """Return a state whose next frame ends with this timer."""
        while True:
            ale.setRAM(self._address, timer)
            state = ale.cloneState()
            ale.act(0)
            if ale.getRAM()[self._address] == timer:
                return state

    def recall(self, ale: ALEInterface) -> None:
        """Run a frame after which the referee knows the present timer as the last one."""
        late = ale.getRAM()[self._address] == 255
        ale.restoreState(self._before_late if late else self._before_early)
        ale.act(0)


# Where the timer is that a referee compares with that of the frame before.
TIMERS = {"hangman": 0x71, "video_cube": 0x5B}


def _decimal(byte: int) -> int:
    """Return what a byte of two decimal digits says."""
    return (int(byte) >> 4) * 10 + (int(byte) & 0xF)
