"""`VideogameEnv`: the base class of games."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from plangym_like.compat.plangym.plangym_env import PlangymEnv

LIFE_KEY = "lifes"


class VideogameEnv(PlangymEnv):
    """A game that runs in an emulator.

    Infos have ``"lifes"``, the number of lives (-1 if it is not known), and ``"lost_life"``, which
    is true if a life was lost in this step.
    """

    AVAILABLE_OBS_TYPES = {"rgb", "grayscale", "ram"}  # noqa: RUF012
    DEFAULT_OBS_TYPE = "rgb"

    def __init__(
        self, name: str, frameskip: int = 5, *, obs_type: str | None = "rgb", **kwargs: Any
    ) -> None:
        super().__init__(name, frameskip, obs_type=obs_type, **kwargs)

    @property
    def n_actions(self) -> int:
        """The number of actions."""
        space: Any = self.action_space
        return int(space.n)

    def clone(self, **kwargs: Any) -> Self:
        """Return another environment made with the same arguments, updated with `kwargs`."""
        given = {"obs_type": self.obs_type, "episodic_life": self.episodic_life}
        return super().clone(**{**given, **kwargs})

    def get_image(self) -> NDArray[np.uint8]:
        """Return the screen, ``(height, width, 3)``."""
        return self._live.get_image()

    @staticmethod
    def get_lifes_from_info(info: dict[str, Any]) -> int:
        """Return the number of lives in an info, or -1 if the info does not contain it."""
        return int(info.get("lives", info.get("life", -1)))

    def step_with_dt(self, action: Any, dt: Any = 1) -> tuple[Any, Any, Any, Any, Any]:
        """Apply `action` for ``dt * frameskip`` frames; return no state and do not reset."""
        before = self._lives_now()
        data = super().step_with_dt(action, dt)
        self._note_lives(data[-1], before)
        return data

    def _complete_infos(self, infos: list[dict[str, Any]], states: Any) -> None:
        for info, before in zip(infos, self._lives_of(states) if infos else (), strict=True):
            self._note_lives(info, before)

    def _note_lives(self, info: dict[str, Any], before: int) -> None:
        info[LIFE_KEY] = self.get_lifes_from_info(info)
        info.setdefault("lost_life", info[LIFE_KEY] < before)

    def _lives_now(self) -> int:
        """Return the number of lives in the current state, or -1 if it is not known."""
        return -1

    def _lives_of(self, states: Any) -> list[int]:
        """Return the number of lives in each of `states`, or -1 where it is not known."""
        return [-1] * len(states)

    def get_ram(self) -> NDArray[np.uint8]:
        """Return the memory of the console in the current state."""
        ram: NDArray[np.uint8] = self._live.get_ram()
        return ram
