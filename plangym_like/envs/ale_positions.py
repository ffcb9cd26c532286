"""`Positions`: moves an emulator's objects to the positions that they have in a saved state."""

from __future__ import annotations

import re
import struct

from plangym_like.envs.ale_leftovers import PROCESSOR

# Matches the names of the processor, the memory and the video chip. Each part's data follow its
# name; the memory's data are a count of 128, and then 128 bytes, one word each.
_CHIPS = re.compile(
    PROCESSOR.pattern + rb"(?P<processor>).*M6532\x80\0\0\0(?P<ram>).{512}.*?TIA(?P<video>)",
    re.DOTALL,
)
# Byte offsets from the end of the chip's name: the program counter; the playfield's control
# register; the five registers of horizontal motion.
_COUNTER, _CONTROL, _MOTION = 4 * 5, 4 * 17, slice(4 * 30, 4 * 35)
# A program for the first address of RAM: set VSYNC, wait for the next line, write CTRLPF (its value
# is inserted between the two parts) and HMOVE, wait for three lines, clear VSYNC (which ends the
# frame), and loop forever.
_BEFORE, _AFTER = (
    bytes.fromhex("a902 8500 8502 a9"),
    bytes.fromhex("850a 852a 8502 8502 8502 a900 8500 4c9600"),
)
_ADDRESS = 0x80


class Positions:
    """Moves the five objects of an emulator (two players, two missiles, a ball) to new positions.

    ALE draws the objects, and detects their collisions, with masks that it computes when a game
    writes to registers such as HMOVE. A state holds the positions but not the masks, and a restore
    does not compute the masks. In the first frame after a restore, objects are therefore drawn
    where they were before the restore, until the game writes to the registers. Most games write to
    them before they draw.

    Parameters
    ----------
    saved : bytes
        Any serialised state of the game.
    """

    def __init__(self, saved: bytes) -> None:
        # The state begins with text of any length, so places are counted from the end.
        found = _CHIPS.search(saved)
        assert found is not None
        self._counter = found.start("processor") + _COUNTER - len(saved)
        self._ram = found.start("ram") - len(saved)
        self._video = found.start("video") - len(saved)

    def placing(self, saved: bytes) -> bytes:
        """Return a state from which one frame computes the masks of the state `saved`.

        That frame runs a program that writes to HMOVE, and to CTRLPF its value in `saved`.
        """
        placing, begin = bytearray(saved), len(saved)
        program = _BEFORE + saved[begin + self._video + _CONTROL :][:1] + _AFTER
        words = struct.pack(f"<{len(program)}I", *program)
        at = begin + self._ram
        placing[at : at + len(words)] = words
        at = begin + self._counter
        placing[at : at + 4] = struct.pack("<I", _ADDRESS)
        at = begin + self._video
        placing[at + _MOTION.start : at + _MOTION.stop] = bytes(4 * 5)
        return bytes(placing)
