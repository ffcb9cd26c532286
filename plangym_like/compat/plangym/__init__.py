"""plangym's interface: ``import plangym_like.compat.plangym as plangym``.

Class names, module paths, defaults and lists of environment names are the same as in plangym
0.1.32. States, batches and processes work as in `plangym_like`.
"""

from plangym_like.compat.plangym.core import PlanEnv, PlangymEnv
from plangym_like.compat.plangym.registry import make

# The version of plangym whose interface this is.
__version__ = "0.1.32"

__all__ = ["PlanEnv", "PlangymEnv", "make"]
