"""ale-py's environment, changed so that everything that affects later steps can be saved.

`EmulatorStates` saves and restores what ALE 0.12.1 neither saves nor restores in any game: whether
the last frame is unfinished. A frame ends when the game synchronises the screen or has drawn too
many lines. If neither happens within 25,000 instructions, the frame stays unfinished, and the next
frame continues it. ALE keeps a flag for this, but does not save the flag in states.

What single games need besides is in `plangym_like.envs.atari.quirks`.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from ale_py import ALEInterface, ALEState, LoggerMode
from ale_py.env import AtariEnv as AleEnv
from numpy.typing import NDArray

from plangym_like.batch.arrays import Outcome
from plangym_like.envs.atari.quirks import PLACES, QUIRKS
from plangym_like.errors import SnapshotError, StateFormatError

_STOPPED, _FATAL = 0x01, 0x02
# Between the processor's name and its status, there are six registers and seven flags (one word
# each).
_PROCESSOR, _STATUS_AFTER_NAME = re.compile(rb"M6502(Low|High)"), 4 * 13
# The random generator follows this name and a 4-byte number. It is saved as a length and a text.
_SYSTEM = re.compile(rb"System.{4}", re.DOTALL)
# The position of the length of the devices' states, which include the generator.
_DEVICES = slice(24, 28)
_TRIES = 1000
# What ALE raises if it cannot parse a state.
_REJECTED = (SystemError, ValueError, RuntimeError)


class PlannableAle(AleEnv):
    """ale-py's environment, with sticky actions implemented in Python, not in the emulator.

    A saved state can therefore include the previous action and the random generator.

    Attributes
    ----------
    plain_frames : int
        The frameskip if actions are discrete and frames need nothing but the action; otherwise 0.
    previous : int
        The code of the last action.
    frames : int
        The number of frames that have run.
    settled : bool
        Whether a state was restored, and no frame has run since. The emulator's screen then shows
        another state.
    is_bare : bool
        Whether the environment has no wrappers, so that only its user calls `step`; steps of rows
        call `play`.
    image : array ``(height, width, 3) uint8``, optional
        The current image. If this is ``None``, it is on the screen, or unknown if `settled`.
    places : dict of str to int
        The addresses of the player's position in memory; see `PLACES`.
    """

    def __init__(
        self, *, repeat_action_probability: float, episodic_life: bool, **kwargs: Any
    ) -> None:
        # ale-py sets this too, but only after it has printed its banner.
        ALEInterface.setLoggerMode(LoggerMode.Error)
        super().__init__(repeat_action_probability=0.0, **kwargs)
        self.stickiness = repeat_action_probability
        self.episodic_life = episodic_life
        self.places = PLACES.get(self._game, {})
        self.codes = np.array([action.value for action in self._action_set])
        self.previous = self.frames = 0
        self.settled = self.is_bare = False
        # Whether, since the last frame, the state was saved or the game was reset.
        self._saved = True
        self.image: NDArray[np.uint8] | None = None
        quirk = self.quirk = QUIRKS[self._game](self) if self._game in QUIRKS else None
        self.ale.reset_game()
        beginning = self.ale.cloneState().serialize()
        if quirk is not None:
            beginning = quirk.completed(beginning)
        self._beginning = beginning, self.ale.getScreenRGB()
        self.states = EmulatorStates(self.ale, beginning)
        # Returns the number of lives, even if no frame has run since a state was restored.
        self.lives = self.ale.lives if quirk is None else quirk.lives
        self._restores_first = quirk is not None and quirk.restores_first
        follows = quirk is not None and quirk.follows_frames
        self._after_frame = quirk.after_frame if quirk is not None and follows else None
        plain = not (self.continuous or self.stickiness or follows)
        self.plain_frames = self._frameskip if plain and isinstance(self._frameskip, int) else 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        self.settled, self._saved = False, True
        self.image = None
        self.states.forget_frame()
        if seed is None:
            result = super().reset(options=options)
        else:
            result = self._begin(seed)
        self.previous = 0
        if self.quirk is not None:
            self.quirk.after_reset()
        return result

    def _begin(self, seed: int) -> tuple[Any, Any]:
        """Seed and reset the game; load the game again (0.1 s) only if necessary.

        An emulator without sticky actions draws no random numbers, so the game begins in the same
        state for every seed. A plain reset does not clear the frame counters, but restoring the
        initial state does. A plain reset does not clear the tone generators either. In a few games,
        such as Solaris and Berzerk, it also leaves behind memory that is visible on the screen.
        """
        seeds = self.seed_game(seed)
        self.ale.reset_game()
        state, screen = self._beginning
        same = np.array_equal(self.ale.getScreenRGB(), screen)
        if same and not self.sound_obs and self.states.are_as_at_the_beginning():
            self.states.load(state)
        else:
            self.load_game()
            self.ale.reset_game()
        info: Any = self._get_info()
        info["seeds"] = seeds
        return self._get_obs(), info

    # The emulator's state

    def clone(self) -> bytes:
        """Return the emulator's complete state, serialised."""
        self._saved = True
        saved = self.states.save()
        return saved if self.quirk is None else self.quirk.completed(saved)

    def restore(self, saved: bytes) -> None:
        """Restore the serialised state `saved` exactly, whichever frames ran before.

        Raises
        ------
        StateFormatError
            The emulator rejects the state.
        """
        quirk = self.quirk
        if quirk is None:
            self.states.restore(saved)
        else:
            preludes = quirk.preludes(saved)
            if preludes:
                self.states.prepare(True)
            for state, frames in preludes:
                self.states.load(state)
                for _ in range(frames):
                    self.ale.act(0)
            self.states.restore(saved)
            quirk.after_restore(saved)
        self.settled = True

    # Stepping

    def play(self, action: Any, dt: int, *, alone: bool = False) -> tuple[float, bool, bool, int]:
        """Hold `action` for `dt` times the frameskip, or until the game ends.

        Return the sum of the rewards, whether the episode has terminated and whether it was
        truncated, and the number of frames that ran. With `alone`, the result need not be that of
        a step from a row unless the state was saved; see `Quirk.restores_first`.
        """
        if self._restores_first and not self.settled and (self._saved or not alone):
            self.restore(self.clone())
        self.settled = self._saved = False
        self.image = None
        ale, episodic = self.ale, self.episodic_life
        before = self.lives() if episodic else 0
        if not self.plain_frames:
            reward, ran = self._hold_frame_by_frame(action, dt)
        else:
            act, over = ale.act, ale.game_over
            code, frames = self.codes.item(action), dt * self.plain_frames
            self.previous = code
            reward, ran = float(act(code)), 1
            while ran < frames and not over():
                reward += act(code)
                ran += 1
        self.frames += ran
        terminated = ale.game_over(with_truncation=False) or (episodic and self.lives() < before)
        return reward, terminated, ale.game_truncated(), ran

    def _hold_frame_by_frame(self, action: Any, dt: int) -> tuple[float, int]:
        """Hold `action`, for all games and options for which `plain_frames` is 0.

        Return the sum of the rewards, and the number of frames that ran.
        """
        if self.continuous:
            chosen, strength = self._joystick(action)
        else:
            chosen, strength = self.codes.item(action), 1.0
        act, over, skip = self.ale.act, self.ale.game_over, self._frameskip
        after_frame, stickiness = self._after_frame, self.stickiness
        draw = self.np_random.random if stickiness else None
        reward, ran = 0.0, 0
        for _ in range(dt):
            for _ in range(skip if isinstance(skip, int) else int(self.np_random.integers(*skip))):
                if draw is None or draw() >= stickiness:
                    self.previous = chosen
                reward += act(self.previous, strength)
                ran += 1
                if after_frame is not None:
                    after_frame()
                if over():
                    return reward, ran
        return reward, ran

    def _joystick(self, action: NDArray[Any]) -> tuple[int, float]:
        # ale-py's own environment accepts only single precision.
        radius, angle, fire = np.asarray(action, np.float32)
        limit = self.continuous_action_threshold
        x, y = radius * np.cos(angle), radius * np.sin(angle)
        event = self.map_action_idx(
            left_center_right=int(x > limit) - int(x < -limit),
            down_center_up=int(y > limit) - int(y < -limit),
            fire=fire > limit,
        )
        return event.value, radius

    def outcome(self, action: Any, dt: int, *, alone: bool = False) -> Outcome:
        """Hold `action`, and return what a step returns, and the number of frames that ran."""
        reward, terminated, truncated, frames = self.play(action, dt, alone=alone)
        return self._get_obs(), reward, terminated, truncated, self._get_info(), frames

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        return self.outcome(action, 1, alone=self.is_bare)[:5]

    def get_ram(self) -> NDArray[np.uint8]:
        """Return the console's memory, ``(128,) uint8``."""
        ram: NDArray[np.uint8] = self.ale.getRAM()
        return ram

    def _get_info(self) -> Any:
        info: Any = AleEnv._get_info(self)
        if self.places:
            ram = self.ale.getRAM()
            info.update((name, int(ram[address])) for name, address in self.places.items())
        return info


