"""Steps rows of Atari games in one loop, if the rows hold no random generator and no screen.

A payload consists of the length of the emulator's serialised state, the previous action, the
serialised state itself, and zeros.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.arrays import Outcome, Rows
from plangym_like.envs.ale_game import PlannableAle
from plangym_like.envs.fast_form import FastForm
from plangym_like.errors import StateCapacityError, StateFormatError
from plangym_like.states.rows import HEADER_NBYTES, Row

HEAD = struct.Struct("<qq")
ALE_AT = HEAD.size
_SAVED_AT = HEADER_NBYTES + ALE_AT
COUNTS = ("lives", "episode_frame_number", "frame_number")


class AleRows(FastForm):
    """Steps rows of one game that has no wrappers.

    Parameters
    ----------
    base : PlannableAle
        The game; its `plain_frames` must not be 0.
    room : int
        Bytes reserved for the emulator's state in each row.
    """

    is_vectorised = False

    def __init__(self, base: PlannableAle, room: int) -> None:
        ale, leftovers = base.ale, base.leftovers
        self._base, self._room, self._ale, self._act = base, room, ale, ale.act
        self._restore, self._save = leftovers.restore, leftovers.save
        self._shortest = leftovers.shortest
        observers = {
            "rgb": ale.getScreenRGB,
            "grayscale": ale.getScreenGrayscale,
            "ram": ale.getRAM,
        }
        self._observe: Callable[[], NDArray[np.uint8]] = observers[base._obs_type]

    def takes(self, rows: Rows) -> bool:
        inputs = rows.inputs
        return not inputs.horizon and inputs.seeds is None and "rgb" not in rows.columns

    @cached_property
    def _view(self) -> tuple[Callable[[], object], NDArray[np.uint8]]:
        """A function that observes the game, and the array that it writes the observation to.

        The emulator writes byte by byte, which is fast only in memory that is already in the cache.
        """
        base = self._base
        if base._obs_type == "rgb":
            return base.screen.draw, base.screen.image
        seen = np.empty(base.observation_space.shape or (), np.uint8)
        observe = base.ale.getRAM if base._obs_type == "ram" else base.ale.getScreenGrayscale
        return partial(observe, seen), seen

    def step_one(self, row: Row, action: Any, dt: int) -> tuple[Row, Outcome]:
        """Step one row; afterwards, the game is in the next state.

        Short methods are inlined here, because a call costs up to 1 us: after a frame of the
        emulator, little of Python's own code is left in the processor's cache.
        """
        base, ale, act, memory = self._base, self._ale, self._act, row.data
        length = HEAD.unpack_from(memory, HEADER_NBYTES)[0]
        if not self._shortest <= length <= self._room:
            raise wrong_length(length)
        self._restore(bytes(memory[_SAVED_AT : _SAVED_AT + length]))
        before = base.lives() if base.episodic_life else 0
        code, frames = base.codes.item(action), dt * base.plain_frames
        base.settled = base.stale = False
        base.image, base.previous = None, code
        reward, ran = float(act(code)), 1
        while ran < frames and not ale.game_over():
            reward += act(code)
            ran += 1
        base.frames += ran
        lives, truncated = base.lives(), ale.game_truncated()
        over = ale.game_over(with_truncation=False) or lives < before
        info = {
            "lives": lives,
            "episode_frame_number": ale.getEpisodeFrameNumber(),
            "frame_number": ale.getFrameNumber(),
        }
        obs = self._observe()
        if base.places:
            info.update(base.player())
        saved = self._save()
        end = _SAVED_AT + len(saved)
        if len(saved) > self._room:
            raise outgrown(len(saved), self._room)
        fresh = row.copy()
        memory = fresh.data
        HEAD.pack_into(memory, HEADER_NBYTES, len(saved), code)
        memory[_SAVED_AT:end] = saved
        fresh[end:] = 0
        return fresh, (obs, reward, over, truncated, info, ran)

    def step(self, rows: Rows, first: int, last: int) -> None:
        """Step the rows ``first:last``.

        The emulator's methods are looked up before the loop, because a step takes only 80 us.
        """
        base, ale, inputs, cursor = self._base, self._ale, rows.inputs, rows.cursor
        act, restore, save = self._act, self._restore, self._save
        observe, seen = self._view
        lives, over, truncated = base.lives, ale.game_over, ale.game_truncated
        episode_frame_number, frame_number = ale.getEpisodeFrameNumber, ale.getFrameNumber
        episodic, frames = base.episodic_life, base.plain_frames
        shortest, room = self._shortest, self._room
        block = slice(first, last)
        memory, width, fresh, fresh_width = _memory_of(rows, block)
        zeros = bytes(fresh_width)
        codes = base.codes[inputs.actions[block]].tolist()
        held = np.broadcast_to(inputs.dt, inputs.count)[block].tolist()
        places = base.places
        outcomes: list[tuple[Any, ...]] = []
        base.settled = False
        each = zip(range(first, last), codes, rows.observations[block], held, strict=True)
        for index, code, view, dt in each:
            cursor[0] = index
            at = index * width + HEADER_NBYTES
            length = HEAD.unpack_from(memory, at)[0]
            if not shortest <= length <= room:
                raise wrong_length(length)
            at += ALE_AT
            restore(bytes(memory[at : at + length]))
            before = lives() if episodic else 0
            reward, ran = act(code), 1
            while ran < dt * frames and not over():
                reward += act(code)
                ran += 1
            left = lives()
            ended = over(with_truncation=False) or left < before
            counts = left, episode_frame_number(), frame_number()
            outcomes.append((reward, ended, truncated(), ran, *counts))
            observe()
            view[...] = seen
            if places:
                ram = ale.getRAM()
                for name, address in places.items():
                    rows.columns[name][index] = ram[address]
            if fresh is not None:
                saved = save()
                if len(saved) > room:
                    raise outgrown(len(saved), room)
                at = index * fresh_width + HEADER_NBYTES
                HEAD.pack_into(fresh, at, len(saved), code)
                at += ALE_AT
                end, stop = at + len(saved), (index + 1) * fresh_width
                fresh[at:end] = saved
                fresh[end:stop] = zeros[: stop - end]
        base.previous, base.image, base.stale = codes[-1], None, True
        counted = map(rows.columns.__getitem__, COUNTS)
        columns = rows.rewards, rows.terminateds, rows.truncateds, rows.n_step, *counted
        for column, values in zip(columns, zip(*outcomes, strict=True), strict=True):
            column[block] = values


def _memory_of(rows: Rows, block: slice) -> tuple[memoryview, int, memoryview | None, int]:
    """Return the memory of the states and of the next states, and the bytes from row to row.

    Also copy the headers of the rows in `block`. If all rows share one state, its width is 0.
    """
    states, fresh = rows.inputs.states, rows.next_states
    width = 0 if len(states) == 1 else states.shape[1]
    if fresh is None:
        return states.reshape(-1).data, width, None, 0
    given = states[block] if width else states
    fresh[block, :HEADER_NBYTES] = given[:, :HEADER_NBYTES]
    return states.reshape(-1).data, width, fresh.reshape(-1).data, fresh.shape[1]


def outgrown(nbytes: int, reserved: int) -> StateCapacityError:
    """Return the error for an emulator's state that has become too long for its row."""
    return StateCapacityError(
        f"the emulator's state has grown to {nbytes} bytes since the environment was made, but "
        f"{reserved} are reserved in each row: the emulator was probably changed from outside "
        "(another game was loaded, for example). Make a new environment"
    )


def wrong_length(nbytes: int) -> StateFormatError:
    """Return the error for a row in which the length of the emulator's state is impossible."""
    return StateFormatError(
        "a state row is damaged, or was not made by this library: its checksum matches, but it "
        f"announces an emulator state of {nbytes} bytes"
    )
