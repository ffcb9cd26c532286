"""plangym's module of base classes."""

from plangym_like.compat.plangym.plan_env import PlanEnv
from plangym_like.compat.plangym.plangym_env import PlangymEnv
from plangym_like.envs.wrapping import WrapperLike as wrap_callable

__all__ = ["PlanEnv", "PlangymEnv", "wrap_callable"]
