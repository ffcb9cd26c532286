"""Parts of an emulator's state that ALE 0.12.1 neither saves nor restores.

- *An unfinished frame.* A frame ends when the game synchronises the screen or has drawn too many
  lines. If neither happens within 25,000 instructions, or if an instruction is illegal, the frame
  stays unfinished, and the next frame continues it. ALE keeps a flag for this, but does not save
  the flag in states.
- *Banks.* With cartridges of type E0, ALE does not select the program banks of a restored state.
  Every frame of a game ends with the same banks, but a forged row may have other banks.
- *Masks.* The video chip draws objects at positions given by masks; see `Positions`.
- *Damage.* When ALE rejects a state, the state may already have overwritten the game's program.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable

from ale_py import ALEInterface, ALEState

from plangym_like.errors import SnapshotError, StateFormatError

_STOPPED, _FATAL = 0x01, 0x02
# Between the processor's name and its status, there are six registers and seven flags (one word
# each).
PROCESSOR, _STATUS_AFTER_NAME = re.compile(rb"M6502(Low|High)"), 4 * 13
# The random generator follows this name and a 4-byte number. It is saved as a length and a text.
_SYSTEM = re.compile(rb"System.{4}", re.DOTALL)
# The position of the length of the devices' states, which include the generator.
_DEVICES = slice(24, 28)
# A count and four banks follow the name.
_BANKED = re.compile(rb"CartridgeE0.{20}", re.DOTALL)
_TRIES = 1000


class Leftovers:
    """Saves the states of one emulator, and restores them exactly.

    Most of a state is the text of a random generator, which the emulator uses only when it is
    reset. Parsing this text takes 22 of the 27 us of a restore. If the emulator's generator is
    already in the right state, ALE gets the state without the text.

    ALE has a flag that says whether the last frame is unfinished. The flag is not saved, but its
    value follows from the processor's status, which is in every state. It cannot be set directly,
    so if it has the wrong value, a frame that gives it the right one is run before a restore.

    Parameters
    ----------
    ale : ALEInterface
        The emulator, with a game loaded.
    beginning : bytes
        The serialised state after a reset, from which frames are run.
    load : callable
        Loads the game again.

    Attributes
    ----------
    shortest : int
        The minimum size of a serialised state in bytes.
    """

    def __init__(self, ale: ALEInterface, beginning: bytes, load: Callable[[], object]) -> None:
        self._ale, self._beginning, self._load = ale, beginning, load
        processor, banks = PROCESSOR.search(beginning), _BANKED.search(beginning)
        assert processor is not None
        # The generator's text may have any length, so places after it are counted from the end.
        end = len(beginning)
        self._status = processor.end() + _STATUS_AFTER_NAME - end
        start, stop = (end, end) if banks is None else banks.span()
        self._banks = slice(start - end, stop - end)
        self.shortest = -min(self._status, self._banks.start)
        self._usual_banks = beginning[self._banks]
        # A halted processor runs nothing, so its frame stays unfinished.
        halted = bytearray(beginning)
        halted[self._status] = _FATAL
        self._halted = bytes(halted)
        # The number of the last frame, and 1 if that frame was finished, else 0. `None` if unknown.
        self._known: tuple[int, int] | None = None
        self._damaged = False
        system = _SYSTEM.search(beginning)
        assert system is not None
        # The generator's text and its length. The 4-byte length of the processor's name follows.
        self._generator = slice(system.end(), processor.start() - 4 - end)
        # The emulator's generator when its state was last saved.
        self._held = beginning[self._generator]
        self._omits_generator = self._can_omit_generator(beginning)

    def save(self) -> bytes:
        """Return the emulator's state, serialised."""
        ale = self._ale
        saved: bytes = ale.cloneState().serialize()
        self._held = saved[self._generator]
        self._known = ale.getFrameNumber(), saved[self._status] & _STOPPED
        if saved[self._banks] != self._usual_banks:
            self._damaged = True
        return saved

    def restore(self, saved: bytes) -> None:
        """Restore the serialised state `saved`, and the flag and banks that ALE does not restore.

        Raises
        ------
        StateFormatError
            The emulator rejects the state.
        """
        finished = saved[self._status] & _STOPPED
        if self._damaged or self._known != (self._ale.getFrameNumber(), finished):
            self.prepare(finished)
        if self._omits_generator and saved[self._generator] == self._held:
            saved = self._without_generator(saved)
        self.load(saved)

    def load(self, saved: bytes) -> None:
        """Restore the serialised state `saved` alone, without the preparation that `restore` adds.

        Afterwards, the next `prepare` saves the emulator's state to see how its last frame ended.
        """
        self._known = None
        try:
            self._ale.restoreState(ALEState(saved))
        except (SystemError, ValueError, RuntimeError) as error:
            self._damaged = True
            raise StateFormatError(
                "a state row is damaged, or was not made by this library: its checksum matches, "
                f"but the emulator rejects it ({error})"
            ) from error

    def forget(self) -> None:
        """Discard the record of the last frame, so that the next `prepare` queries the emulator."""
        self._known = None

    def are_as_at_the_beginning(self) -> bool:
        """Return whether the initial state can be restored without preparation."""
        self.save()
        ready = not self._damaged and self._is(self._beginning[self._status] & _STOPPED)
        self._known = None
        return ready

    def prepare(self, finished: int) -> None:
        """Prepare to restore a state; `finished` says whether that state's last frame was finished.

        This may run frames, and so change the emulator's state.
        """
        ale = self._ale
        if self._known is None or self._known[0] != ale.getFrameNumber():
            self.save()
        if self._damaged:
            self._known = None
            self._load()
            ale.reset_game()
            self._damaged = False
            self.save()
        if self._is(finished):
            return
        self.load(self._beginning if finished else self._halted)
        for _ in range(_TRIES):
            ale.act(0)
            self.save()
            if self._is(finished):
                return
        raise SnapshotError(
            "states of this game cannot be restored: a restore must follow a frame that the game "
            f"{'finishes' if finished else 'leaves unfinished'}, and there was no such frame among "
            f"{_TRIES} frames after a reset. Try snapshot='replay'"
        )

    def _is(self, finished: int) -> bool:
        return self._known is not None and self._known[1] == finished

    def _without_generator(self, saved: bytes) -> bytes:
        """Return the serialised state `saved` with an empty text for the random generator.

        ALE cannot parse an empty text, so it leaves the emulator's generator as it is.
        """
        place = self._generator
        nbytes = int.from_bytes(saved[_DEVICES], "little") - len(saved[place]) + 4
        # In a forged row, the length may be too small, so that it becomes negative here. ALE
        # rejects negative lengths.
        length = (nbytes % 2**32).to_bytes(4, "little")
        before = saved[: _DEVICES.start] + length + saved[_DEVICES.stop : place.start]
        return before + bytes(4) + saved[place.stop :]

    def _can_omit_generator(self, saved: bytes) -> bool:
        """Return whether this build of ALE restores `saved` without the text as it does with it.

        Afterwards, the emulator is in the state `saved`.
        """

        def restored(state: bytes) -> bytes:
            self._ale.act(0)
            self._ale.restoreState(ALEState(state))
            again: bytes = self._ale.cloneState().serialize()
            return again

        whole, without = restored(saved), b""
        with contextlib.suppress(SystemError, ValueError, RuntimeError):
            without = restored(self._without_generator(saved))
        self._ale.restoreState(ALEState(saved))
        return without == whole
