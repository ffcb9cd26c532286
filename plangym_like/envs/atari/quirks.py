"""What single games need, because ALE saves their states incompletely (as of ale-py 0.12.1).

`QUIRKS` is the table of these games; all other games need nothing.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter

import numpy as np
from ale_py import ALEInterface
from ale_py.env import AtariEnv as AleEnv

# Matches the names of the processor, the memory and the video chip in a serialised state. Each
# part's data follow its name; the memory's data are a count of 128, and then 128 bytes, one word
# each. The state begins with text of any length, so places are counted from the end.
_CHIPS = re.compile(
    rb"M6502(Low|High)(?P<processor>).*M6532\x80\0\0\0(?P<ram>).{512}.*?TIA(?P<video>)",
    re.DOTALL,
)


class Quirk:
    """What one game needs. Each method is called at a certain time; here, it does nothing.

    Parameters
    ----------
    env : ale_py.env.AtariEnv
        The environment of the game. The constructor may play, and then loads the game again.

    Attributes
    ----------
    restores_first : bool
        Whether a step must start from a restored state, so that it gives what a step from the row
        of this state gives. If no row is saved, ``env.step`` of Gymnasium's API need not.
    follows_frames : bool
        Whether `after_frame` must be called.
    """

    restores_first = False
    follows_frames = False

    def __init__(self, env: AleEnv) -> None:
        self._ale = env.ale

    def lives(self) -> int:
        """Return the number of lives, even if no frame has run since a state was restored."""
        return self._ale.lives()

    def after_reset(self) -> None:
        """Begin a new game."""

    def after_frame(self) -> None:
        """Read the emulator after a frame."""

    def completed(self, saved: bytes) -> bytes:
        """Return `saved`, the emulator's serialised state, with what ALE has not saved."""
        return saved

    def preludes(self, saved: bytes) -> Sequence[tuple[bytes, int]]:
        """Return what to do before the state `saved` is restored.

        Each item is a state to restore, and the number of no-op frames to run from it.
        """
        return ()

    def after_restore(self, saved: bytes) -> None:
        """Read what `completed` has written into the state `saved`, which was restored."""


class RoundedClock(Quirk):
    """Saving rounds the phase of a clock, so steps start from a state that was saved."""

    restores_first = True


class LivesInMemory(Quirk):
    """ALE's own number of lives belongs to the last frame that ran, not to a restored state.

    The number is at `address` of the console's memory.
    """

    def __init__(self, env: AleEnv, address: int) -> None:
        super().__init__(env)
        self.address = address

    def lives(self) -> int:
        ale = self._ale
        return 0 if ale.game_over(with_truncation=False) else int(ale.getRAM()[self.address])


class PartlyDrawn(Quirk):
    """The game draws only parts of the frame buffers, which ALE does not save.

    A frame can show pixels from before a restore. So that results depend only on the restored
    state, a few `frames` are run from a fixed state before every restore.
    """

    restores_first = True

    def __init__(self, env: AleEnv, frames: int = 2) -> None:
        super().__init__(env)
        with _in_play(env) as ale:
            self._prelude = ale.cloneState().serialize(), frames

    def preludes(self, saved: bytes) -> Sequence[tuple[bytes, int]]:
        return (self._prelude,)


class PartlyPlaced(PartlyDrawn):
    """The game also draws objects before it writes to the registers that position them.

    ALE draws the five objects (two players, two missiles, a ball), and detects their collisions,
    with masks that it computes when a game writes to registers such as HMOVE. A state holds the
    positions but not the masks, and a restore does not compute the masks. In the first frame after
    a restore, objects are therefore drawn where they were before the restore, until the game writes
    to the registers. Most games write to them before they draw. In this one, memory was wrong after
    6 of 6,000 restores; in every other game, after none of 6,000.

    So before a restore, one frame of a state like it computes the masks. That frame runs a program
    that writes to HMOVE, and to CTRLPF its value in the state.
    """

    # Byte offsets from the end of the chip's name: the program counter; the playfield's control
    # register; the five registers of horizontal motion.
    _COUNTER, _CONTROL, _MOTION = 4 * 5, 4 * 17, slice(4 * 30, 4 * 35)
    # A program for the first address of RAM: set VSYNC, wait for the next line, write CTRLPF (its
    # value is inserted between the two parts) and HMOVE, wait for three lines, clear VSYNC (which
    # ends the frame), and loop forever.
    _BEFORE, _AFTER = (
        bytes.fromhex("a902 8500 8502 a9"),
        bytes.fromhex("850a 852a 8502 8502 8502 a900 8500 4c9600"),
    )
    _ADDRESS = 0x80

    def __init__(self, env: AleEnv) -> None:
        super().__init__(env)
        self._chips = _chips(self._prelude[0])

    def preludes(self, saved: bytes) -> Sequence[tuple[bytes, int]]:
        placing, begin = bytearray(saved), len(saved)
        processor, ram, video = (begin + place for place in self._chips)
        program = self._BEFORE + saved[video + self._CONTROL :][:1] + self._AFTER
        placing[ram : ram + 4 * len(program)] = struct.pack(f"<{len(program)}I", *program)
        at = processor + self._COUNTER
        placing[at : at + 4] = struct.pack("<I", self._ADDRESS)
        motion = self._MOTION
        placing[video + motion.start : video + motion.stop] = bytes(motion.stop - motion.start)
        return self._prelude, (bytes(placing), 1)


