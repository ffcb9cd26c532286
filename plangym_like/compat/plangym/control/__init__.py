"""Environments for control tasks."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.compat.plangym import core
from plangym_like.compat.plangym.core import PlangymEnv
from plangym_like.support.lazy_imports import lazy_names

core.import_also_as(__name__, "box_2d", "classic_control", "dm_control", "mujoco")
__getattr__, __dir__ = lazy_names(__name__, {"LunarLander": "lunar_lander"})


class ClassicControl(PlangymEnv):
    """CartPole, MountainCar, MountainCarContinuous, Pendulum or Acrobot.

    Examples
    --------
    >>> env = ClassicControl("CartPole-v1")
    >>> state, obs, info = env.reset()
    >>> state, obs, reward, terminal, truncated, info = env.step(1, state, dt=2)
    >>> reward
    2.0
    """

    core_class = "classic.env:ClassicControlEnv"


class Box2DEnv(PlangymEnv):
    """LunarLander, BipedalWalker or CarRacing.

    Examples
    --------
    >>> env = Box2DEnv("LunarLander-v3")
    >>> state, obs, info = env.reset()
    >>> obs.shape
    (8,)
    """

    core_class = "box2d:Box2DEnv"


class MujocoEnv(PlangymEnv):
    """A MuJoCo robot; its time limit is always removed.

    Examples
    --------
    >>> env = MujocoEnv("InvertedPendulum-v5", frameskip=2)
    >>> state, obs, info = env.reset()
    >>> state, obs, reward, terminal, truncated, info = env.step([0.0], state)
    >>> info["n_step"]
    2
    """

    core_class = "mujoco.env:MujocoEnv"
    AVAILABLE_RENDER_MODES = {"human", "rgb_array"}  # noqa: RUF012

    def __init__(
        self,
        name: str = "Ant-v4",
        frameskip: int = 1,
        *,
        remove_time_limit: bool = True,
        **kwargs: Any,
    ) -> None:
        del remove_time_limit
        super().__init__(name, frameskip, **kwargs)


class DMControlEnv(PlangymEnv):
    """A task of the DeepMind Control Suite; by default, its observation is one flat vector.

    Reaching the task's time limit counts as a termination, not as a truncation.

    Parameters
    ----------
    name : str, optional
        ``"domain-task"``, or only the domain if `task_name` is given.
    frameskip, episodic_life, autoreset, wrappers, delay_setup, obs_type, return_image
        As in `PlangymEnv`.
    visualize_reward : bool
        Whether the colours of images show the reward.
    domain_name, task_name : str, optional
        The two parts of the name.
    render_mode : {"rgb_array", "human", None}
        Has no effect on `render`, whose argument is the mode.
    remove_time_limit : bool, optional
        Has no effect.

    Attributes
    ----------
    viewer : list of array
        The images that ``render(mode="human")`` has kept for `show_game`.
    """

    def __init__(
        self,
        name: str | None = "cartpole-balance",
        frameskip: int = 1,
        *,
        visualize_reward: bool = True,
        domain_name: str | None = None,
        task_name: str | None = None,
        remove_time_limit: bool | None = None,
        **kwargs: Any,
    ) -> None:
        del remove_time_limit
        first, _, last = (name or "").partition("-")
        self._domain_name, self._task_name = domain_name or first, task_name or last
        if not (self._domain_name and self._task_name):
            raise ValueError(
                "a task is domain_name= and task_name=, or a name such as 'walker-run', got "
                f"name={name!r}, domain_name={domain_name!r}, task_name={task_name!r}"
            )
        self._visualize_reward = visualize_reward
        self.viewer: list[NDArray[np.uint8]] = []
        name = f"{self._domain_name}-{self._task_name}"
        super().__init__(name, frameskip, remove_time_limit=False, **kwargs)

    @property
    def domain_name(self) -> str:
        """The name of the domain."""
        return self._domain_name

    @property
    def task_name(self) -> str:
        """The name of the task."""
        return self._task_name

    @property
    def physics(self) -> Any:
        """dm_control's ``physics`` object, in the current state."""
        return self.gym_env.unwrapped.physics

    def action_spec(self) -> Any:
        """Return dm_control's specification of the actions."""
        return self.gym_env.unwrapped.suite_env.action_spec()

    def _core_kwargs(self) -> dict[str, Any]:
        return {**super()._core_kwargs(), "visualize_reward": self._visualize_reward}

    def _ended(
        self, obs: Any, reward: Any, terminal: Any, truncated: Any, info: Any
    ) -> tuple[Any, Any, Any, Any, Any]:
        # In plangym, reaching dm_control's time limit counts as a termination.
        return obs, reward, terminal or truncated, False, info

    def get_image(self) -> NDArray[np.uint8]:
        """Return the image of the first camera, ``(240, 320, 3)``."""
        return self._live.get_image()

    def render(self, mode: str | None = None) -> Any:
        """Return an image if `mode` is ``"rgb_array"``; if ``"human"``, keep it for `show_game`."""
        image = self.get_image()
        if mode == "rgb_array":
            return image
        if mode == "human":
            self.viewer.append(image)
        return True

    def show_game(self, sleep: float = 0.05) -> None:
        """Show the images that `render` has kept, `sleep` seconds each."""
        for image in self.viewer:
            core.show_image(image, self.name)
            time.sleep(sleep)

    def _show(self) -> None:
        """Do nothing: `show_game` shows what `render` has kept."""
