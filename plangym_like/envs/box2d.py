"""Gymnasium's Box2D environments: LunarLander, BipedalWalker and CarRacing.

What is the state: what happened since the reset (see `plangym_like.envs.replayed`). Box2D keeps
the impulses of its contacts and joints to itself and starts the next step from them, so bodies
that are put back where they were do not go on as before: no snapshot of positions and velocities
is exact. Wind, particles, terrain and tiles come back with the rest.
"""

from __future__ import annotations

from typing import ClassVar

import gymnasium

from plangym_like.envs.replayed import ReplayedSimulator
from plangym_like.errors import MissingExtraError
from plangym_like.plan_env import PlanEnv

# A race with its track takes 6 MB.
_CARS = 24


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
            return super().make_env()
        except gymnasium.error.DependencyNotInstalled as error:
            raise MissingExtraError(
                f"{self.name} needs Box2D: pip install 'plangym_like[box2d]'"
            ) from error


class Box2DEnv(PlanEnv):
    """Plan over LunarLander, BipedalWalker or CarRacing: ``Box2DEnv("LunarLander-v3")``."""

    simulator_class = Box2DSimulator