class LastTimer(Quirk):
    """ALE compares a timer with its value in the previous frame, which no state holds.

    The time is up when the timer changes from 255 to 0. So before a restore, a frame is run that
    ends with the timer at 255 if it is 255 in the restored state, and otherwise at 0: ALE need not
    tell apart other values.

    Parameters
    ----------
    address : int
        The timer's address in the console's memory.
    """

    def __init__(self, env: AleEnv, address: int) -> None:
        super().__init__(env)
        self.address = address
        with _in_play(env):
            self._early, self._late = self._state_before(0), self._state_before(255)
        _, ram, _ = _chips(self._early)
        self._place = ram + 4 * address

    def _state_before(self, timer: int) -> bytes:
        """Return a state from which the next frame ends with the timer at the value `timer`."""
        ale = self._ale
        while True:
            ale.setRAM(self.address, timer)
            state: bytes = ale.cloneState().serialize()
            ale.act(0)
            if ale.getRAM()[self.address] == timer:
                return state

    def preludes(self, saved: bytes) -> Sequence[tuple[bytes, int]]:
        return ((self._late if saved[self._place] == 255 else self._early, 1),)


class GolfCounts(Quirk):
    """The five counters of ALE's code for the score of Miniature Golf.

    ALE saves them as booleans but loads them as numbers, so a restored state would give rewards of
    billions of strokes. This class keeps the counters itself, by the rules of
    ``MiniatureGolfSettings::step``, and writes them into saved states, from which ALE loads them.
    """

    follows_frames = True
    _FIELDS = struct.Struct("<5i")
    # The counters end three words before the end of the state.
    _END = -12
    # Where the strokes shown, the par and the level are in the console's memory.
    _SHOWN = itemgetter(0x07, 0x08, 0x2F)

    def __init__(self, env: AleEnv) -> None:
        super().__init__(env)
        self._ram = np.zeros(128, np.uint8)
        self._bytes = self._ram.data
        self.after_reset()

    def after_reset(self) -> None:
        self._level = self._par = self._wrapped = self._strokes = self._before = 0
        self._last: tuple[int, ...] = ()

    def after_frame(self) -> None:
        self._ale.getRAM(self._ram)
        read = self._SHOWN(self._bytes)
        if read == self._last:  # nothing to count, as after most frames
            return
        self._last = read
        shown, other, level = map(_decimal, read)
        if level != self._level:
            self._level, self._wrapped, self._before = level, 0, self._strokes
        if other:
            self._par = other
            return
        if shown < self._strokes:
            self._wrapped += self._strokes
        self._strokes = shown

    def completed(self, saved: bytes) -> bytes:
        counts = (self._level, self._par, self._wrapped, self._strokes, self._before)
        start = self._END - self._FIELDS.size
        return saved[:start] + self._FIELDS.pack(*counts) + saved[self._END :]

    def after_restore(self, saved: bytes) -> None:
        self._level, self._par, self._wrapped, self._strokes, self._before = (
            self._FIELDS.unpack_from(saved, len(saved) + self._END - self._FIELDS.size)
        )
        self._last = ()


QUIRKS: dict[str, Callable[[AleEnv], Quirk]] = {
    "air_raid": PartlyDrawn,
    "amidar": PartlyDrawn,
    "atlantis2": partial(LivesInMemory, address=0x71),
    "hangman": partial(LastTimer, address=0x71),
    "koolaid": PartlyDrawn,
    "krull": PartlyDrawn,
    "miniature_golf": GolfCounts,
    "pitfall2": RoundedClock,
    "qbert": PartlyDrawn,
    "tetris": PartlyDrawn,
    # While it computes its move, it draws only a part of the second buffer.
    "tic_tac_toe_3d": partial(PartlyDrawn, frames=4),
    "trondead": PartlyDrawn,
    "video_checkers": PartlyDrawn,
    "video_cube": partial(LastTimer, address=0x5B),
    "yars_revenge": PartlyPlaced,
}
# The addresses of the player's position in memory: game -> info key -> address. They were found by
# playing the game. Rooms are numbered as on the game's map, from 1; x grows to the right and y
# upward, in pixels.
PLACES = {"montezuma_revenge": {"room": 3, "x": 42, "y": 43}}


@contextlib.contextmanager
def _in_play(env: AleEnv) -> Iterator[ALEInterface]:
    """Yield the emulator of `env` in the middle of play; afterwards, load the game again.

    The emulator's state is the same in every process.
    """
    ale = env.ale
    ale.setInt("random_seed", 0)
    env.load_game()
    ale.reset_game()
    for _ in range(64):
        ale.act(0)
    yield ale
    env.seed_game()
    env.load_game()


def _chips(saved: bytes) -> tuple[int, int, int]:
    """Return where the data of the processor, the memory and the video chip begin in `saved`.

    Places are counted from the end, so they are negative.
    """
    found = _CHIPS.search(saved)
    assert found is not None
    processor, ram, video = (found.start(name) for name in ("processor", "ram", "video"))
    return processor - len(saved), ram - len(saved), video - len(saved)


def _decimal(byte: int) -> int:
    """Return the number that `byte` encodes as two binary-coded decimal digits."""
    return (byte >> 4) * 10 + (byte & 0xF)
