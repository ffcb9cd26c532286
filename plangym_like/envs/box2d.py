"""Gymnasium's Box2D environments: LunarLander, BipedalWalker and CarRacing.

What is the state: what happened since the reset (see `plangym_like.envs.replayed`). Box2D keeps
the impulses of its contacts and joints to itself and starts the next step from them, so bodies
that are put back where they were do not go on as before: no snapshot of positions and velocities
is exact. Wind, particles, terrain and tiles come back with the rest.

Gymnasium ages what it draws when it draws it: the lander's sparks and the walker's ray of light.
Here a picture is what Gymnasium shows where every state of an episode is drawn once, whichever
states were drawn before.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium

from plangym_like.envs.replayed import ReplayedSimulator
from plangym_like.errors import MissingExtraError
from plangym_like.plan_env import PlanEnv

# A race with its track takes 6 MB.
_CARS = 24
# By so much Gymnasium ages a spark when it draws it.
_AGEING = 0.15


class Box2DSimulator(ReplayedSimulator):
    """LunarLander, BipedalWalker or CarRacing; the arguments are `ReplayedSimulator`'s.

    Raises
    ------
    MissingExtraError
        Box2D is not installed.
    """

    tried: ClassVar[bool] = False
    # 0.1 MB each for the lander, 0.3 MB for the walker.
    copies: ClassVar[int] = 128
    snapshot_note = (
        "Box2D cannot be given its contacts' and joints' impulses back, so only playing an episode "
        "again is exact"
    )

    def make_env(self) -> gymnasium.Env:
        """Return the chain with a stage for its base."""
        if self._most is None and str(self.name).startswith("CarRacing"):
            self._most = _CARS
        try:
            env = super().make_env()
        except gymnasium.error.DependencyNotInstalled as error:
            raise MissingExtraError(
                f"{self.name} needs Box2D: pip install 'plangym_like[box2d]'"
            ) from error
        _draw_the_state_alone(env.unwrapped)
        return env

    def _copy(self) -> gymnasium.Env:
        base = super()._copy()
        _draw_the_state_alone(base)
        return base


class Box2DEnv(PlanEnv):
    """Plan over LunarLander, BipedalWalker or CarRacing: ``Box2DEnv("LunarLander-v3")``."""

    simulator_class = Box2DSimulator


def _lander(cls: Any) -> type:
    """Return a lander whose sparks grow older by steps."""

    class Lander(cls):  # type: ignore[misc]
        particles: list[Any]

        def step(self, action: Any) -> Any:
            # Drawing the state before would have done this.
            if self.render_mode is not None:
                for spark in self.particles:
                    spark.ttl -= _AGEING
                self._clean_particles(False)
            return super().step(action)

        def render(self) -> Any:
            sparks: list[Any] = self.particles
            ages = [spark.ttl for spark in sparks]
            # Gymnasium removes sparks that burn out while they are drawn.
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
    """Return a walker whose ray of light moves on by steps."""

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
    """Make the pictures of `base` a function of its state."""
    cls = type(base)
    names = {each.__name__ for each in cls.__mro__}
    for name, make in (("LunarLander", _lander), ("BipedalWalker", _walker)):
        if name in names:
            drawn = make(cls)
            drawn.__name__, drawn.__qualname__ = cls.__name__, cls.__qualname__
            drawn.__module__ = cls.__module__
            base.__class__ = drawn
