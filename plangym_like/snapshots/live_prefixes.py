"""Copies of an environment that stand where histories have led, ready to go on.

A state that is saved as a history is restored by playing the history again. A search comes back
to where it has just been, so the copies that played stay alive: the one whose own history is the
longest beginning of the wanted one goes on from there. Continuing a branch then costs one step.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from plangym_like import random_state
from plangym_like.errors import SnapshotError, StateFormatError
from plangym_like.snapshots import plain_data
from plangym_like.snapshots.configuration import qualified_name
from plangym_like.snapshots.history import GENERATOR, RESEED, START, Histories, Start

WITNESS_NBYTES = 8
# A copy that was not asked for in so many look-ups, times the number of copies, is in nobody's way.
_FORGOTTEN = 4

_Env = gymnasium.Env[Any, Any]


@dataclass(slots=True, eq=False)
class LivePrefix:
    """A copy of the environment and what has happened to it.

    ``witness`` is a digest of all observations, rewards and flags on the way: whoever plays the
    same history and sees the same has the same. ``generator`` is the environment's own, as it was
    after the last entry, where anybody else may draw from it.
    """

    env: _Env
    history: bytes = b""
    witness: bytes = b""
    generator: bytes = b""
    used: int = 0
    alive: bool = True


class LivePrefixes:
    """The copies of one environment in this process.

    Parameters
    ----------
    make : callable
        Returns a new copy, never reset, without wrappers.
    histories : Histories
        How histories are written.
    most : int
        How many copies may live at once.
    first : gymnasium.Env, optional
        A copy that exists already.

    Attributes
    ----------
    alone : bool
        Whether there can be but one copy in a process, which is then reset instead of made anew.
    shared : bool
        Whether wrappers may draw from the copies' generators (``StickyAction`` does).
    replayed : int
        Steps that were played again, for those who want to know what it costs.
    """

    def __init__(
        self, make: Callable[[], _Env], histories: Histories, most: int, first: _Env | None = None
    ) -> None:
        self._make = make
        self._histories = histories
        self._most = most
        self._first = first
        self._all: list[LivePrefix] = []
        self._clock = 0
        self.alone = False
        self.shared = False
        self.replayed = 0

    def begin(self, start: Start) -> tuple[LivePrefix, Any, dict[str, Any]]:
        """Begin an episode in a copy that has never been reset; returns observation and info too.

        What an episode leaves behind in an environment cannot reach the next one that way. Where
        there can be but one copy, it is reset.
        """
        self._clock += 1
        live = LivePrefix(self._fresh(), used=self._clock)
        base: Any = live.env
        if start.generator is not None:
            base._np_random = random_state.load_generator(start.generator, None)
        try:
            obs, info = base.reset(seed=start.seed, options=copy.deepcopy(start.options))
        except BaseException:
            if self.alone:
                self._first = base
            else:
                with contextlib.suppress(Exception):
                    base.close()
            raise
        live.history = self._histories.start(start)
        live.witness = _digest(b"", obs)
        self._note_generator(live)
        self._all.append(live)
        return live, obs, info

    def at(self, history: bytes, witness: bytes) -> LivePrefix:
        """Return a copy that stands where `history` led.

        Raises
        ------
        SnapshotError
            Playing it again showed something else than the first time.
        StateFormatError
            The bytes are no history.
        """
        best = None
        for live in self._all:
            if best is None or len(live.history) > len(best.history):
                if history.startswith(live.history):
                    best = live
        if best is None:
            start = next(self._histories.entries(history), None)
            if start is None or start[0] != START:
                raise StateFormatError("the history in a state row does not begin with a reset")
            best, _, _ = self.begin(start[1])
        else:
            self._clock += 1
        if len(best.history) < len(history):
            self._play_on(best, history)
        if best.witness != witness:
            self.discard(best)
            raise SnapshotError(
                f"{qualified_name(type(best.env))} did not do the same again: its state is saved "
                "as what happened since its reset, and playing that again showed other "
                "observations, rewards or flags than the first time. Something that its future "
                "depends on is set neither by reset(seed=...) nor by its actions (time, a global "
                "generator, another version of the simulator, another processor)"
            )
        best.used = self._clock
        return best

    def _play_on(self, live: LivePrefix, history: bytes) -> None:
        """Play what `history` has beyond that of `live`."""
        base: Any = live.env
        step = base.step
        witness = live.witness
        try:
            for tag, value, _ in self._histories.entries(history, len(live.history)):
                if tag == RESEED:
                    self._set_generator(base, random_state.seeded_generator(value))
                elif tag == GENERATOR:
                    base._np_random = random_state.load_generator(value, base._np_random)
                else:
                    result = step(value)
                    witness = _digest(witness, result[0], result[1:4])
                    self.replayed += 1
        except BaseException:
            self.discard(live)
            raise
        live.history, live.witness = history, witness
        self._note_generator(live)

    def _set_generator(self, base: Any, generator: np.random.Generator) -> None:
        """Set the environment's generator for all who share it."""
        memory = random_state.save_generator(generator)
        base._np_random = random_state.load_generator(memory, vars(base).get("_np_random"))

    def step(self, live: LivePrefix, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step `live`; where that raises, it is as if it had not been tried."""
        entry = self._histories.action(action)
        try:
            # The environment may keep the action, and the array may be somebody else's soon.
            result = live.env.step(copy.deepcopy(action))
        except BaseException:
            self.discard(live)
            raise
        live.history += entry
        live.witness = _digest(live.witness, result[0], result[1:4])
        self._note_generator(live)
        return result

    def reseed(self, live: LivePrefix, seed: int) -> None:
        """Set the generator of `live` to one made of `seed`, for all who share it."""
        self._set_generator(live.env, random_state.seeded_generator(seed))
        live.history += self._histories.reseed(seed)
        self._note_generator(live)

    def settle(self, live: LivePrefix) -> None:
        """Note in the history of `live` if anybody else has drawn from its generator."""
        if self.shared and live.alive:
            before = live.generator
            self._note_generator(live)
            if live.generator != before:
                live.history += self._histories.generator(live.generator)

    def _note_generator(self, live: LivePrefix) -> None:
        if self.shared:
            live.generator = random_state.save_generator(vars(live.env).get("_np_random"))

    def release(self, live: LivePrefix) -> None:
        """No longer count on a copy, but leave it open."""
        live.alive = False
        if live in self._all:
            self._all.remove(live)
            if self.alone:
                self._first = live.env

    def discard(self, live: LivePrefix) -> None:
        """Close a copy that nobody knows the state of."""
        self.release(live)
        self._first = None
        with contextlib.suppress(Exception):
            live.env.close()

    def close(self) -> None:
        """Close all copies."""
        for live in list(self._all):
            self.discard(live)
        if self._first is not None:
            self._first.close()
            self._first = None

    def __len__(self) -> int:
        return len(self._all)

    def _fresh(self) -> _Env:
        if self.alone:
            for live in list(self._all):
                self.release(live)
        elif len(self._all) >= self._most:
            self.discard(self._dispensable())
        first, self._first = self._first, None
        return self._make() if first is None else first

    def _dispensable(self) -> LivePrefix:
        """Return a copy to do without.

        Where more branches are continued in turn than there are copies, the least recently used is
        the very next one that is needed, so that none would ever be found. The most recently used
        goes then, and the others are found.
        """
        oldest = min(self._all, key=lambda live: live.used)
        if self._clock - oldest.used > _FORGOTTEN * self._most:
            return oldest
        return max(self._all, key=lambda live: live.used)


def _digest(before: bytes, obs: Any, rest: tuple[Any, ...] = ()) -> bytes:
    digest = hashlib.blake2b(before, digest_size=WITNESS_NBYTES)
    if isinstance(obs, np.ndarray) and obs.dtype != object:
        digest.update(obs.tobytes())
    else:
        with contextlib.suppress(SnapshotError):
            digest.update(plain_data.encode(obs))
    if rest:
        reward, terminated, truncated = rest
        digest.update(np.float64(reward).tobytes() + bytes((bool(terminated), bool(truncated))))
    return digest.digest()
