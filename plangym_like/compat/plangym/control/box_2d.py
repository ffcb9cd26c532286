"""Gymnasium's Box2D environments."""

from plangym_like.compat.plangym.plangym_env import PlangymEnv
from plangym_like.envs import box2d


class Box2DEnv(PlangymEnv):
    """LunarLander, BipedalWalker or CarRacing.

    Examples
    --------
    >>> env = Box2DEnv("LunarLander-v3")
    >>> state, obs, info = env.reset()
    >>> obs.shape
    (8,)
    """

    core_class = box2d.Box2DEnv
