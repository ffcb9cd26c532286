"""plangym's interface: ``import plangym_like.compat.plangym as plangym``.

Class names, module paths and defaults are the same as in plangym 0.1.32, and batches are returned
as lists where plangym returns lists. States and processes work as in `plangym_like`.
"""

from plangym_like.compat.plangym.core import PlanEnv, PlangymEnv
from plangym_like.compat.plangym.registry import make

# The version of plangym whose interface this is.
__version__ = "0.1.32"

__all__ = ["PlanEnv", "PlangymEnv", "make"]
