"""A LunarLander that makes no sparks and can be deterministic."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Self

import gymnasium
import numpy as np
from gymnasium.envs.box2d import lunar_lander

from plangym_like.compat.plangym.core import PlangymEnv, is_ours
from plangym_like.envs.wrapping import WrapperLike


class _Midpoints:
    """A substitute for a random generator; it always returns the middle of the interval."""

    def uniform(self, low: float, high: float, size: Any = None) -> Any:
        middle = (low + high) / 2
        return middle if size is None else np.full(size, middle)


class _NoSpark:
    def ApplyLinearImpulse(self, *_: Any) -> None:
        pass


class FastGymLunarLander(lunar_lander.LunarLander):
    """Gymnasium's LunarLander without engine sparks, which are only visible in images.

    Parameters
    ----------
    deterministic : bool
        If true, nothing is random: the ground is flat, the lander gets no push at the beginning,
        and the engines' thrust is not randomly dispersed.
    continuous : bool
        Whether actions are numbers that set the power of the two engines.
    render_mode : str, optional
    """

    FPS = lunar_lander.FPS

    def __init__(
        self,
        deterministic: bool = False,
        continuous: bool = False,
        render_mode: str | None = "rgb_array",
    ) -> None:
        self.deterministic = deterministic
        super().__init__(render_mode=render_mode, continuous=continuous)

    def _create_particle(self, *_: Any) -> Any:
        return _NoSpark()

    @property
    def np_random(self) -> Any:
        """The random generator."""
        return _Midpoints() if self.deterministic else super().np_random

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        self._np_random = value


class LunarLander(PlangymEnv):
    """A LunarLander that makes no sparks.

    Parameters
    ----------
    name, remove_time_limit
        Have no effect.
    deterministic, continuous : bool
        As in `FastGymLunarLander`.
    frameskip, episodic_life, autoreset, wrappers, delay_setup, render_mode, kwargs
        As in `PlangymEnv`.

    Examples
    --------
    >>> env = LunarLander(deterministic=True, render_mode=None)
    >>> state, obs, info = env.reset()
    >>> env.deterministic, obs.shape
    (True, (8,))
    """

    core_class = "box2d:Box2DEnv"

    def __init__(
        self,
        name: str | None = None,
        frameskip: int = 1,
        episodic_life: bool = True,
        autoreset: bool = True,
        wrappers: Iterable[WrapperLike] | None = None,
        delay_setup: bool = False,
        deterministic: bool = False,
        continuous: bool = False,
        render_mode: str | None = "rgb_array",
        remove_time_limit: bool | None = None,
        **kwargs: Any,
    ) -> None:
        del name, remove_time_limit
        self._deterministic, self._continuous = deterministic, continuous
        super().__init__(
            "LunarLander-plangym",
            frameskip,
            autoreset,
            wrappers,
            delay_setup,
            render_mode=render_mode,
            episodic_life=episodic_life,
            **kwargs,
        )

    @property
    def deterministic(self) -> bool:
        """Whether the environment has no randomness."""
        return self._deterministic

    @property
    def continuous(self) -> bool:
        """Whether actions are numbers that set the power of the two engines."""
        return self._continuous

    def init_gym_env(self) -> gymnasium.Env[Any, Any]:
        """Make a lander and return it."""
        return FastGymLunarLander(self.deterministic, self.continuous, None)

    def _source(self) -> Any:
        if not is_ours(type(self), "init_gym_env"):
            return self.init_gym_env
        return partial(FastGymLunarLander, self.deterministic, self.continuous)

    def _core_kwargs(self) -> dict[str, Any]:
        return {"obs_type": self.obs_type}

    def clone(self, **kwargs: Any) -> Self:
        """Return another lander made with the same arguments, updated with `kwargs`."""
        given = {"deterministic": self.deterministic, "continuous": self.continuous}
        return super().clone(**{**given, **kwargs})
