"""Gymnasium's MuJoCo robots."""

from __future__ import annotations

from typing import Any

from plangym_like.compat.plangym.plangym_env import PlangymEnv
from plangym_like.envs.mujoco import env


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

    core_class = env.MujocoEnv
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
