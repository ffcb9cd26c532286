"""`ReplayCache`: copies of an environment that action logs lead to states.

A state that is saved as an action log is restored by stepping through the log again. A search
returns to recent states, so copies that have been stepped are kept. A restore takes the copy whose
log is the longest prefix of the required log, and steps it through the rest of that log. So
continuing a branch costs one step. For some families, a copy can also be brought back to a state
that it has been in, without replaying actions (`ImageCache`), so any saved state is near. What an
image holds depends on the family (see `plangym_like.envs.box2d_images`). An image belongs to one
copy, and only to the episode that this copy has begun.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from plangym_like.batch.simulator import as_reset
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
from plangym_like.snapshots.chains import (
    CONSTANT,
    chain,
    close_copy,
    innermost,
    links,
)
from plangym_like.snapshots.configuration import qualified_name
from plangym_like.snapshots.known_wrappers import restart_generators
from plangym_like.states import random_state

DIGEST_NBYTES = 8
# The reward, and whether the episode has terminated or was truncated.
_RESULT = struct.Struct("=d??")
_RESULT_NBYTES = _RESULT.size
# Rewards of these types cannot change, so they may be packed later.
_NUMBERS = frozenset((float, int, np.float64, np.float32))
# The most bytes of results that a copy keeps until its digest is needed, times the three objects
# that it keeps for each.
_MOST_UNREAD = 3 * 2**18
# A copy that was not used in the last ``_UNUSED_RESTORES * capacity`` restores is evicted first.
_UNUSED_RESTORES = 4
# During a replay, an image is taken after every so many steps.
_STEPS_BETWEEN_IMAGES = 32
# The images of one environment take at most this many bytes, approximately, in each process.
IMAGES_NBYTES = 64 * 2**20
_Env = gymnasium.Env[Any, Any]


class CachedCopy:
    """A copy of the wrapper chain, and how it got to its current state.

    Parameters
    ----------
    env : gymnasium.Env
    logs : ActionLogFormat
    reached : (bytes, bytes)
        The action log that led to the current state, and a digest of all observations, rewards and
        flags on the way. The digest shows whether two replays of a log gave the same results.
    last_used : int
        The number of the restore that last used this copy.
    alive : bool
        Whether the copy is in the cache.
    changed : set, optional
        The attributes that were set from outside, as the fields ``link`` and ``name`` of `Change`.

    Attributes
    ----------
    is_saved : bool
        Whether a row may hold a state of this copy's episode.
    dtype : numpy.dtype, optional
        The dtype of the episode's first observation, if it is an array without objects.
    imager : object, optional
        Takes images of the copy, if its family has them; it is made when it is first needed.
    has_tried : bool
        Whether it was needed.
    image : object, optional
        The image that was taken or put last, if no step has been taken since.
    """

    __slots__ = (
        *("_path", "alive", "changed", "env", "is_saved", "last_used"),
        *("dtype", "has_tried", "image", "imager", "logs"),
    )
    # The log and the digest, and what has happened since they were last read: for the reset and
    # each step, what `ActionLogFormat.entry` takes, the bytes of the observation, and those of the
    # reward and flags, or the reward of a step without flags. All in one list: most episodes are
    # never read, and each further object takes long to make and to free.
    _path: tuple[bytes, bytes, list[Any]]

    def __init__(
        self,
        env: _Env,
        logs: ActionLogFormat,
        reached: tuple[bytes, bytes] = (b"", b""),
        *,
        last_used: int = 0,
        alive: bool = True,
        changed: set[tuple[int, str]] | None = None,
    ) -> None:
        self.env, self.logs, self.last_used, self.alive = env, logs, last_used, alive
        self.changed = set() if changed is None else changed
        self.is_saved = self.has_tried = False
        self.imager: Any = None
        self.image: Any = None
        self.dtype: np.dtype[Any] | None = None
        self.reached = reached

    @property
    def reached(self) -> tuple[bytes, bytes]:
        """The log and the digest."""
        log, trace_digest, unread = self._path
        if unread:
            for seen, others in zip(unread[1::3], unread[2::3], strict=True):
                packed = others if type(others) is bytes else _packed(others, False, False)
                trace_digest = _digest(trace_digest, seen + packed)
            log += b"".join(map(self.logs.entry, unread[::3]))
            self.reached = log, trace_digest
        return log, trace_digest

    @reached.setter
    def reached(self, reached: tuple[bytes, bytes]) -> None:
        # Assigned together with the list, so that no interrupt comes between them.
        self._path = *reached, []

    @property
    def log(self) -> bytes:
        """The action log."""
        return self.reached[0]

    @property
    def trace_digest(self) -> bytes:
        """The digest."""
        return self.reached[1]

    def append(self, entry: bytes) -> None:
        """Append `entry` to the log, without new results."""
        self.image = None
        log, trace_digest = self.reached
        self.reached = log + entry, trace_digest

    def begin(self, event: Start | bytes, obs: Any) -> None:
        """Note how the episode has begun, and its first observation."""
        if type(obs) is np.ndarray and not obs.dtype.hasobject:
            self.dtype = obs.dtype
        self._path = b"", b"", [event, _seen(obs), b""]

    def note(self, event: Any, result: tuple[Any, Any, Any, Any, Any]) -> None:
        """Note a step, which is `event` to `ActionLogFormat.entry`, and its result."""
        obs, reward, terminated, truncated, _ = result
        if type(obs) is np.ndarray and obs.dtype is self.dtype:
            seen = obs.tobytes()
        else:
            seen = _seen(obs)
        if terminated is not False or truncated is not False or type(reward) not in _NUMBERS:
            reward = _packed(reward, terminated, truncated)
        unread = self._path[2]
        unread += event, seen, reward
        if len(unread) * (len(seen) + _RESULT_NBYTES) > _MOST_UNREAD:
            _ = self.reached


class SavedImage(NamedTuple):
    """An image, the copy that it was taken of, and what else the cache of copies keeps of it."""

    cached: Any
    image: Any
    trace_digest: bytes
    changed: frozenset[tuple[int, str]]
    nbytes: int


class ImageCache:
    """Keeps the images that were used last, up to `capacity` bytes."""

    def __init__(self, capacity: int = IMAGES_NBYTES) -> None:
        self._capacity = capacity
        self._saved: OrderedDict[bytes, SavedImage] = OrderedDict()
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._saved)

    def find(self, log: bytes) -> SavedImage | None:
        """Return the image of the state after `log`, if there is one."""
        saved = self._saved.get(log)
        if saved is not None:
            self._saved.move_to_end(log)
        return saved

    def add(self, log: bytes, saved: SavedImage) -> None:
        """Keep the image of the state after `log`; drop the images that were used longest ago."""
        self._remove(log)
        self._saved[log] = saved
        self._nbytes += saved.nbytes
        while self._nbytes > self._capacity and len(self._saved) > 1:
            self._remove(next(iter(self._saved)))

    def nearest(self, log: bytes) -> tuple[bytes, SavedImage | None]:
        """Return the longest prefix of `log` that has an image, and this image."""
        found = b""
        for prefix in self._saved:
            if len(prefix) > len(found) and log.startswith(prefix):
                found = prefix
        return found, self.find(found)

    def drop(self, cached: Any) -> None:
        """Drop all images of the copy `cached`."""
        for log in [log for log, saved in self._saved.items() if saved.cached is cached]:
            self._remove(log)

    def clear(self) -> None:
        """Drop all images."""
        self._saved.clear()
        self._nbytes = 0

    def _remove(self, log: bytes) -> None:
        saved = self._saved.pop(log, None)
        if saved is not None:
            self._nbytes -= saved.nbytes


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
    make_new : callable, optional
        Called with a copy that is not needed any more. It returns whether the copy is now like one
        that has not been reset, so that it can be used instead of a new one.
    make_imager : callable, optional
        Returns what takes images of a copy in its episode, with the methods ``take() ->
        (image, nbytes) or None`` and ``put(image, now) -> bool``; or ``None`` if nothing can.

    Attributes
    ----------
    carried : CarriedState
        Reads and writes what a chain takes over from the episode before.
    replayed : int
        Steps that were replayed so far, for benchmarks.
    """

    def __init__(
        self,
        make: Callable[[], _Env],
        logs: ActionLogFormat,
        capacity: int,
        make_new: Callable[[_Env], bool] = lambda _: False,
        make_imager: Callable[[_Env], Any] | None = None,
    ) -> None:
        self._make, self._make_new = make, make_new
        self._logs = logs
        self._capacity = capacity
        self._make_imager = make_imager
        self._images = ImageCache()
        self._copies: list[CachedCopy] = []
        self._restores = 0
        self.carried: Any = None
        self.replayed = 0

    def begin(
        self, start: Start, unneeded: CachedCopy | None = None
    ) -> tuple[CachedCopy, Any, dict[str, Any]]:
        """Begin an episode in a new copy; return the copy, the observation and the info.

        In a new copy, nothing that is left of an earlier episode can affect this episode. The copy
        `unneeded`, to whose episode no row leads, is used again if possible, else closed.

        Raises
        ------
        SnapshotError
            The options are not plain data.
        """
        event = start if start.options is None else self._logs.start(start)
        self._restores += 1
        env = self._new_env(unneeded)
        cached = CachedCopy(env, self._logs, last_used=self._restores)
        try:
            base = innermost(env)
            # A copy that is used again has this generator; it takes long to make a new one.
            has_it = unneeded is not None and env is unneeded.env
            has_it = has_it and isinstance(base._np_random, np.random.Generator)
            if start.generator is not None and not has_it:
                base._np_random = random_state.spawning_generator(start.generator, start.spawner)
            if start.carried is not None:
                cached.changed = self.carried.write(env, start.carried)
            obs, info = as_reset(env.reset(seed=start.seed, options=copy.deepcopy(start.options)))
        except BaseException:
            close_copy(env)
            raise
        cached.begin(event, obs)
        self._copies.append(cached)
        return cached, obs, info

    def keep(self, cached: CachedCopy) -> None:
        """Take an image of the state of `cached`, if its family has images."""
        log, trace_digest = cached.reached
        # A state that has an image may have been changed by hand since, so `cached.image` stays
        # unknown, and the next restore writes the whole world.
        if self._make_imager is None or not cached.alive or self._images.find(log) is not None:
            return
        if not cached.has_tried:
            cached.has_tried = True
            cached.imager = self._make_imager(cached.env)
        if cached.imager is None:
            return
        taken = cached.imager.take()
        if taken is None:
            self._stop_images(cached)
            return
        image, nbytes = taken
        cached.image = image
        kept = SavedImage(cached, image, trace_digest, frozenset(cached.changed), nbytes + len(log))
        self._images.add(log, kept)

    def restore(self, log: bytes, trace_digest: bytes) -> CachedCopy:
        """Return a copy of the environment in the state that `log` leads to.

        Raises
        ------
        SnapshotError
            The replay gave other observations, rewards or flags than the original episode.
        StateFormatError
            The bytes are not an action log.
        """
        best = self._returned(log) if self._make_imager is not None else None
        if best is None:
            best = self._longest(log)
        if best is not None:
            self._restores += 1
        else:
            start = next(self._logs.entries(log), None)
            if start is None or start[0] != START:
                raise StateFormatError("the action log in a state row does not begin with a reset")
            best, _, _ = self.begin(start[1])
            self.keep(best)
        reached = best.reached
        if len(reached[0]) < len(log):
            self._replay(best, log)
            reached = best.reached
        if reached[1] != trace_digest:
            self.discard(best)
            raise SnapshotError(
                f"{qualified_name(type(innermost(best.env)))} did not repeat itself: its states "
                "are saved as the actions since the reset, and stepping through them again gave "
                "other observations, rewards or flags than the first time. Later steps depend on "
                "something that neither reset(seed=...) nor its actions set (time, a global "
                "generator, another version of the simulator, another processor)"
            )
        best.last_used, best.is_saved = self._restores, True
        self.keep(best)
        return best

    def _longest(self, log: bytes) -> CachedCopy | None:
        """Return the copy whose log is the longest prefix of `log`, if there is one."""
        best = None
        for cached in self._copies:
            if best is None or len(cached.log) > len(best.log):
                if log.startswith(cached.log):
                    best = cached
        return best

    def _returned(self, log: bytes) -> CachedCopy | None:
        """Bring a copy back to the state after `log`, or as far towards it as there is an image.

        Return ``None`` if there is no such image, or if a copy is in a later state than it.
        """
        saved = self._images.find(log)
        prefix = log
        if saved is None:
            prefix, saved = self._images.nearest(log)
            best = self._longest(log)
            if saved is None or (best is not None and len(best.log) >= len(prefix)):
                return best
        cached: CachedCopy = saved.cached
        if cached.reached[0] == prefix:
            return cached
        try:
            if not cached.imager.put(saved.image, cached.image):
                self._stop_images(cached)
                return None
            cached.image = saved.image
            cached.reached, cached.changed = (prefix, saved.trace_digest), set(saved.changed)
        except BaseException:
            self.discard(cached)
            raise
        return cached

    def try_images(self, cached: CachedCopy, actions: Iterable[Any]) -> bool:
        """Return whether `actions` lead to the same results again after an image was put back.

        If they do not, there will be no images any more. `cached` must be the copy used last.
        """
        if self._make_imager is None:
            return True
        start, ends = cached.reached, []
        log = start[0] + b"".join([self._logs.action(action)[0] for action in actions])
        self.keep(cached)
        for _ in range(2):
            cached = self.restore(*start)
            self._replay(cached, log)
            ends.append(cached.trace_digest)
        if ends[0] == ends[1]:
            return True
        self._make_imager = None
        self._images.clear()
        return False

    def _stop_images(self, cached: CachedCopy) -> None:
        """From now on, only replay `cached`, because its memory has outgrown its images."""
        cached.imager = None
        self._images.drop(cached)

    def reseed(self, cached: CachedCopy, seed: int) -> None:
        """Restart the generators of `cached` from `seed`; discard the copy if this raises."""
        entry = self._logs.reseed(seed)
        try:
            cached.image = None
            _reseed(cached.env, seed)
            cached.append(entry)
        except BaseException:
            self.discard(cached)
            raise

    def log_change(self, cached: CachedCopy, change: Change) -> None:
        """Log a change that is made to `cached` from outside.

        Raises
        ------
        SnapshotError
            The new value is not plain data.
        """
        cached.append(self._logs.change(change))

    def release(self, cached: CachedCopy) -> None:
        """Remove a copy from the cache without closing it."""
        cached.alive = False
        if cached in self._copies:
            self._copies.remove(cached)
        if cached.has_tried:
            self._images.drop(cached)

    def discard(self, cached: CachedCopy) -> None:
        """Remove a copy from the cache and close it, while other copies may be in use."""
        self.release(cached)
        close_copy(cached.env)

    def clear(self) -> None:
        """Remove all copies from the cache and close them."""
        for cached in list(self._copies):
            self.discard(cached)

    def close(self) -> None:
        """Close all copies, which may shut down libraries."""
        for cached in list(self._copies):
            self.release(cached)
            with contextlib.suppress(Exception):
                cached.env.close()

    def _replay(self, cached: CachedCopy, log: bytes) -> None:
        """Step `cached` through the entries of `log` that its own log does not have yet."""
        env, begun, steps = cached.env, len(cached.log), 0
        try:
            for tag, value, end in self._logs.entries(log, begun):
                cached.image, entry, begun = None, log[begun:end], end
                if tag == RESEED:
                    _reseed(env, value)
                    cached.append(entry)
                elif tag == CHANGE:
                    setattr(links(env)[value.link], value.name, value.value)
                    cached.changed.add(value[:2])
                    cached.append(entry)
                else:
                    cached.note(entry, env.step(value))
                    self.replayed += 1
                    steps += 1
                    if self._make_imager is not None and steps % _STEPS_BETWEEN_IMAGES == 0:
                        self.keep(cached)
        except BaseException:
            self.discard(cached)
            raise

    def _new_env(self, unneeded: CachedCopy | None) -> _Env:
        if unneeded is not None:
            self.release(unneeded)
            if self._make_new(unneeded.env):
                return unneeded.env
            close_copy(unneeded.env)
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
        if self._make_imager is not None:
            # The copy that was used last may be the one to which most images belong.
            return self._copies[-1]
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
    held = [
        value
        for wrapper in chain(env)
        for name, value in vars(wrapper).items()
        if name not in CONSTANT
    ]
    restart_generators(held, [base._np_random, *links(env)], seed)


def _packed(reward: Any, terminated: Any, truncated: Any) -> bytes:
    """Return the reward and the flags of a step as bytes."""
    try:
        return _RESULT.pack(reward, terminated, truncated)
    except (OverflowError, TypeError, ValueError, struct.error):  # a wrapper may convert them
        return _encoded((reward, terminated, truncated))


def _seen(obs: Any) -> bytes:
    """Return an observation as bytes."""
    if isinstance(obs, np.ndarray) and not obs.dtype.hasobject:
        return obs.tobytes()
    return _encoded(obs)


def _digest(before: bytes, seen: bytes) -> bytes:
    digest = hashlib.blake2b(before, digest_size=DIGEST_NBYTES)
    digest.update(seen)
    return digest.digest()
