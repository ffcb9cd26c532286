"""`ReplayCache`: keeps copies of an environment in the states that action logs led to.

A state that is saved as an action log is restored by stepping through the log again. A search
returns to recent states, so copies that have been stepped are kept. A restore takes the copy whose
log is the longest prefix of the required log, and steps it through the rest of that log. So
continuing a branch costs one step.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from plangym_like.batch.simulator import as_reset, as_step
from plangym_like.errors import SnapshotError, StateFormatError
from plangym_like.snapshots import plain_data
from plangym_like.snapshots.action_log import (
    CHANGE,
    RESEED,
    START,
    ActionLogFormat,
    Change,
    Start,
)
from plangym_like.snapshots.chains import chain, innermost, links
from plangym_like.snapshots.configuration import qualified_name
from plangym_like.snapshots.open_libraries import close_copy, libraries_left_open
from plangym_like.snapshots.reachable import reachable
from plangym_like.snapshots.state_owner import CONSTANT, put
from plangym_like.states import random_state

DIGEST_NBYTES = 8
# A copy that was not used in the last ``_UNUSED_RESTORES * capacity`` restores is evicted first.
_UNUSED_RESTORES = 4

_Env = gymnasium.Env[Any, Any]


@dataclass(slots=True, eq=False)
class CachedCopy:
    """A copy of the wrapper chain and the action log that led to its current state.

    ``trace_digest`` is a digest of all observations, rewards and flags on the way to that state. It
    shows whether two replays of a log gave the same results. ``changed`` are the attributes that
    code outside the chain has changed, as the fields ``link`` and ``name`` of `Change`.
    """

    env: _Env
    log: bytes = b""
    trace_digest: bytes = b""
    last_used: int = 0
    alive: bool = True
    changed: set[tuple[int, str]] = field(default_factory=set)


class ReplayCache:
    """Keeps the copies of one environment in this process.

    Parameters
    ----------
    make : callable
        Returns a new copy of the wrapper chain that has not been reset.
    logs : ActionLogFormat
        The format of the action logs.
    capacity : int
        The maximum number of copies that are open at once.
    first : gymnasium.Env
        An existing copy, which is used if a process can hold only one.

    Attributes
    ----------
    single : bool
        Whether a process can hold only one copy; each episode then resets that copy.
    carried : CarriedState
        Reads and writes what a chain takes over from the episode before.
    replayed : int
        Steps that were replayed so far, for benchmarks.
    """

    def __init__(
        self, make: Callable[[], _Env], logs: ActionLogFormat, capacity: int, first: _Env
    ) -> None:
        self._make = make
        self._logs = logs
        self._capacity = capacity
        self._only = first
        self._copies: list[CachedCopy] = []
        self._restores = 0
        self.single = False
        self.carried: Any = None
        self.replayed = 0

    def begin(self, start: Start) -> tuple[CachedCopy, Any, dict[str, Any]]:
        """Begin an episode in a new copy; return the copy, the observation and the info.

        In a new copy, nothing that is left of an earlier episode can affect this episode. If only
        one copy can exist, that copy is reset instead.

        Raises
        ------
        SnapshotError
            The options are not plain data.
        """
        log = self._logs.start(start)
        self._restores += 1
        cached = CachedCopy(self._new_env(), last_used=self._restores)
        env = cached.env
        try:
            if start.generator is not None:
                generator = random_state.spawning_generator(start.generator, start.spawner)
                innermost(env)._np_random = generator
            if start.carried is not None:
                cached.changed = self.carried.write(env, start.carried)
            obs, info = as_reset(env.reset(seed=start.seed, options=copy.deepcopy(start.options)))
        except BaseException:
            if not self.single:
                close_copy(env)
            raise
        cached.log, cached.trace_digest = log, _digest(b"", obs)
        self._copies.append(cached)
        return cached, obs, info

    def restore(self, log: bytes, trace_digest: bytes) -> CachedCopy:
        """Return a copy of the environment in the state that `log` leads to.

        Raises
        ------
        SnapshotError
            The replay gave other observations, rewards or flags than the original episode.
        StateFormatError
            The bytes are not an action log.
        """
        best = None
        for cached in self._copies:
            if best is None or len(cached.log) > len(best.log):
                if log.startswith(cached.log):
                    best = cached
        if best is not None:
            self._restores += 1
        else:
            start = next(self._logs.entries(log), None)
            if start is None or start[0] != START:
                raise StateFormatError("the action log in a state row does not begin with a reset")
            best, _, _ = self.begin(start[1])
        if len(best.log) < len(log):
            self._replay(best, log)
        if best.trace_digest != trace_digest:
            self.discard(best)
            raise SnapshotError(
                f"{qualified_name(type(innermost(best.env)))} did not repeat itself: its states "
                "are saved as the actions since the reset, and stepping through them again gave "
                "other observations, rewards or flags than the first time. Later steps depend on "
                "something that neither reset(seed=...) nor its actions set (time, a global "
                "generator, another version of the simulator, another processor)"
            )
        best.last_used = self._restores
        return best

    def step(self, cached: CachedCopy, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step `cached`, and return the result; discard the copy if the step raises an error."""
        # A copy: the environment may keep the action, and the caller may change it later.
        entry, own = self._logs.action(action)
        try:
            result = as_step(cached.env.step(own))
            trace_digest = _digest(cached.trace_digest, result[0], result[1:4])
        except BaseException:
            self.discard(cached)
            raise
        cached.log, cached.trace_digest = cached.log + entry, trace_digest
        return result

    def reseed(self, cached: CachedCopy, seed: int) -> None:
        """Restart the generators of `cached` from `seed`; discard the copy if this raises."""
        entry = self._logs.reseed(seed)
        try:
            _reseed(cached.env, seed)
        except BaseException:
            self.discard(cached)
            raise
        cached.log += entry

    def log_change(self, cached: CachedCopy, change: Change) -> None:
        """Log a change that code outside has made to `cached`.

        Raises
        ------
        SnapshotError
            The new value is not plain data.
        """
        cached.log += self._logs.change(change)

    def release(self, cached: CachedCopy) -> None:
        """Remove a copy from the cache without closing it."""
        cached.alive = False
        if cached in self._copies:
            self._copies.remove(cached)

    def discard(self, cached: CachedCopy) -> None:
        """Remove a copy from the cache and close it, while other copies may be in use."""
        with libraries_left_open():
            self._end(cached)

    def close(self) -> None:
        """Close all copies."""
        for cached in list(self._copies):
            self._end(cached)
        if self.single:
            self._only.close()

    def _replay(self, cached: CachedCopy, log: bytes) -> None:
        """Step `cached` through the entries of `log` that its own log does not have yet."""
        env: Any = cached.env
        trace_digest = cached.trace_digest
        try:
            for tag, value, _ in self._logs.entries(log, len(cached.log)):
                if tag == RESEED:
                    _reseed(env, value)
                elif tag == CHANGE:
                    put(links(env)[value.link], value.name, value.value)
                    if value.name != "_np_random":
                        cached.changed.add(value[:2])
                else:
                    result = env.step(value)
                    trace_digest = _digest(trace_digest, result[0], result[1:4])
                    self.replayed += 1
        except BaseException:
            self.discard(cached)
            raise
        cached.log, cached.trace_digest = log, trace_digest

    def _end(self, cached: CachedCopy) -> None:
        self.release(cached)
        if not self.single:
            with contextlib.suppress(Exception):
                cached.env.close()

    def _new_env(self) -> _Env:
        if self.single:
            for cached in list(self._copies):
                self.release(cached)
            return self._only
        if len(self._copies) >= self._capacity:
            self.discard(self._evicted())
        return self._make()

    def _evicted(self) -> CachedCopy:
        """Return the copy to discard, to make room for a new one.

        Suppose that there are more branches than copies, and branches are continued in turn. Then
        the least recently used copy is always needed next, and evicting it would cause a miss every
        time. So the most recently used copy is evicted, unless the least recently used one has not
        been used for a long time.
        """
        oldest = min(self._copies, key=lambda cached: cached.last_used)
        if self._restores - oldest.last_used > _UNUSED_RESTORES * self._capacity:
            return oldest
        return max(self._copies, key=lambda cached: cached.last_used)


