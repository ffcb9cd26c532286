"""Gymnasium's Box2D environments: LunarLander, BipedalWalker and CarRacing.

The state is the list of actions since the reset (see `plangym_like.envs.replayed`). Box2D starts
each step from the impulses of its contacts and joints and gives no access to them, so a snapshot of
positions and velocities cannot be exact. Replaying the actions restores wind, particles, terrain
and tiles as well. Where the build of Box2D is known, images of the world's memory take the place of
most replays (see `plangym_like.envs.box2d_images`).

In Gymnasium, rendering changes the lander's sparks and the walker's lidar ray. Here, an image does
not depend on which images were rendered before. It is the image that Gymnasium returns if each
state of the episode is rendered once.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium

from plangym_like.envs.box2d_images import has_images, make_imager
from plangym_like.envs.family_env import FamilyEnv
from plangym_like.envs.replayed import ReplayCodec, ReplayedSimulator
from plangym_like.errors import MissingExtraError
from plangym_like.snapshots.chains import innermost
from plangym_like.support.lazy_imports import broken_import

logger = logging.getLogger("plangym_like")
# A trial of images takes so many steps twice.
_STEPS_TRIED = 2
# The default number of copies of CarRacing; a copy with its track takes 6 MB.
_CARS = 24
# The amount that Gymnasium subtracts from the time to live of a spark when the spark is drawn.
_AGEING = 0.15


class Box2DSimulator(ReplayedSimulator):
    """A simulator of LunarLander, BipedalWalker or CarRacing.

    The arguments are as in `ReplayedSimulator`.

    Raises
    ------
    MissingExtraError
        Box2D is not installed.
    """

    always_tried: ClassVar[bool] = False
    # A lander takes 0.1 MB, a walker 0.3 MB.
    copies: ClassVar[int] = 128
    snapshot_note = (
        "Box2D gives no access to the impulses of contacts and joints, so only replaying is exact"
    )

    def make_env(self) -> gymnasium.Env:
        """Return the environment without the user's wrappers."""
        if self._most is None and str(self.name).startswith("CarRacing"):
            self._most = _CARS
        try:
            env = super().make_env()
        except gymnasium.error.DependencyNotInstalled as error:
            if broken := broken_import(error):
                raise broken from None
            raise MissingExtraError(
                f"{self.name} needs Box2D: pip install 'plangym_like[box2d]'"
            ) from error
        _draw_the_state_alone(innermost(env))
        return env

    def _make_new(self, env: gymnasium.Env[Any, Any]) -> bool:
        """Make a used lander or walker like a new one, unless its wrappers keep a state."""
        if self.render_mode is not None or not self._proxy.cache.carried.is_empty:
            return False
        base: Any = innermost(env)
        cls: Any = type(base)
        kind = _kind(cls)
        if kind == "BipedalWalker":
            base._destroy()
            base.world = type(base.world)()
        return bool(kind)  # a lander makes a new world in each reset

    def imager_of(self, env: gymnasium.Env[Any, Any]) -> Callable[..., Any] | None:
        """Return what makes imagers, if Box2D's memory and all code of the chain are known."""
        return make_imager if has_images(env) else None

    def make_codec(self) -> ReplayCodec:
        """Return the codec, after a short trial of the images."""
        codec = super().make_codec()
        if not self._proxy.try_images(_STEPS_TRIED):
            logger.warning(
                "images of Box2D's memory give other results than its steps here, so states of %s "
                "are restored by replaying their actions, which is slower",
                self.name,
            )
        return codec


class Box2DEnv(FamilyEnv):
    """A `PlanEnv` of LunarLander, BipedalWalker or CarRacing: ``Box2DEnv("LunarLander-v3")``.

    Examples
    --------
    >>> env = Box2DEnv("LunarLander-v3")
    >>> state, obs, info = env.reset(seed=0)
    >>> env.step_batch([0, 1, 2, 3], state).obs.shape
    (4, 8)
    """

    simulator_class = Box2DSimulator


def _lander(cls: Any) -> type:
    """Return a subclass of `cls`, a lander, in which sparks age with steps, not with rendering."""

    class Lander(cls):  # type: ignore[misc]
        particles: list[Any]

        def step(self, action: Any) -> Any:
            # In Gymnasium, rendering the previous state ages and removes the sparks.
            for spark in self.particles:
                spark.ttl -= _AGEING
            self._clean_particles(False)
            return super().step(action)

        def render(self) -> Any:
            sparks: list[Any] = self.particles
            ages = [spark.ttl for spark in sparks]
            # Leave out the sparks that burn out in this image; Gymnasium would destroy them.
            left = next((i for i, age in enumerate(ages) if age - _AGEING >= 0), len(ages))
            self.particles = sparks[left:]
            try:
                return super().render()
            finally:
                self.particles = sparks
                for spark, age in zip(sparks, ages, strict=True):
                    spark.ttl = age

    return Lander


def _walker(cls: Any) -> type:
    """Return a subclass of `cls`, a walker, in which steps, not rendering, move the lidar ray."""

    class Walker(cls):  # type: ignore[misc]
        steps = 0

        def reset(self, **kwargs: Any) -> Any:
            result = super().reset(**kwargs)
            self.steps = 0
            return result

        def step(self, action: Any) -> Any:
            self.steps += 1
            return super().step(action)

        def render(self) -> Any:
            self.lidar_render = self.steps % 100
            return super().render()

    return Walker


def _draw_the_state_alone(base: Any) -> None:
    """Make the images of `base`, if it renders any, depend only on its state."""
    cls: Any = type(base)
    kind = _kind(cls)
    if base.render_mode is not None and kind:
        drawn = _lander(cls) if kind == "LunarLander" else _walker(cls)
        drawn.__name__, drawn.__qualname__ = cls.__name__, cls.__qualname__
        drawn.__module__ = cls.__module__
        base.__class__ = drawn


@functools.cache
def _kind(cls: Any) -> str:
    """Return the name of Gymnasium's lander or walker that `cls` derives from, or ``""``."""
    names = [each.__name__ for each in cls.__mro__]
    return next((name for name in names if name in ("LunarLander", "BipedalWalker")), "")
