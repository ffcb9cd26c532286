"""The base of a chain of wrappers where there are several copies of it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from plangym_like import random_state
from plangym_like.ownership import owned, owned_info
from plangym_like.snapshots.history import Start
from plangym_like.snapshots.live_prefixes import LivePrefix, LivePrefixes


class Stage(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Shows the wrappers around it whichever copy of the base stands in the current state.

    Parameters
    ----------
    env : gymnasium.Env
        A copy that has never been reset.

    Attributes
    ----------
    prefixes : LivePrefixes
        All copies.
    seeds_only : bool
        Whether an episode can only be begun again by a seed, because the environment has
        generators beside ``np_random``; an unseeded reset then draws one.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.prefixes: LivePrefixes
        self.seeds_only = False
        self._live = LivePrefix(env)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "env" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def history(self) -> bytes:
        """What has happened up to the current state."""
        self.prefixes.settle(self._live)
        return self._live.history

    @property
    def witness(self) -> bytes:
        """The digest of what could be seen on the way."""
        return self._live.witness

    def stand_at(self, history: bytes, witness: bytes) -> None:
        """Make the state that `history` led to the current one."""
        if self.history == history and self._live.alive:
            return
        before, seen = self._live.history, self._live.witness
        try:
            self._show(self.prefixes.at(history, witness))
        except BaseException:
            # The copy that was current may have been played on.
            self._live = LivePrefix(self.env, before, seen, alive=False)
            raise

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; without a seed it goes on with the generator of the last one."""
        self.prefixes.settle(self._live)
        generator = None
        if seed is None:
            self._come_back()
            own: Any = vars(self.env).get("_np_random")
            if not isinstance(own, np.random.Generator):
                own = np.random.default_rng()
            generator = random_state.save_generator(own)
            if self.seeds_only:
                drawn = random_state.load_generator(generator, None)
                assert drawn is not None
                seed, generator = int(drawn.integers(2**31)), None
        live, obs, info = self.prefixes.begin(Start(seed, generator, options))
        self._show(live)
        return owned(obs), owned_info(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the current copy."""
        self.prefixes.settle(self._live)
        self._come_back()
        obs, reward, terminated, truncated, info = self.prefixes.step(self._live, action)
        return owned(obs), reward, terminated, truncated, owned_info(info)

    def reseed(self, seed: int) -> None:
        """Replace the generator of the current copy by one made of `seed`."""
        self.prefixes.settle(self._live)
        self.prefixes.reseed(self._live, seed)

    def leave_copy(self) -> None:
        """Keep the current state without its copy, whose generator has been taken away."""
        self.prefixes.release(self._live)

    def let_go(self) -> None:
        """Have no current state until the next reset, which makes a new generator."""
        self.prefixes.release(self._live)
        self._live = LivePrefix(self.env, alive=False)

    def forget(self) -> None:
        """Have the next state begun from its reset."""
        if self.prefixes.alone:
            return
        history, witness, env = self.history, self.witness, self.env
        self.prefixes.release(self._live)
        self.prefixes.close()
        self._live = LivePrefix(env, history, witness, alive=False)

    def close(self) -> None:
        """Close all copies."""
        self.prefixes.close()

    def _come_back(self) -> None:
        """Make a copy in the current state, if there is none."""
        if not self._live.alive and self._live.history:
            self._show(self.prefixes.at(self._live.history, self._live.witness))

    def _show(self, live: LivePrefix) -> None:
        self._live = live
        self.env = live.env
