"""plangym's interface: ``import plangym_like.compat.plangym as plangym``.

Class names, module paths, defaults and lists are those of plangym 0.1.32; states, batches and
processes are those of `plangym_like`.
"""

from plangym_like.compat.plangym.core import PlanEnv, PlangymEnv
from plangym_like.compat.plangym.registry import make

# The version of plangym whose interface this is.
__version__ = "0.1.32"

__all__ = ["PlanEnv", "PlangymEnv", "make"]