def _encoded(value: Any) -> bytes:
    try:
        return plain_data.encode(value)
    except SnapshotError:
        return b""


def _reseed(env: _Env, seed: int) -> None:
    """Restart ``np_random`` and the random generators that the wrappers hold from `seed`."""
    base = innermost(env)
    random_state.reseed(base, seed)
    seen = {id(link) for link in links(env)} | {id(base._np_random)}
    number = 0
    for wrapper in chain(env):
        for name, value in vars(wrapper).items():
            if name in CONSTANT:
                continue
            for _, thing in reachable(value, name, seen):
                if isinstance(thing, np.random.Generator):
                    bits: Any = thing.bit_generator
                    start = np.random.SeedSequence(int(seed), spawn_key=(number,))
                    random_state.restart(bits, type(bits)(start))
                    number += 1


def _digest(before: bytes, obs: Any, rest: tuple[Any, ...] = ()) -> bytes:
    digest = hashlib.blake2b(before, digest_size=DIGEST_NBYTES)
    if isinstance(obs, np.ndarray) and obs.dtype != object:
        digest.update(obs.tobytes())
    else:
        digest.update(_encoded(obs))
    if rest:
        reward, terminated, truncated = rest
        try:
            told = np.float64(reward).tobytes() + bytes((bool(terminated), bool(truncated)))
        except (OverflowError, TypeError, ValueError):  # a wrapper may make numbers of them
            told = _encoded(rest)
        digest.update(told)
    return digest.digest()