class EmulatorStates:
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

    Attributes
    ----------
    shortest : int
        The minimum size of a serialised state in bytes.
    """

    def __init__(self, ale: ALEInterface, beginning: bytes) -> None:
        self._ale, self._beginning = ale, beginning
        processor, system = _PROCESSOR.search(beginning), _SYSTEM.search(beginning)
        assert processor is not None and system is not None
        # The generator's text may have any length, so places after it are counted from the end.
        end = len(beginning)
        self._status = processor.end() + _STATUS_AFTER_NAME - end
        self.shortest = -self._status
        # A halted processor runs nothing, so its frame stays unfinished.
        halted = bytearray(beginning)
        halted[self._status] = _FATAL
        self._halted = bytes(halted)
        # The number of the last frame, and 1 if that frame was finished, else 0. `None` if unknown.
        self._known: tuple[int, int] | None = None
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
        return saved

    def restore(self, saved: bytes) -> None:
        """Restore the serialised state `saved`, and the flag that ALE does not restore.

        Raises
        ------
        StateFormatError
            The emulator rejects the state.
        """
        finished = saved[self._status] & _STOPPED
        if self._known != (self._ale.getFrameNumber(), finished):
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
        except _REJECTED as error:
            raise StateFormatError(
                "a state row is damaged, or was not made by this library: its checksum matches, "
                f"but the emulator rejects it ({error})"
            ) from error

    def forget_frame(self) -> None:
        """Discard the record of the last frame, so that the next `prepare` queries the emulator."""
        self._known = None

    def are_as_at_the_beginning(self) -> bool:
        """Return whether the initial state can be restored without preparation."""
        self.save()
        ready = self._is(self._beginning[self._status] & _STOPPED)
        self._known = None
        return ready

    def prepare(self, finished: int) -> None:
        """Prepare to restore a state; `finished` says whether that state's last frame was finished.

        This may run frames, and so change the emulator's state.
        """
        ale = self._ale
        if self._known is None or self._known[0] != ale.getFrameNumber():
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
        before = saved[: _DEVICES.start] + nbytes.to_bytes(4, "little")
        return before + saved[_DEVICES.stop : place.start] + bytes(4) + saved[place.stop :]

    def _can_omit_generator(self, saved: bytes) -> bool:
        """Return whether this build of ALE restores `saved` without the text as it does with it."""

        def restored(state: bytes) -> bytes:
            self._ale.act(0)
            self._ale.restoreState(ALEState(state))
            again: bytes = self._ale.cloneState().serialize()
            return again

        try:
            return restored(self._without_generator(saved)) == restored(saved)
        except _REJECTED:
            self._ale.restoreState(ALEState(saved))
            return False
