"""Games of stable-retro."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from plangym_like.compat.plangym.videogames.env import VideogameEnv
from plangym_like.env import PlanEnv
from plangym_like.envs.wrapping import WrapperLike

BUTTONS = ("B", "A", "MODE", "START", "UP", "DOWN", "LEFT", "RIGHT", "C", "Y", "X", "Z")
# The actions for Sonic, as the buttons that are pressed
_ACTIONS = (
    ("LEFT",),
    ("RIGHT",),
    ("LEFT", "DOWN"),
    ("RIGHT", "DOWN"),
    ("DOWN",),
    ("DOWN", "B"),
    ("B",),
)


class ActionDiscretizer(gymnasium.ActionWrapper[Any, Any, Any]):
    """Maps a few numbered actions to the twelve buttons of a Genesis.

    Parameters
    ----------
    env : gymnasium.Env
    actions : sequence of sequences of str, optional
        The buttons that each action presses; by default, the actions for Sonic.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], actions: Sequence[Sequence[str]] | None = None
    ) -> None:
        super().__init__(env)
        chosen = _ACTIONS if actions is None else actions
        self._actions = np.array([[button in each for button in BUTTONS] for each in chosen])
        self.action_space = spaces.Discrete(len(self._actions))

    def action(self, a: Any) -> NDArray[np.bool_]:
        """Return the buttons of action `a`, ``(12,) bool``."""
        buttons: NDArray[np.bool_] = self._actions[a].copy()
        return buttons


class EpisodicLife(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Ends an episode when a life is lost."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._lives = -1

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        obs, info = self.env.reset(**kwargs)
        self._lives = VideogameEnv.get_lifes_from_info(info)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step once; end the episode if a life was lost, and set ``info["lost_life"]``."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        before, self._lives = self._lives, VideogameEnv.get_lifes_from_info(info)
        info["lost_life"] = self._lives < before
        return obs, reward, bool(terminated) or self._lives < before, truncated, info


class RetroEnv(VideogameEnv):
    """A game of stable-retro. Its ROM must have been imported.

    Parameters
    ----------
    name : str
        The game.
    frameskip : int
        Frames of the emulator for each unit of ``dt``.
    obs_type : {"rgb", "grayscale", "ram", "coords"}
        ``"ram"`` is the console's memory; the other values mean the screen.
    episodic_life, autoreset, wrappers, delay_setup, remove_time_limit, render_mode, return_image
        As in `PlangymEnv`.
    kwargs
        Arguments of stable-retro, such as ``state``.
    """

    AVAILABLE_OBS_TYPES = {"coords", "rgb", "grayscale", "ram"}  # noqa: RUF012
    SINGLETON = True

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the game."""
        if name.startswith("_"):
            raise AttributeError(name)
        return self.gym_env.get_wrapper_attr(name)

    @property
    def em(self) -> Any:
        """The emulator, in the current state."""
        return self.gym_env.unwrapped.em

    def _make_core(self, wrappers: Iterable[WrapperLike]) -> PlanEnv:
        outside = [EpisodicLife] if self.episodic_life else []
        return super()._make_core([*wrappers, *outside])
