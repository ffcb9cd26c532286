"""Environments for video games."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Sequence
from typing import Any, Self

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from plangym_like.compat.plangym.core import PlangymEnv, import_also_as
from plangym_like.env import PlanEnv
from plangym_like.envs.wrapping import WrapperLike
from plangym_like.errors import InputError
from plangym_like.support.lazy_imports import lazy_names

import_also_as(__name__, "atari", "env", "retro")
__getattr__, __dir__ = lazy_names(__name__, {"MontezumaEnv": "montezuma"})
# As with plangym, importing this module registers the ids of games.
with contextlib.suppress(ImportError):
    gymnasium.register_envs(importlib.import_module("ale_py"))

LIFE_KEY = "lifes"
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
