"""`CurrentEnvProxy`: the outermost wrapper of a replayed chain.

The proxy forwards calls to the copy of the chain that is in the current state, and logs them. So a
copy changes only by what its log holds, except for attributes that code outside the chain sets.
Once the chain has been handed out, these changes are logged too.
"""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from plangym_like.errors import SnapshotError
from plangym_like.snapshots.action_log import Change, Start
from plangym_like.snapshots.chains import CONSTANT, close_copy, innermost, links
from plangym_like.snapshots.configuration import is_handle, qualified_name
from plangym_like.snapshots.replay import CachedCopy, ReplayCache
from plangym_like.states import random_state

# The attributes of the proxy itself; all others belong to the current copy.
_OWN = frozenset(
    [
        *(
            "env",
            "cache",
            "seeds_only",
            "_first",
            "_current",
            "_watched",
            "_generator",
            "_released",
        ),
        *("_action_space", "_observation_space", "_metadata", "_cached_spec", "_saved_kwargs"),
    ]
)
# Attributes that may be set when another attribute is read.
_UNWATCHED = (CONSTANT - {"env"}) | {"_np_random_seed"}


class CurrentEnvProxy(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Forwards calls to the copy of a wrapper chain that is in the current state.

    Parameters
    ----------
    env : gymnasium.Env
        The first copy of the chain. It must not have been reset.

    Attributes
    ----------
    cache : ReplayCache
        The cache of all copies.
    seeds_only : bool
        Whether an episode can be repeated only from a seed, because the environment or a wrapper
        has random generators that no row holds; an unseeded reset then draws a seed.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.cache: ReplayCache
        self.seeds_only = False
        self._first = self._current = CachedCopy(env, alive=False)
        # Since the chain was handed out: the attributes of each link of the current copy, and what
        # they were after the last call.
        self._watched: list[tuple[dict[str, Any], dict[str, Any]]] | None = None
        self._generator = b""
        # A copy that was taken out of the cache while it was current.
        self._released: gymnasium.Env[Any, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "env" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.env, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN or isinstance(getattr(type(self), name, None), property):
            super().__setattr__(name, value)
        else:
            setattr(self.env, name, value)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute of the current copy, as Gymnasium does for a chain without the proxy."""
        return bool(self.env.set_wrapper_attr(name, value, force=force))

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]
        """The spec of the chain, without the entry that `gymnasium.Wrapper` adds for a wrapper."""
        return self.env.spec

    @property
    def log(self) -> bytes:
        """The action log that led to the current state; it may be written into a row."""
        self._log_changes()
        self._current.is_saved = True
        return self._current.log

    @property
    def trace_digest(self) -> bytes:
        """The digest of all observations, rewards and flags on the way to the current state."""
        return self._current.trace_digest

    def keep(self) -> None:
        """Note that the current state is saved, and may be restored soon."""
        self.cache.keep(self._current)

    def try_images(self, count: int) -> bool:
        """Return whether `count` steps have the same results again after an image was put back.

        If they do not, or if there is no current state, there will be no images.
        """
        if not self._current.alive:
            return True
        space = copy.deepcopy(self.env.action_space)
        space.seed(2)
        return self.cache.try_images(self._current, (space.sample() for _ in range(count)))

    def restore(self, log: bytes, trace_digest: bytes) -> None:
        """Restore the state that `log` leads to; the replay must give `trace_digest` again."""
        self._log_changes()
        if self._current.alive and self._current.reached == (log, trace_digest):
            return
        before = self._current.reached
        try:
            self._show(self.cache.restore(log, trace_digest))
        except BaseException:
            # The restore may have stepped the copy that was current.
            self._current = CachedCopy(self.env, before, alive=False)
            raise

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; without a seed, keep the random generator of the last episode."""
        self._log_changes()
        generator = spawner = None
        if seed is None:
            self._ensure_copy()
            own: Any = vars(innermost(self.env)).get("_np_random")
            if not isinstance(own, np.random.Generator):
                own = np.random.default_rng()
            generator = random_state.save_generator(own)
            spawner = random_state.spawner_of(own)
            if self.seeds_only:
                drawn = random_state.load_generator(generator, None)
                assert drawn is not None
                seed, generator, spawner = int(drawn.integers(2**31)), None, None
        carried = self.cache.carried.read(self.env, self._current.changed)
        current = self._current
        is_needed = current.is_saved or not current.alive or self._watched is not None
        start = Start(seed, generator, options, spawner, carried)
        cached, obs, info = self.cache.begin(start, None if is_needed else current)
        self._show(cached)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the current copy."""
        # Each attribute of a class with `__getattr__` takes long to read.
        own = self.__dict__
        if own["_watched"] is None and own["_current"].alive:
            return own["cache"].step(own["_current"], action)  # type: ignore[no-any-return]
        if self._watched is not None:
            self._log_changes()
        if not self._current.alive:
            self._ensure_copy()
        result: Any = self.cache.step(self._current, action)
        if self._watched is not None:
            self._watch()
        return result  # type: ignore[no-any-return]

    def render(self) -> Any:
        """Render the current copy."""
        self._log_changes()
        image = self.env.render()
        if self._watched is not None:
            self._watch()
        return image

    def reseed(self, seed: int) -> None:
        """Replace the random generators of the current copy with generators made from `seed`."""
        self._log_changes()
        self.cache.reseed(self._current, seed)
        if self._watched is not None:
            self._watch()

    def hand_out(self) -> None:
        """From now on, log changes of attributes that code outside the chain makes."""
        if self._watched is None:
            self._watch()

    def accept_changes(self) -> None:
        """Do not log the changes since the last call; the caller has made them."""
        if self._watched is not None:
            self._watch()

    def clear(self) -> None:
        """Drop the current state and its log, so that the next reset does not restore them."""
        self._release_current()
        self._show(CachedCopy(self.env, alive=False, changed=self._current.changed))

    def show_first(self) -> None:
        """Return to the first copy, which has never been reset.

        It gets the attributes that code outside has set in the current copy.
        """
        self._log_changes()
        here, there = links(self.env), links(self._first.env)
        for at, name in self._current.changed:
            vars(there[at])[name] = vars(here[at])[name]
        self._first.changed |= self._current.changed
        self._release_current()
        self._show(self._first)

    def forget(self) -> None:
        """Remove all copies from the cache, so that the next restore replays its whole log.

        The current copy is not closed yet.
        """
        self._log_changes()
        current = self._current
        self._release_current()
        self.cache.clear()
        self._current = CachedCopy(
            current.env, current.reached, alive=False, changed=current.changed
        )

    def close(self) -> None:
        """Close all copies."""
        self.cache.close()
        self._close_released()
        self._first.env.close()

    def _ensure_copy(self) -> None:
        """If the current copy has left the cache, restore another copy to the current state."""
        if not self._current.alive and self._current.log:
            self._show(self.cache.restore(self._current.log, self._current.trace_digest))

    def _release_current(self) -> None:
        """Take the current copy out of the cache; it is closed when another one is shown."""
        if self._current.alive:
            self._released = self._current.env
        self.cache.release(self._current)

    def _close_released(self) -> None:
        released, self._released = self._released, None
        if released is not None:
            close_copy(released)

    def _show(self, cached: CachedCopy) -> None:
        if cached is not self._current:
            self._current = cached
            self.env = cached.env
        if self._released is not None and self._released is not self.env:
            self._close_released()
        if self._watched is not None:
            self._watch()

    # Changes from outside

    def _watch(self) -> None:
        """Remember the attributes of the current copy, in which all changes are logged."""
        self._watched = [(vars(link), dict(vars(link))) for link in links(self.env)]
        self._generator = _generator_of(self.env)

    def _log_changes(self) -> None:
        """Log the attributes that code outside the chain has changed since the last call.

        Raises
        ------
        SnapshotError
            The new value of an attribute is not plain data. The copy with this value is discarded,
            so the next call continues without the change.
        """
        if self._watched is None:
            return
        changes = [
            Change(at, name, now[name])
            for at, (now, before) in enumerate(self._watched)
            for name in now
            if name not in _UNWATCHED and (name not in before or before[name] is not now[name])
        ]
        base = len(self._watched) - 1
        if (drawn := _generator_of(self.env)) != self._generator and all(
            change.name != "_np_random" for change in changes
        ):
            changes.append(Change(base, "_np_random", vars(innermost(self.env))["_np_random"]))
        for change in changes:
            self._log_change(change)
        self._generator = drawn
        if changes:
            self._watch()

    def _log_change(self, change: Change) -> None:
        link = links(self.env)[change.link]
        if is_handle(change.value) or _is_cached(link, change.name):
            return
        if change.name != "_np_random":
            self._current.changed.add(change[:2])
        if not self._current.log:
            return  # before the first reset, which takes the changed attributes over
        try:
            self.cache.log_change(self._current, change)
        except SnapshotError as error:
            self.cache.discard(self._current)
            self._current.changed.discard(change[:2])
            self._watched = []
            raise SnapshotError(
                f"{type(link).__name__}.{change.name} was set from outside to an object of class "
                f"{qualified_name(type(change.value))}, which the action log of a replayed "
                "environment cannot hold; set it in reset of a wrapper, or pass it to make"
            ) from error


def _is_cached(link: Any, name: str) -> bool:
    return isinstance(getattr(type(link), name, None), cached_property)


def _generator_of(env: gymnasium.Env[Any, Any]) -> bytes:
    own = vars(innermost(env)).get("_np_random")
    return random_state.save_generator(own) if isinstance(own, np.random.Generator) else b""
