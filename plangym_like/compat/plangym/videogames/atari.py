"""Atari games."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any, Self

import gymnasium
import numpy as np
from numpy.typing import NDArray

from plangym_like.compat.plangym.videogames.env import VideogameEnv
from plangym_like.errors import InputError

# As with plangym, importing this module registers the ids of games.
with contextlib.suppress(ImportError):
    gymnasium.register_envs(importlib.import_module("ale_py"))


def ale_to_ram(ale: Any) -> NDArray[np.uint8]:
    """Return the memory of the console that `ale` emulates, ``(128,) uint8``."""
    return np.array(ale.getRAM(), np.uint8)


class AtariEnv(VideogameEnv):
    """A game of the Arcade Learning Environment.

    Parameters
    ----------
    name : str
        The id of the game.
    frameskip : int
        Frames of the emulator for each unit of ``dt``.
    obs_type : {"rgb", "grayscale", "ram"}
        The screen, or the console's memory.
    mode, difficulty : int
        The mode and difficulty of the game; 0 means the default of the game.
    repeat_action_probability : float
        The probability that a frame repeats the previous action.
    full_action_space : bool
        Whether the action space has all 18 actions, or only those that the game uses.
    possible_to_win, clone_seeds : bool
        Have no effect, because states are always complete.
    array_state : bool
        Must be true, because states are always rows.
    episodic_life, autoreset, wrappers, delay_setup, remove_time_limit, render_mode, return_image
        As in `PlangymEnv`.

    Examples
    --------
    >>> env = AtariEnv("ALE/Pong-v5", obs_type="ram")
    >>> state, obs, info = env.reset()
    >>> states, obs, *rest = env.step_batch([0, 2], [state, state], dt=2)
    >>> obs[0].shape
    (128,)
    >>> env.close()
    """

    AVAILABLE_RENDER_MODES = {"human", "rgb_array"}  # noqa: RUF012

    def __init__(
        self,
        name: str,
        frameskip: int = 5,
        *,
        obs_type: str = "rgb",
        mode: int = 0,
        difficulty: int = 0,
        repeat_action_probability: float = 0.0,
        full_action_space: bool = False,
        possible_to_win: bool = False,
        array_state: bool = True,
        clone_seeds: bool = False,
        **kwargs: Any,
    ) -> None:
        if not array_state:
            raise InputError("array_state=False is impossible: a state is always an array")
        self.clone_seeds = clone_seeds
        self._game = {
            "mode": mode,
            "difficulty": difficulty,
            "repeat_action_probability": repeat_action_probability,
            "full_action_space": full_action_space,
        }
        self.DEFAULT_OBS_TYPE = obs_type
        super().__init__(name, frameskip, obs_type=obs_type, **kwargs)

    @property
    def ale(self) -> Any:
        """The emulator, in the current state."""
        return self.gym_env.unwrapped.ale

    @property
    def mode(self) -> int:
        """The mode of the game."""
        return int(self._game["mode"])

    @property
    def difficulty(self) -> int:
        """The difficulty of the game."""
        return int(self._game["difficulty"])

    @property
    def repeat_action_probability(self) -> float:
        """The probability that a frame repeats the previous action."""
        return self._game["repeat_action_probability"]

    @property
    def full_action_space(self) -> bool:
        """Whether the action space has all 18 actions."""
        return bool(self._game["full_action_space"])

    def _core_kwargs(self) -> dict[str, Any]:
        # Some games, such as Galaxian, have no mode 0.
        game = {key: self._game[key] for key in self._game if self._game[key] or "_" in key}
        return {**super()._core_kwargs(), **game, "episodic_life": self.episodic_life}

    def clone(self, **kwargs: Any) -> Self:
        """Return another environment made with the same arguments, updated with `kwargs`."""
        return super().clone(**{**self._game, **kwargs})

    def _lives_now(self) -> int:
        return int(self.gym_env.unwrapped.lives())

    def _lives_of(self, states: Any) -> list[int]:
        lives: list[int] = self._live.view_state(np.asarray(states))["lives"].tolist()
        return lives
