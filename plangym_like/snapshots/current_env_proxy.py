"""`CurrentEnvProxy`: the base of a chain of wrappers; it forwards to one of several copies."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from plangym_like import random_state
from plangym_like.ownership import owned, owned_info
from plangym_like.snapshots.action_log import Start
from plangym_like.snapshots.open_libraries import libraries_left_open
from plangym_like.snapshots.replay_cache import CachedCopy, ReplayCache


class CurrentEnvProxy(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Forwards calls to the copy of the base environment that is in the current state.

    Parameters
    ----------
    env : gymnasium.Env
        The first copy of the base environment. It must not have been reset.

    Attributes
    ----------
    cache : ReplayCache
        The cache of all copies.
    seeds_only : bool
        Whether an episode can be repeated only from a seed, because the environment has random
        generators other than ``np_random``; an unseeded reset then draws a seed.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.cache: ReplayCache
        self.seeds_only = False
        self._current = CachedCopy(env)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "env" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]
        """The spec of the base, without the entry that `gymnasium.Wrapper` adds for a wrapper."""
        return self.env.spec

    @property
    def log(self) -> bytes:
        """The action log that led to the current state."""
        self.cache.log_draws(self._current)
        return self._current.log

    @property
    def trace_digest(self) -> bytes:
        """The digest of all observations, rewards and flags on the way to the current state."""
        return self._current.trace_digest

    def restore(self, log: bytes, trace_digest: bytes) -> None:
        """Restore the state that `log` leads to; the replay must give `trace_digest` again."""
        same = self.log == log and self.trace_digest == trace_digest
        if same and self._current.alive:
            return
        before, seen = self._current.log, self._current.trace_digest
        try:
            self._show(self.cache.restore(log, trace_digest))
        except BaseException:
            # The restore may have stepped the copy that was current.
            self._current = CachedCopy(self.env, before, seen, alive=False)
            raise

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; without a seed, keep the random generator of the last episode."""
        self.cache.log_draws(self._current)
        generator = spawner = None
        if seed is None:
            self._ensure_copy()
            own: Any = vars(self.env).get("_np_random")
            if not isinstance(own, np.random.Generator):
                own = np.random.default_rng()
            generator = random_state.save_generator(own)
            spawner = random_state.spawner_of(own)
            if self.seeds_only:
                drawn = random_state.load_generator(generator, None)
                assert drawn is not None
                seed, generator, spawner = int(drawn.integers(2**31)), None, None
        cached, obs, info = self.cache.begin(Start(seed, generator, options, spawner))
        self._show(cached)
        return owned(obs), owned_info(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the current copy."""
        self.cache.log_draws(self._current)
        self._ensure_copy()
        obs, reward, terminated, truncated, info = self.cache.step(self._current, action)
        return owned(obs), reward, terminated, truncated, owned_info(info)

    def reseed(self, seed: int) -> None:
        """Replace the random generator of the current copy with a generator made from `seed`."""
        self.cache.log_draws(self._current)
        self.cache.reseed(self._current, seed)

    def release_copy(self) -> None:
        """Remove the current copy from the cache, but keep its log.

        Call this after removing the copy's random generator.
        """
        self.cache.release(self._current)

    def clear(self) -> None:
        """Drop the current state and its log, so that the next reset does not restore them."""
        self.cache.release(self._current)
        self._current = CachedCopy(self.env, alive=False)

    def forget(self) -> None:
        """Remove all copies from the cache, so that the next restore replays its whole log.

        The current copy is not closed. If a process can hold only one copy, nothing is done.
        """
        if self.cache.single:
            return
        log, trace_digest, env = self.log, self.trace_digest, self.env
        self.cache.release(self._current)
        with libraries_left_open():
            self.cache.close()
        self._current = CachedCopy(env, log, trace_digest, alive=False)

    def close(self) -> None:
        """Close all copies in the cache."""
        self.cache.close()

    def _ensure_copy(self) -> None:
        """If the current copy has left the cache, restore another copy to the current state."""
        if not self._current.alive and self._current.log:
            self._show(self.cache.restore(self._current.log, self._current.trace_digest))

    def _show(self, cached: CachedCopy) -> None:
        self._current = cached
        self.env = cached.env
